"""What *Automatic Parallelism* measures and draws, and the solutions of its exercises."""

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
from d2lpar._timeline.plot import COLORS, WIDTH, format_axis
from d2lpar._timeline.recording import record_trace
from d2lpar._timeline.timeline import COPY, COPY_CALL, PYTHON, Event, Timeline, in_order
from d2lpar.book.recorded import recorded_on_gpu

# --- Work of a fair size for two devices ----------------------------------------------------------


_MOST_CALLS = 30
"""Python may run ahead of a CPU device by 32 calls. The next would make it wait, which no overlap
of two devices survives."""


@dataclass(frozen=True)
class Repeated:
    """A number of equal calls, none of which needs another."""

    function: Callable[[jax.Array], jax.Array]
    argument: jax.Array
    count: int

    def __call__(self) -> list[jax.Array]:
        """Ask for all of them, and return their results, which are not there yet."""
        return [self.function(self.argument) for _ in range(self.count)]

    def __str__(self):
        (device,) = self.argument.devices()
        rows, columns = self.argument.shape
        return f"{device_name(device)}: {self.count} times {rows} x {columns}"


def fair_matrix(
    function: Callable[[jax.Array], jax.Array], device: jax.Device, size: int
) -> tuple[jax.Array, float]:
    """Make a matrix that is small enough for a function to be called ten times in a tenth second.

    The rows and columns asked for are halved until it is fast enough. Returns how many seconds one
    call takes as well.
    """
    rng = np.random.default_rng(0)
    while True:
        x = jax.device_put(rng.standard_normal((size, size), dtype=np.float32), device)
        seconds = measure(function, x, repeats=3).total.median
        if 10 * seconds < 0.1 or size <= 250:
            return x, seconds
        size //= 2


def fair_calls(
    function: Callable[[jax.Array], jax.Array],
    devices: Sequence[jax.Device],
    sizes: Sequence[int],
) -> list[Repeated]:
    """Make calls with square matrices for each device so that all devices take about as long.

    Each device gets ten calls, or more of them where it is faster than another. Devices of one kind
    get the same, whatever noise there is in their times.
    """
    if len({(device.platform, size) for device, size in zip(devices, sizes, strict=True)}) == 1:
        x, _ = fair_matrix(function, devices[0], sizes[0])
        return [Repeated(function, jax.device_put(x, device), 10) for device in devices]
    made = [
        fair_matrix(function, device, size) for device, size in zip(devices, sizes, strict=True)
    ]
    slowest = max(seconds for _, seconds in made)
    return [
        Repeated(function, x, min(_MOST_CALLS, round(10 * slowest / seconds)))
        for x, seconds in made
    ]


def cores_busy(function: Callable[[], Any], times: int = 3) -> float:
    """Return how many cores a function keeps busy: processor time over the time that passes.

    It must return what it computes. Nothing else may run meanwhile in this process.
    """
    jax.block_until_ready(function())
    processor, passed = time.process_time(), time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(function())
    return (time.process_time() - processor) / (time.perf_counter() - passed)


def meetings(timeline: Timeline) -> int:
    """Return how often each device has taken part in an all-reduce, as the profiler has seen it."""
    return max(
        Counter(
            event.device
            for event in timeline.events
            if re.match("(all-reduce|psum)", event.operator)
        ).values(),
        default=0,
    )


# --- Copying while the next result is computed ----------------------------------------------------


COPIES = 5
"""How many results are copied; few enough to be told apart in a timeline."""


@dataclass(frozen=True)
class CopyTimes:
    """Seconds for computing, for copying what was computed, and for both without a barrier."""

    computing: Quantity
    copying: Quantity
    at_once: Quantity

    @property
    def rows(self) -> tuple[Quantity, Quantity, Quantity]:
        """The three, in the order in which editions print them."""
        return self.computing, self.copying, self.at_once

    @property
    def score(self) -> OverlapScore:
        """The overlap; the last copy has nothing to hide behind, so it stays below 1."""
        return overlap_score(*self.rows)


def copy_times(
    make: Callable,
    send: Callable,
    arrive: Callable = list,
    *,
    until: Until | None = None,
    **options: Any,
) -> CopyTimes:
    """Time computing and copying, first in turn and then at once, with the same calls.

    Args:
        make: Returns result number i, which is not there yet.
        send: Asks for a copy of an array.
        arrive: Takes the pairs of array and copy, and returns them when there is something to
            wait for.
        until: As for `compare`; it is given the times so far.
        **options: What else `compare` takes.
    """

    def in_turn():
        timer = Timer()
        made = jax.block_until_ready([make(index) for index in range(COPIES)])
        computing = timer.stop()
        return arrive([(array, send(array)) for array in made]), computing

    def at_once():
        return arrive(_make_and_send(make, send)), 0.0  # Here nothing is only computed.

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


def _make_and_send(make: Callable, send: Callable) -> list:
    pairs = []
    for index in range(COPIES):
        array = make(index)
        pairs.append((array, send(array)))
    return pairs


