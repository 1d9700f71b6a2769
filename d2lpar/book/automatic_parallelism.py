"""The measurements and figures of *Automatic Parallelism* and of its solutions."""

import itertools
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from d2lpar._jax.devices import cpu, device_name
from d2lpar._measure.clock import Timer
from d2lpar._measure.comparison import Until, compare, measure
from d2lpar._measure.overlap import OverlapScore, overlap_score
from d2lpar._measure.quantity import Quantity
from d2lpar._plain.format import format_value
from d2lpar._timeline.plot import COLORS, WIDTH, device_color, format_axis
from d2lpar._timeline.recording import record_trace
from d2lpar._timeline.timeline import COPY, COPY_CALL, PYTHON, Event, Timeline, in_order
from d2lpar.book.notebook import show_in_notebook
from d2lpar.book.recorded import KeptTime, times_on_gpu

# --- Work of a fair size for two devices ----------------------------------------------------------


_MOST_CALLS = 30
"""Python can run 32 calls ahead of a CPU device. One more call would wait, and while Python waits,
the other device gets no calls."""


@dataclass(frozen=True)
class Repeated:
    """A number of equal, independent calls."""

    function: Callable[[jax.Array], jax.Array]
    argument: jax.Array
    count: int

    def __call__(self) -> list[jax.Array]:
        """Dispatch all calls, and return their unfinished results."""
        return [self.function(self.argument) for _ in range(self.count)]

    def __str__(self):
        (device,) = self.argument.devices()
        rows, columns = self.argument.shape
        return f"{device_name(device)}: {self.count} times {rows} x {columns}"


def fair_matrix(
    function: Callable[[jax.Array], jax.Array], device: jax.Device, size: int
) -> tuple[jax.Array, float]:
    """Make a square matrix so small that ten calls of a function take under a tenth of a second.

    The size is halved until the calls are fast enough or the size is at most 250 (in JAX
    0.7, 1000). Returns the matrix and the seconds of one call.
    """
    # JAX 0.7 may give a product of at most 512 rows a single core, where others take all.
    smallest = 250 if jax.version.__version_info__ >= (0, 8) else 1000
    rng = np.random.default_rng(0)
    while True:
        x = jax.device_put(rng.standard_normal((size, size), dtype=np.float32), device)
        seconds = measure(function, x, repeats=3).total.median
        if 10 * seconds < 0.1 or size <= smallest:
            return x, seconds
        size //= 2


def fair_calls(
    function: Callable[[jax.Array], jax.Array], devices: Sequence[jax.Device], sizes: Sequence[int]
) -> list[Repeated]:
    """Make calls on square matrices for each device so that all devices take about equal time.

    The slowest device gets ten calls, a faster device gets more. Devices of one kind get equal
    calls from one timing, because the noise of two timings would make the calls differ.
    """
    if len({(device.platform, size) for device, size in zip(devices, sizes, strict=True)}) == 1:
        x, _ = fair_matrix(function, devices[0], sizes[0])
        return [Repeated(function, jax.device_put(x, device), 10) for device in devices]
    matrices = [
        fair_matrix(function, device, size) for device, size in zip(devices, sizes, strict=True)
    ]
    slowest = max(seconds for _, seconds in matrices)
    return [
        Repeated(function, x, min(_MOST_CALLS, round(10 * slowest / seconds)))
        for x, seconds in matrices
    ]


def cores_busy(function: Callable[[], Any], times: int = 3) -> float:
    """Return how many cores a function keeps busy: processor time divided by elapsed time.

    The function must return its results. Nothing else may run in this process meanwhile.
    """
    jax.block_until_ready(function())
    processor, passed = time.process_time(), time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(function())
    return (time.process_time() - processor) / (time.perf_counter() - passed)


def meetings(timeline: Timeline) -> int:
    """Return how many all-reduces each device took part in, by the profiler's events."""
    all_reduces = filter(_is_all_reduce, timeline.events)
    return max(Counter(event.device for event in all_reduces).values(), default=0)


def _is_all_reduce(event: Event) -> bool:
    return bool(re.match("(all-reduce|psum)", event.operator))


