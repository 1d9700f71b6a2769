"""Record what the devices do, in short windows of JAX's profiler, while a program runs.

How it works. JAX's profiler records each operator that a device executes. Running all the time, the
profiler would slow the program down and fill the memory. So it is open for some fifty milliseconds
now and then, and its events are read when a report is made.

    CPU devices only: the sampling thread opens and closes the profiler around each window.

        windows        [----]                 [----]
        profiler       [====]                 [====]

    Beside a GPU: the main thread closes the profiler, between two bytecodes. During one of its long
    calls the profiler stays open, and several windows are cut out of one recording.

        main thread    .......a long call.............| close
        windows        [----]                 [----]
        profiler       [==============================]

Closing the profiler detaches NVIDIA's library of events from the process. If another thread
launches a CUDA graph at that time, the context is lost, and the next read of a value ends in
CUDA_ERROR_LAUNCH_FAILED, the error of jax-ml/jax#40260. The loop of the chapter "In Your Own Code",
on an H200 with JAX 0.11.2, crashed within seconds in five of five processes where the sampling
thread closed the profiler. Six processes, with 240 windows, survived where the main thread did.
Launches by other threads than the main one remain unprotected.
"""

import ctypes
import functools
import math
import random
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
from d2lpar._jax.stack import CodePosition, Place, StackSample

Spans = list[tuple[float, float]]

COLLECTOR = Place("Python's garbage collector", 0, "")
OF_WATCH = Place("watch itself", 0, "")

_RANDOM = random.Random()  # The functions of the module would change the program's numbers.
_OPENING_MARKER = "d2lpar.watch"
# Operators that cannot end before every device takes part: XLA's names, and NVIDIA's kernels.
_COLLECTIVES = re.compile("all-|reduce-scatter|collective-|ragged-all|nccl")


class ThreadSample(NamedTuple):
    """A thread in a sample."""

    name: str
    stack: StackSample
    has_moved: bool  # Its stack has changed, or it has used the CPU, since the sample before.
    used_cpu: bool  # It has used a core for a fifth of that time or more.
    may_wait: bool = False  # It is in a block of `waits_allowed`.


class Sample(NamedTuple):
    """A sample of all threads, and the half interval that it stands for.

    The time between two samples is split in the middle: the first half counts for the earlier
    sample, the second half for the later one. The sampling thread may be late.

        taken          A                 B
        stands for     [AAAAAAAA|BBBBBBBB]
    """

    start: float  # Seconds of `time.perf_counter`, as are the next two.
    end: float
    taken_at: float  # `start` for A, `end` for B.
    threads: dict[int, ThreadSample]  # Python's threads, by their identifiers.
    native_cores: float  # How many cores all other threads used, such as XLA's.


class Collection(NamedTuple):
    """A collection of garbage, in seconds of `time.perf_counter`."""

    start: float
    end: float
    position: CodePosition | None  # The user's line that it struck, or that called `gc.collect`.
    is_of_watch: bool = False  # The sampling thread has brought it about, with its samples.

    @property
    def kind(self) -> str:
        """The kind, one of `report.KINDS`."""
        return "watch" if self.is_of_watch else "collection"

    @property
    def place(self) -> Place:
        """The line that called `gc.collect`, or else the collector, or `watch`."""
        if self.is_of_watch:
            return OF_WATCH
        if self.position and self.position.called_name().rsplit(".", 1)[-1] == "collect":
            return self.position.place
        return COLLECTOR


class Events(NamedTuple):
    """The events of a recording as merged spans, in seconds of `time.perf_counter`."""

    busy: dict[str, Spans]  # When each device executed an operator, by the device's name.
    collectives: dict[str, Spans]  # The part of `busy` in operators that wait for other devices.
    calls: Spans  # When Python was in a call that dispatches.
    copies: Spans  # When Python copied to a device.
    functions: list[tuple[str, float]]  # Each called function, and when the call began.


