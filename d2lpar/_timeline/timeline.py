"""A timeline of events on devices, and its arithmetic: busy and idle time."""

import html
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from d2lpar._plain.format import DEVICE, HOST, as_table, format_seconds, share_bar

PYTHON = "Python"
"""The row of a timeline that shows the calls of the Python thread."""

COPY = "memory copy"
"""The operator of a copy between devices. (XLA has operators of the name `copy`.)"""

COPY_CALL = ("device_put", "dispatch")
"""Program and operator of the call in Python's row that asks for a copy."""

ANNOTATION = "annotation"
"""The operator of a `jax.profiler.TraceAnnotation` of the recorded function."""


class Event(NamedTuple):
    """An event of a timeline: something that a device, or Python, was busy with.

    Attributes:
        device: The row: `"Python"`, a device such as `"CPU 0"`, or a copy engine of a GPU.
        program: The jitted function; in Python's row the function that was called, or the name of
            an annotation.
        operator: XLA's name of the operator; `"memory copy"` for a copy between devices; empty for
            a whole program. In Python's row, `"dispatch"`, `"wait"`, or `"annotation"` for a
            `jax.profiler.TraceAnnotation`, which may contain calls.
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
    """A timeline: which device ran which program, and when.

    Attributes:
        events: The events, in the order of their starts.
        watched: The rows that come from watching when results were ready. All others come from
            JAX's profiler.
        seconds: The seconds from the recorded call until its results were ready; None if unknown,
            as in a trace that was read from a file.

    Example:
        >>> import jax.numpy as jnp
        >>> from d2lpar import record_trace
        >>> compiled = jnp.sin(x := jnp.ones(3))
        >>> y, timeline = record_trace(jnp.sin, x)
        >>> timeline.rows[0], timeline.seconds > 0
        ('Python', True)
    """

    events: tuple[Event, ...]
    watched: frozenset[str] = frozenset()
    seconds: float | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows, Python first, then the devices in the order of their numbers."""
        devices = {event.device for event in self.events}
        return tuple(sorted(devices, key=lambda row: (not row.startswith(PYTHON), _natural(row))))

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
            kind = operator if operator in ("dispatch", "wait", ANNOTATION, COPY) else ""
            key = (device, program, kind, run)
            # Events are in the order of their starts, so the first one has the start of the run.
            span = spans.setdefault(key, [start, start + duration])
            span[1] = max(span[1], start + duration)
        merged = (Event(*key, start, end - start) for key, (start, end) in spans.items())
        return replace(self, events=in_order(merged))

    @property
    def elapsed(self) -> float:
        """Seconds from the start of the recording to the end of the last event."""
        return max((event.end for event in self.events), default=0) / 1e9

    def scaled_to(self, seconds: float) -> "Timeline":
        """Return the timeline as long as the call takes without recording.

        All times are multiplied by one factor, so order and shares are those of the recording.

        Args:
            seconds: The time of the call by the clock, such as `measure(f, x).total.median`.
        """
        factor = seconds / (self.elapsed or 1)
        scaled = (
            e._replace(start=round(factor * e.start), duration=round(factor * e.duration))
            for e in self.events
        )
        return replace(self, events=tuple(scaled), seconds=seconds)

    def first(self, seconds: float) -> "Timeline":
        """Return the events that began in the first seconds, cut off there.

        Args:
            seconds: Seconds from the start of the recording.
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

        Raises:
            ValueError: If there is no such row.
        """
        covered, end = 0, -math.inf
        for event in self.row(row):  # In the order of their starts.
            covered += max(0, event.end - max(event.start, end))
            end = max(end, event.end)
        return covered / 1e9

    def idle(self, row: str) -> float:
        """Return for how many seconds of the recording a row had nothing under way.

        Args:
            row: One of `rows`.

        Raises:
            ValueError: If there is no such row.
        """
        return self.elapsed - self.busy(row)

    def __repr__(self) -> str:
        lines = [f"timeline of {format_seconds(self.elapsed)}, {self.source}"]
        programs = self.programs
        for row in self.rows:
            runs = [e for e in programs.row(row) if e.operator not in ("wait", ANNOTATION)]
            unit = "calls" if row.startswith(PYTHON) else "runs"
            busy = f"{format_seconds(self.busy(row))} busy, {format_seconds(self.idle(row))} idle"
            lines.append(f"  {row:<8} {len(runs):>4} {unit}, {busy}")
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


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return events in the order of their starts."""
    return tuple(sorted(events, key=lambda event: event.start))


def _natural(row: str) -> list[int | str]:
    """Return a key that sorts GPU 10 behind GPU 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row)]
