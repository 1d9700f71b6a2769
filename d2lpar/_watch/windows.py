"""What the devices did, in short windows of JAX's profiler, while a program runs.

How it works. JAX's profiler records what each device executes. It is too dear to run all the time,
and what it records is too much to keep, so it is opened for some fifty milliseconds now and then,
and what it recorded is read when the program has ended. An operator that was under way when a
window opened, or still is when it closes, leaves no event of its own, but for one at its end.

Beside a GPU it is the main thread that closes the profiler, between two bytecodes. To close it
detaches NVIDIA's library of events from the process. If another thread launches a CUDA graph at
that time, the context is lost, and the next value that is read ends in CUDA_ERROR_LAUNCH_FAILED,
the same error as in jax-ml/jax#40260. On an H200 with JAX 0.11.2 that befell the loop of the
chapter "In Your Own Code" within seconds, in five of five processes, where a thread of its own
closed it; and in none of six, with 240 windows, where the main thread did. (What other threads
launch meanwhile is not protected.) While the main thread is inside a long call, the profiler stays
open, and several windows are cut out of one recording.
"""

import ctypes
import functools
import re
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from d2lpar._jax import state
from d2lpar._jax.profiler import Sessions, read_lines, without_tensorflow
from d2lpar._jax.stack import StackSample

Spans = list[tuple[float, float]]

_OPENED = "d2lpar.watch"
# Operators that end when all devices have come: as XLA calls them, and NVIDIA's kernels for them.
_COLLECTIVES = re.compile("all-|reduce-scatter|collective-|ragged-all|nccl")


class Seen(NamedTuple):
    """A thread, as a look has found it: where it is, if it moved on, and used its processor."""

    name: str
    stack: StackSample
    moved: bool
    worked: bool


class Look(NamedTuple):
    """What the threads did for half of the time between two looks.

    Where a thread has moved between them, it was at the one place for half of that time, and at the
    other for the rest: who looks may have been kept from its core.

    Attributes:
        start: Seconds of `time.perf_counter`, as `end`.
        at: When the threads were seen, which is one of both.
        threads: Those of Python, by their number.
        others: How many cores were used by threads which are not Python's.
    """

    start: float
    end: float
    at: float
    threads: dict[int, Seen]
    others: float


@dataclass
class Recording:
    """What the profiler recorded while it was open; seconds of `time.perf_counter`.

    Attributes:
        session: JAX's, which stops it.
        began: When it was open.
        over: When it was closed.
        data: What it recorded, an XSpace.
        windows: Those that were cut out of it.
    """

    session: Any
    began: float = 0.0
    over: float = 0.0
    data: bytes = b""
    windows: "list[Window]" = field(default_factory=list)

    @functools.cached_property
    def events(self) -> tuple[dict[str, Spans], Spans, Spans, dict[str, Spans]]:
        """When each device was busy, Python dispatched or copied, and devices did so together."""
        busy, calls, puts, opened = defaultdict(list), [], [], None
        collectives = defaultdict(list)
        operators, ends = defaultdict(list), defaultdict(list)
        for device, lines in read_lines(self.data):
            for event in (event for line in lines for event in line.events):
                name = event.name
                if device:
                    busy[device].append(_span(event))
                    if _COLLECTIVES.match(name):
                        collectives[device].append(_span(event))
                elif name.startswith("PjitFunction"):
                    calls.append(_span(event))
                elif name.startswith("DevicePut"):
                    puts.append(_span(event))
                elif name.startswith("end: "):
                    ends[name[5:]].append(event.start_ns / 1e9)
                elif name == _OPENED:
                    opened = event.start_ns / 1e9
                elif not name.startswith("ThreadpoolListener"):
                    ordinal = dict(event.stats).get("device_ordinal")
                    if ordinal is not None:
                        operators[name].append((*_span(event), f"CPU {ordinal}"))
        if opened is None:
            return {}, [], [], {}
        closed = opened + self.over - self.began
        for name, spans in operators.items():
            for start, end, device in _with_ends(spans, ends[name], opened, closed):
                busy[device].append((start, end))
                if _COLLECTIVES.match(name):
                    collectives[device].append((start, end))
        offset = self.began - opened
        busy, collectives = (
            {device: merged(spans, offset) for device, spans in of_devices.items()}
            for of_devices in (busy, collectives)
        )
        return busy, merged(calls, offset), merged(puts, offset), collectives