def plot_all_reduces(timeline: Timeline, count: int = 6) -> Axes:
    """Draw that many all-reduces in a row, of typical length, and the operators between them."""
    axes = plt.figure(figsize=(WIDTH, 1.6)).add_subplot()
    sums = defaultdict(list)
    for event in filter(_is_all_reduce, timeline.events):
        sums[event.device].append(event)
    # Number n of each device is the same. A span is from the last end of one to a first end.
    ends = [[event.end for event in events] for events in zip(*sums.values(), strict=False)]
    spans = zip(map(max, ends), map(min, ends[count:]), strict=False)
    spans = sorted(spans, key=lambda span: span[1] - span[0])
    if not spans:
        return axes
    begin, end = spans[len(spans) // 2]
    devices = sorted(sums, reverse=True)
    for row, device in enumerate(devices):
        shown = [(max(e.start, begin), min(e.end, end)) for e in sums[device]]
        waits = [((s - begin) / 1e9, (e - s) / 1e9) for s, e in shown if s < e]
        axes.broken_barh([(0, (end - begin) / 1e9)], (row - 0.35, 0.7), color=device_color(device))
        axes.broken_barh(waits, (row - 0.35, 0.7), color=COLORS["wait"])
    axes.set_yticks(range(len(devices)), devices)
    format_axis(axes.xaxis, "s")
    axes.set_xlabel("time, from JAX's profiler")
    return axes


# --- Copying while the next result is computed ----------------------------------------------------


COPIES = 5
"""The number of results to copy, small enough to tell them apart in a timeline."""


@dataclass(frozen=True)
class CopyTimes:
    """Seconds for computing, for copying the results, and for both without a barrier."""

    computing: Quantity
    copying: Quantity
    at_once: Quantity

    @property
    def score(self) -> OverlapScore:
        """The overlap score, below 1 because no computation overlaps the last copy."""
        return overlap_score(self.computing, self.copying, self.at_once)


def copy_times(
    make: Callable,
    send: Callable,
    arrive: Callable = list,
    *,
    until: Until | None = None,
    **options: Any,
) -> CopyTimes:
    """Time computing and copying, one after the other and at once, with the same calls.

    Args:
        make: Dispatches result number i, and returns it unfinished.
        send: Starts a copy of an array.
        arrive: Takes the pairs of array and copy, and returns them as something to wait for.
        until: As for `compare`, but it gets the `CopyTimes` so far.
        **options: Other options of `compare`.
    """

    def in_turn():
        timer = Timer()
        arrays = jax.block_until_ready([make(index) for index in range(COPIES)])
        computing = timer.stop()
        return arrive([(array, send(array)) for array in arrays]), computing

    def at_once():
        pairs = []
        for index in range(COPIES):
            array = make(index)
            pairs.append((array, send(array)))
        return arrive(pairs), 0.0  # No time is spent on computing alone.

    def parts(times):
        computing = times["in turn"]["computing"].rename("computing")
        copying = (times["in turn"].total - computing).rename("copying")
        return CopyTimes(computing, copying, times["at once"].total.rename("at once"))

    times = compare(
        {"in turn": in_turn, "at once": at_once},
        observe={"computing": lambda run: run[1]},
        units={"computing": "s"},
        until=None if until is None else lambda times: until(parts(times)),
        **options,
    )
    return parts(times)


# --- From a GPU to the host -------------------------------------------------------------------


def put_on_cpu(array: jax.Array) -> jax.Array:
    """Start a copy to a CPU device."""
    return jax.device_put(array, cpu())


def start_fetching(array: jax.Array) -> jax.Array:
    """Start to fetch the values of an array, and return the array itself."""
    array.copy_to_host_async()
    return array


def pin(array: jax.Array) -> jax.Array:
    """Start a copy to pinned memory of the host, which the device can access directly."""
    return jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))


def fetch_all(pairs: list) -> list:
    """Wait for the values of all arrays, by making NumPy arrays of them."""
    return [(array, np.asarray(array)) for array, _ in pairs]


WAYS = {
    "device_put to the CPU": (put_on_cpu, list),
    "copy_to_host_async": (start_fetching, fetch_all),
    "device_put to pinned_host": (pin, list),
}
"""For each way, the functions `send` and `arrive` of `copy_times`."""


@dataclass(frozen=True)
class Way:
    """The measurements of one way to copy.

    Attributes:
        times: The times of computing and copying.
        held: The share of a single computation and copy that held Python.
    """

    times: CopyTimes
    held: Quantity


def measure_ways(make: Callable[[int], jax.Array]) -> dict[str, Way]:
    """Measure all ways to copy to the host the matrices that `make(number)` computes."""
    ways = {}
    for name, (send, arrive) in WAYS.items():
        times = copy_times(make, send, arrive, until=lambda times: times.score > 0.5)
        single = measure(lambda send=send: send(make(0)))
        held = (single.dispatch / single.total).rename(f"share held, {name}")
        ways[name] = Way(times, held)
    return ways