@dataclass
class Recording:
    """One session of the profiler; times are seconds of `time.perf_counter`."""

    session: Any  # JAX's session, which stops the profiler.
    began: float = 0.0  # When the profiler had opened.
    over: float = 0.0  # When closing began.
    data: bytes = b""  # The recorded events, a serialized XSpace.
    windows: "list[Window]" = field(default_factory=list)  # Those that are cut out of it.

    @functools.cached_property
    def events(self) -> Events | None:
        """The recorded events; None if the profiler missed the marker of its opening."""
        busy, collectives, operators, ends = (defaultdict(list) for _ in range(4))
        calls, copies, functions, opened = [], [], [], None

        def add(device: str, name: str, span: tuple[float, float]) -> None:
            busy[device].append(span)
            if _COLLECTIVES.match(name):
                collectives[device].append(span)

        for device, lines in read_lines(self.data):
            for event in (event for line in lines for event in line.events):
                name = event.name
                if device:
                    add(device, name, _span(event))
                elif name.startswith("PjitFunction"):
                    calls.append(_span(event))
                    functions.append((name[13:-1], calls[-1][0]))
                elif name.startswith("DevicePut"):
                    copies.append(_span(event))
                elif name.startswith("end: "):
                    ends[name[5:]].append(event.start_ns / 1e9)
                elif name == _OPENING_MARKER:
                    opened = event.start_ns / 1e9
                elif not name.startswith("ThreadpoolListener"):
                    ordinal = dict(event.stats).get("device_ordinal")
                    if ordinal is not None:
                        operators[name].append((*_span(event), f"CPU {ordinal}"))
        if opened is None:
            return None
        closed = opened + self.over - self.began
        for name, spans in operators.items():
            for start, end, device in _with_ends(spans, ends[name], opened, closed):
                add(device, name, (start, end))
        offset = self.began - opened
        busy, collectives = (
            {device: merged(spans, offset) for device, spans in by_device.items()}
            for by_device in (busy, collectives)
        )
        functions = [(name, began + offset) for name, began in functions]
        return Events(busy, collectives, merged(calls, offset), merged(copies, offset), functions)


@dataclass
class Window:
    """A period of dense sampling with the profiler open; in seconds of `time.perf_counter`."""

    began: float
    over: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    recording: Recording | None = None  # May have begun earlier, and ended later.
    stands_for: Spans = field(default_factory=list)  # Before it, and without its own time.
    length: float = 0.0  # The planned one, in seconds.
    is_cut: bool = False  # The program, or its own profiler, has ended it early.

    @functools.cached_property
    def events(self) -> Events | None:
        """The part of the recording in this window; copies count as calls if nothing was called."""
        if (recorded := self.recording.events) is None:
            return None
        calls, copies = self._within(recorded.calls), self._within(recorded.copies)
        busy, collectives = (
            {name: inside for name, spans in each.items() if (inside := self._within(spans))}
            for each in (recorded.busy, recorded.collectives)
        )
        functions = [(name, at) for name, at in recorded.functions if self.began < at < self.over]
        return Events(busy, collectives, calls or copies, copies, functions)

    def _within(self, spans: Spans) -> Spans:
        return [
            (max(start, self.began), min(end, self.over))
            for start, end in spans
            if end > self.began and start < self.over
        ]


def _with_ends(
    spans: list[tuple[float, float, str]], ends: list[float], opened: float, closed: float
) -> Iterator[tuple[float, float, str]]:
    """Yield the operators of one name with their whole durations.

    XLA computes an operator on a CPU in pieces, in several threads. The operator's own event ends
    when the pieces are distributed. A marker named "end: ..." follows when all are done. Markers
    come in the order of the events. An operator that runs while the profiler opens or closes lacks
    the one or the other.

        recorded       |        end    [dot]      end    [dot]       |
        operators      [==========]    [============]    [===========]
                    opened                                        closed
    """
    unfinished: list[tuple[float, float, str]] = []
    for start, end, device in sorted([*spans, *((at, at, "") for at in ends)]):
        if device:
            unfinished.append((start, end, device))
        elif unfinished:
            start, _, device = unfinished.pop(0)
            yield start, end, device
        elif len({device for *_, device in spans}) == 1:
            yield opened, end, spans[0][2]
    # Operators without any marker were computed in one piece.
    yield from ((start, closed if ends else end, device) for start, end, device in unfinished)


def _span(event: Any) -> tuple[float, float]:
    return event.start_ns / 1e9, (event.start_ns + event.duration_ns) / 1e9


def merged(spans: Spans, offset: float = 0.0) -> Spans:
    """Return the union of spans, in order and without overlaps, shifted by an offset."""
    apart: Spans = []
    for start, end in sorted(spans):
        if apart and start + offset <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], end + offset)
        else:
            apart.append((start + offset, end + offset))
    return apart


def overlap(spans: Spans, start: float, end: float) -> float:
    """Return how many seconds between two times these merged spans cover."""
    total = 0.0
    for first, last in spans[max(bisect_left(spans, (start,)) - 1, 0) :]:
        if first >= end:
            break
        total += max(min(last, end) - max(first, start), 0.0)
    return total


