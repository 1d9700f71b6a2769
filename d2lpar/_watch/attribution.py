"""Charge the idle time of a device to the lines of a program, with an interval for each loss.

How it works. `_watch/sampler.py` gives the rule. Two facts leave no event, and are inferred
here. One is the thread that feeds a device: the thread that was in a call while the profiler saw
one. The other is whether a device works on an operator that began before a window or ends after it.
The threads that wait, and the cores in use, tell.
"""

import math
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from d2lpar._jax import state
from d2lpar._jax.stack import CodePosition, Place, only_reads
from d2lpar._plain.format import format_seconds
from d2lpar._watch.recompilations import Compiled, find_again, why
from d2lpar._watch.report import SEEN, Finding, Watched
from d2lpar._watch.shares import mean_share
from d2lpar._watch.windows import Sample, Spans, ThreadSample, Window, merged, overlap

_FOR_A_DEVICE = {"value", "barrier", "checks"}
_CHECKS = "each call waits for its results and checks them"
_SWITCHES = {
    "jax_debug_nans": _CHECKS,
    "jax_debug_infs": _CHECKS,
    "jax_disable_jit": "each operator is a separate call",
}


@dataclass
class _Line:
    """The samples of one thread at one line."""

    # Seconds after the start by kind, scaled up from the windows to the whole time; and the part of
    # them that the device was idle because of this line.
    kinds: Counter[str] = field(default_factory=Counter)
    lost_as: Counter[str] = field(default_factory=Counter)
    # The share of each window that the device was idle because of this line.
    lost: Counter[int] = field(default_factory=Counter)
    # How many samples found the thread at each position.
    positions: Counter[CodePosition] = field(default_factory=Counter)
    # Where other threads were while this thread waited for another.
    elsewhere: Counter[Place] = field(default_factory=Counter)


