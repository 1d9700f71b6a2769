"""Charge the idle time of a device to the lines of a program, window by window.

How it works. Each sample of a window becomes charges, one for each line at which a thread is. Only
the first of them carries the time that the device was idle, so the losses add up::

    sample          |----------------------|
    device          [==busy==]    idle
    feeder          y = f(x)                    charge: 1.2 ms there, 0.7 ms lost
    another thread  log.write(line)             charge: 1.2 ms there, nothing lost

The first charge is that of a callback, else of the thread that feeds the device, else of one that
compiles, of the main thread, or of any other. While a thread traces or compiles, its charge goes to
the line that called the program, and while Python collects garbage, to the collector. Without a
thread in the user's code, the idle time goes to `OUTSIDE`.

Two facts leave no event, and are inferred here. One is the thread that feeds a device: the thread
that was in a call while the profiler saw one. The other is whether a device works on an operator
that began before a window or ends after it. The threads that wait, and the cores in use, tell.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from d2lpar._jax import state
from d2lpar._jax.stack import NUMPY, CodePosition, Place, only_reads
from d2lpar._watch.recompilations import Compiled
from d2lpar._watch.windows import Collection, Sample, Spans, ThreadSample, Window, overlap

OUTSIDE = Place("outside your code", 0, "")
COLLECTIONS = "collection", "watch"  # The kinds of `Collection`.

# The kinds of activities that are the same whatever the devices do.
KIND_OF = {
    "value": "value",
    "barrier": "barrier",
    "callback": "callback",
    "checks": "check",
    "input": "input",
    "locks": "host wait",
}
_IN_JAX = {"jax", "slow call", "puts"}
_MAY_DISPATCH = {"call", "library", "compiles", *_IN_JAX}


class Charge(NamedTuple):
    """The part of a sample at one line."""

    place: Place
    position: CodePosition | None  # None outside of the user's code.
    thread: str
    kind: str  # One of `report.KINDS`, or "call" for an unknown call, perhaps of JAX.
    seconds: float  # How long a thread was there.
    lost: float  # How long the first device was idle because of this line.
    may_wait: bool = False  # In a block of `waits_allowed`.
    elsewhere: tuple[Place, ...] = ()  # Where other threads worked, if this one waited for them.


class ChargedSample(NamedTuple):
    """A sample and its charges, that of the feeding thread first; in seconds."""

    seconds: float
    idle: dict[str, float]  # How long each device was idle.
    inferred: float  # How long the first device worked on an operator without an event.
    collective: float  # How long the first device was in collective operators.
    charges: list[Charge]
    taken_at: float  # In seconds of `time.perf_counter`.

    @property
    def collecting(self) -> float:
        """How long Python collected garbage."""
        return sum(each.seconds for each in self.charges if each.kind in COLLECTIONS)

    @property
    def working(self) -> float:
        """The rest of the seconds."""
        return self.seconds - self.collecting


def charge_window(
    window: Window,
    samples: list[Sample],
    devices: list[str],
    feeder: int,
    programs: list[Compiled],
    collections: list[Collection],
) -> Iterator[ChargedSample]:
    """Charge each sample of a window; lines carry the idle time of the first device.

    The programs are those of `compiled_in`.
    """
    busy, first = window.events.busy, devices[0]
    collections = [c for c in collections if c.start < window.over and c.end > window.began]
    for n, sample in enumerate(samples):
        whole = sample.end - sample.start
        near = samples[max(n - 6, 0) : n + 7]  # Linux updates a process's CPU time every few ms.
        compiling = _compiling(sample, programs)
        callbacks = [i for i, t in sample.threads.items() if t.stack.activity == "callback"]
        idle = {d: whole - overlap(busy.get(d, []), sample.start, sample.end) for d in devices}
        spans = window.events.collectives.get(first, [])
        inferred, collective = 0.0, overlap(spans, sample.start, sample.end)
        if callbacks:
            idle, collective = dict.fromkeys(devices, whole), 0.0
        elif not compiling and min(idle.values()) == whole and _works(window, sample, near, first):
            idle[first], inferred = 0.0, whole
            # An operator without an event that uses no CPU waits for other processes.
            if state.process_count() > 1 and _native_cores(near) < 0.3:
                collective = whole
        threads = (*callbacks, feeder, *compiling, threading.main_thread().ident, *sample.threads)
        order = [ident for ident in dict.fromkeys(threads) if ident in sample.threads]
        charges = _charges(window, sample, idle[first], order, compiling)
        charges = list(_without_collections(charges, collections, sample, busy.get(first, [])))
        yield ChargedSample(whole, idle, inferred, collective, charges, sample.taken_at)


def compiled_in(window: Window, programs: list[Compiled]) -> list[Compiled]:
    """Return the programs that were traced or compiled in a window, the last to end first."""
    inside = [p for p in programs if p.began < window.over and p.over > window.began]
    return sorted(inside, key=lambda program: -program.over)


def _compiling(sample: Sample, programs: list[Compiled]) -> dict[int, Compiled]:
    """Return which program each thread of a sample traces or compiles."""
    # Of two programs, one inside the other, the inner one ends first, and stays in the dictionary.
    return {
        program.thread: program
        for program in programs
        if program.thread in sample.threads
        if program.began <= sample.taken_at < program.over
    }


def _charges(
    window: Window, sample: Sample, lost: float, order: list[int], compiling: dict[int, Compiled]
) -> Iterator[Charge]:
    """Yield a charge for each line of a sample; the first carries what is lost."""
    seconds = sample.end - sample.start
    is_idle, called = lost > 0.5 * seconds, _in_call(sample, window)
    if not order:
        yield Charge(OUTSIDE, None, "", "outside", seconds, lost)
    places = set()  # Several threads at one line count once.
    for ident in order:
        thread, program = sample.threads[ident], compiling.get(ident)
        # While JAX traces, the stack shows the lines of the traced function.
        position = program.callers[0] if program else thread.stack.position
        place = position.place
        if place in places:
            continue
        kind = kind_of(program) if program else _kind(thread, is_idle, called)
        others = () if kind != "host wait" else sample.threads.values()
        elsewhere = tuple(
            other.stack.position.place for other in others if other.stack.activity != "locks"
        )
        charged = 0.0 if places else lost
        yield Charge(
            place, position, thread.name, kind, seconds, charged, thread.may_wait, elsewhere
        )
        places.add(place)


def _without_collections(
    charges: Iterator[Charge], collections: list[Collection], sample: Sample, busy: Spans
) -> Iterator[Charge]:
    """Move the part of the charges in which Python collected garbage to the collector.

    Nothing else of Python runs during a collection, and the sampling thread neither. So one sample
    covers a long collection.
    """
    parts = [
        each._replace(start=max(each.start, sample.start), end=min(each.end, sample.end))
        for each in collections
        if each.start < sample.end and each.end > sample.start
    ]
    for n, charge in enumerate(charges):
        for part in parts:
            seconds = part.end - part.start
            lost = min(seconds - overlap(busy, part.start, part.end), charge.lost)
            lost = max(lost, charge.lost - charge.seconds + seconds)
            if n == 0:
                yield Charge(part.place, part.position, charge.thread, part.kind, seconds, lost)
            charge = charge._replace(seconds=charge.seconds - seconds, lost=charge.lost - lost)
        yield charge


def _works(window: Window, sample: Sample, near: list[Sample], device: str) -> bool:
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
        reads_here = activity == "call" and only_reads(thread.stack.innermost)
        waits |= rests and activity in ("value", "barrier", "checks")
        # A call may wait until another process makes the same call.
        waits |= rests and activity in ("jax", "slow call") and has_peers
        waits |= synchronous and thread.used_cpu and activity == "call" and not reads_here
        reading |= rests and reads_here
        computes |= thread.used_cpu and reads_here  # NumPy has threads of its own.
    return waits or (_native_cores(near) > (0.3 if reading else 0.5) and not computes)


def _native_cores(samples: list[Sample]) -> float:
    """Return how many cores were used by threads other than Python's."""
    whole = samples[-1].end - samples[0].start
    return sum(x.native_cores * (x.end - x.start) for x in samples) / whole


