"""Charge the idle time of a device to the lines of a program, with an interval for each loss.

How it works. `_watch/sampler.py` gives the rule. Each sample of a window becomes charges, one for
each line at which a thread is, and the charges of all windows are summed by line::

    sample          |----------------------|
    device          [==busy==]    idle
    feeder          y = f(x)                   charge: 1.2 ms there, 0.7 ms lost
    another thread  log.write(line)            charge: 1.2 ms there, nothing lost

Exactly one charge of a sample carries the idle time, so the losses add up. While a program is
traced or compiled, the charge goes to the line that called the program, and while Python collects
garbage, to the collector. Without any thread in the user's code, it goes to `OUTSIDE`.

Two facts leave no event, and are inferred here. One is the thread that feeds a device: the thread
that was in a call while the profiler saw one. The other is whether a device works on an operator
that began before a window or ends after it. The threads that wait, and the cores in use, tell.
"""

import math
import resource
import sys
import threading
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import psutil

from d2lpar._jax import state
from d2lpar._jax.stack import CodePosition, Place, only_reads
from d2lpar._plain.format import format_seconds
from d2lpar._watch.recompilations import Compiled, find_again, why
from d2lpar._watch.report import SEEN, WITHOUT_ACTION, Finding, Watched
from d2lpar._watch.shares import mean_share
from d2lpar._watch.windows import Sample, ThreadSample, Window, overlap

COLLECTOR = Place("Python's garbage collector", 0, "")
OUTSIDE = Place("outside your code", 0, "")
OTHERS = Place("other lines", 0, "")

_CHECKS = "each call waits for its results and checks them"
_SWITCHES = {
    "jax_debug_nans": _CHECKS,
    "jax_debug_infs": _CHECKS,
    "jax_disable_jit": "each operator is a separate call",
}
# The kinds of activities that are the same whatever the devices do.
_KINDS = {
    "value": "value",
    "barrier": "barrier",
    "callback": "callback",
    "checks": "check",
    "input": "input",
    "locks": "host wait",
}
_COMPILES = {"compilation", "first compilation", "tracing"}
_IN_JAX = {"jax", "slow call", "puts"}
_MAY_CALL = {"call", "library", "compiles", *_IN_JAX}


class Charge(NamedTuple):
    """What one sample says of one line."""

    place: Place
    position: CodePosition | None  # None for the collector, and outside of the user's code.
    thread: str
    kind: str
    seconds: float  # How long a thread was there.
    lost: float  # The part of them that the first device was idle because of this line.
    may_wait: bool = False  # In a block of `waits_allowed`.
    elsewhere: tuple[Place, ...] = ()  # Where other threads worked, if this one waited for them.


class _Programs:
    """The compilations of each thread, to be looked up by time."""

    def __init__(self, programs: Sequence[Compiled]) -> None:
        self._of: dict[int, tuple[list[Compiled], list[float], list[float]]] = {}
        by_thread = defaultdict(list)
        for program in sorted(programs, key=lambda program: program.over):
            by_thread[program.thread].append(program)
        for thread, own in by_thread.items():
            # For each program, when it or a later one began at the earliest.
            earliest = [*accumulate((program.began for program in reversed(own)), min)][::-1]
            self._of[thread] = own, [program.over for program in own], earliest

    def at(self, thread: int, time: float) -> Compiled | None:
        """Return the program that a thread traced or compiled at a time; the inner of two."""
        own, ends, earliest = self._of.get(thread, ([], [], []))
        # An inner program ends before the outer one, and so comes first.
        for n in range(bisect_right(ends, time), len(own)):
            if earliest[n] > time:
                break
            if own[n].began <= time:
                return own[n]
        return None


# --- Charging a window ----------------------------------------------------------------------------


class Charged(NamedTuple):
    """One sample, charged; all in seconds."""

    idle: dict[str, float]  # How long each device was idle.
    inferred: float  # How long the first device worked on an operator without an event.
    collective: float  # How long the first device was in collective operators.
    charges: list[Charge]


