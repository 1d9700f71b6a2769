"""Charge the time in which a device is idle to the lines of a program, and say how sure that is.

How it works. In a window, each moment in which a device is idle is charged to the line of the
thread that feeds that device, whatever it did there; so the losses of all lines add up to the idle
time of the device. Shares are of what comes after the start, which ends with the first
compilations, and carry an interval, as windows are a sample.
"""

import math
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from d2lpar._compilations import compiled_again, why
from d2lpar._format import format_seconds
from d2lpar._stack import Place, Sight, Site, reads
from d2lpar._watched import SEEN, Finding, Watched
from d2lpar._windows import Look, Spans, Window

_FOR_A_DEVICE = {"value", "barrier", "checks"}
_SWITCHES = {
    "jax_debug_nans": "jax_debug_nans is on: each call waits for its results and looks at them",
    "jax_debug_infs": "jax_debug_infs is on: each call waits for its results and looks at them",
    "jax_disable_jit": "jax_disable_jit is on: each operator is a call of its own",
}


class Account:
    """Charges what was seen to the lines of the program."""

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher
        self._compiled = list(watcher.compiled)
        self._again = compiled_again(self._compiled)
        self._windows = [(window, *window.events) for window in watcher.windows.closed]
        self._start = self._end_of_start()
        self._devices = self._names()
        dispatching = [_dispatching(w.looks, calls) for w, _, calls in self._windows]
        self._called = [called for called, _ in dispatching]
        self._moved = [moved for _, moved in dispatching]
        # Of all windows, and, if none saw a call, where something was compiled.
        self._called_in_all = sum(self._called, Counter())
        self._moved_in_all = sum(self._moved, Counter())
        self._compiled_in = Counter(one.thread for one in self._compiled)
        self._unseen = 0.0
        values = getattr(getattr(sys.modules.get("jax"), "config", None), "values", {})
        self._synchronous = values.get("jax_cpu_enable_async_dispatch") is False
        self._compiling: dict[int, Spans] = defaultdict(list)
        for one in self._compiled:
            self._compiling[one.thread].append((one.began, one.over))
        # By line: shares of time there, and of time lost there, for each kind and by window.
        self._kinds: dict[tuple, Counter[str]] = defaultdict(Counter)
        self._kinds_lost: dict[tuple, Counter[str]] = defaultdict(Counter)
        self._there: dict[tuple, Counter[int]] = defaultdict(Counter)
        self._lost: dict[tuple, Counter[int]] = defaultdict(Counter)
        self._sites: dict[tuple, Counter[Site]] = defaultdict(Counter)
        self._others: dict[tuple, Counter[Place]] = defaultdict(Counter)

    def _end_of_start(self) -> float:
        """Return when those first compilations were over that follow each other closely."""
        began = end = self._watcher.began
        if self._watcher.after is not None:
            return min(began + self._watcher.after, time.perf_counter())
        ran = min(
            (
                spans[0][0]
                for _, busy, calls in self._windows
                for spans in (*busy.values(), calls)
                if spans
            ),
            default=math.inf,
        )
        first = latest = None
        again = 0.0
        before_any = began
        for number, one in enumerate(self._compiled):
            # What is compiled before anything runs, and what comes soon after that.
            soon = max(ran, began + 0.5) + 0.05
            if first is not None:
                soon = latest + max(0.5, 0.5 * (latest - first))
            if one.began > soon:
                break
            first, latest = first or one.began, one.over
            if number in self._again:
                again += one.over - one.began
            else:
                end = one.over
                before_any = end if not again else before_any
        # A program that goes on compiling never ends its start otherwise.
        over = began + self._watcher.watched.seconds
        return before_any if over - end < again else end

    def _names(self) -> list[str]:
        """Return the devices that had something to do, that with most of it first."""
        work = Counter()
        for _, busy, _ in self._windows:
            for device, spans in busy.items():
                work[device] += sum(end - start for start, end in spans)
        return [name for name, _ in work.most_common()] or ["The device"]

    def fill(self, watched: Watched) -> None:
        """Write it all down."""
        watched.start_seconds = self._start - self._watcher.began
        after = watched.judged_seconds
        idle: dict[str, dict[int, float]] = {device: {} for device in self._devices}
        weights, previous = {}, self._start
        watched.observed_seconds = 0.0
        for number, (window, busy, calls) in enumerate(self._windows):
            if window.over > self._start:
                seen, of_devices = self._charge(number, window, busy, calls)
                if seen > 0:
                    watched.observed_seconds += seen
                    # It stands for the time since the one before, of which it is a sample.
                    weights[number] = window.over - previous
                    previous = window.over
                    for device, seconds in of_devices.items():
                        idle[device][number] = seconds / seen
        if not any(busy for _, busy, _ in self._windows) and (
            sum(len(calls) for *_, calls in self._windows) > 20
        ):
            watched.observed_seconds, weights = 0.0, {}  # Whatever it recorded, it was not that.
        watched.devices, watched.findings = {}, []
        if weights:
            for device, shares in idle.items():
                share, error = _mean(shares, weights)
                watched.devices[device] = share * after
                if device == self._devices[0]:
                    watched.interval = max(share - error, 0.0), min(share + error, 1.0)
        watched.findings += self._of_lines(weights, after)
        watched.findings += self._of_compilations(watched.seconds)
        watched.findings.sort(key=lambda f: (watched.loss(f), f.seconds), reverse=True)
        watched.notes = list(self._notes(watched))

    def _charge(
        self, number: int, window: Window, busy: dict[str, Spans], calls: Spans
    ) -> tuple[float, dict[str, float]]:
        """Charge a window to the lines; return how long it was, and how long each device idle."""
        looks = [
            look._replace(
                start=max(look.start, window.began, self._start), end=min(look.end, window.over)
            )
            for look in window.looks
        ]
        looks = [look for look in looks if look.end > look.start]
        feeder = self._feeder(number)
        whole = sum(look.end - look.start for look in looks)
        idle = dict.fromkeys(self._devices, 0.0)
        edges = _edges(busy.get(self._devices[0], []))
        # The system tells how long a process has used its cores every few milliseconds.
        around = [looks[max(n - 6, 0) : n + 7] for n in range(len(looks))]
        for look, near in zip(looks, around, strict=True):
            seconds = look.end - look.start
            called_back = any(sight.doing == "callback" for _, sight, *_ in look.threads.values())
            called = _overlap(calls, look.at - 5e-5, look.at + 5e-5) > 0
            # While JAX traces, the lines of the function itself run.
            compiling = {
                ident
                for ident, (_, sight, *_) in look.threads.items()
                if sight.doing == "compiles" or _holds(self._compiling[ident], look.at)
            }
            seen_to_work = any(_overlap(s, look.start, look.end) for s in busy.values())
            lost = 0.0
            for device in self._devices:
                spans = busy.get(device, [])
                rest = seconds - _overlap(spans, look.start, look.end)
                if called_back:
                    rest = seconds
                elif (
                    device == self._devices[0]
                    and not (seen_to_work or compiling)
                    and _is_unseen(look, near, edges, self._synchronous)
                ):
                    self._unseen += rest
                    rest = 0.0
                idle[device] += rest
                if device == self._devices[0]:
                    lost = rest
            for ident, (name, sight, moved, used) in look.threads.items():
                if ident in compiling:
                    continue  # Its time is known from the events.
                kind = _kind(sight, not moved or not used, lost > 0.5 * seconds, called)
                key = "a callback" if kind == "callback" else name, sight.site.place
                self._kinds[key][kind] += seconds / whole
                self._sites[key][sight.site] += 1
                self._there[key][number] += seconds / whole
                if sight.doing == "callback" if called_back else ident == feeder:
                    self._kinds_lost[key][kind] += lost / whole
                    self._lost[key][number] += lost / whole
                    if kind == "host wait":
                        self._others[key].update(
                            other.site.place
                            for one, (_, other, *_) in look.threads.items()
                            if one != ident and other.doing != "locks"
                        )
        return whole, idle

    def _feeder(self, number: int) -> int:
        """Return the thread that most likely hands work to the devices."""
        for seen in (
            self._called[number],
            self._called_in_all,
            self._moved[number],
            self._moved_in_all,
            self._compiled_in,
        ):
            if seen:
                return seen.most_common(1)[0][0]
        return threading.main_thread().ident

    def _of_lines(self, weights: dict[int, float], after: float) -> Iterator[Finding]:
        watcher = self._watcher
        for (name, site, doing), seconds in watcher.outside.items():
            key = name, site.place
            # What no window fell on was seen by the looks between them, if its kind is known.
            if key not in self._kinds and doing in ("value", "barrier"):
                self._kinds[key][doing] = seconds
                self._there[key].update(dict.fromkeys(weights or [0], seconds / after))
                self._sites[key][site] += 1
        for key, kinds in self._kinds.items():
            # A call, and a library's Python, are part of dispatching where that is seen as well.
            sure = kinds["dispatch"] > 0.1 * kinds["perhaps dispatch"]
            kind = "dispatch" if sure else "device idle"
            for of in (kinds, self._kinds_lost[key]):
                of[kind] += of.pop("perhaps dispatch", 0.0)
            share, _ = _mean(self._there[key], weights or {0: 1.0})
            lost, error = _mean(self._lost[key], weights)
            if max(share, lost) < SEEN:
                continue
            of = self._kinds_lost[key] if lost > 0.5 * share else kinds
            kind = max(kinds, key=lambda kind: (of[kind], kinds[kind]))
            if kind in ("device idle", "dispatch", "host wait") and lost < SEEN:
                continue  # It takes time while the device works.
            name, place = key
            sites = self._sites[key]
            callers = Counter()
            for site in sites:
                for caller, looks in watcher.callers[site].items():
                    if caller.place != place:  # As that of a comprehension is.
                        callers[str(caller.place)] += looks
            yield Finding(
                kind,
                place,
                sites.most_common(1)[0][0].operation,
                name,
                share * after,
                max(sum(watcher.times[site] for site in sites), 1),
                lost * after,
                max(lost - error, 0.0) * after,
                dict(callers),
                self._meanwhile(key) if kind == "host wait" else "",
            )

    def _meanwhile(self, key: tuple) -> str:
        for place, _ in self._others[key].most_common(1):
            return f"Meanwhile another thread was at {place}  {place.code}"
        return ""

    def _of_compilations(self, seconds: float) -> Iterator[Finding]:
        lines = defaultdict(list)
        for number, one in enumerate(self._compiled):
            lines[one.callers[0].place].append((number in self._again, one))
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for place, all_of_it in lines.items():
            again = [one for is_again, one in all_of_it if is_again]
            later = [one for _, one in all_of_it if one.over > self._start]
            told = again or later
            took = sum(one.over - one.began for one in told)
            if took < SEEN * seconds:
                continue
            lost = sum(
                one.over - max(one.began, self._start) for one in again if one.over > self._start
            )
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
                {},
                f"{why(all_of_it)} {detail}" if again else detail,
            )

    def _notes(self, watched: Watched) -> Iterator[str]:
        config = getattr(sys.modules.get("jax"), "config", None)
        for switch, words in _SWITCHES.items():
            if getattr(config, switch, False):
                yield f"{words}."
        if self._synchronous:
            yield (
                "jax_cpu_enable_async_dispatch is off: a call computes before it returns. Switch "
                "it on, unless you know why it is off."
            )
        if len(self._devices) > 1 and self._unseen > 0.1 * watched.observed_seconds:
            yield (
                "Operators that take longer than one look at the devices were counted for "
                f"{self._devices[0]}; on which device they ran was not seen."
            )
        if not watched.observed_seconds:
            reason = self._watcher.windows.why_none
            if self._windows:
                reason = "JAX's profiler recorded nothing of them after the start"
            yield f"What the devices did is not known: {reason}."


