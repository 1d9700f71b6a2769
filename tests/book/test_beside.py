import pytest
from timelines import event, timeline

from d2lpar._timeline import COPY
from d2lpar.book.automatic_parallelism import lead, numbered

CHAINS = [event("CPU 0", start, start + 10, "chain", "", run) for run, start in ((1, 0), (2, 20))]


def copies(*spans):
    return [
        event("CPU 1", start, end, "device_put", COPY, run)
        for run, (start, end) in enumerate(spans)
    ]


def test_the_lead_is_from_the_first_end_of_the_one_to_the_last_end_of_the_other():
    events = (
        event("Python", 0, 1, "update", "dispatch", 1),
        event("CPU 0", 3_000, 4_000, "update", "", 1),
        event("CPU 0", 8_000, 9_000, "update", "", 2),
        event("CPU 1", 1_000, 3_500, "backward1", "", 1),
        event("CPU 2", 1_000, 7_000, "backward1", "", 2),
    )
    assert lead(timeline(*events), "update", "backward1") == pytest.approx(3e-6)
    assert lead(timeline(*events), "backward1", "update") == pytest.approx(5.5e-6)
    assert lead(timeline(*events[:3], events[3]), "update", "backward1") == pytest.approx(-0.5e-6)


def test_a_program_that_only_python_knows_of_has_no_lead():
    asked = timeline(event("Python", 0, 1, "update", "dispatch"), *CHAINS)
    with pytest.raises(ValueError, match="no run of 'update' on a device"):
        lead(asked, "update", "chain")


def test_bars_are_numbered_in_each_row_and_python_keeps_its_names():
    asked = event("Python", 0, 1, "chain", "dispatch", 1)
    shown = numbered(timeline(asked, *CHAINS, *copies((10, 20), (30, 40))))
    assert [(e.device, e.program) for e in shown.events] == [
        ("Python", "chain"),
        ("CPU 0", "1"),
        ("CPU 1", "1"),
        ("CPU 0", "2"),
        ("CPU 1", "2"),
    ]
    assert [e.operator for e in shown.row("CPU 1")] == [COPY, COPY]  # They are still hatched.


def test_what_is_watched_stays_so_when_it_is_numbered():
    watched = timeline(*copies((0, 1)), watched=["CPU 1"])
    assert numbered(watched).source == watched.source
