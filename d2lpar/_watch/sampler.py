"""Find the lines where a program loses time, with samples of its threads and its devices.

How it works. A thread samples the stacks of all others, a hundred times a second. Now and then the
sampling thread opens JAX's profiler for a short window (`windows.py`), and takes a thousand samples
a second meanwhile. A window shows what each device did while Python was at each line. Whenever the
device is idle in a window, one line is charged, mostly of the thread that feeds the device::

    device          [==busy==]      idle      [==busy==]
    feeder thread   y = f(x)   print(float(y))   y = f(y)
                               ^ charged with the idle time

So the losses of all lines add up to the idle time of the device. Shares refer to the time after the
start, which ends with the first compilations. They carry an interval, since windows are a sample.
In time that no window stands for, the samples still show the lines, but nothing is lost there or
not lost: the devices were not seen. Whether a thread waits or works is told from its stack
(`_jax/stack.py`, `_ACTIVITIES`). `attribution.py` decides which line is charged, and `findings.py`
sums the charges.
"""

import _thread
import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from d2lpar._jax.reads import threads_that_may_wait
from d2lpar._jax.stack import (
    CodePosition,
    StackSample,
    current_frames,
    processor_time,
    sample_stack,
)
from d2lpar._jax.state import require_values
from d2lpar._measure.mean_share import FEWEST
from d2lpar._plain.errors import D2lparError, require_posix, require_seconds
from d2lpar._watch.findings import fill
from d2lpar._watch.recompilations import Compilations
from d2lpar._watch.report import Watched
from d2lpar._watch.windows import Collection, Sample, ThreadSample, Window, Windows

_KEPT_LOCK = 5e-3  # Seconds in a window without a sample; Python threads pass the lock on earlier.
_TURNS = 0.02  # Seconds that this thread may wait for some turns of Python threads.
_LONG_COLLECTION = 1e-3  # Seconds; the many short ones of the youngest objects are not kept.


@contextmanager
def watch(interval: float = 0.01) -> Iterator[Watched]:
    """Profile this program by sampling: which lines of your code keep the device waiting?

    The report leaves out lines that lost less than half a percent of the time. Short windows of
    JAX's profiler show the devices, so a second or two tell little. If the program uses the
    profiler itself, the program takes precedence.

    Args:
        interval: Seconds between two samples of Python's threads; windows sample more often.

    Yields:
        The report, filled in when the block ends, also by an error.

    Raises:
        D2lparError: If the program is being watched already, JAX traces, watching failed, or this
            is Windows.
        ValueError: If `interval` is no positive number of seconds.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with watch() as found:
        ...     _ = float(jnp.ones(()))
        >>> found.seconds > 0
        True
    """
    require_posix("watch()")
    require_seconds("interval", interval)
    require_values("watch()")
    watcher = Watcher(interval)
    watcher.start()
    try:
        yield watcher.watched
    finally:
        watcher.stop()
    if watcher.error:
        raise D2lparError("Watching ended early.") from watcher.error


@dataclass
class Unseen:
    """Samples from time that no window stands for; all in seconds."""

    reasons: Counter[str] = field(default_factory=Counter)  # Why no window could be opened.
    # How long a thread was at each position, by its activity; and the names of the threads.
    positions: Counter[tuple[CodePosition, str]] = field(default_factory=Counter)
    names: dict[CodePosition, set[str]] = field(default_factory=lambda: defaultdict(set))


