"""Which of several processes was late, from what was seen of each."""

from d2lpar import Watched
from d2lpar._jax.stack import Place
from d2lpar._processes.lateness import compared
from d2lpar._watch.report import Finding

LOADS = Place("train.py", 9, "batch = next(batches)")


def report(waits, **lost):
    """A process that waits for others for so many of a hundred seconds."""
    watched = Watched(seconds=110.0, start_seconds=10.0, collective_seconds=waits)
    for name, seconds in lost.items():
        place = LOADS if name == "loads" else Place("train.py", 20, name)
        watched.findings.append(
            Finding("device idle", place, name, "MainThread", seconds, 5, seconds, seconds - 1)
        )
    return watched


def verdict(*reports):
    return compared(dict(enumerate(reports))).split("\n\n--- ")[0].splitlines()


def test_who_waits_least_is_late_at_the_line_that_loses_more_than_the_others_lose_there():
    said = verdict(report(62, loads=5), report(2, loads=66, logs=8), report(60, loads=6))
    assert said == [
        "Process 1 was late: the others waited for it, for up to 60% of the time.",
        "Share of the time in collective operations, such as an all-reduce: process 0 62%, "
        "process 1 2%, process 2 60%.",
        "At train.py:9  batch = next(batches)  its device was idle for 66% of the time, "
        "the others' for 6%.",
        "At train.py:20  logs  its device was idle for 8% of the time, the others' for 0%.",
    ]


def test_who_computes_longer_is_late_without_a_line():
    first, _, last = verdict(report(3), report(50))
    assert first == "Process 0 was late: process 1 waited for it for 47% of the time."
    assert last.startswith("No line of it explains that: its device probably has more to do")
    *_, last = verdict(report(3, loads=5), report(50))
    assert last.startswith("These lines do not explain most of it: its device probably")


def test_where_all_wait_alike_nobody_is_late():
    (line,) = verdict(report(30), report(33))
    assert line.startswith("No process was late more than the others.")


def test_what_cannot_be_told_is_said():
    assert "nothing was seen" in verdict(report(0), report(0))[0]
    assert "the report of one process" in verdict(report(30))[0]


def test_the_report_of_each_process_follows():
    said = compared({3: report(1), 0: report(50)}).split("--- ")
    assert said[1].startswith("Process 0\nWatched for 110 s")
    assert said[2].startswith("Process 3\n")


# --- Which process this is ------------------------------------------------------------------------