def charge(
    window: Window, samples: list[Sample], devices: list[str], feeder: int, programs: _Programs
) -> Iterator[Charged]:
    """Charge each sample of a window; lines carry the idle time of the first device."""
    busy, first = window.events.busy, devices[0]
    for n, sample in enumerate(samples):
        whole = sample.end - sample.start
        near = samples[max(n - 6, 0) : n + 7]  # Linux updates a process's CPU time every few ms.
        compiling = {
            ident: program
            for ident in sample.threads
            if (program := programs.at(ident, sample.taken_at))
        }
        callbacks = [i for i, t in sample.threads.items() if t.stack.activity == "callback"]
        idle = {d: whole - overlap(busy.get(d, []), sample.start, sample.end) for d in devices}
        spans = window.events.collectives.get(first, [])
        inferred, collective = 0.0, overlap(spans, sample.start, sample.end)
        if callbacks:
            idle, collective = dict.fromkeys(devices, whole), 0.0
        elif (
            min(idle.values()) == whole
            and not compiling
            and _is_inferred(window, sample, near, first)
        ):
            idle[first], inferred = 0.0, whole
            # An operator without an event that uses no CPU waits for other processes.
            if state.process_count() > 1 and _native_cores(near) < 0.3:
                collective += whole
        charged = _charged_thread(sample, [*callbacks, feeder, *compiling])
        charges = _charges(window, sample, idle[first], charged, compiling)
        charges = list(_without_collections(charges, window, sample, first))
        yield Charged(idle, inferred, collective, charges)


def _charged_thread(sample: Sample, candidates: list[int]) -> int | None:
    """Return the thread whose line is charged with the idle time; None if there is no thread."""
    main = threading.main_thread().ident
    threads = sample.threads
    return next((ident for ident in (*candidates, main, *threads) if ident in threads), None)


def _charges(
    window: Window, sample: Sample, lost: float, charged: int | None, compiling: dict[int, Compiled]
) -> Iterator[Charge]:
    """Yield the charges of a sample, that of the charged thread first."""
    seconds = sample.end - sample.start
    is_idle, called = lost > 0.5 * seconds, _in_call(sample, window)
    if charged is None:
        yield Charge(OUTSIDE, None, "", "outside", seconds, lost)
    places = set()  # Several threads at one line count once.
    for ident in sorted(sample.threads, key=lambda ident: ident != charged):
        thread, program = sample.threads[ident], compiling.get(ident)
        # While JAX traces, the stack shows the lines of the traced function.
        position = program.callers[0] if program else thread.stack.position
        if position.place in places:
            continue
        places.add(position.place)
        kind = _kind_of_program(program) if program else _kind(thread, is_idle, called)
        yield Charge(
            position.place,
            position,
            thread.name,
            kind,
            seconds,
            lost if ident == charged else 0.0,
            thread.may_wait,
            tuple(
                other.stack.position.place
                for other in sample.threads.values()
                if kind == "host wait" and other.stack.activity != "locks"
            ),
        )


def _without_collections(
    made: Iterator[Charge], window: Window, sample: Sample, device: str
) -> Iterator[Charge]:
    """Move the part of each charge in which Python collected garbage to the collector.

    Nothing else of Python runs during a collection, and the sampling thread neither. So one sample
    covers a long collection, and shows where it struck.
    """
    collecting = overlap(window.collections, sample.start, sample.end)
    if not collecting:
        yield from made
        return
    work = sum(
        overlap(window.events.busy.get(device, []), max(start, sample.start), min(end, sample.end))
        for start, end in window.collections
        if start < sample.end and end > sample.start
    )
    whole = sample.end - sample.start
    for n, charge in enumerate(made):
        lost = min(max(collecting - work, 0.0), charge.lost)
        if n == 0:
            yield charge._replace(place=COLLECTOR, kind="collection", seconds=collecting, lost=lost)
        yield charge._replace(seconds=whole - collecting, lost=charge.lost - lost)


