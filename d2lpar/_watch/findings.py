"""Sum the charges of all windows by line, and make the report of them.

How it works. A window stands for the time since the window before (`windows.py`), so its charges
are scaled up to that time. In time that no window stands for, the samples show the lines alone::

    time         |  start  | seen                    | not seen |  seen     |
    windows           [--]      [--]   [--]    [--]               [--]  [--]
    a line                   seconds, and lost         seconds    seconds, and lost

So the losses of all lines add up to the idle time of the device, as far as the device was seen.
"""

import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from d2lpar._jax import state
from d2lpar._jax.stack import CodePosition, Place
from d2lpar._measure.mean_share import FEWEST, mean_share
from d2lpar._plain.format import format_seconds, plural
from d2lpar._watch.attribution import (
    COLLECTIONS,
    KIND_OF,
    Charge,
    ChargedSample,
    charge_window,
    compiled_in,
    feeders,
    kind_of,
)
from d2lpar._watch.recompilations import Compiled, find_again, why
from d2lpar._watch.report import SEEN, WITHOUT_ACTION, Finding, Watched
from d2lpar._watch.sample_scales import find_scales
from d2lpar._watch.windows import (
    COLLECTOR,
    OF_WATCH,
    Collection,
    Sample,
    Spans,
    Window,
    merged,
    overlap,
)

_COMPILES = {"compilation", "first compilation", "tracing"}
_OTHERS = Place("other lines", 0, "")
_CHECKS = "each call waits for its results and checks them"
_SWITCHES = {
    "jax_debug_nans": _CHECKS,
    "jax_debug_infs": _CHECKS,
    "jax_disable_jit": "each operator is a separate call",
}


@dataclass
class _Line:
    """The sum of the charges of one line, and of the samples from time that was not seen."""

    # Seconds by kind: of time that was seen, the part of it that was lost, and not seen.
    kinds: Counter[str] = field(default_factory=Counter)
    lost_as: Counter[str] = field(default_factory=Counter)
    unseen: Counter[str] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)  # The lost share of each window.
    allowed: float = 0.0  # The part of the lost seconds in a block of `waits_allowed`.
    # How many seconds of samples a thread was at each position, and the names of the threads.
    positions: Counter[CodePosition] = field(default_factory=Counter)
    threads: set[str] = field(default_factory=set)
    # Where other threads were while this line waited for another.
    elsewhere: Counter[Place] = field(default_factory=Counter)

    def add(self, window: int, charge: Charge, scale: float, weight: float) -> None:
        """Add a charge of a window that stands for `weight` seconds."""
        self.kinds[charge.kind] += charge.seconds * scale
        self.lost_as[charge.kind] += charge.lost * scale
        self.lost[window] += charge.lost * scale / weight
        self.allowed += charge.lost * scale * charge.may_wait
        if charge.position:
            self.positions[charge.position] += charge.seconds
        self.threads.add(charge.thread)
        self.elsewhere.update(charge.elsewhere)


class _Totals:
    """The sums of the charges of all windows, by line and by device."""

    def __init__(self, devices: list[str]) -> None:
        self.lines: dict[Place, _Line] = defaultdict(_Line)
        # For each device, the idle share of each window.
        self.idle: dict[str, Counter[int]] = {device: Counter() for device in devices}
        self.observed = self.inferred = self.collective = 0.0  # Seconds.
        self.reasons: Counter[str] = Counter()  # Why the devices were not seen, in seconds.
        self.garbage: Spans = []  # When Python collected garbage.
        self.times: Counter[Place] = Counter()  # How often Python collected garbage there.

    def add(
        self, window: int, samples: list[ChargedSample], scales: list[float], weight: float
    ) -> None:
        """Add a window that stands for `weight` seconds, and the scale of each of its samples.

        A window stands for no collections but its own, so these are not scaled up.
        """
        first = next(iter(self.idle))
        for sample, scale in zip(samples, scales, strict=True):
            own = (scale * sample.working + sample.collecting) / sample.seconds
            self.observed += sample.seconds
            for device in self.idle.keys() - {first}:
                self.idle[device][window] += sample.idle[device] * own / weight
            self.inferred += sample.inferred * own
            self.collective += sample.collective * own
            for each in sample.charges:
                own = 1.0 if each.kind in COLLECTIONS else scale
                self.idle[first][window] += each.lost * own / weight
                self.lines[each.place].add(window, each, own, weight)

    def add_collections(self, collections: list[Collection], windows: list[Window]) -> None:
        """Add the collections of garbage outside of windows."""
        spans = [(window.began, window.over) for window in windows]
        self.garbage = [(each.start, each.end) for each in collections]
        for each in collections:
            seconds = each.end - each.start - overlap(spans, each.start, each.end)
            line = self.lines[each.place]
            line.unseen[each.kind] += seconds
            if each.position:
                line.positions[each.position] += seconds
            self.reasons["Python collected garbage"] += seconds
            self.times[each.place] += 1

    def add_unseen(self, unseen: Any) -> None:
        """Add the samples from time that no window stands for."""
        self.reasons.update(unseen.reasons)
        for (position, activity), seconds in unseen.positions.items():
            line = self.lines[position.place]
            line.unseen[KIND_OF.get(activity, "unseen")] += seconds
            line.positions[position] += seconds
            line.threads |= unseen.names[position]


