"""Which of several processes was late, by the reports of all."""

from d2lpar import Watched
from d2lpar._jax.stack import Place
from d2lpar._processes.lateness import compared
from d2lpar._watch.report import Finding


def report(waits, **lost):
    """Report a process that waits for others, and loses time at lines, in percent of the time."""
    watched = Watched(seconds=110.0, start_seconds=10.0, collective_seconds=waits)
    for line, (code, seconds) in enumerate(lost.items(), 9):
        place = Place("train.py", line, code)
        finding = Finding("device idle", place, code, "main", seconds, 5, seconds, seconds - 1)
        watched.findings.append(finding)
    return watched


def verdict(*reports):
    return compared(dict(enumerate(reports))).split("\n\n")[0]


def test_the_process_that_waits_least_is_late_at_the_lines_where_others_lose_less():
    late = report(2, loads=66, logs=8, evaluates=7)
    punctual = report(60, loads=6, logs=1, evaluates=7)
    other = report(62, loads=5, logs=1, evaluates=7)
    assert compared({2: punctual, 0: other, 1: late}).splitlines()[:12] == [
        "Process 1 was late: the others waited for it, for up to 60% of the time.",
        "Its device was idle at:",
        "    train.py:9  loads",
        "    train.py:10  logs",
        "",
        "Share of the time  in collective operations  device idle at its lines",
        "process 0                               62%                       13%",
        "process 1                                2%                       81%",
        "process 2                               60%                       14%",
        "",
        "--- Process 0",
        "Watched for 110 s, including a start of 10 s (imports, first compilations); the shares "
        "are of the rest.",
    ]


def test_a_process_that_computes_longer_is_late_without_a_line():
    assert verdict(report(3, loads=5), report(50, loads=4.5)).splitlines() == [
        "Process 0 was late: process 1 waited for it for 47% of the time.",
        "Its lines do not explain most of that: its device probably has more to do, or is slower.",
    ]


def test_without_a_late_process_the_verdict_says_why():
    assert verdict(report(30), report(33)) == "No process was much later than the others."
    assert verdict(report(0), report(0)).endswith("no collective operation was seen.")
    assert verdict(report(30)).endswith("there is only one report.")