class Account:
    """Charges the samples of a watcher to the lines of the program."""

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher
        self._compiled = list(watcher.compilations.done)
        find_again(self._compiled)
        self._windows = list(watcher.windows.closed)
        self._feeders = _feeders(self._windows, self._compiled)
        self._start = self._end_of_start()
        work = Counter()
        for window in self._windows:
            for device, spans in window.events.busy.items():
                work[device] += overlap(spans, -math.inf, math.inf)
        # The busiest device comes first. Lines are charged with its idle time.
        self._devices = [name for name, _ in work.most_common()] or ["The device"]
        self._synchronous = state.dispatches_synchronously()
        compiling = defaultdict(list)
        for program in self._compiled:
            compiling[program.thread].append((program.began, program.over))
        self._compiling = {thread: merged(spans) for thread, spans in compiling.items()}
        self._unseen = 0.0
        self._collective = 0.0
        self._has_peers = state.process_count() > 1
        # For each device, the idle share of each window.
        self._idle: dict[str, Counter[int]] = defaultdict(Counter)
        self._lines: dict[tuple[str, Place], _Line] = defaultdict(_Line)

    def _end_of_start(self) -> float:
        """Return when the first compilations ended, those that follow each other closely."""
        began = self._watcher.began
        if self._watcher.after is not None:
            return min(began + self._watcher.after, time.perf_counter())
        events = [window.events for window in self._windows]
        spans = (spans for e in events for spans in (*e.busy.values(), e.calls) if spans)
        ran = min((each[0][0] for each in spans), default=math.inf)
        # Count compilations before the first call, and those that follow soon after.
        soon = max(ran, began + 0.5) + 0.05
        close = []
        for program in self._compiled:
            if program.began > soon:
                break
            close.append(program)
            soon = program.over + max(0.5, 0.5 * (program.over - close[0].began))
        new = [program.over for program in close if not program.again]
        again = [program for program in close if program.again]
        end = max(new, default=began)
        # Otherwise the start of a program that recompiles all the time would never end.
        if began + self._watcher.watched.seconds - end < sum(program.seconds for program in again):
            end = max((over for over in new if over < again[0].over), default=began)
        return end

    def fill(self, watched: Watched) -> None:
        """Fill in the report."""
        watched.start_seconds = self._start - self._watcher.began
        after = watched.judged_seconds
        samples = [self._after_start(window) for window in self._windows]
        # A window represents the time since the window before.
        weights, previous = {}, self._start
        for number, window in enumerate(self._windows):
            if samples[number]:
                weights[number], previous = window.over - previous, window.over
        weights = {n: span * after / (previous - self._start) for n, span in weights.items()}
        for number, weight in weights.items():
            self._charge(number, samples[number], weight)
        watched.observed_seconds = sum(x.end - x.start for kept in samples for x in kept)
        in_windows = set(self._lines)
        for (name, position, activity), seconds in self._watcher.between_windows.items():
            # Lines that no profiler window covered: use the stack samples between windows, for
            # waits only.
            if (name, position.place) not in in_windows and activity in ("value", "barrier"):
                self._lines[name, position.place].kinds[activity] += seconds
                self._lines[name, position.place].positions[position] += 1
        calls = sum(len(window.events.calls) for window in self._windows)
        if calls > 20 and not any(window.events.busy for window in self._windows):
            watched.observed_seconds, weights = 0.0, {}  # The profiler missed the devices.
        watched.devices = {}
        for device in self._devices if weights else ():
            share, *interval = _mean(self._idle[device], weights)
            watched.devices[device] = share * after
            if device == self._devices[0]:
                watched.interval = tuple(interval)
        watched.collective_seconds = self._collective
        watched.findings = list(self._of_lines(weights, after))
        watched.findings += self._of_compilations(watched.seconds)
        watched.findings.sort(key=lambda f: (watched.loss(f), f.seconds), reverse=True)
        watched.notes = list(self._notes(watched.observed_seconds))

    # --- Charging a window --------------------------------------------------------------------

    def _after_start(self, window: Window) -> list[Sample]:
        """Return the samples of a window, cut to the window and to the time after the start."""
        first = max(window.began, self._start)
        samples = (
            sample._replace(start=max(sample.start, first), end=min(sample.end, window.over))
            for sample in window.samples
        )
        return [sample for sample in samples if sample.end > sample.start]

    def _charge(self, number: int, samples: list[Sample], weight: float) -> None:
        """Charge the lines with a window that represents `weight` seconds."""
        window = self._windows[number]
        whole = sum(sample.end - sample.start for sample in samples)
        for n, sample in enumerate(samples):
            compiling = {ident for ident in sample.threads if self._is_compiling(ident, sample)}
            callbacks = [i for i, t in sample.threads.items() if t.stack.activity == "callback"]
            if callbacks:
                idle = dict.fromkeys(self._devices, sample.end - sample.start)
            else:
                # Linux updates the CPU time of a process only every few milliseconds.
                near = samples[max(n - 6, 0) : n + 7]
                idle, unseen = self._idle_in(sample, near, window.events.busy, bool(compiling))
                self._unseen += unseen
                # An unseen operator that uses no CPU waits for other processes.
                together = unseen if self._has_peers and _native_cores(near) < 0.3 else 0.0
                spans = window.events.collectives.get(self._devices[0], [])
                together += overlap(spans, sample.start, sample.end)
                self._collective += together * weight / whole
            for device, seconds in idle.items():
                self._idle[device][number] += seconds / whole
            lost = idle[self._devices[0]]
            is_idle, called = lost > 0.5 * (sample.end - sample.start), _in_call(sample, window)
            for ident, thread in sample.threads.items():
                if ident in compiling:
                    continue  # The events of the compilation tell its time.
                kind = _kind(thread, is_idle, called)
                name = "a callback" if kind == "callback" else thread.name
                line = self._lines[name, thread.stack.position.place]
                line.kinds[kind] += (sample.end - sample.start) * weight / whole
                line.positions[thread.stack.position] += 1
                if ident in (callbacks or [self._feeders[number]]):
                    line.lost_as[kind] += lost * weight / whole
                    line.lost[number] += lost / whole
                    if kind == "host wait":
                        line.elsewhere.update(
                            other.stack.position.place
                            for other in sample.threads.values()
                            if other.stack.activity != "locks"
                        )

    def _is_compiling(self, ident: int, sample: Sample) -> bool:
        if sample.threads[ident].stack.activity == "compiles":
            return True
        # While JAX traces, the stack shows the lines of the traced function.
        return overlap(self._compiling.get(ident, []), sample.taken_at, sample.taken_at + 1e-9) > 0

    def _idle_in(
        self, sample: Sample, near: list[Sample], busy: dict[str, Spans], compiling: bool
    ) -> tuple[dict[str, float], float]:
        """Return how long each device was idle during a sample.

        And how long the first device worked on an operator without an event.
        """
        start, end = sample.start, sample.end
        idle = {d: end - start - overlap(busy.get(d, []), start, end) for d in self._devices}
        first = self._devices[0]
        if (
            min(idle.values()) == end - start
            and not compiling
            and self._is_unseen(sample, near, busy.get(first, []))
        ):
            idle[first] = 0.0
            return idle, end - start
        return idle, 0.0

    def _is_unseen(self, sample: Sample, near: list[Sample], busy: Spans) -> bool:
        """Return whether a device works on an operator that reaches over an edge of the window.

        Such an operator leaves no event. So there may be one before the first event of the window,
        and one after the last.
        """
        events = [span for span in busy if span[1] - span[0] > 1e-4]  # Some operators are empty.
        if events and events[0][0] < sample.end and sample.start < events[-1][1]:
            return False
        waits = reading = computes = False
        for ident, thread in sample.threads.items():
            # A preempted thread looks like a waiting one, so consider the samples around.
            rests = not thread.has_moved and not any(
                x.threads[ident].used_cpu for x in near if ident in x.threads
            )
            calls = thread.stack.activity == "call"
            reads_it = calls and only_reads(thread.stack.innermost)
            waits |= rests and thread.stack.activity in _FOR_A_DEVICE
            # A call may wait until another process makes the same call.
            waits |= rests and thread.stack.activity == "jax" and self._has_peers
            waits |= self._synchronous and thread.used_cpu and calls and not reads_it
            reading |= rests and reads_it
            computes |= thread.used_cpu and reads_it  # NumPy has threads of its own.
        native_cores = _native_cores(near)
        return waits or (native_cores > (0.3 if reading else 0.5) and not computes)

    # --- Reporting ----------------------------------------------------------------------------

    def _of_lines(self, weights: dict[int, float], after: float) -> Iterator[Finding]:
        watcher = self._watcher
        for (name, place), line in self._lines.items():
            # Count ambiguous samples as dispatch if clear dispatch samples of this line are at
            # least a tenth of them.
            sure = line.kinds["dispatch"] > 0.1 * line.kinds["perhaps dispatch"]
            for kinds in (line.kinds, line.lost_as):
                kinds["dispatch" if sure else "device idle"] += kinds.pop("perhaps dispatch", 0.0)
            seconds = sum(line.kinds.values())
            lost, surely_lost, _ = _mean(line.lost, weights)
            # Name the kind that caused the idleness, if over half of the line's time was idle.
            costs = line.lost_as if lost * after > 0.5 * seconds else line.kinds
            kind = max(line.kinds, key=lambda kind: (costs[kind], line.kinds[kind]))
            works_on = lost < SEEN and kind in ("device idle", "dispatch", "host wait")
            if works_on or seconds < SEEN * after:
                continue
            callers: Counter[str] = Counter()
            for position in line.positions:
                for caller, count in watcher.callers[position].items():
                    if caller.place != place:  # A comprehension's caller is on the same line.
                        callers[str(caller.place)] += count
            detail = ""
            for other, _ in line.elsewhere.most_common(kind == "host wait"):
                detail = f"Meanwhile another thread was at {other}  {other.code}"
            yield Finding(
                kind,
                place,
                line.positions.most_common(1)[0][0].operation,
                name,
                seconds,
                max(sum(watcher.times[position] for position in line.positions), 1),
                lost * after,
                surely_lost * after,
                dict(callers),
                detail,
            )

    def _of_compilations(self, seconds: float) -> Iterator[Finding]:
        lines = defaultdict(list)
        for program in self._compiled:
            lines[program.callers[0].place].append(program)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for place, compiled in lines.items():
            again = [program for program in compiled if program.again]
            reported = again or [program for program in compiled if program.over > self._start]
            took = sum(program.seconds for program in reported)
            if took < SEEN * seconds:
                continue
            lost = sum(
                max(program.over - max(program.began, self._start), 0.0) for program in again
            )
            detail = f"That took {format_seconds(took)}."
            yield Finding(
                "compilation" if again else "first compilation",
                place,
                reported[-1].callers[0].operation,
                names.get(reported[-1].thread, "a thread"),
                lost if again else took,
                len(reported),
                lost,
                lost,
                detail=f"{why(compiled)} {detail}" if again else detail,
            )

    def _notes(self, observed_seconds: float) -> Iterator[str]:
        config = getattr(sys.modules.get("jax"), "config", None)
        for switch, words in _SWITCHES.items():
            if getattr(config, switch, False):
                yield f"{switch} is on: {words}."
        if self._synchronous:
            yield (
                "jax_cpu_enable_async_dispatch is off: a call computes before it returns. Switch "
                "it on, unless you know why it is off."
            )
        if len(self._devices) > 1 and self._unseen > 0.1 * observed_seconds:
            yield (
                f"Operators longer than a window were attributed to {self._devices[0]}; the device "
                "that they ran on was not seen."
            )
        if not observed_seconds:
            reason = self._watcher.windows.why_none
            if self._windows:
                reason = "JAX's profiler recorded nothing of them after the start"
            yield f"It is unknown what the devices did: {reason}."