def _is_inferred(window: Window, sample: Sample, near: list[Sample], device: str) -> bool:
    """Return whether a device works on an operator that reaches over an edge of the window.

    Such an operator leaves no event. So there may be one before the first event of the window, and
    one after the last.
    """
    # Some operators are empty.
    events = [span for span in window.events.busy.get(device, []) if span[1] - span[0] > 1e-4]
    if events and events[0][0] < sample.end and sample.start < events[-1][1]:
        return False
    has_peers, synchronous = state.process_count() > 1, state.dispatches_synchronously()
    waits = reading = computes = False
    for ident, thread in sample.threads.items():
        activity = thread.stack.activity
        # A preempted thread looks like a waiting one, so consider the samples around.
        rests = not thread.has_moved and not any(
            x.threads[ident].used_cpu for x in near if ident in x.threads
        )
        only_reads_here = activity == "call" and only_reads(thread.stack.innermost)
        waits |= rests and activity in ("value", "barrier", "checks")
        # A call may wait until another process makes the same call.
        waits |= rests and activity in ("jax", "slow call") and has_peers
        waits |= synchronous and thread.used_cpu and activity == "call" and not only_reads_here
        reading |= rests and only_reads_here
        computes |= thread.used_cpu and only_reads_here  # NumPy has threads of its own.
    return waits or (_native_cores(near) > (0.3 if reading else 0.5) and not computes)


def _native_cores(samples: list[Sample]) -> float:
    """Return how many cores were used by threads other than Python's."""
    whole = samples[-1].end - samples[0].start
    return sum(x.native_cores * (x.end - x.start) for x in samples) / whole


def _in_call(sample: Sample, window: Window) -> bool:
    # The sampler reads the clock and the stacks one after the other.
    return overlap(window.events.calls, sample.taken_at - 5e-5, sample.taken_at + 5e-5) > 0


def _kind_of_program(program: Compiled) -> str:
    if not program.compiled:
        return "tracing"
    return "compilation" if program.again else "first compilation"


def _kind(thread: ThreadSample, idle: bool, called: bool) -> str:
    """Return the kind of a thread's activity, one of `KINDS`, or "call" for an unknown call."""
    activity = thread.stack.activity
    if activity in _KINDS:
        return _KINDS[activity]
    if activity == "compiles":  # JAX has not announced the end of this program.
        return "first compilation"
    is_jax = activity in _IN_JAX
    if not thread.used_cpu and not idle and (is_jax or activity == "call"):
        return "value" if only_reads(thread.stack.innermost) and not called else "queue"
    if activity == "sleeps":
        return "device idle"
    if is_jax or called:
        if not idle:
            return "queue"
        return "slow dispatch" if activity == "slow call" else "dispatch"
    return "call" if activity in ("library", "call") else "device idle"


def _feeders(windows: list[Window], programs: _Programs) -> list[int]:
    """Return, for each window, the thread that most likely dispatches to the devices."""
    called, compiling = [], []
    moved: Counter[int] = Counter()
    for window in windows:
        called.append(Counter())
        compiling.append(Counter())
        for sample in window.samples:
            in_call = _in_call(sample, window)
            # Calls are often shorter than the time between two samples.
            calls = window.events.calls
            first, last = (bisect_left(calls, (at,)) for at in (sample.start, sample.end))
            for ident, thread in sample.threads.items():
                if in_call and thread.stack.activity in _MAY_CALL:
                    called[-1][ident] += 1
                if first < last and thread.has_moved:
                    moved[ident] += 1
                if programs.at(ident, sample.taken_at):
                    compiling[-1][ident] += 1
    anywhere = sum(called, Counter()) or moved or sum(compiling, Counter())
    anywhere = anywhere or Counter([threading.main_thread().ident])
    return [
        (calls or compiles or anywhere).most_common(1)[0][0]
        for calls, compiles in zip(called, compiling, strict=True)
    ]


# --- The start, and the time that is seen ---------------------------------------------------------


def _end_of_start(
    programs: list[Compiled], windows: list[Window], began: float
) -> tuple[float, int]:
    """Return when the start ended, and how many programs were compiled until then.

    The start ends with the last of the first compilations that follow each other closely; at the
    latest when something is repeated: a compilation, or a call of a function of the user.
    """
    events = [window.events for window in windows]
    spans = (spans for e in events for spans in (*e.busy.values(), e.calls) if spans)
    ran = min((each[0][0] for each in spans), default=math.inf)
    repeated = min((_first_repetition(e.functions, programs) for e in events), default=math.inf)
    # Count compilations before the first call, and those that follow soon after.
    soon = max(ran, began + 0.5) + 0.05
    end, count, first = began, 0, None
    for number, program in enumerate(programs):
        if program.again or program.began > min(soon, repeated):
            break
        first = first or program
        end, count = max(end, program.over), number + 1
        soon = program.over + max(0.5, 0.5 * (program.over - first.began))
    return end, count


