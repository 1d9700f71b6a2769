"""Copy results while the next are computed, and from a GPU to the host in all ways that JAX has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar.barriers import block
from d2lpar.devices import cpu
from d2lpar.measurement import Until, compare, measure
from d2lpar.overlap import OverlapScore, overlap_score
from d2lpar.quantity import Quantity
from d2lpar.timeline import Timeline
from d2lpar.timer import Timer
from d2lpar.trace import record_trace

COPIES = 5
"""How many results are copied; few enough to be told apart in a timeline."""


@dataclass(frozen=True)
class CopyTimes:
    """The times of computing, of copying, and of both at once, and how much they overlap.

    Attributes:
        computing: Seconds for all results.
        copying: Seconds for their copies, once they are there.
        at_once: Seconds for both, without a barrier in between.
    """

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
        made = block([make(index) for index in range(COPIES)])
        computing = timer.stop()
        return arrive([(array, send(array)) for array in made]), computing

    def at_once():
        return arrive(_make_and_send(make, send)), 0.0  # Here nothing is only computed.

    def parts(times):
        computing = times["in turn"].of("computing").renamed("computing")
        copying = (times["in turn"].total - computing).renamed("copying")
        return CopyTimes(computing, copying, times["at once"].total.renamed("at once"))

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
        bandwidth: Bytes a second, of the copies.
        alone: Likewise, of a single large one, which is as good as it gets.
    """

    times: CopyTimes
    held: Quantity
    bandwidth: float
    alone: float


def measure_ways(make: Callable[[int], jax.Array]) -> dict[str, Way]:
    """Measure all ways to copy to the host what a device computes.

    Args:
        make: Returns result number i, a matrix that is not there yet.

    Returns:
        What was found, by the name of the way.
    """
    found, nbytes = {}, block(make(0)).nbytes
    for name, (send, arrive) in WAYS.items():
        times = copy_times(make, send, arrive, until=lambda times: times.score > 0.5)
        asking = measure(lambda send=send: send(make(0)))
        held = (asking.dispatch / asking.total).renamed(f"share held, {name}")
        bandwidth = COPIES * nbytes / times.copying.median
        found[name] = Way(times, held, bandwidth, _bandwidth_alone(make(0), send, arrive))
    return found


def record_ways(make: Callable[[int], jax.Array]) -> dict[str, Timeline]:
    """Record computing and copying at once, for each way to copy.

    Args:
        make: As for `measure_ways`.

    Returns:
        A timeline for each way, by its name, all as long as the shortest.
    """
    found = {}
    for name, (send, arrive) in WAYS.items():

        def make_and_copy(send=send, arrive=arrive):
            return arrive(_make_and_send(make, send))

        make_and_copy()  # Compiles what has to be.
        _, found[name] = record_trace(make_and_copy)
    shortest = min(timeline.elapsed for timeline in found.values())
    return {name: timeline.first(shortest) for name, timeline in found.items()}


def _bandwidth_alone(matrix: jax.Array, send: Callable, arrive: Callable) -> float:
    seconds = []
    for _ in range(5):
        large = block(jnp.tile(matrix, (4, 1)))  # A new one: JAX keeps what it has fetched.
        timer = Timer()
        block(arrive([(large, send(large))]))
        seconds.append(timer.stop())
    return large.nbytes / float(np.median(seconds))


def table_of_ways(ways: Mapping[str, Way]) -> str:
    """Write what was measured of each way as a table in Markdown.

    Args:
        ways: What `measure_ways` returned; with none, a sentence says so.
    """
    if not ways:
        return "There is no GPU here, so nothing was measured."
    lines = [
        "| Way | Python is held | overlap score | GB/s | one large copy, GB/s |",
        "|---" * 5 + "|",
    ]
    for name, way in ways.items():
        lines.append(
            f"| {name} | {way.held:%} | {way.times.score:.2f} | {way.bandwidth / 1e9:.1f} "
            f"| {way.alone / 1e9:.1f} |"
        )
    return "\n".join(lines)