def _in_call(sample: Sample, window: Window) -> bool:
    # The sampler reads the clock and the stacks one after the other.
    return overlap(window.events.calls, sample.taken_at - 5e-5, sample.taken_at + 5e-5) > 0


def kind_of(program: Compiled) -> str:
    """Return the kind of a program's tracing and compilation, one of `report.KINDS`."""
    if not program.compiled:
        return "tracing"
    return "compilation" if program.again else "first compilation"


def _kind(thread: ThreadSample, idle: bool, called: bool) -> str:
    activity = thread.stack.activity
    if activity in KIND_OF:
        return KIND_OF[activity]
    if activity == "compiles":  # JAX has not announced the end of this program.
        return "first compilation"
    in_jax = activity in _IN_JAX
    if not thread.used_cpu and (in_jax or activity == "call"):
        innermost = thread.stack.innermost
        # A function of NumPy may read a file while the device is idle.
        is_file = idle and innermost.called_name().startswith(NUMPY)
        if only_reads(innermost) and not called and not is_file:
            return "value"
        if not idle:
            return "queue"
    if in_jax or (called and activity != "sleeps"):
        dispatch = "slow dispatch" if activity == "slow call" else "dispatch"
        return dispatch if idle else "queue"
    return "call" if activity in ("library", "call") else "device idle"


def feeders(windows: list[Window], programs: list[list[Compiled]]) -> list[int]:
    """Return, for each window with its programs, the thread that most likely feeds the devices."""
    called, compiled = [], []
    moved: Counter[int] = Counter()
    for window, inside in zip(windows, programs, strict=True):
        in_calls, in_programs = Counter(), Counter()
        for sample in window.samples:
            in_call = _in_call(sample, window)
            # Calls are often shorter than the time between two samples.
            calls = window.events.calls
            first, last = (bisect_left(calls, (at,)) for at in (sample.start, sample.end))
            for ident, thread in sample.threads.items():
                in_calls[ident] += in_call and thread.stack.activity in _MAY_DISPATCH
                moved[ident] += first < last and thread.has_moved
            in_programs.update([*_compiling(sample, inside)])
        called.append(+in_calls)
        compiled.append(in_programs)
    anywhere = sum(called, Counter()) or +moved or sum(compiled, Counter())
    anywhere = anywhere or Counter([threading.main_thread().ident])
    return [
        (calls or programs or anywhere).most_common(1)[0][0]
        for calls, programs in zip(called, compiled, strict=True)
    ]