def _kind(sight: Sight, waits: bool, idle: bool, called: bool) -> str:
    """Return which of `KINDS` a thread is at."""
    known = {"checks": "check", "sleeps": "device idle", "locks": "host wait"}
    if sight.doing in ("value", "barrier", "callback", *known):
        return known.get(sight.doing, sight.doing)
    if waits and not idle and sight.doing in ("call", "jax", "puts"):
        return "value" if reads(sight.deepest) and not called else "queue"
    if sight.doing in ("jax", "puts") or called:
        return "queue" if not idle else "dispatch"
    return "perhaps dispatch" if sight.doing in ("library", "call") else "device idle"


def _dispatching(looks: list[Look], calls: Spans) -> tuple[Counter[int], Counter[int]]:
    """Count how often each thread was seen where it can have dispatched, and to move meanwhile.

    Most calls are shorter than the time between two looks.
    """
    seen, moved = Counter(), Counter()
    for look in looks:
        in_call = _overlap(calls, look.at - 2e-5, look.at + 2e-5) > 0
        begins = bisect_left(calls, (look.start,)) < bisect_left(calls, (look.end,))
        for ident, (_, sight, has_moved, _) in look.threads.items():
            seen[ident] += in_call and sight.doing in ("call", "jax", "library", "compiles")
            moved[ident] += begins and has_moved
    return +seen, +moved