def pause_after(elapsed: float) -> float:
    """Return the mean pause between two windows, in seconds, after so many seconds of watching."""
    return max(0.2, 0.05 * elapsed)


class Windows:
    """Opens a window now and then: often at first, then ever more rarely.

    A window stands for the time since the window before. While none can be opened, and while Python
    collects garbage between two, the devices are not seen, and no window stands for that time::

        due                 |           |  the program records  |
        windows         [--]        [--]                        .   [--]
        stands for      <----------><----------><-- not seen --><------>

    The pauses are random, so that no loop keeps in step with them. A call that keeps Python's lock
    delays a window, or keeps it open to the end of the call. So a window that is late ends when it
    would have ended, or is left out. Otherwise most windows would begin behind such calls, and the
    time in the calls would be met too rarely::

        call              [========]        [========]        [========]
        due             |                     |                       |
        windows         [----------]          . left out              .  [-]
                         kept open                              ends as planned
    """

    RARER_AFTER, LENGTH = 20, 0.05  # A number of windows; seconds.
    LATE = 0.1  # Seconds that a window may be late.

    def __init__(self) -> None:
        self.closed: list[Window] = []  # Those whose recording has ended, in order.
        # The first window is shorter, since its cost is unknown.
        self._length = self.LENGTH / 2
        self._began = self._last_over = self.due = time.perf_counter()
        self._stands_for: Spans = []  # What the next window stands for, up to `_last_over`.
        self._retry = 0.0
        # When JAX had started.
        self.could_begin = self._began if state.has_started() else math.inf
        self._window_lock = threading.Lock()
        self._program_records = threading.Event()
        self._recording: Recording | None = None
        self._is_sampling = False
        self._session_lock = threading.RLock()
        self._closing_seconds = 0.0
        self._sessions = Sessions(self._make_way)

    def obstacle(self) -> str:
        """Return, in words, why no window can be opened now; "" if one can."""
        if not state.has_started():
            return "the program did not use JAX"
        self.could_begin = min(self.could_begin, time.perf_counter())
        if state.is_recording():  # Perhaps from before the first window, which replaces sessions.
            self._program_records.set()
            return "the program recorded with JAX's profiler itself"
        if self._program_records.is_set():
            self._program_records.clear()
            if time.perf_counter() > self.due:
                self._postpone()
        return self._sessions.why_none

    def is_due(self) -> bool:
        """Return whether it is time for a window, and the profiler is free."""
        is_free = self.obstacle() in ("", self._sessions.why_none)
        return is_free and time.perf_counter() >= max(self.due, self._retry)

    def late_since(self) -> float | None:
        """Return since when a window has been due; None if the next one is not late yet."""
        return self.due if time.perf_counter() > self.due + self.LATE else None

    def record(
        self,
        take_sample: Callable[[Window], None],
        done: threading.Event,
        interval: float,
        late: float = 0.0,
    ) -> None:
        """Take samples for the length of a window, or until `done`, with the profiler open.

        A call has delayed the window for `late` seconds.
        """
        if late > self._length:
            self._postpone()
            return
        with self._window_lock:
            # Opening takes a tenth of a millisecond (longer beside a GPU), but releases Python's
            # lock, perhaps to a call that keeps it.
            began = time.perf_counter()
            if not self._open_profiler():
                return
            if state.has_accelerator():
                began = time.perf_counter()
            self._stand_until(self.due if began > self.due + self.LATE else began, began)
            window = Window(began, 0.0, [], self._recording, self._stands_for, self._length)
            # A thread that computes in Python keeps the GIL for 5 ms, and samples would be rare.
            before = sys.getswitchinterval()
            shorter = min(before, 5e-4)
            sys.setswitchinterval(shorter)
            try:
                take_sample(window)
                while time.perf_counter() < window.began + self._length - late:
                    if self._program_records.is_set() or done.wait(interval):
                        window.is_cut = time.perf_counter() < began + 0.5 * self._length
                        break
                    take_sample(window)
                # A call that held Python's lock, or a collection, may have come after the last one.
                take_sample(window)
            finally:
                window.over = time.perf_counter()
                if abs(sys.getswitchinterval() - shorter) < 1e-9:
                    sys.setswitchinterval(before)
                window.recording.windows.append(window)
                self._is_sampling = False
                if not state.has_accelerator():
                    self.close()
                else:
                    _MAIN_THREAD.call(self.close)
            # Closing may take a third of the time at first, and a twentieth later.
            times = 20 if len(self.closed) >= self.RARER_AFTER else 2
            pause = max(pause_after(window.over - self._began), times * self._closing_seconds)
            self.due = window.over + _RANDOM.uniform(0.5, 1.5) * pause
            if window.is_cut:  # The next one stands for this time as well.
                self._stand_until(window.over, window.over)
            else:
                self._stands_for, self._last_over = [], window.over

    def _postpone(self) -> None:
        """Begin the next window at a random time, and not where a call or recording has ended."""
        now = time.perf_counter()
        self._stand_until(self.due if now > self.due + self.LATE else now, now)
        self.due = now + _RANDOM.uniform(0, 2 * pause_after(0))

    def _stand_until(self, until: float, now: float) -> None:
        """Have the next window stand for the time until then, and not until now."""
        self._stands_for = [*self._stands_for, (self._last_over, until)]
        self._last_over = now

    def _open_profiler(self) -> bool:
        """Open the profiler unless it is open already; return whether it is open now."""
        if not self._session_lock.acquire(blocking=False):  # Another thread is closing it.
            return False
        try:
            if self._recording is None:
                if (session := self._sessions.open()) is None:
                    self._retry = time.perf_counter() + 1.0
                    return False
                recording = Recording(session)
                with sys.modules["jax"].profiler.TraceAnnotation(_OPENING_MARKER):
                    recording.began = time.perf_counter()
                self._recording = recording
            self._is_sampling = True
            return True
        finally:
            self._session_lock.release()

    def close(self) -> None:
        """Close the profiler if it is open; beside a GPU, the main thread has a second to do it."""
        if state.has_accelerator() and threading.current_thread() is not threading.main_thread():
            end = time.perf_counter() + 1.0
            while self._recording is not None and time.perf_counter() < end:
                time.sleep(1e-3)
        # Time out to break a deadlock: a signal handler may interrupt the code below, in the thread
        # that holds the lock, and wait for the thread that waits here.
        if not self._session_lock.acquire(timeout=10.0):
            return
        try:
            recording = self._recording
            if recording is None or self._is_sampling:
                return
            recording.over = time.perf_counter()
            with without_tensorflow():
                try:
                    recording.data = recording.session.stop()
                    self.closed += recording.windows
                except RuntimeError as error:
                    # Without a deeper frame, JAX raised it: the program has ended the session.
                    # With one, a signal handler of the program did.
                    if error.__traceback__.tb_next:
                        raise
                finally:
                    self._recording = None
            # Closing takes longer the more events were recorded. The next window is short enough
            # to close in about 8 ms.
            self._closing_seconds = time.perf_counter() - recording.over
            length = 8e-3 * (recording.over - recording.began) / max(self._closing_seconds, 1e-6)
            self._length = min(max(length, 0.01), self.LENGTH)
        finally:
            self._session_lock.release()

    @contextmanager
    def _make_way(self) -> Iterator[None]:
        """Close the profiler for a recording by the program, and open no window meanwhile."""
        self._program_records.set()
        with self._window_lock:
            self.close()
            yield

    def end(self) -> None:
        """Give JAX's profiler back as it was."""
        self._sessions.restore()


class _MainThread:
    """Runs functions in the main thread, between two of its bytecodes.

    `Py_AddPendingCall` takes a C function and one pointer, and raises the C function's error in the
    main thread if that returns -1. `PyObject_IsTrue` is such a function: with a pointer to this
    object it calls `__bool__`. An error that a signal handler raises meanwhile, such as
    KeyboardInterrupt, so reaches the program.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def call(self, function: Callable[[], None]) -> None:
        """Schedule a call of this function, unless one is scheduled."""
        if function not in self._calls:
            self._calls.append(function)
        if not self._is_scheduled:
            # Set the flag first: the main thread may run `__bool__` before the call below returns.
            self._is_scheduled, this = True, ctypes.py_object(self)
            python = ctypes.pythonapi
            if python.Py_AddPendingCall(python.PyObject_IsTrue, this):
                self._is_scheduled = False  # Python's short queue is full; the next call retries.

    def __bool__(self) -> bool:
        self._is_scheduled = False
        while self._calls:
            self._calls.popleft()()
        return False


_MAIN_THREAD = _MainThread()  # A global, since Py_AddPendingCall holds no reference.