def fill(watched: Watched, watcher: Any) -> None:
    """Fill in the report of a watcher."""
    programs = list(watcher.compilations.done)
    find_again(programs)
    windows = [window for window in list(watcher.windows.closed) if window.events]
    began, now = watcher.began, watcher.began + watched.seconds
    if watcher.after is None:
        start = _end_of_start(programs, windows, began, watcher.windows.could_begin)
    else:
        start = min(began + watcher.after, now)
    watched.start_seconds = start - began
    windows = _usable(windows, programs, start)
    collections = [each for each in list(watcher.collections) if each.start > start]

    devices, inside = _devices(windows), [compiled_in(window, programs) for window in windows]
    charged = [
        list(charge_window(w, list(_cut(w, start)), devices, feeder, compiled, collections))
        for w, feeder, compiled in zip(windows, feeders(windows, inside), inside, strict=True)
    ]
    until = min(now, watcher.windows.due)
    scales = find_scales(windows, charged, programs, collections, start, until)
    totals = _Totals(devices)
    totals.reasons["no window of the profiler fell on a compilation"] = scales.missed
    for n, samples in enumerate(charged):
        totals.add(n, samples, scales.samples[n], scales.windows[n])
    totals.add_collections(collections, windows)
    # Without a window, the time before the first one was not seen either.
    for since, unseen in [*watcher.unseen.items(), *({} if windows else watcher.early).items()]:
        if since >= start or watcher.after or watcher.windows.could_begin == math.inf:
            totals.add_unseen(unseen)

    weights = scales.windows
    seen, after = sum(weights), watched.judged_seconds
    watched.windows, watched.unseen_seconds = len(windows), max(after - seen, 0.0)
    watched.observed_seconds, watched.collective_seconds = totals.observed, totals.collective
    means = {device: _mean(totals.idle[device], weights) for device in devices if windows}
    watched.devices = {device: share * seen for device, (share, *_) in means.items()}
    _, low, high = next(iter(means.values()), (0.0, 0.0, 1.0))
    watched.interval = low * seen / after, (high * seen + watched.unseen_seconds) / after
    watched.findings = list(_findings(watched, watcher, totals, weights, programs, start))
    watched.findings.sort(key=lambda f: (_acts(f, after), f.lost + f.unseen), reverse=True)
    reason = watcher.windows.obstacle() or "no window of the profiler fell into it"
    watched.notes = list(_notes(watched, totals, reason))


def _usable(windows: list[Window], programs: list[Compiled], start: float) -> list[Window]:
    """Return the windows after the start that were not cut short."""
    if not any(window.events.busy for window in windows):
        calls = sum(  # JAX calls functions while it traces, too.
            len(window.events.calls) for window in windows if not compiled_in(window, programs)
        )
        if calls > 20:
            return []  # The profiler missed the devices.
    return [window for window in windows if not window.is_cut and any(_cut(window, start))]


def _devices(windows: list[Window]) -> list[str]:
    """Return the devices, the busiest first. Lines are charged with its idle time."""
    work: Counter[str] = Counter()
    for window in windows:
        for device, spans in window.events.busy.items():
            work[device] += sum(end - start for start, end in spans)
    return [device for device, _ in work.most_common()] or ["The device"]


def _mean(shares: Counter[int], weights: list[float]) -> tuple[float, float, float]:
    return mean_share([shares[n] for n in range(len(weights))], weights)


