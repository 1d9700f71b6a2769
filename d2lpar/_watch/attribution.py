"""Charge the time in which a device is idle to the lines of a program, and say how sure that is.

How it works. `_watch` says by which rule. Two things are not seen and have to be inferred: which
thread feeds a device, from where each one was while there was a call; and whether a device works
on what began before a window or ends after it, from who waits and which cores are used.
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
from d2lpar._watch.windows import Look, Seen, Spans, Window, merged, overlap

_FOR_A_DEVICE = {"value", "barrier", "checks"}
_CHECKS = "each call waits for its results and looks at them"
_SWITCHES = {
    "jax_debug_nans": _CHECKS,
    "jax_debug_infs": _CHECKS,
    "jax_disable_jit": "each operator is a call of its own",
}


@dataclass
class _Line:
    """What was seen of a thread at a line.

    Attributes:
        kinds: For how many seconds after the start it was at what, as windows are a sample of all.
        lost_as: In how many of them the device was idle for it.
        lost: Shares of the time of each window in which the device was idle for it.
        positions: How often it was seen at which position.
        others: Where other threads were while it waited for one.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    lost_as: Counter[str] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)
    positions: Counter[CodePosition] = field(default_factory=Counter)
    others: Counter[Place] = field(default_factory=Counter)


class Account:
    """Charges what was seen to the lines of the program."""

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher
        self._compiled = list(watcher.compilations.done)
        find_again(self._compiled)
        self._windows = list(watcher.windows.closed)
        self._feeders = _feeders(self._windows, self._compiled)
        self._start = self._end_of_start()
        work = Counter()
        for window in self._windows:
            for device, spans in window.busy.items():
                work[device] += overlap(spans, -math.inf, math.inf)
        # The one that works most comes first, and the lines are charged with its time.
        self._devices = [name for name, _ in work.most_common()] or ["The device"]
        self._synchronous = state.dispatches_synchronously()
        compiling = defaultdict(list)
        for one in self._compiled:
            compiling[one.thread].append((one.began, one.over))
        self._compiling = {thread: merged(spans) for thread, spans in compiling.items()}
        self._unseen = 0.0
        self._collective = 0.0
        self._one_of_several = state.process_count() > 1
        # Shares of the time of each window in which a device was idle.
        self._idle: dict[str, Counter[int]] = defaultdict(Counter)
        self._lines: dict[tuple[str, Place], _Line] = defaultdict(_Line)

    def _end_of_start(self) -> float:
        """Return when those first compilations were over that follow each other closely."""
        began = self._watcher.began
        if self._watcher.after is not None:
            return min(began + self._watcher.after, time.perf_counter())
        events = (spans for w in self._windows for spans in (*w.busy.values(), w.calls) if spans)
        ran = min((spans[0][0] for spans in events), default=math.inf)
        # What is compiled before anything runs, and what comes soon after that.
        soon = max(ran, began + 0.5) + 0.05
        close = []
        for one in self._compiled:
            if one.began > soon:
                break
            close.append(one)
            soon = one.over + max(0.5, 0.5 * (one.over - close[0].began))
        new = [one.over for one in close if not one.again]
        again = [one for one in close if one.again]
        end = max(new, default=began)
        # A program that goes on compiling never ends its start otherwise.
        if began + self._watcher.watched.seconds - end < sum(one.seconds for one in again):
            end = max((over for over in new if over < again[0].over), default=began)
        return end

    def fill(self, watched: Watched) -> None:
        """Write it all down."""
        watched.start_seconds = self._start - self._watcher.began
        after = watched.judged_seconds
        looks = [self._after_start(window) for window in self._windows]
        # A window stands for the time since the one before, of which it is a sample.
        weights, previous = {}, self._start
        for number, window in enumerate(self._windows):
            if looks[number]:
                weights[number], previous = window.over - previous, window.over
        weights = {n: span * after / (previous - self._start) for n, span in weights.items()}
        for number, weight in weights.items():
            self._charge(number, looks[number], weight)
        watched.observed_seconds = sum(x.end - x.start for there in looks for x in there)
        in_windows = set(self._lines)
        for (name, position, doing), seconds in self._watcher.outside.items():
            # What no window fell on was seen by the looks between them, if its kind is known.
            if (name, position.place) not in in_windows and doing in ("value", "barrier"):
                self._lines[name, position.place].kinds[doing] += seconds
                self._lines[name, position.place].positions[position] += 1
        calls = sum(len(window.calls) for window in self._windows)
        if calls > 20 and not any(window.busy for window in self._windows):
            watched.observed_seconds, weights = 0.0, {}  # Whatever it recorded, it was not that.
        watched.devices = {}
        for device in self._devices if weights else ():
            share, error = _mean(self._idle[device], weights)
            watched.devices[device] = share * after
            if device == self._devices[0]:
                watched.interval = max(share - error, 0.0), min(share + error, 1.0)
        watched.collective_seconds = self._collective
        watched.findings = list(self._of_lines(weights, after))
        watched.findings += self._of_compilations(watched.seconds)
        watched.findings.sort(key=lambda f: (watched.loss(f), f.seconds), reverse=True)
        watched.notes = list(self._notes(watched.observed_seconds))

    # --- What a window charges ----------------------------------------------------------------

    def _after_start(self, window: Window) -> list[Look]:
        """Return the looks of a window, as far as they lie in it and after the start."""
        first = max(window.began, self._start)
        looks = (
            look._replace(start=max(look.start, first), end=min(look.end, window.over))
            for look in window.looks
        )
        return [look for look in looks if look.end > look.start]

    def _charge(self, number: int, looks: list[Look], weight: float) -> None:
        """Charge a window, which stands for some seconds, to the lines."""
        window = self._windows[number]
        whole = sum(look.end - look.start for look in looks)
        for n, look in enumerate(looks):
            compiling = {ident for ident in look.threads if self._is_compiling(ident, look)}
            callbacks = [i for i, seen in look.threads.items() if seen.stack.activity == "callback"]
            if callbacks:
                idle = dict.fromkeys(self._devices, look.end - look.start)
            else:
                # The system tells how long a process has used its cores every few milliseconds.
                near = looks[max(n - 6, 0) : n + 7]
                idle, unseen = self._idle_in(look, near, window.busy, bool(compiling))
                self._unseen += unseen
                # Of what is not seen, whatever takes no processor waits for others.
                together = unseen if self._one_of_several and _cores(near) < 0.3 else 0.0
                spans = window.collectives.get(self._devices[0], [])
                together += overlap(spans, look.start, look.end)
                self._collective += together * weight / whole
            for device, seconds in idle.items():
                self._idle[device][number] += seconds / whole
            lost = idle[self._devices[0]]
            is_idle, called = lost > 0.5 * (look.end - look.start), _in_call(look, window)
            for ident, seen in look.threads.items():
                if ident in compiling:
                    continue  # Its time is known from the events.
                kind = _kind(seen, is_idle, called)
                name = "a callback" if kind == "callback" else seen.name
                line = self._lines[name, seen.stack.position.place]
                line.kinds[kind] += (look.end - look.start) * weight / whole
                line.positions[seen.stack.position] += 1
                if ident in (callbacks or [self._feeders[number]]):
                    line.lost_as[kind] += lost * weight / whole
                    line.lost[number] += lost / whole
                    if kind == "host wait":
                        line.others.update(
                            other.stack.position.place
                            for other in look.threads.values()
                            if other.stack.activity != "locks"
                        )

    def _is_compiling(self, ident: int, look: Look) -> bool:
        if look.threads[ident].stack.activity == "compiles":
            return True
        # While JAX traces, the lines of the function itself run.
        return overlap(self._compiling.get(ident, []), look.at, look.at + 1e-9) > 0

    def _idle_in(
        self, look: Look, near: list[Look], busy: dict[str, Spans], compiling: bool
    ) -> tuple[dict[str, float], float]:
        """Return for how long each device had nothing to do in the time of a look.

        And for how long the first had something to do that was not seen.
        """
        start, end = look.start, look.end
        idle = {d: end - start - overlap(busy.get(d, []), start, end) for d in self._devices}
        first = self._devices[0]
        if (
            min(idle.values()) == end - start
            and not compiling
            and self._is_unseen(look, near, busy.get(first, []))
        ):
            idle[first] = 0.0
            return idle, end - start
        return idle, 0.0

    def _is_unseen(self, look: Look, near: list[Look], busy: Spans) -> bool:
        """Return whether a device works on what began before a window, or ends after it.

        That leaves no event, so there may be work before the first one and after the last.
        """
        events = [span for span in busy if span[1] - span[0] > 1e-4]  # Some take no time.
        if events and events[0][0] < look.end and look.start < events[-1][1]:
            return False
        waits = reading = computes = False
        for ident, seen in look.threads.items():
            # Whoever computes may be kept from its core for a moment, and then stands still too.
            rests = not seen.moved and not any(
                x.threads[ident].worked for x in near if ident in x.threads
            )
            calls = seen.stack.activity == "call"
            reads_it = calls and only_reads(seen.stack.innermost)
            waits |= rests and seen.stack.activity in _FOR_A_DEVICE
            # A call itself may wait for what another process has not called yet.
            waits |= rests and seen.stack.activity == "jax" and self._one_of_several
            waits |= self._synchronous and seen.worked and calls and not reads_it
            reading |= rests and reads_it
            computes |= seen.worked and reads_it  # NumPy has threads of its own.
        others = _cores(near)
        return waits or (others > (0.3 if reading else 0.5) and not computes)

    # --- What is told -------------------------------------------------------------------------

    def _of_lines(self, weights: dict[int, float], after: float) -> Iterator[Finding]:
        watcher = self._watcher
        for (name, place), line in self._lines.items():
            # A call, and a library's Python, are part of dispatching where that is seen as well.
            sure = line.kinds["dispatch"] > 0.1 * line.kinds["perhaps dispatch"]
            for kinds in (line.kinds, line.lost_as):
                kinds["dispatch" if sure else "device idle"] += kinds.pop("perhaps dispatch", 0.0)
            seconds = sum(line.kinds.values())
            lost, error = _mean(line.lost, weights)
            # Where most of the time is lost, what loses it.
            costs = line.lost_as if lost * after > 0.5 * seconds else line.kinds
            kind = max(line.kinds, key=lambda kind: (costs[kind], line.kinds[kind]))
            works_on = lost < SEEN and kind in ("device idle", "dispatch", "host wait")
            if works_on or seconds < SEEN * after:
                continue
            callers: Counter[str] = Counter()
            for caller, looks in (
                x for position in line.positions for x in watcher.callers[position].items()
            ):
                if caller.place != place:  # As that of a comprehension is.
                    callers[str(caller.place)] += looks
            detail = ""
            for other, _ in line.others.most_common(kind == "host wait"):
                detail = f"Meanwhile another thread was at {other}  {other.code}"
            yield Finding(
                kind,
                place,
                line.positions.most_common(1)[0][0].operation,
                name,
                seconds,
                max(sum(watcher.times[position] for position in line.positions), 1),
                lost * after,
                max(lost - error, 0.0) * after,
                dict(callers),
                detail,
            )

    def _of_compilations(self, seconds: float) -> Iterator[Finding]:
        lines = defaultdict(list)
        for one in self._compiled:
            lines[one.callers[0].place].append(one)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for place, compiled in lines.items():
            again = [one for one in compiled if one.again]
            told = again or [one for one in compiled if one.over > self._start]
            took = sum(one.seconds for one in told)
            if took < SEEN * seconds:
                continue
            lost = sum(max(one.over - max(one.began, self._start), 0.0) for one in again)
            detail = f"That took {format_seconds(took)}."
            yield Finding(
                "compilation" if again else "first compilation",
                place,
                told[-1].callers[0].operation,
                names.get(told[-1].thread, "a thread"),
                lost if again else took,
                len(told),
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
                "Operators that take longer than one look at the devices were counted for "
                f"{self._devices[0]}; on which device they ran was not seen."
            )
        if not observed_seconds:
            reason = self._watcher.windows.why_none
            if self._windows:
                reason = "JAX's profiler recorded nothing of them after the start"
            yield f"What the devices did is not known: {reason}."