def _first_repetition(calls: list[tuple[str, float]], programs: list[Compiled]) -> float:
    """Return when a function of the user was called for the third time in a window.

    The first call may compile, and some functions initialize two things.
    """
    times: Counter[str] = Counter()
    names = {program.name for program in programs if not program.of_library}
    for name, at in sorted(calls, key=lambda call: call[1]):
        times[name] += f"jit({name})" in names or name in names
        if times[name] == 3:
            return at
    return math.inf


# --- The report -----------------------------------------------------------------------------------


@dataclass
class _Line:
    """The sum of the charges of one line, and of the samples from unseen time."""

    # Seconds by kind, scaled up from the windows to what they stand for; and the part of them that
    # the device was idle because of this line.
    kinds: Counter[str] = field(default_factory=Counter)
    lost_as: Counter[str] = field(default_factory=Counter)
    unseen: Counter[str] = field(default_factory=Counter)
    # The share of each window that the device was idle because of this line.
    lost: Counter[int] = field(default_factory=Counter)
    allowed: float = 0.0  # The part of the lost seconds in a block of `waits_allowed`.
    # How many samples found a thread at each position, and the names of the threads.
    positions: Counter[CodePosition] = field(default_factory=Counter)
    threads: set[str] = field(default_factory=set)
    # Where other threads were while this thread waited for another.
    elsewhere: Counter[Place] = field(default_factory=Counter)


class _Totals:
    """The sums of the charges of all windows, by line and by device."""

    def __init__(self, devices: list[str]) -> None:
        self.lines: dict[Place, _Line] = defaultdict(_Line)
        # For each device, the idle share of each window.
        self.idle: dict[str, Counter[int]] = {device: Counter() for device in devices}
        self.inferred = self.collective = self.collecting = 0.0  # Seconds.

    def add(self, window: int, charged: Charged, scale: float, whole: float) -> None:
        """Add a sample of a window, whose samples cover `whole` seconds and stand for more."""
        for device, seconds in charged.idle.items():
            self.idle[device][window] += seconds / whole
        self.inferred += charged.inferred * scale
        self.collective += charged.collective * scale
        for one in charged.charges:
            line = self.lines[one.place]
            line.kinds[one.kind] += one.seconds * scale
            line.lost_as[one.kind] += one.lost * scale
            line.lost[window] += one.lost / whole
            line.allowed += one.lost * scale * one.may_wait
            line.positions.update([one.position] if one.position else ())
            line.threads.add(one.thread)
            line.elsewhere.update(one.elsewhere)

    def add_unseen(self, unseen: Any) -> None:
        """Add the samples from time that no window stands for."""
        for (position, activity), seconds in unseen.positions.items():
            line = self.lines[position.place]
            line.unseen[_KINDS.get(activity, "unseen")] += seconds
            line.positions[position] += 1
            line.threads |= unseen.names[position]
        self.collecting += unseen.collecting


