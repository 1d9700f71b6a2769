"""Exercise Y4: reading a profile."""

import time
from collections.abc import Callable

import jax

from d2lpar._devices import cpu
from d2lpar._timeline import PYTHON, Event, Timeline
from d2lpar._trace import record_trace
from d2lpar.book.exercises.answers import Rejection, call_answer, require_number, shown
from d2lpar.book.exercises.report import Report, exercise
from d2lpar.book.exercises.work import inputs, work


@exercise("Y4")
def check_y4(gaps: Callable) -> Report:
    """Check what an answer reads from a timeline: how much is idle, and where the longest gap is.

    It is tried on timelines made by hand, and on a recording.

    Args:
        gaps: `gaps(timeline, row)` returns three numbers: which share of the recording, from 0 to
            1, the row has nothing under way, and the seconds at which the longest stretch of that
            begins and ends. A recording lasts from 0 to `timeline.elapsed`. If two gaps are equally
            long, either will do.

    Returns:
        A report.

    Example:
        >>> check_y4(lambda timeline, row: (0.0, 0.0, 0.0)).verdict
        'not yet'
    """
    *by_hand, recorded = _timelines()
    cases = [(timeline, "CPU 0") for timeline in by_hand]
    cases += [(recorded, row) for row in recorded.rows]
    found = call_answer(gaps, cases, "my_gaps(timeline, row)")
    for (timeline, row), answer in zip(cases, found, strict=True):
        try:
            share, start, end = map(require_number, answer)
        except Exception:  # Think of a generator that fails, or of a deleted array.
            raise Rejection(
                f"Your function returned {shown(answer)}, not three numbers.",
                "Return the idle share, and when the longest gap begins and ends, in seconds.",
            ) from None
        idle = _idle_spans(timeline, row)
        longest = max(b - a for a, b in idle)
        right_share = sum(b - a for a, b in idle) / timeline.elapsed
        close = 1e-4 * timeline.elapsed
        events = ", ".join(
            f"{event.start / 1e6:g} to {event.end / 1e6:g} ms" for event in timeline.row(row)[:6]
        )
        more = " and more" if len(timeline.row(row)) > 6 else ""
        where = (
            f"A recording lasts {timeline.elapsed * 1e3:g} ms; {row} has events from {events}{more}"
        )
        if not abs(share - right_share) <= 1e-4:  # NaN as well.
            look = (
                "A share lies between 0 and 1. Events of a row may overlap, or lie within each "
                "other: is any moment counted twice?"
                if share < right_share or share > 1
                else "The elapsed time counts in full. Is a moment missing in which something was "
                "under way?"
            )
            raise Rejection(
                f"{where}. Your function says that {share:.3g} of it is idle; it is "
                f"{right_share:.3g}.",
                look,
            )
        if not any(abs(start - a) <= close and abs(end - b) <= close for a, b in idle):
            raise Rejection(
                f"{where}. The idle share is right, but {start:.4g} s to {end:.4g} s is not one of "
                "its gaps.",
                "Events tell nanoseconds, gaps are asked for in seconds. A gap begins when all "
                "that began before is over, and the recording has two ends.",
            )
        if abs((end - start) - longest) > close:
            gap = "a gap, but there is a longer one" if end - start > close else "no time at all"
            raise Rejection(
                f"{where}. {start:.4g} s to {end:.4g} s is {gap}.",
                "The row may be idle before its first event, and after its last one.",
            )
    return f"Share and longest gap are right in {len(cases)} rows, some of them recorded."


def _timelines() -> list[Timeline]:
    """Return timelines with the traps of real ones: overlaps, nesting, and gaps at both ends."""

    def by_hand(*spans, until):
        ms = 1_000_000
        rows = [("CPU 0", *span) for span in spans] + [(PYTHON, 0, until)]
        events = [
            Event(
                row, "work", "" if row != PYTHON else "wait", number, start * ms, (end - start) * ms
            )
            for number, (row, start, end) in enumerate(rows)
        ]
        return Timeline(tuple(sorted(events, key=lambda event: event.start)))

    x = inputs(1, cpu())[0]
    jax.block_until_ready(work(x))

    def with_a_pause():
        jax.block_until_ready(work(x))
        time.sleep(0.02)  # The device has nothing to do meanwhile.
        return work(x)

    return [
        by_hand((0, 2), (3, 4), (6, 10), until=10),
        by_hand((0, 4), (2, 6), (8, 10), until=10),
        by_hand((0, 7), (1, 2), (9, 10), until=10),
        by_hand((5, 6), (7, 10), until=10),
        by_hand((0, 1), (1, 7), (5, 6), (8, 10), until=10),
        by_hand((0, 1), (2, 3), until=12),
        record_trace(with_a_pause)[1],
    ]


def _idle_spans(timeline: Timeline, row: str) -> list[tuple[float, float]]:
    """Return when a row has nothing under way, in seconds; one of no length if it never rests."""
    spans, end = [], 0
    for event in timeline.row(row):
        if event.start > end:
            spans.append((end / 1e9, event.start / 1e9))
        end = max(end, event.end)
    spans.append((end / 1e9, timeline.elapsed))
    return spans
