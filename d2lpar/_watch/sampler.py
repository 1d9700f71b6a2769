"""Find the lines of a program at which it loses time, by sampling its threads and its devices.

How it works. A thread looks at the stacks of all others, a hundred times a second. Now and then it
opens JAX's profiler for a short window (`_windows`), looks a thousand times a second meanwhile, and
so learns what each device did while Python was at which line. In a window, each moment in which a
device is idle is charged to the line of the thread that feeds that device, whatever it did there;
so the losses of all lines add up to the idle time of the device. Shares are of what comes after
the start, which ends with the first compilations, and carry an interval, as windows are a sample.
"""

import _thread
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from d2lpar._jax.stack import (
    CodePosition,
    StackSample,
    current_frames,
    processor_time,
    sample_stack,
)
from d2lpar._jax.state import require_values
from d2lpar._plain.errors import D2lparError, require_seconds
from d2lpar._watch.attribution import Account
from d2lpar._watch.recompilations import Compilations
from d2lpar._watch.report import Watched
from d2lpar._watch.windows import Look, Seen, Window, Windows


@contextmanager
def watch(interval: float = 0.01) -> Iterator[Watched]:
    """Profile this program by sampling: at which lines of your code is the device kept waiting?

    Lines at which Python was for less than a two-hundredth of the time are left out. What the
    devices do is seen in short windows of JAX's profiler, so the first second or two tell little;
    if the program uses the profiler itself, that takes precedence.

    Args:
        interval: Seconds between two looks at what Python does; in the windows it looks more often.

    Yields:
        What has been seen, filled in when the block ends, also by an error.

    Raises:
        D2lparError: If the program is being watched already, or watching it failed.
        ValueError: If `interval` is no positive number of seconds, or JAX traces.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with watch() as found:
        ...     _ = float(jnp.ones(()))
        >>> found.seconds > 0
        True
    """
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


class Watcher:
    """Looks at this program from a thread of its own."""

    _running: "Watcher | None" = None
    _lock = threading.Lock()
    _hears = False

    def __init__(
        self,
        interval: float = 0.01,
        *,
        after: float | None = None,
        on_look: Callable[[], None] = lambda: None,
        of_command: bool = False,
    ) -> None:
        self.watched = Watched()
        self.error: BaseException | None = None
        self.windows = Windows()
        self.compilations = Compilations()
        self.outside: Counter[tuple[str, CodePosition, str]] = Counter()
        self.callers: dict[CodePosition, Counter[CodePosition]] = defaultdict(Counter)
        self.times: Counter[CodePosition] = Counter()
        self.after = after
        self._of_command, self._outer = of_command, None
        self._interval, self._on_look = interval, on_look
        self._last: dict[int, tuple[tuple[int, int], StackSample | None, float | None]] = {}
        self._clocks = (0.0, 0.0, 0.0)
        self._done = threading.Event()
        self._ended = threading.Event()
        self._ident = self._native = 0

    def start(self) -> None:
        """Begin to look."""
        with Watcher._lock:
            # A script that watches itself has the way.
            if outer := Watcher._running:
                if not outer._of_command:
                    raise D2lparError(
                        "The program is being watched already. One watch() is enough."
                    )
                outer.pause()
            self._outer = outer
            Watcher._running = self
        self.began = time.perf_counter()
        self.go_on()

    def stop(self) -> None:
        """Look no longer, and fill in what has been seen."""
        try:
            self.pause()
        finally:
            with Watcher._lock:
                Watcher._running = self._outer
            self.windows.end()
            if self._outer is not None:
                self._outer.go_on()
        self.report()

    def pause(self) -> None:
        """End the thread that looks."""
        self._done.set()
        self._ended.wait()
        self.windows.close()
        # It still has to leave, and whoever forks is told of a thread that is there.
        while os.path.exists(f"/proc/self/task/{self._native}"):
            time.sleep(0)

    def go_on(self) -> None:
        """Look from a new thread."""
        self._done.clear()
        self._ended.clear()
        self._last = {}  # What came since the last look was not seen.
        # The program's signals are not for it; and who counts or joins all threads does not see it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._ident = _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def report(self) -> None:
        """Fill in what has been seen so far."""
        self.watched.seconds = time.perf_counter() - self.began
        Account(self).fill(self.watched)

    # --- Looking ------------------------------------------------------------------------------

    def _run(self) -> None:
        self._native = threading.get_native_id()
        try:
            pause = self._interval
            while not self._done.wait(pause):
                self._listen()
                if self.windows.is_due():
                    self.windows.record(self._look, self._done, min(self._interval, 1e-3))
                used = time.thread_time()
                self._look()
                self._on_look()
                # A look costs more where there are more threads, but never a part of the time.
                pause = max(self._interval, 20 * (time.thread_time() - used))
        except BaseException as error:  # It is raised where the block ends.
            self.error = error
        finally:
            self._ended.set()

    def _look(self, window: Window | None = None) -> None:
        now, process, python = time.perf_counter(), time.process_time(), time.thread_time()
        before, process_before, python_before = self._clocks
        seconds = max(now - before, 1e-9)
        named = {thread.ident: thread for thread in threading.enumerate()}
        first, second, last = {}, {}, {}
        for ident, frame in current_frames().items():
            if ident == self._ident:
                continue
            thread = named.get(ident)
            used = processor_time(thread)
            python += used or 0.0
            top = id(frame), frame.f_lasti
            old_top, old, old_used = self._last.get(ident, (None, None, None))
            spent = (used or 0.0) - (old_used or 0.0)
            # A frame may be where an earlier one was, but what used no processor has not moved.
            sample = old if used and spent < 1e-5 and top == old_top else sample_stack(frame)
            last[ident] = top, sample, used
            goes_on = old and sample and old.position == sample.position
            if sample and not goes_on:
                self.times[sample.position] += 1
            if old is None:
                continue
            if not goes_on:
                self.compilations.moved[ident].append(now)
            moved = sample is None or sample.fingerprint != old.fingerprint or spent > 2e-5
            worked = moved if used is None else spent > 0.2 * seconds
            name = thread.name if thread else "a thread of XLA"
            first[ident] = Seen(name, old, moved, worked)
            if sample:
                second[ident] = Seen(name, sample, moved, worked)
            self.callers[old.position].update(old.callers[:1])
            if window is None:
                self.outside[name, old.position, old.activity] += seconds
        self.watched.looks += 1
        if window is not None and before:
            others = (process - process_before - python + python_before) / seconds
            middle = now - seconds / 2
            window.looks.append(Look(before, middle, before, first, others))
            window.looks.append(Look(middle, now, now, second, others))
        self._last, self._clocks = last, (now, process, python)

    # --- Hearing what compiles ----------------------------------------------------------------

    def _listen(self) -> None:
        # A single listener cannot be unregistered in jax 0.7, so there is one for the process.
        # None while JAX is being imported in another thread.
        monitoring = sys.modules.get("jax.monitoring")
        register = getattr(monitoring, "register_event_duration_secs_listener", None)
        if register and not Watcher._hears:
            Watcher._hears = True
            register(_note)


# A child would inherit half of a window, and Python 3.12 warns of the thread.
os.register_at_fork(
    before=lambda: Watcher._running and Watcher._running.pause(),
    after_in_parent=lambda: Watcher._running and Watcher._running.go_on(),
)


def _note(event: str, seconds: float, **details: Any) -> None:
    watcher = Watcher._running
    if watcher and event.startswith("/jax/core/compile/"):
        with suppress(Exception):  # The program must not fail for it.
            watcher.compilations.note(event, seconds, str(details.get("fun_name", "a function")))
