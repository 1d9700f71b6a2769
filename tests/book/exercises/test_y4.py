import random
from itertools import pairwise

import numpy as np
import pytest
from attempts import require_accepted, require_not_yet, require_told

from d2lpar import Event, Timeline
from d2lpar.book.exercises import check_y4, y4
from d2lpar.book.exercises.y4 import _idle_spans


def spans_of(timeline, row):
    spans, end = [], 0
    for event in [*timeline.row(row), None]:
        start = event.start if event else round(timeline.elapsed * 1e9)
        spans.append((start - end, end / 1e9, start / 1e9))
        end = max(end, event.end) if event else end
    return [span for span in spans if span[0] > 0] or [(0, 0, 0)]


def gaps_by_hand(timeline, row):
    spans = spans_of(timeline, row)
    return sum(span[0] for span in spans) / 1e9 / timeline.elapsed, *max(spans)[1:]


def gaps_by_the_timeline(timeline, row):
    return [np.float64(timeline.idle(row) / timeline.elapsed), *max(spans_of(timeline, row))[1:]]


RIGHT = {"by hand": (gaps_by_hand,), "by the timeline": (gaps_by_the_timeline,)}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_y4(*answers))


def counted_twice(timeline, row):
    busy = sum(event.duration for event in timeline.row(row)) / 1e9
    return 1 - busy / timeline.elapsed, *gaps_by_hand(timeline, row)[1:]


def between_neighbours(timeline, row):
    events = timeline.row(row)
    gaps = [(b.start - a.end, a.end / 1e9, b.start / 1e9) for a, b in pairwise(events)]
    return gaps_by_hand(timeline, row)[0], *max(gaps, default=(0, 0, 0))[1:]


def by_their_ends(timeline, row):
    events = sorted(timeline.row(row), key=lambda event: event.end)
    ends = [0, *(event.end for event in events)]
    starts = [*(event.start for event in events), round(timeline.elapsed * 1e9)]
    _, start, end = max((b - a, a, b) for a, b in zip(ends, starts, strict=True))
    return gaps_by_hand(timeline, row)[0], start / 1e9, end / 1e9


def in_percent(timeline, row):
    share, start, end = gaps_by_hand(timeline, row)
    return 100 * share, start, end


def in_nanoseconds(timeline, row):
    share, start, end = gaps_by_hand(timeline, row)
    return share, start * 1e9, end * 1e9


def first_gap(timeline, row):
    return gaps_by_hand(timeline, row)[0], *spans_of(timeline, row)[0][1:]


def empty_gap(timeline, row):
    return gaps_by_hand(timeline, row)[0], timeline.elapsed, timeline.elapsed


def busy_share(timeline, row):
    share, start, end = gaps_by_hand(timeline, row)
    return 1 - share, start, end


WRONG = {
    "counted twice": ((counted_twice,), "2 to 6 ms.* says that 0 of it is idle; it is 0.2.\n"),
    "between neighbours": ((between_neighbours,), "0.002 s to 0.009 s is not one of its gaps"),
    "in the order of their ends": ((by_their_ends,), "0.001 s to 0.005 s is not one of"),
    "percent": ((in_percent,), "says that 30 of it is idle.*\n  A share lies between 0 and 1"),
    "nanoseconds": ((in_nanoseconds,), "4e[+]06 s to 6e[+]06 s is not one of"),
    "the first": ((first_gap,), "is a gap, but there is a longer one"),
    "an empty one": ((empty_gap,), "0.01 s to 0.01 s is no time at all"),
    "busy": ((busy_share,), "says that 0.7 of it is idle; it is 0.3.\n.*counts in full"),
    "two numbers": (
        (lambda *args: gaps_by_hand(*args)[1:],),
        r"returned \(.*\), not three numbers",
    ),
    "as they are read": (
        (lambda timeline, row: (1 / 0 for _ in range(3)),),
        "returned <generator .*, not three numbers",
    ),
    "nan": ((lambda *args: (np.nan, *gaps_by_hand(*args)[1:]),), "says that nan of it is idle"),
    "huge": ((lambda *args: [10**400] * 3,), r"returned \[10000.*\.\.\., not three numbers"),
}


@pytest.fixture
def nothing_recorded(monkeypatch):
    """Leave only what is made by hand, with which the check begins."""
    resting = Timeline((Event("CPU 0", "work", "dot", 0, 0, 1),))
    monkeypatch.setattr(y4, "record_trace", lambda function: (None, resting))


@pytest.mark.usefixtures("nothing_recorded")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_y4(*WRONG[name][0]), name, WRONG)


@pytest.mark.usefixtures("nothing_recorded")
def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_y4(3), "was given an int, which cannot be called")


def test_a_row_is_idle_in_the_moments_that_no_event_covers():
    chance = random.Random(0)
    for _ in range(300):
        events = [
            Event(chance.choice(["CPU 0", "CPU 1"]), "f", "", number, chance.randint(0, 40), length)
            for number, length in enumerate(chance.choices(range(1, 9), k=chance.randint(1, 8)))
        ]
        timeline = Timeline(tuple(sorted(events, key=lambda event: event.start)))
        row = chance.choice(timeline.rows)
        busy = {m for e in timeline.row(row) for m in range(e.start, e.end)}
        until = max(event.end for event in events)
        edges = [
            m for m in range(until + 1) if (m in busy or m == until) != (m - 1 in busy or not m)
        ]
        expected = list(zip(edges[::2], edges[1::2], strict=True))
        spans = [(round(a * 1e9), round(b * 1e9)) for a, b in _idle_spans(timeline, row)]
        assert [span for span in spans if span[0] < span[1]] == expected
        assert sum(b - a for a, b in expected) == round(timeline.idle(row) * 1e9)


def test_a_row_that_never_rests_has_an_idle_span_of_no_length():
    timeline = Timeline((Event("CPU 0", "f", "", 0, 0, 10),))
    assert _idle_spans(timeline, "CPU 0") == [(1e-8, 1e-8)]