def _feeders(windows: list[Window], compiled: list[Compiled]) -> list[int]:
    """Return, for each window, the thread that most likely hands work to the devices then."""
    called: list[Counter[int]] = []
    moved: Counter[int] = Counter()
    for window in windows:
        called.append(Counter())
        for look in window.looks:
            in_call = _in_call(look, window)
            # Most calls are shorter than the time between two looks.
            first, last = (bisect_left(window.calls, (at,)) for at in (look.start, look.end))
            for ident, seen in look.threads.items():
                if in_call and seen.stack.activity in ("call", "jax", "library", "compiles"):
                    called[-1][ident] += 1
                if first < last and seen.moved:
                    moved[ident] += 1
    compiling = Counter(one.thread for one in compiled)
    anywhere = sum(called, Counter()) or moved or compiling
    anywhere = anywhere or Counter([threading.main_thread().ident])
    return [(here or anywhere).most_common(1)[0][0] for here in called]


def _cores(looks: list[Look]) -> float:
    """Return how many cores threads used that are not Python's."""
    return sum(x.others * (x.end - x.start) for x in looks) / (looks[-1].end - looks[0].start)


def _in_call(look: Look, window: Window) -> bool:
    # Whoever looks does not see the threads and the clock at the same moment.
    return overlap(window.calls, look.at - 5e-5, look.at + 5e-5) > 0


def _kind(seen: Seen, idle: bool, called: bool) -> str:
    """Return which of `KINDS` a thread is at."""
    doing = seen.stack.activity
    known = {"checks": "check", "sleeps": "device idle", "locks": "host wait"}
    if doing in ("value", "barrier", "callback", *known):
        return known.get(doing, doing)
    if not seen.worked and not idle and doing in ("call", "jax", "puts"):
        return "value" if only_reads(seen.stack.innermost) and not called else "queue"
    if doing in ("jax", "puts") or called:
        return "queue" if not idle else "dispatch"
    return "perhaps dispatch" if doing in ("library", "call") else "device idle"


def _mean(shares: dict[int, float], weights: dict[int, float]) -> tuple[float, float]:
    """Return the mean of what was seen in each window, and how far off it may be (95 %)."""
    whole = sum(weights.values())
    if not whole:
        return 0.0, 1.0
    mean = sum(shares.get(n, 0.0) * w for n, w in weights.items()) / whole
    spread = sum((w * (shares.get(n, 0.0) - mean)) ** 2 for n, w in weights.items())
    few = len(weights) / max(len(weights) - 1, 1)
    return mean, 2 * math.sqrt(few * spread) / whole if len(weights) > 1 else 1.0
