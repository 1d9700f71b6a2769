import random
from dataclasses import replace

import pytest
from tables import bars_of, cells_of, remarks_of
from timelines import event, spans, timeline

from d2lpar._plain.format import DEVICE, HOST
from d2lpar._timeline.timeline import PYTHON


def test_the_rows_are_python_and_the_devices_in_the_order_of_their_numbers():
    rows = ("Python", "CPU 0", "CPU 1", "GPU 9", "GPU 9 to host", "GPU 10")
    assert timeline(*(event(row, 0, 1) for row in reversed(rows))).rows == rows


def test_busy_and_idle_are_what_counting_nanoseconds_gives():
    chance = random.Random(0)
    for _ in range(1000):
        starts = [chance.randint(0, 60) for _ in range(chance.randint(1, 8))]
        intervals = [(start, start + chance.choice([0, 1, 3, 10, 30])) for start in starts]
        run = timeline(*(event("CPU 0", *interval) for interval in intervals))
        busy = len(set().union(*(range(*interval) for interval in intervals)))
        assert run.elapsed == pytest.approx(max(map(max, intervals)) / 1e9)
        assert run.busy("CPU 0") == pytest.approx(busy / 1e9)
        assert run.busy("CPU 0") + run.idle("CPU 0") == pytest.approx(run.elapsed)


def test_the_operators_of_a_run_become_one_event_and_those_of_the_next_run_another():
    run = timeline(
        event("CPU 0", 0, 90, operator="while", run=4),
        event("CPU 0", 10, 20, operator="dot", run=4),  # Inside the loop.
        event("CPU 0", 100, 130, operator="while", run=5),
        event("CPU 0", 135, 140, operator="copy", run=5),  # An operator of XLA.
        event("CPU 1", 5, 8, operator="while", run=4),
    )
    assert spans(run.programs.row("CPU 0")) == [("f", 0, 90), ("f", 100, 140)]
    assert spans(run.programs.row("CPU 1")) == [("f", 5, 8)]
    assert {event.operator for event in run.programs.events} == {""}


def test_a_row_that_is_not_there_is_an_error_that_names_the_others():
    run = timeline(event("CPU 0", 0, 1), event(PYTHON, 0, 1))
    with pytest.raises(ValueError, match="has no row 'CPU 1'; it has Python, CPU 0"):
        run.busy("CPU 1")
    with pytest.raises(ValueError, match="it has none"):
        timeline().row("CPU 1")


SOURCE = "from JAX's profiler; <i> from watching when results were ready"
RUN = timeline(
    event(PYTHON, 0, 10, operator="dispatch", run=0),
    event(PYTHON, 10, 20, operator="dispatch", run=1),
    event(PYTHON, 50, 100, "block", "wait", 2),
    event(PYTHON, 60, 90, "read", "annotation", 3),
    event(f"{PYTHON} 2", 0, 50, operator="dispatch", run=3),
    event("CPU 0", 20, 40, operator="a"),
    event("CPU 0", 30, 60, operator="b"),
    event("<i>", 0, 100),
    watched=["<i>"],
)


def test_a_timeline_prints_each_row_with_its_runs():
    assert repr(RUN).splitlines() == [
        f"timeline of 100 ns, {SOURCE}",
        "  Python      2 calls, 70 ns busy, 30 ns idle",
        "  Python 2    1 calls, 50 ns busy, 50 ns idle",
        "  <i>         1 runs, 100 ns busy, 0 s idle",
        "  CPU 0       1 runs, 40 ns busy, 60 ns idle",
    ]


def test_in_a_notebook_a_timeline_is_a_table_with_bars_of_how_busy_each_row_is():
    html = RUN._repr_html_()
    assert cells_of(timeline()._repr_html_())[1:] == []
    header, *rows = cells_of(html)
    assert (header[0], header[1], header[3]) == ("", "busy for", "idle")
    assert [[row, busy, idle] for row, busy, _, idle in rows] == [
        [PYTHON, "70 ns", "30%"],
        [f"{PYTHON} 2", "50 ns", "50%"],
        ["<i>", "100 ns", "0%"],
        ["CPU 0", "40 ns", "60%"],
    ]
    python, *_, device = bars_of(html)
    assert python[0] == "Python is busy for 70% of the time"
    assert (python[1][-1], device[1][-1]) == ((HOST, 0, 70), (DEVICE, 0, 40))
    assert remarks_of(html) == [f"100 ns in all, {SOURCE}."]


def test_the_first_seconds_of_a_timeline_are_cut_off_at_their_end():
    whole = timeline(event("CPU 0", 0, 4), event("CPU 0", 5, 9), event("CPU 1", 7, 8))
    assert spans(whole.first(6e-9).events) == [("f", 0, 4), ("f", 5, 6)]
    assert whole.first(1).events == whole.events
    recorded = replace(whole, seconds=0.6)
    assert recorded.programs.seconds == recorded.first(1).seconds == 0.6


def test_a_recording_is_scaled_to_the_length_that_the_clock_says():
    scaled = timeline(event("CPU 0", 10, 20), event("CPU 0", 30, 40)).scaled_to(20e-9)
    assert spans(scaled.events) == [("f", 5, 10), ("f", 15, 20)]
    assert (scaled.elapsed, scaled.seconds) == (20e-9, 20e-9)
    assert timeline().scaled_to(1).events == ()