# --- From a GPU to the host -------------------------------------------------------------------


def put_on_cpu(array: jax.Array) -> jax.Array:
    """Ask for a copy on a CPU device."""
    return jax.device_put(array, cpu())


def start_fetching(array: jax.Array) -> jax.Array:
    """Start to fetch the numbers of an array, and return the array itself."""
    array.copy_to_host_async()
    return array


def pin(array: jax.Array) -> jax.Array:
    """Ask for a copy in memory of the host that never moves, where the device can reach it."""
    return jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))


def fetch_all(pairs: list) -> list:
    """Wait until all numbers are there, which is what makes a NumPy array of them."""
    return [(array, np.asarray(array)) for array, _ in pairs]


WAYS = {
    "device_put to the CPU": (put_on_cpu, list),
    "copy_to_host_async": (start_fetching, fetch_all),
    "device_put to pinned_host": (pin, list),
}
"""For each way, what asks for a copy, and what makes the copies arrive."""


@dataclass(frozen=True)
class Way:
    """What one way to copy was found to do.

    Attributes:
        times: Of computing and copying.
        held: The share of the time of a copy, from the call that makes its array, for which
            Python was held.
    """

    times: CopyTimes
    held: Quantity


def measure_ways(make: Callable[[int], jax.Array]) -> dict[str, Way]:
    """Measure all ways to copy to the host the matrices that a device makes, by number."""
    found = {}
    for name, (send, arrive) in WAYS.items():
        times = copy_times(make, send, arrive, until=lambda times: times.score > 0.5)
        asking = measure(lambda send=send: send(make(0)))
        held = (asking.dispatch / asking.total).rename(f"share held, {name}")
        found[name] = Way(times, held)
    return found


def plot_ways_to_copy(ways: Mapping[str, Way]) -> Axes:
    """Draw how long it takes by each way until everything is computed and copied.

    Args:
        ways: What was measured here. If nothing was, what a machine with a GPU has recorded is
            drawn.

    Returns:
        The axes; their label says which machine it was.
    """
    machine, times = "this machine", {name: way.times.at_once for name, way in ways.items()}
    if not ways:
        machine, rows = recorded_on_gpu("P6")
        times = {name: rows[name]["at once"] for name in WAYS}
    axes = plt.figure(figsize=(WIDTH, 1.5)).add_subplot()
    places = np.arange(len(times))[::-1]
    seconds = [quantity.median for quantity in times.values()]
    axes.barh(places, seconds, 0.6, color=COLORS["none"])
    for place, value in zip(places, seconds, strict=True):
        axes.text(value, place, f" {format_value(value, 's', digits=2)}", va="center")
    axes.set_yticks(places, times)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.2 * max(seconds))  # With room for the numbers.
    axes.locator_params(axis="x", nbins=4)
    format_axis(axes.xaxis, "s")
    axes.set_xlabel(f"until all is there, on {machine}")
    return axes


# --- What a timeline says was done before what ----------------------------------------------------


def lead(timeline: Timeline, program: str, other: str) -> float:
    """Return how long before the last run of another program a program was done the first time.

    These are seconds, from the end of the first run of the one to the end of the last run of the
    other; below 0 if that ended before. A program that has not run on a device is a `ValueError`.
    """
    done = min(event.end for event in _runs(timeline, program))
    return (max(event.end for event in _runs(timeline, other)) - done) / 1e9


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
    """Return a timeline whose bars bear numbers, so that one can tell which belong together.

    Each is called by its number in its row; Python's row stays as it is. A copy that a thread has
    watched for, which may see it late, begins when it has been asked for, the run of its number is
    over, and so is the copy before. Copies that arrive with the one before them, too shortly after
    it to be seen, share its bar, as "1-5".
    """
    short = timeline.elapsed * 1e9 / 500
    bars: dict[str, list[Event]] = defaultdict(list)
    counts: Counter[str] = Counter()
    events = timeline.programs.events
    asked = [e.start for e in events if (e.program, e.operator) == COPY_CALL]
    made = [e.end for e in events if e.operator == ""]
    begins = map(max, asked, made)
    for event in events:
        row = bars[event.device]
        if event.operator == COPY and event.device in timeline.watched:
            before = row[-1].end if row else 0
            start = min(event.start, max(before, next(begins, event.start)))
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


def record_copies(function: Callable[[], Any], times: int = 9) -> Timeline:
    """Record a function that computes and copies, and return its timeline, numbered.

    Of several recordings it is the one that is shortest, its bars counted as well: what disturbs a
    run, or keeps the thread that watches from seeing that a copy has arrived, makes it longer, and
    never shorter.
    """
    timelines = [numbered(record_trace(function)[1]) for _ in range(times)]
    return min(timelines, key=lambda timeline: timeline.elapsed + seconds_in_bars(timeline))


def seconds_in_bars(timeline: Timeline) -> float:
    """Return how long all runs and copies take together."""
    return sum(event.duration for event in timeline.events if event.device != PYTHON) / 1e9