def _end_of_start(
    programs: list[Compiled], windows: list[Window], began: float, jax_began: float
) -> float:
    """Return when the start ended.

    This is with the last of the first compilations that follow each other closely; at the latest
    when something is repeated: a compilation, or calls of a function of the user.
    """
    if jax_began == math.inf:
        return began
    events = [window.events for window in windows]
    spans = (spans for e in events for spans in (*e.busy.values(), e.calls) if spans)
    ran = min((each[0][0] for each in spans), default=math.inf)
    repeated = min((_repetition(each.functions, programs) for each in events), default=math.inf)
    # Count compilations before the first call, and those that follow soon after.
    soon = max(ran, began + 0.5) + 0.05
    end = jax_began
    for program in programs:
        if program.again or program.began > min(soon, repeated):
            break
        end = max(end, program.over)
        soon = program.over + max(0.5, 0.5 * (program.over - programs[0].began))
    return end


def _repetition(calls: list[tuple[str, float]], programs: list[Compiled]) -> float:
    """Return when one function of the user was called for the third time in a window."""
    names = {program.name for program in programs if not program.request.of_library}
    times: Counter[str] = Counter()
    for name, at in sorted(calls, key=lambda call: call[1]):
        times[name] += name in names
        if times[name] == 3:
            return at
    return math.inf


def _cut(window: Window, start: float) -> Iterator[Sample]:
    """Yield the samples of a window, cut to the window and to the time after the start."""
    first = max(window.began, start)
    for sample in window.samples:
        begin, end = max(sample.start, first), min(sample.end, window.over)
        if end > begin:
            yield sample._replace(start=begin, end=end)


def _findings(
    watched: Watched,
    watcher: Any,
    totals: _Totals,
    weights: list[float],
    programs: list[Compiled],
    start: float,
) -> Iterator[Finding]:
    """Yield a finding for each line that took time, and one for what all others have lost."""
    compiled = defaultdict(list)
    for program in programs:
        compiled[program.callers[0].place].append(program)
    rest = watched.idle_seconds
    for place in {*totals.lines, *compiled}:
        line = totals.lines[place]
        share, low, _ = _mean(line.lost, weights)
        lost = share * sum(weights)
        took = _compilations(compiled[place], start, totals.garbage)
        finding = _finding(place, line, lost, compiled[place], took, watched.judged_seconds)
        if finding:
            finding.surely_lost = low * sum(weights)
            positions = line.positions or Counter(each.callers[0] for each in compiled[place])
            _add_positions(finding, positions, watcher, totals.times[place])
            rest -= lost
            yield finding
    if rest > 1e-9:
        yield Finding("other", _OTHERS, "", "", rest, 1, rest)


def _finding(
    place: Place,
    line: _Line,
    lost: float,
    compiled: list[Compiled],
    compilations: tuple[float, list[Compiled]],
    after: float,
) -> Finding | None:
    """Return the finding of a line; None if it took too little time."""
    least, (took, programs) = SEEN * after, compilations
    # Windows may have missed a compilation, which JAX's events tell.
    unseen = max(sum(line.unseen.values()), took - sum(line.kinds[kind] for kind in _COMPILES))
    seen = sum(line.kinds.values())
    seconds = min(max(seen + unseen, took), after)
    kind = _kind(line, lost, seen, unseen)
    if programs and (took > 0.5 * seconds or kind in _COMPILES):
        kind = kind_of(programs[-1])
    if lost < least and kind in ("device idle", "dispatch", "host wait", "outside"):
        kind = "unseen"  # These words say that the device was idle.
    if seconds < least:
        return None
    threads = line.threads - {""}
    count = max(len(threads), len({program.thread_number for program in programs}))
    thread = "".join(threads) if count < 2 else f"{count} threads"
    finding = Finding(kind, place, "", thread, seconds, 0, lost, unseen=unseen)
    finding.allowed = line.allowed > 0.5 * lost
    if took >= least:
        because = ""
        if programs[-1].again:
            finding.cause, because = why(compiled)
        phase = "Compiling" if programs[-1].compiled else "Tracing"
        finding.detail = f"{because} {phase} took {format_seconds(took)}.".strip()
        finding.times = max(Counter(program.identity for program in programs).values())
    elif kind == "host wait":
        for other, _ in line.elsewhere.most_common(1):
            finding.detail = f"Meanwhile another thread was at {other}  {other.code}"
    return finding