def _feeders(windows: list[Window], compiled: list[Compiled]) -> list[int]:
    """Return, for each window, the thread that most likely dispatches to the devices."""
    called: list[Counter[int]] = []
    moved: Counter[int] = Counter()
    for window in windows:
        called.append(Counter())
        for sample in window.samples:
            in_call = _in_call(sample, window)
            # Calls are often shorter than the time between two samples.
            calls = window.events.calls
            first, last = (bisect_left(calls, (at,)) for at in (sample.start, sample.end))
            for ident, thread in sample.threads.items():
                if in_call and thread.stack.activity in ("call", "jax", "library", "compiles"):
                    called[-1][ident] += 1
                if first < last and thread.has_moved:
                    moved[ident] += 1
    compiling = Counter(program.thread for program in compiled)
    anywhere = sum(called, Counter()) or moved or compiling
    anywhere = anywhere or Counter([threading.main_thread().ident])
    return [(here or anywhere).most_common(1)[0][0] for here in called]


def _native_cores(samples: list[Sample]) -> float:
    """Return how many cores were used by threads other than Python's."""
    whole = samples[-1].end - samples[0].start
    return sum(x.native_cores * (x.end - x.start) for x in samples) / whole


def _in_call(sample: Sample, window: Window) -> bool:
    # The sampler reads the clock and the stacks one after the other.
    return overlap(window.events.calls, sample.taken_at - 5e-5, sample.taken_at + 5e-5) > 0


def _kind(thread: ThreadSample, idle: bool, called: bool) -> str:
    """Return the kind of a thread's activity, one of `KINDS`, or "perhaps dispatch"."""
    activity = thread.stack.activity
    known = {"checks": "check", "sleeps": "device idle", "locks": "host wait"}
    if activity in ("value", "barrier", "callback", *known):
        return known.get(activity, activity)
    if not thread.used_cpu and not idle and activity in ("call", "jax", "puts"):
        return "value" if only_reads(thread.stack.innermost) and not called else "queue"
    if activity in ("jax", "puts") or called:
        return "queue" if not idle else "dispatch"
    return "perhaps dispatch" if activity in ("library", "call") else "device idle"


def _mean(shares: Counter[int], weights: dict[int, float]) -> tuple[float, float, float]:
    return mean_share([shares[n] for n in weights], list(weights.values()))