def fill(watched: Watched, watcher: Any) -> None:
    """Fill in the report of a watcher."""
    programs = list(watcher.compilations.done)
    find_again(programs)
    began, now = watcher.began, watcher.began + watched.seconds
    windows = [window for window in list(watcher.windows.closed) if window.events]
    works = any(window.events.busy for window in windows)
    missed = not works and sum(len(window.events.calls) for window in windows) > 20
    start, count = (min(began + (watcher.after or 0.0), now), 0)
    if watcher.after is None:
        start, count = _end_of_start(programs, windows, began)
    windows = [w for w in windows if w.over > start and not missed and not _is_cut(w)]
    weights = _weights(windows, start, min(now, watcher.windows.due))
    seen = sum(weights)

    work = Counter()
    for window in windows:
        for device, spans in window.events.busy.items():
            work[device] += sum(end - first for first, end in spans)
    # The busiest device comes first. Lines are charged with its idle time.
    devices = [name for name, _ in work.most_common()] or ["The device"]
    totals, by_time = _Totals(devices), _Programs(programs)
    feeders = _feeders(windows, by_time)
    watched.observed_seconds = 0.0
    for n, (window, weight) in enumerate(zip(windows, weights, strict=True)):
        samples = _cut(window, start)
        whole = sum(sample.end - sample.start for sample in samples)
        watched.observed_seconds += whole
        for charged in charge(window, samples, devices, feeders[n], by_time):
            totals.add(n, charged, weight / whole, whole)
    reasons: Counter[str] = Counter()
    for compiled, unseen in watcher.unseen.items():
        if compiled >= count:
            totals.add_unseen(unseen)
            reasons.update(unseen.reasons)
    # How long Python collected garbage is known also where no window was.
    collector = totals.lines[COLLECTOR]
    in_windows = sum(overlap(w.collections, max(w.began, start), w.over) for w in windows)
    missed_seconds = totals.collecting + in_windows - collector.kinds["collection"]
    collector.unseen["collection"] = max(missed_seconds, 0.0)

    watched.start_seconds = start - began
    after, watched.windows = watched.judged_seconds, len(windows)
    watched.unseen_seconds = max(after - seen, 0.0)
    watched.devices, watched.interval = {}, (0.0, 1.0)
    for device in devices if windows else ():
        share, low, high = mean_share(
            [totals.idle[device][n] for n in range(len(windows))], weights
        )
        watched.devices[device] = share * seen
        if device == devices[0]:
            watched.interval = low * seen / after, (high * seen + watched.unseen_seconds) / after
    watched.collective_seconds = totals.collective
    watched.findings = _findings(watched, watcher, totals, weights, programs, start)
    if missed:
        reasons = Counter(["JAX's profiler recorded nothing of them"])
    watched.notes = list(
        _notes(watched, reasons, totals.inferred > 0.1 * seen and len(devices) > 1)
    )


def _is_cut(window: Window) -> bool:
    """Return whether the window was cut short, by the end of the program or by its profiler."""
    return window.over - window.began < 0.5 * window.length


def _weights(windows: list[Window], start: float, until: float) -> list[float]:
    """Return for how many seconds after the start each window counts.

    A window that a call kept open, since the call held Python's lock, counts more: the sampling
    thread cannot begin a window during such a call.
    """
    if not windows:
        return []
    stands_for = [min(window.stands_for, window.over - start) for window in windows]
    weights = [
        seconds * (window.over - max(window.began, start)) / window.length
        for window, seconds in zip(windows, stands_for, strict=True)
    ]
    seen = sum(stands_for) + max(until - windows[-1].over, 0.0)
    return [weight * seen / sum(weights) for weight in weights]


def _cut(window: Window, start: float) -> list[Sample]:
    """Return the samples of a window, cut to the window and to the time after the start."""
    first = max(window.began, start)
    samples = (
        sample._replace(start=max(sample.start, first), end=min(sample.end, window.over))
        for sample in window.samples
    )
    return [sample for sample in samples if sample.end > sample.start]


def _findings(
    watched: Watched,
    watcher: Any,
    totals: _Totals,
    weights: list[float],
    programs: list[Compiled],
    start: float,
) -> list[Finding]:
    """Return a finding for each line that took time, and one for the losses of all others."""
    after, seen = watched.judged_seconds, sum(weights)
    compiled = defaultdict(list)
    for program in programs:
        compiled[program.callers[0].place].append(program)
    findings, rest = [], watched.idle_seconds
    for place in {*totals.lines, *compiled}:
        line = totals.lines[place]
        shares = [line.lost[n] for n in range(len(weights))]
        share, low, _ = mean_share(shares, weights) if weights else (0.0, 0.0, 1.0)
        finding = _finding(place, line, compiled[place], watcher, share * seen, start, after)
        if finding:
            finding.surely_lost = low * seen
            rest -= finding.lost
            findings.append(finding)
    if rest > 1e-9:
        findings.append(Finding("other", OTHERS, "", "", rest, 1, rest))
    acts = lambda f: f.kind not in WITHOUT_ACTION and f.lost + f.unseen >= SEEN * after  # noqa: E731
    return sorted(findings, key=lambda f: (acts(f), f.lost + f.unseen, f.seconds), reverse=True)