@dataclass
class Window:
    """A time in which the profiler was open; seconds of `time.perf_counter`.

    Attributes:
        began: When it began.
        over: When it ended.
        looks: When Python's threads were looked at, and what was seen.
        recording: What the profiler recorded then, and perhaps before and after.
    """

    began: float
    over: float = 0.0
    looks: list[Look] = field(default_factory=list)
    recording: Recording | None = None

    @property
    def busy(self) -> dict[str, Spans]:
        """When each device was busy, by its name."""
        return self.events[0]

    @property
    def calls(self) -> Spans:
        """When Python was in a call that dispatches."""
        return self.events[1]

    @property
    def collectives(self) -> dict[str, Spans]:
        """When each device was in an operator that needs other devices."""
        return self.events[2]

    @functools.cached_property
    def events(self) -> tuple[dict[str, Spans], Spans, dict[str, Spans]]:
        """All three; to copy to a device counts as such a call only if nothing else was called."""
        busy, calls, puts, collectives = self.recording.events
        calls, puts = (self._within(spans) for spans in (calls, puts))
        busy, collectives = (
            {device: inside for device, spans in d.items() if (inside := self._within(spans))}
            for d in (busy, collectives)
        )
        return busy, calls or puts, collectives

    def _within(self, spans: Spans) -> Spans:
        return [
            (max(start, self.began), min(end, self.over))
            for start, end in spans
            if end > self.began and start < self.over
        ]


def _with_ends(
    spans: list[tuple[float, float, str]], ends: list[float], opened: float, closed: float
) -> Iterator[tuple[float, float, str]]:
    """Yield the operators of one name, as long as they took.

    The event of an operator that is computed in pieces ends when these are handed to other threads,
    and another one, "end:", says when all of them were done.
    """
    waiting: list[tuple[float, float, str]] = []
    for start, end, device in sorted([*spans, *((at, at, "") for at in ends)]):
        if device:
            waiting.append((start, end, device))
        elif waiting:
            start, _, device = waiting.pop(0)
            yield start, end, device
        elif len({device for *_, device in spans}) == 1:
            yield opened, end, spans[0][2]  # It was under way when the window was opened.
    # Likewise when it was closed, if those of this name have an end.
    yield from ((a, closed if ends else b, device) for a, b, device in waiting)


def _span(event: Any) -> tuple[float, float]:
    return event.start_ns / 1e9, (event.start_ns + event.duration_ns) / 1e9


def merged(spans: Spans, offset: float = 0.0) -> Spans:
    """Return spans that do not overlap, in their order, on another clock."""
    apart: Spans = []
    for start, end in sorted(spans):
        if apart and start + offset <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], end + offset)
        else:
            apart.append((start + offset, end + offset))
    return apart


def overlap(spans: Spans, start: float, end: float) -> float:
    """Return for how long there is one of these spans, which are merged, between two times."""
    total = 0.0
    for first, last in spans[max(bisect_left(spans, (start,)) - 1, 0) :]:
        if first >= end:
            break
        total += max(min(last, end) - max(first, start), 0.0)
    return total