def keep_times(ways: Mapping[str, Way]) -> None:
    """Keep the times of all ways in the notebook, unseen, for `make record`."""
    for name, way in ways.items():
        show_in_notebook(KeptTime(name, way.times.at_once))


def plot_ways_to_copy(ways: Mapping[str, Way]) -> Axes:
    """Draw for each way the time until everything is computed and copied.

    Args:
        ways: The measurements of this machine. If empty, the figure shows a recorded machine with
            a GPU.

    Returns:
        The axes, whose label names the machine.
    """
    machine, times = "this machine", {name: way.times.at_once for name, way in ways.items()}
    if not ways:
        machine, recorded = times_on_gpu()
        times = {name: recorded[name] for name in WAYS}
    axes = plt.figure(figsize=(WIDTH, 1.5)).add_subplot()
    places = np.arange(len(times))[::-1]
    seconds = [quantity.median for quantity in times.values()]
    axes.barh(places, seconds, 0.6, color=COLORS["none"])
    for place, value in zip(places, seconds, strict=True):
        axes.text(value, place, f" {format_value(value, 's', digits=2)}", va="center")
    axes.set_yticks(places, times)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.2 * max(seconds))  # Leave room for the numbers.
    axes.locator_params(axis="x", nbins=4)
    format_axis(axes.xaxis, "s")
    axes.set_xlabel(f"time until all have arrived, on {machine}")
    return axes


# --- The order of runs in a timeline --------------------------------------------------------------


def lead(timeline: Timeline, program: str, other: str) -> float:
    """Return the seconds from the first end of a program to the last end of another program.

    The lead is negative if the other program ended before. Raises a `ValueError` for a program
    without a run on a device.
    """
    first = min(event.end for event in _runs(timeline, program))
    last = max(event.end for event in _runs(timeline, other))
    return (last - first) / 1e9


def _runs(timeline: Timeline, program: str):
    runs = [
        event
        for event in timeline.programs.events
        if event.program == program and not event.device.startswith(PYTHON)
    ]
    if not runs:
        raise ValueError(f"The timeline has no run of {program!r} on a device.")
    return runs


def numbered(timeline: Timeline) -> Timeline:
    """Return a timeline with numbered bars, so that a reader can match each copy with its run.

    A bar is named by its number in its row; Python's row keeps its names. The bar of a watched copy
    starts when it was requested, its run was over, and the copy before it was over: the watching
    thread may see later that the run was over. A copy that ends too soon after the one before it to
    have room for a number shares its bar, as in "1-5".
    """
    short = timeline.elapsed * 1e9 / 50
    bars: dict[str, list[Event]] = defaultdict(list)
    counts: Counter[str] = Counter()
    events = timeline.programs.events
    requests = [e.start for e in events if (e.program, e.operator) == COPY_CALL]
    earliest = map(max, requests, [e.end for e in events if e.operator == ""])
    for event in events:
        row = bars[event.device]
        if event.operator == COPY and event.device in timeline.watched:
            before = row[-1].end if row else 0
            start = min(event.start, max(before, next(earliest, event.start)))
            event = event._replace(start=start, duration=event.end - start)
        if not event.device.startswith(PYTHON):
            counts[event.device] += 1
            number = str(counts[event.device])
            event = event._replace(program=number)
            if event.operator == COPY and row and event.end - row[-1].end < short:
                first = row.pop()
                name = f"{first.program.partition('-')[0]}-{number}"
                event = first._replace(program=name, duration=event.end - first.start)
        row.append(event)
    return Timeline(in_order(itertools.chain(*bars.values())), timeline.watched)


def record_copies(function: Callable[[], Any], times: int = 6) -> Timeline:
    """Record a function that computes and copies, and return its numbered timeline.

    Of several recordings, the result is the one in which most copies overlap a run; of equals, the
    shortest: a disturbance, or a copy seen late by the watching thread, can only lengthen it.
    """

    def disturbance(timeline: Timeline) -> tuple[int, float]:
        bars = [event for event in timeline.events if event.device != PYTHON]
        runs = [bar for bar in bars if bar.operator != COPY]
        copies = (bar for bar in bars if bar.operator == COPY)
        hidden = sum(any(c.start < r.end and r.start < c.end for r in runs) for c in copies)
        return -hidden, timeline.elapsed

    return min((numbered(record_trace(function)[1]) for _ in range(times)), key=disturbance)