def _kind(line: _Line, lost: float, seen: float, unseen: float) -> str:
    """Return the kind that cost most at a line."""
    # Count unknown calls as dispatch if clear dispatch samples of this line are at least a tenth.
    sure = line.kinds["dispatch"] > 0.1 * line.kinds["call"]
    for kinds in (line.kinds, line.lost_as):
        kinds["dispatch" if sure else "device idle"] += kinds.pop("call", 0.0)
    kinds = line.unseen if unseen > 10 * seen else line.kinds
    # Name the kind that caused the idleness, if over half of the line's time was idle, or a quarter
    # while a program was compiled.
    worst = max(line.lost_as, key=line.lost_as.get, default="")
    compiles = worst in _COMPILES and line.lost_as[worst] > 0.25 * seen
    costs = line.lost_as if lost > 0.5 * seen or compiles else kinds
    kind = max(kinds, key=lambda kind: (costs[kind], kinds[kind]), default="")
    # A call during which the device was often idle is no wait for its queue.
    is_dispatch = lost > 0.1 * seen and not state.dispatches_synchronously()
    return worst if kind == "queue" and is_dispatch else kind


def _compilations(
    compiled: list[Compiled], start: float, garbage: Spans
) -> tuple[float, list[Compiled]]:
    """Return how long a line compiled again after the start, or else compiled; and the programs.

    Collections of garbage meanwhile do not count.
    """
    new = [program for program in compiled if program.over > start]
    programs = [program for program in new if program.again] or new
    spans = merged([(max(program.began, start), program.over) for program in programs])
    return sum(over - began - overlap(garbage, began, over) for began, over in spans), programs


def _add_positions(
    finding: Finding, positions: Counter[CodePosition], watcher: Any, collections: int
) -> None:
    """Add what was evaluated at the line, how often a thread came there, and from where."""
    callers: Counter[str] = Counter()
    if finding.place in (COLLECTOR, OF_WATCH):
        for position, seconds in positions.items():
            callers[str(position.place)] += seconds
        finding.times, finding.callers = collections, dict(callers)
        return
    finding.operation = max(positions, key=positions.get).operation if positions else ""
    # One pass of a line may come to several positions.
    finding.times = finding.times or max([1, *(watcher.times[each] for each in positions)])
    for position in positions:
        for caller, times in watcher.callers[position].items():
            if caller.place != finding.place:  # A comprehension's caller is on the same line.
                callers[str(caller.place)] += times
    finding.callers = dict(callers)


def _acts(finding: Finding, after: float) -> bool:
    """Return whether there is something to do about a line that may have lost time."""
    least = SEEN * after
    return finding.kind not in WITHOUT_ACTION and finding.lost + finding.unseen >= least


def _notes(watched: Watched, totals: _Totals, other_reason: str) -> Iterator[str]:
    config = getattr(sys.modules.get("jax"), "config", None)
    for switch, words in _SWITCHES.items():
        if getattr(config, switch, False):
            yield f"{switch} is on: {words}."
    if state.dispatches_synchronously():
        yield (
            "jax_cpu_enable_async_dispatch is off: a call computes before it returns. Switch it "
            "on, unless you know why it is off."
        )
    if len(totals.idle) > 1 and totals.inferred > 0.1 * watched.judged_seconds:
        yield (
            f"Operators longer than a window were attributed to {next(iter(totals.idle))}; the "
            "device that they ran on was not seen."
        )
    if watched.judged_seconds < 1e-6:
        yield "Nothing came after the start."
    elif watched.unseen_seconds >= SEEN * watched.judged_seconds:
        reasons = totals.reasons
        reasons[other_reason] += watched.unseen_seconds - reasons.total()
        share = watched.unseen_seconds / watched.judged_seconds
        main, *more = reasons.most_common(2)
        words = [main[0], *(reason for reason, seconds in more if seconds > 0.15 * main[1])]
        yield (
            f"For {share:.0%} of the time after the start, it is unknown what the devices did: "
            f"{'; or '.join(words)}."
        )
    if 0 < watched.windows < FEWEST:
        yield (
            f"Only {plural(watched.windows, 'window')} of the profiler fell after the start: the "
            "losses may be far off."
        )
    used = os.times()
    if used.children_user + used.children_system > 0.1 * watched.judged_seconds:
        yield "Child processes did some of the work. They are not watched."