def _finding(
    place: Place,
    line: _Line,
    compiled: list[Compiled],
    watcher: Any,
    lost: float,
    start: float,
    after: float,
) -> Finding | None:
    """Return the finding of a line; None if it took too little time, or lost nothing by working."""
    new = [program for program in compiled if program.over > start]
    again = [program for program in new if program.again]
    took = sum(program.over - max(program.began, start) for program in again or new)
    # Count unknown calls as dispatch if clear dispatch samples of this line are at least a tenth.
    sure = line.kinds["dispatch"] > 0.1 * line.kinds["call"]
    for kinds in (line.kinds, line.lost_as):
        kinds["dispatch" if sure else "device idle"] += kinds.pop("call", 0.0)
    unseen, seconds = (
        sum(line.unseen.values()),
        sum(line.kinds.values()) + sum(line.unseen.values()),
    )
    if max(seconds, took) < SEEN * after:
        return None
    # Name the kind that caused the idleness, if over half of the line's time was idle.
    kinds = line.unseen if unseen > 0.5 * seconds else line.kinds
    costs = line.lost_as if lost > 0.5 * (seconds - unseen) else kinds
    kind = max(kinds, key=lambda kind: (costs[kind], kinds[kind]), default="")
    if kind == "queue" and lost >= SEEN * after:
        kind = max(line.lost_as, key=line.lost_as.get)
    if took > 0.5 * seconds:
        kind = _kind_of_program((again or new)[-1])
    works_on = lost < SEEN * after and kind in ("device idle", "dispatch", "host wait", "outside")
    if works_on and unseen < SEEN * after:
        return None
    finding = Finding(kind, place, "", "", max(seconds, took), 1, lost, unseen=unseen)
    finding.allowed = line.allowed > 0.5 * lost > 0.0
    if line.positions or compiled:
        positions = line.positions or [compiled[-1].callers[0]]
        finding.operation = Counter(positions).most_common(1)[0][0].operation
        finding.times = max(sum(watcher.times[position] for position in positions), 1)
        if place == COLLECTOR:
            struck = Counter({str(at.place): 0 for at in positions})
            for at, times in positions.items():
                struck[str(at.place)] += times
            finding.callers = dict(struck)
        for position in positions if place != COLLECTOR else ():
            for caller, times in watcher.callers[position].items():
                if caller.place != place:  # A comprehension's caller is on the same line.
                    at = str(caller.place)
                    finding.callers[at] = finding.callers.get(at, 0) + times
    names = line.threads - {""}
    finding.thread = "".join(names) if len(names) < 2 else f"{len(names)} threads"
    if took >= SEEN * after:
        cause, because = why(compiled) if again else ("", "")
        finding.cause, finding.detail = (
            cause,
            f"{because} That took {format_seconds(took)}.".strip(),
        )
        if kind in _COMPILES:
            finding.times = len(again or new)
    elif kind == "host wait":
        for other, _ in line.elsewhere.most_common(1):
            finding.detail = f"Meanwhile another thread was at {other}  {other.code}"
    return finding


def _used_children() -> bool:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime > 0.1 or bool(psutil.Process().children())


def _notes(watched: Watched, reasons: Counter[str], inferred_of_several: bool) -> Iterator[str]:
    config = getattr(sys.modules.get("jax"), "config", None)
    for switch, words in _SWITCHES.items():
        if getattr(config, switch, False):
            yield f"{switch} is on: {words}."
    if state.dispatches_synchronously():
        yield (
            "jax_cpu_enable_async_dispatch is off: a call computes before it returns. Switch it on, "
            "unless you know why it is off."
        )
    if inferred_of_several:
        yield (
            f"Operators longer than a window were attributed to {next(iter(watched.devices))}; the "
            "device that they ran on was not seen."
        )
    if watched.unseen_seconds >= SEEN * watched.judged_seconds:
        reason = max(reasons, key=reasons.get, default="watching was paused, or just ended")
        share = watched.unseen_seconds / watched.judged_seconds
        yield f"For {share:.0%} of that, it is unknown what the devices did: {reason}."
        if not watched.windows and _used_children():
            yield "Child processes have computed. They are not watched; watch them by themselves."
