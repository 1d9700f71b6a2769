"""Ask a timeline what was done before what, and number its bars."""

from collections import Counter

from d2lpar.errors import ArgumentError
from d2lpar.timeline import PYTHON, Timeline


def lead(timeline: Timeline, program: str, other: str) -> float:
    """Return how long before the last run of another program a program was done the first time.

    Args:
        timeline: What `record_trace` returned.
        program: The name of the program that is done early.
        other: The name of the one that goes on.

    Returns:
        Seconds, from the end of the first run of the one to the end of the last run of the other;
        below 0 if that ended before.

    Raises:
        ArgumentError: If one of them has not run on a device.
    """
    done = min(event.end for event in _runs(timeline, program))
    return (max(event.end for event in _runs(timeline, other)) - done) / 1e9


def _runs(timeline: Timeline, program: str):
    runs = [
        event
        for event in timeline.programs.events
        if event.program == program and not event.device.startswith(PYTHON)
    ]
    if not runs:
        raise ArgumentError(f"The timeline has no run of {program!r} on a device.")
    return runs


def numbered(timeline: Timeline) -> Timeline:
    """Return a timeline whose bars bear numbers, so that one can tell which belong together.

    Args:
        timeline: What `record_trace` returned.

    Returns:
        Its programs, each called by its number in its row; Python's row stays as it is.
    """
    counts: Counter[str] = Counter()
    events = []
    for event in timeline.programs.events:
        if not event.device.startswith(PYTHON):
            counts[event.device] += 1
            event = event._replace(program=str(counts[event.device]))
        events.append(event)
    return Timeline(tuple(events), timeline.watched)
