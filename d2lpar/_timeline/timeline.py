"""What ran where and when: events, and the arithmetic on a timeline of them."""

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from d2lpar._measure.quantity import Quantity
from d2lpar._plain.format import DEVICE, HOST, as_table, format_seconds, share_bar

PYTHON = "Python"
"""The row of a timeline that shows what the Python thread did."""

COPY = "memory copy"
"""What stands for the operator where data is copied; XLA has operators of the name `copy`."""

COPY_CALL = ("device_put", "dispatch")

ANNOTATION = "annotation"
"""What stands for the operator where the recorded function itself says what Python does."""


class Event(NamedTuple):
    """An event of a timeline: something that a device, or Python, was busy with.

    Attributes:
        device: The row: `"Python"`, a device such as `"CPU 0"`, or a copy engine of a GPU.
        program: The jitted function; in Python's row the function that was called, or the name of
            an annotation.
        operator: What XLA calls the operator; in Python's row `"dispatch"`, `"wait"`, or
            `"annotation"` for a `jax.profiler.TraceAnnotation`, inside which calls may be made;
            `"memory copy"` for a copy between devices; empty for a whole program.
        run: Counts the runs of programs, so that operators of one run can be told from the next.
        start: Nanoseconds from the start of the recording.
        duration: Nanoseconds.
    """

    device: str
    program: str
    operator: str
    run: int
    start: int
    duration: int

    @property
    def end(self) -> int:
        """When it was over, in nanoseconds from the start of the recording."""
        return self.start + self.duration