class Windows:
    """Opens a window now and then: often at first, then ever more rarely.

    Attributes:
        closed: Those that have been, in their order.
    """

    MANY, LENGTH = 20, 0.05

    def __init__(self) -> None:
        self.closed: list[Window] = []
        # What a window costs is known only after the first.
        self._length, self._due = self.LENGTH / 2, 0.0
        self._began = time.perf_counter()
        self._open = threading.Lock()
        self._wanted = threading.Event()
        self._recording: Recording | None = None
        self._looking = False
        self._closing = threading.RLock()
        self._cost = 0.0
        self._sessions = Sessions(self._make_way)

    @property
    def why_none(self) -> str:
        """Why no window could be opened, in words."""
        return self._sessions.why_none or "it did not use JAX"

    def is_due(self) -> bool:
        """Return whether it is time for one, and one can be had."""
        now = time.perf_counter()
        if now < self._due or not state.has_started():
            return False
        if self._wanted.is_set():
            if state.is_recording():
                return False
            self._wanted.clear()  # The program's own recording is over.
        return True

    def record(
        self, look: Callable[[Window], None], done: threading.Event, interval: float
    ) -> None:
        """Look at Python for the length of a window, with the profiler open."""
        with self._open:
            if not self._open_profiler():
                return
            window = Window(time.perf_counter(), recording=self._recording)
            before = sys.getswitchinterval()
            # Who computes in Python holds its lock for 5 ms at a time, and would be seen rarely.
            mine = min(before, 5e-4)
            sys.setswitchinterval(mine)
            try:
                look(window)
                while time.perf_counter() < window.began + self._length:
                    if self._wanted.is_set() or done.wait(interval):
                        break
                    look(window)
            finally:
                window.over = time.perf_counter()
                if abs(sys.getswitchinterval() - mine) < 1e-9:
                    sys.setswitchinterval(before)
                window.recording.windows.append(window)
                self._looking = False
                if not state.has_accelerator():
                    self.close()
                else:
                    _MAIN_THREAD.call(self.close)
            many = len(self.closed) >= self.MANY
            pause = max(0.2, 0.05 * (window.over - self._began), (20 if many else 2) * self._cost)
            self._due = window.over + pause

    def _open_profiler(self) -> bool:
        """Open the profiler, if it is not open still, and say whether that could be done."""
        if not self._closing.acquire(blocking=False):  # Another thread closes it.
            return False
        try:
            if self._recording is None:
                if (session := self._sessions.open()) is None:
                    self._due = time.perf_counter() + 1.0
                    return False
                recording = Recording(session)
                with sys.modules["jax"].profiler.TraceAnnotation(_OPENED):
                    recording.began = time.perf_counter()
                self._recording = recording
            self._looking = True
            return True
        finally:
            self._closing.release()

    def close(self) -> None:
        """Close the profiler, if it is open; beside a GPU the main thread has a second to do it."""
        if state.has_accelerator() and threading.current_thread() is not threading.main_thread():
            end = time.perf_counter() + 1.0
            while self._recording is not None and time.perf_counter() < end:
                time.sleep(1e-3)
        # Not for ever: a signal's handler may run in the midst of this, and wait for a thread that
        # waits here.
        if not self._closing.acquire(timeout=10.0):
            return
        try:
            recording = self._recording
            if recording is None or self._looking:
                return
            recording.over = time.perf_counter()
            with without_tensorflow():
                try:
                    recording.data = recording.session.stop()
                    self.closed += recording.windows
                except RuntimeError as error:
                    if error.__traceback__.tb_next:  # A signal's handler raised it.
                        raise
                    # Else somebody else has ended it.
                finally:
                    self._recording = None
            # Closing takes as long as there are events, thousands in some programs.
            self._cost = time.perf_counter() - recording.over
            length = 8e-3 * (recording.over - recording.began) / max(self._cost, 1e-6)
            self._length = min(max(length, 0.01), self.LENGTH)
        finally:
            self._closing.release()

    @contextmanager
    def _make_way(self) -> Iterator[None]:
        """Close the profiler for a recording of the program, and open no window meanwhile."""
        self._wanted.set()
        with self._open:
            self.close()
            yield

    def end(self) -> None:
        """Leave JAX's profiler as it was."""
        self._sessions.restore()


class _MainThread:
    """Has the main thread call functions, between two of its bytecodes.

    The interpreter calls a function of C there, with a pointer, and raises what it has raised if it
    returns -1. Such a function is the one that tells whether an object is true. So whatever a
    signal's handler raises in the midst of it, as Ctrl-C does, reaches the program.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._asked = False

    def call(self, function: Callable[[], None]) -> None:
        """Ask for a call, if it is not asked for already."""
        if function not in self._calls:
            self._calls.append(function)
        # All of this before it is asked: the main thread may come at once.
        if not self._asked:
            self._asked, this = True, ctypes.py_object(self)
            python = ctypes.pythonapi
            if python.Py_AddPendingCall(python.PyObject_IsTrue, this):
                self._asked = False  # There is place for a few only; whoever comes next asks again.

    def __bool__(self) -> bool:
        self._asked = False
        while self._calls:
            self._calls.popleft()()
        return False


_MAIN_THREAD = _MainThread()  # C does not count its reference.