def _is_unseen(look: Look, near: list[Look], edges: tuple[float, float], synchronous: bool) -> bool:
    """Return whether a device works on something that began before a window or ends after it.

    That leaves no event, so there may be work before the first one and after the last.
    """
    if edges[0] < look.end and look.start < edges[1]:
        return False
    waits = reading = computes = False
    for ident, (_, sight, moved, used) in look.threads.items():
        # Whoever computes may be kept from its core for a moment, and then stands still as well.
        rests = not moved and not any(x.threads[ident][3] for x in near if ident in x.threads)
        calls = sight.doing == "call" and reads(sight.deepest)
        waits |= rests and sight.doing in _FOR_A_DEVICE
        waits |= synchronous and used and sight.doing == "call" and not calls
        reading |= rests and calls
        computes |= used and calls  # NumPy has threads of its own.
    others = sum(x.others * (x.end - x.start) for x in near) / (near[-1].end - near[0].start)
    return waits or (others > (0.3 if reading else 0.5) and not computes)


def _edges(busy: Spans) -> tuple[float, float]:
    """Return when the first and the last operator were seen, but for those that take no time."""
    seen = [span for span in busy if span[1] - span[0] > 1e-4]
    return (seen[0][0], seen[-1][1]) if seen else (math.inf, -math.inf)


def _overlap(spans: Spans, start: float, end: float) -> float:
    """Return for how long there is a span between two times."""
    total = 0.0
    for number in range(max(bisect_left(spans, (start,)) - 1, 0), len(spans)):
        first, last = spans[number]
        if first >= end:
            break
        total += max(min(last, end) - max(first, start), 0.0)
    return total


def _holds(spans: Spans, at: float) -> bool:
    """Return whether there is a span at a time."""
    number = bisect_left(spans, (at, math.inf)) - 1
    return number >= 0 and at < spans[number][1]


def _mean(shares: dict[int, float], weights: dict[int, float]) -> tuple[float, float]:
    """Return the mean of what was seen in each window, and how far off it may be (95 %)."""
    whole = sum(weights.values())
    if not whole:
        return 0.0, 1.0
    mean = sum(shares.get(n, 0.0) * w for n, w in weights.items()) / whole
    spread = sum((w * (shares.get(n, 0.0) - mean)) ** 2 for n, w in weights.items())
    few = len(weights) / max(len(weights) - 1, 1)
    return mean, 2 * math.sqrt(few * spread) / whole if len(weights) > 1 else 1.0