@dataclass(frozen=True, repr=False)
class Timeline:
    """A timeline: what ran on which device, and when.

    Attributes:
        events: In the order in which they started.
        watched: The rows that come from watching when results were ready. All others come from
            JAX's profiler.
        seconds: How long the recorded call took, until its results were ready; None if that is not
            known, as of a trace that was read.
    """

    events: tuple[Event, ...]
    watched: frozenset[str] = frozenset()
    seconds: float | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows, Python first, then the devices in the order of their numbers."""
        found = {event.device for event in self.events}
        return tuple(sorted(found, key=lambda row: (not row.startswith(PYTHON), _natural(row))))

    @property
    def source(self) -> str:
        """Where the times of the devices come from, in words."""
        if not self.watched:
            return "from JAX's profiler"
        if self.watched.issuperset(self.rows):
            return "from watching when results were ready"
        rows = ", ".join(sorted(self.watched, key=_natural))
        return f"from JAX's profiler; {rows} from watching when results were ready"

    @property
    def programs(self) -> "Timeline":
        """The same timeline with one event for each run of a program, without its operators."""
        spans: dict[tuple[str, str, str, int], list[int]] = {}
        for device, program, operator, run, start, duration in self.events:
            kept = operator if operator in ("dispatch", "wait", ANNOTATION, COPY) else ""
            key = (device, program, kept, run)
            span = spans.setdefault(key, [start, start + duration])
            span[1] = max(span[1], start + duration)  # They are in the order of their starts.
        merged = (Event(*key, start, end - start) for key, (start, end) in spans.items())
        return replace(self, events=in_order(merged))

    @property
    def elapsed(self) -> float:
        """Seconds from the start of the recording to the end of the last event."""
        return max((event.end for event in self.events), default=0) / 1e9

    def slowdown(self, unrecorded: Quantity) -> Quantity:
        """Return how many times as long the call took while it was recorded.

        It calls nothing by itself: measure the same call, before or afterwards, by `measure`, or by
        `compare` beside others.

        Args:
            unrecorded: The time of such calls in seconds, such as `measure(f, x).total`.

        Returns:
            The time of the one recorded call over each of theirs. The interval says how well theirs
            is known; record again to see how much that of a recording differs.

        Raises:
            ValueError: If `unrecorded` is not in seconds, or the timeline was read from a file.

        Example:
            >>> Timeline((), seconds=0.3).slowdown(Quantity("step, total", (0.1, 0.2, 0.1), "s"))
            time, recorded over unrecorded: 3 (3 samples, too few for an interval)
        """
        if self.seconds is None:
            raise ValueError(
                "slowdown() was asked of a timeline of which nobody knows how long the recorded "
                "call took: take one that record_trace() has returned."
            )
        if not isinstance(unrecorded, Quantity) or unrecorded.unit != "s":
            raise ValueError(
                "slowdown() needs the time of calls that nobody records, such as "
                f"measure(f, x).total, found {unrecorded!r}."
            )
        recorded = replace(unrecorded, samples=(self.seconds,) * len(unrecorded.samples))
        return (recorded / unrecorded).rename("time, recorded over unrecorded")

    def first(self, seconds: float) -> "Timeline":
        """Return what began in the first seconds of it, cut off there.

        Args:
            seconds: How many, from the start of the recording.
        """
        end = round(seconds * 1e9)
        kept = (event for event in self.events if event.start < end)
        cut = (event._replace(duration=min(event.duration, end - event.start)) for event in kept)
        return replace(self, events=tuple(cut))

    def row(self, name: str) -> tuple[Event, ...]:
        """Return the events of one row, in order.

        Args:
            name: One of `rows`.

        Raises:
            ValueError: If there is no such row.
        """
        events = tuple(event for event in self.events if event.device == name)
        if not events:
            raise ValueError(
                f"The timeline has no row {name!r}; it has {', '.join(self.rows) or 'none'}."
            )
        return events

    def busy(self, row: str) -> float:
        """Return for how many seconds a row had something under way.

        Args:
            row: One of `rows`.
        """
        return sum(end - start for start, end in self._spans(row)) / 1e9

    def idle(self, row: str) -> float:
        """Return for how many seconds of the recording a row had nothing under way.

        Args:
            row: One of `rows`.
        """
        return self.elapsed - self.busy(row)

    def overlap(self, row: str, other: str) -> float:
        """Return for how many seconds two rows had something under way at the same time.

        Args:
            row: One of `rows`.
            other: Another one.

        Raises:
            ValueError: If they are the same: a row overlaps with itself all the time.
        """
        if row == other:
            raise ValueError(f"The overlap of {row!r} with itself was asked for; name two rows.")
        total, others = 0, iter(self._spans(other))
        span = next(others, None)
        for start, end in self._spans(row):
            while span and span[1] <= start:
                span = next(others, None)
            while span:
                total += max(0, min(end, span[1]) - max(start, span[0]))
                if span[1] > end:
                    break
                span = next(others, None)
        return total / 1e9

    def __repr__(self) -> str:
        lines = [f"timeline of {format_seconds(self.elapsed)}, {self.source}"]
        programs = self.programs
        for row in self.rows:
            runs = [e for e in programs.row(row) if e.operator not in ("wait", ANNOTATION)]
            what = "calls" if row.startswith(PYTHON) else "runs"
            busy = f"{format_seconds(self.busy(row))} busy, {format_seconds(self.idle(row))} idle"
            lines.append(f"  {row:<8} {len(runs):>4} {what}, {busy}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for row in self.rows:
            busy = self.busy(row)
            share = busy / self.elapsed if self.elapsed else 0.0
            color = HOST if row.startswith(PYTHON) else DEVICE
            bar = share_bar(share, color, f"{row} is busy for {share:.0%} of the time")
            idle = f"{1 - share:.0%}"
            rows.append([html.escape(row), format_seconds(busy), bar, idle])
        note = f"{format_seconds(self.elapsed)} in all, {self.source}."
        return as_table(["", "busy for", "", "idle"], rows, [note])

    def _spans(self, row: str) -> Iterator[tuple[int, int]]:
        """Yield the times when the row is busy, without gaps of no length, in order."""
        events = self.row(row)
        start, end = events[0].start, events[0].end
        for event in events:
            if event.start > end:
                yield start, end
                start, end = event.start, event.end
            end = max(end, event.end)
        yield start, end


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return events in the order in which they started."""
    return tuple(sorted(events, key=lambda event: event.start))


def _natural(row: str) -> list[int | str]:
    """Return a key that sorts GPU 10 behind GPU 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row)]