class Watcher:
    """Samples this program from a separate thread."""

    _running: "Watcher | None" = None
    _lock = threading.Lock()
    _listens = False

    def __init__(
        self,
        interval: float = 0.01,
        *,
        after: float | None = None,
        on_sample: Callable[[], None] = lambda: None,
        gives_way: bool = False,
    ) -> None:
        self.watched = Watched()
        self.error: BaseException | None = None
        self.windows = Windows()
        self.compilations = Compilations()
        # By the time at which JAX started, or ended a phase last: the start ends with one of them.
        self.unseen: dict[float, Unseen] = defaultdict(Unseen)
        self.early: dict[float, Unseen] = defaultdict(Unseen)  # Not due, before some windows.
        # For each position, in how many samples each other one was its caller, and how often a
        # thread came there.
        self.callers: dict[CodePosition, Counter[CodePosition]] = defaultdict(Counter)
        self.times: Counter[CodePosition] = Counter()
        self.after = after  # The seconds of the start; None to infer them from the compilations.
        self._gives_way, self._outer = gives_way, None
        self._interval, self._on_sample = interval, on_sample
        self._last: dict[int, tuple[tuple[int, int], StackSample | None, float | None]] = {}
        self._clocks = (0.0, 0.0, 0.0)
        self._spent = 0.0  # The processor's seconds for the last sample.
        self.collections: list[Collection] = []
        self._collecting_since: float | None = None
        self._done = threading.Event()
        self._ended = threading.Event()
        self._ended.set()
        self._ident = self._native = 0
        self._pauses, self._pausing = 1, threading.RLock()  # Of pauses that are open.

    def start(self) -> None:
        """Start sampling."""
        with Watcher._lock:
            # A `watch()` in the script pauses the command's watcher.
            if outer := Watcher._running:
                if not outer._gives_way:
                    raise D2lparError(
                        "The program is being watched already. One watch() is enough."
                    )
                outer.pause()
            self._outer = outer
            Watcher._running = self
        self.began = time.perf_counter()
        self.resume()

    def stop(self) -> None:
        """Stop sampling, and fill in the report."""
        try:
            self.pause()
        finally:
            with Watcher._lock:
                Watcher._running = self._outer
            self.windows.end()
            if self._outer is not None:
                self._outer.resume()
        try:
            self.report()
        except Exception as error:  # The program must end as it ends unwatched.
            self.error = self.error or error

    def pause(self) -> None:
        """End the sampling thread, and wait until the operating system has removed it."""
        with self._pausing:
            self._pauses += 1
            self._done.set()
        self._ended.wait()
        with suppress(ValueError):
            gc.callbacks.remove(self._note_collection)
        self.windows.close()
        # From Python 3.12 on, fork() warns while another thread exists.
        while os.path.exists(f"/proc/self/task/{self._native}"):
            time.sleep(0)
        self._native = 0  # The system may give the number to another thread.

    def resume(self) -> None:
        """Sample from a new thread, unless another pause is open, as when two threads fork."""
        with self._pausing:
            if self._pauses == 1:
                self._start_thread()
            # The watch may have begun in another thread, after the pause before a fork.
            self._pauses = max(self._pauses - 1, 0)

    def _start_thread(self) -> None:
        self._done.clear()
        self._ended.clear()
        # The first sample must not be compared with one from before the pause.
        self._last, self._clocks = {}, (0.0, 0.0, 0.0)
        # In front of JAX's own, in which other threads get a turn.
        gc.callbacks.insert(0, self._note_collection)
        # Signals are left to the program's own threads. `_thread` keeps the new thread out of
        # `threading.enumerate`, where the program might count or join it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._ident = _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def report(self) -> None:
        """Fill in the report up to now."""
        self.watched.seconds = time.perf_counter() - self.began
        fill(self.watched, self)

    def _run(self) -> None:
        self._native = threading.get_native_id()
        try:
            planned = time.perf_counter() + self._interval
            while not self._done.wait(planned - time.perf_counter()):
                self._listen_to_jax()
                used = time.thread_time()
                self._sample()
                self._on_sample()
                spent = time.thread_time() - used
                if self.windows.is_due():
                    interval = min(self._interval, 1e-3)
                    late = self._kept_waiting(max(planned, self.windows.due)) - spent
                    late = late if late > _TURNS else 0.0
                    self.windows.record(self._sample, self._done, interval, late)
                planned = time.perf_counter() + self._pause_after(spent)
        except BaseException as error:  # `watch` raises it where the block ends.
            self.error, self._native = error, 0
        finally:
            self._ended.set()

    def _pause_after(self, spent: float) -> float:
        """Return how long to pause after a sample that took these seconds of the processor.

        Samples of many threads are slow, and may take a twentieth of the time at most. A single
        slow one does not count: Python may have collected garbage in this thread.
        """
        usual, self._spent = min(spent, self._spent), spent
        return max(self._interval, 20 * usual)

    def _sample(self, window: Window | None = None) -> None:
        now, process, own = time.perf_counter(), time.process_time(), time.thread_time()
        before, process_before, own_before = self._clocks
        seconds, python = max(now - before, 1e-9), own - own_before
        named = {thread.ident: thread for thread in threading.enumerate()}
        may_wait = threads_that_may_wait()
        first_half, second_half, last = {}, {}, {}
        for ident, frame in current_frames().items():
            if ident == self._ident:
                continue
            thread = named.get(ident)
            used = processor_time(thread)
            top = id(frame), frame.f_lasti
            old_top, old, old_used = self._last.get(ident, (None, None, None))
            spent = (used or 0.0) - (old_used or 0.0)
            # id(frame) may be reused by a new frame. A thread that used under 10 us of CPU since
            # the last sample is still in the same frame, so its stack is not walked again.
            is_same = used and spent < 1e-5 and top == old_top
            stack = old if is_same else sample_stack(frame)
            last[ident] = top, stack, used
            python += spent if old_used is not None else 0.0
            has_stayed = old and stack and old.position == stack.position
            if stack and not has_stayed and not (old and stack.position in old.callers):
                self.times[stack.position] += 1  # It has not come back from a call of that line.
            if old is None:
                continue
            if not has_stayed:
                self.compilations.moves[ident].append(now)
            has_moved = stack is None or stack.fingerprint != old.fingerprint or spent > 2e-5
            used_cpu = has_moved if used is None else spent > 0.2 * seconds
            name = thread.name if thread else "a thread of XLA"
            flags = has_moved, used_cpu, ident in may_wait
            first_half[ident] = ThreadSample(name, old, *flags)
            if stack:
                second_half[ident] = ThreadSample(name, stack, *flags)
            self.callers[old.position].update(old.callers[:1])
        self.watched.looks += 1
        if before and window is None:
            self._note_unseen(now, before, first_half)
        elif before:
            native_cores = (process - process_before - python) / seconds
            # A call that has kept Python's lock gave it up where it ended: the sample now is of it.
            middle = before + min(seconds / 2, _KEPT_LOCK)
            window.samples += [
                Sample(before, middle, before, first_half, native_cores),
                Sample(middle, now, now, second_half, native_cores),
            ]
        self._last, self._clocks = last, (now, process, own)

    def _note_unseen(self, now: float, before: float, threads: dict[int, ThreadSample]) -> None:
        """Keep a sample from time that no window stands for."""
        since, kept = self.windows.late_since(), self.unseen
        if since is None and len(self.windows.closed) < FEWEST:
            since, kept = before, self.early
        if since is None or now < self.began + (self.after or 0.0):
            return
        late, obstacle = self._kept_waiting(max(before, since), now), self.windows.obstacle()
        jax_began = self.windows.could_begin
        since_phase = max(jax_began, self.compilations.over) if jax_began < now else 0.0
        unseen = kept[since_phase]
        if kept is self.unseen:
            unseen.reasons[obstacle or "a call kept Python's lock"] += late
        # Several threads at one line count once.
        for name, stack in {t.stack.position.place: t[:2] for t in threads.values()}.values():
            unseen.positions[stack.position, stack.activity] += late
            unseen.names[stack.position].add(name)

    def _kept_waiting(self, since: float, now: float | None = None) -> float:
        """Return how long it is since then, without collections of garbage."""
        now = now or time.perf_counter()
        recent = itertools.takewhile(lambda each: each.end > since, reversed(self.collections))
        collected = sum(each.end - max(each.start, since) for each in recent)
        if collecting_since := self._collecting_since:  # This thread got its turn at the end.
            collected += now - max(collecting_since, since)
        return max(now - since - collected, 0.0)

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        now, since = time.perf_counter(), self._collecting_since
        self._collecting_since = now if phase == "start" else None
        if phase == "stop" and since and now - since > _LONG_COLLECTION:
            sample = sample_stack(sys._getframe().f_back)  # None at the start of a thread.
            is_own = threading.get_ident() == self._ident
            self.collections.append(Collection(since, now, sample and sample.position, is_own))

    def _listen_to_jax(self) -> None:
        # A listener cannot be unregistered in jax 0.7, so all watchers share one. The module lacks
        # the function while another thread is importing JAX.
        monitoring = sys.modules.get("jax.monitoring")
        register = getattr(monitoring, "register_event_duration_secs_listener", None)
        if register and not Watcher._listens:
            Watcher._listens = True
            register(_note)


def _leave_to_parent() -> None:
    if Watcher._running:
        Watcher._running._outer = None  # Else resumed at the end of a block that both leave.
    # Another thread may have held the lock at the fork.
    Watcher._running, Watcher._lock = None, threading.Lock()


# A forked child would inherit an unfinished window, and Python 3.12 warns about the thread.
if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(
        before=lambda: Watcher._running and Watcher._running.pause(),
        after_in_parent=lambda: Watcher._running and Watcher._running.resume(),
        after_in_child=_leave_to_parent,
    )


def _note(event: str, seconds: float, **details: Any) -> None:
    watcher = Watcher._running
    if watcher and event.startswith("/jax/core/compile/"):
        with suppress(Exception):  # An error here would reach the program.
            watcher.compilations.note(event, seconds, str(details.get("fun_name", "a function")))
