"""What d2lpar itself costs, and how much overlaps here: `make bench`.

Ratios with 95 % intervals, measured in turn.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from d2lpar import (
    PeakMemory,
    Quantity,
    Timer,
    block,
    compare,
    host_memory,
    measure,
    overlap_score,
    record_compilations,
    two_devices,
    use_cpu_devices,
)
from d2lpar.inflight import InFlight
from d2lpar.trace import read_trace
from d2lpar.units import format_bytes, format_seconds
from d2lpar.workloads import chain, chain_into

TURNS = 1000


def per_turn(work):
    """Return a function that does `work` many times, so that one turn is worth timing."""

    def repeat():
        for _ in range(TURNS):
            work()

    return repeat


def read_clock():
    time.perf_counter()
    time.perf_counter()


timer = Timer()


def use_timer():
    timer.start()
    timer.stop()


def record():
    with record_compilations():
        read_clock()


def import_in_a_new_process(module):
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


def ask_ps():
    subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], check=True, capture_output=True)


def extra_cost(title, arm, baseline, repeats=15):
    """Print what one turn of `arm` costs beyond one of `baseline`, in microseconds."""
    times = compare({"arm": per_turn(arm), "baseline": per_turn(baseline)}, repeats=repeats)
    pairs = zip(times["arm"].total.samples, times["baseline"].total.samples, strict=True)
    print(Quantity(title, tuple((a - b) / TURNS for a, b in pairs), "s"))


def ratio(title, arm, baseline, repeats=15):
    """Print how many times as long `arm` takes as `baseline`."""
    times = compare({"arm": arm, "baseline": baseline}, repeats=repeats)
    print((times["arm"].total / times["baseline"].total).renamed(title))


def links(matrix, seconds):
    """Return how long a chain must be to take so many seconds."""
    return max(1, round(seconds / (measure(chain, matrix, 2000).total.median / 2000)))


def overlap_of_chains(repeats=31):
    """Print how much single-threaded work on two CPU devices overlaps: 1 is perfect."""
    matrices = [jax.device_put(jnp.eye(64), device) for device in two_devices("cpu+cpu")]
    length = links(matrices[0], 0.005)

    def run(*which):
        return [chain(matrix, length) for matrix in which for _ in range(10)]

    times = compare(
        {
            "first": lambda: run(matrices[0]),
            "second": lambda: run(matrices[1]),
            "at once": lambda: run(*matrices),
        },
        repeats=repeats,
    )
    score = overlap_score(times["first"], times["second"], times["at once"])
    print(score.renamed("overlap of chains on two CPU devices"))


def overlap_of_copies(count=20, nbytes=8_000_000, repeats=41):
    """Print how much of copying to another CPU device hides behind computing.

    It cannot exceed 1 - 1 / count, since the last copy has nothing to hide behind. The chains
    leave a core to the copies, and, as they work in place, most of the memory traffic too. From
    jax 0.10 on that hides most; in 0.7 a donated array holds Python up when it is dropped.
    """
    here, there = two_devices("cpu+cpu")
    matrix = jax.device_put(jnp.eye(64), here)
    arrays = [jax.device_put(jnp.zeros((nbytes // 256, 64)), here) for _ in range(count)]

    def copy(array):
        return jax.device_put(array, there)

    one_copy = measure(lambda: list(map(copy, arrays))).total.median / count
    length = links(matrix, 1.5 * one_copy)

    in_place = jax.jit(chain_into, static_argnums=2, donate_argnums=0)

    def make(index):
        arrays[index] = in_place(arrays[index], matrix, length)
        return arrays[index]

    times = compare(
        {
            "computing": lambda: list(map(make, range(count))),
            "copying": lambda: list(map(copy, arrays)),
            "at once": lambda: [(array := make(index), copy(array)) for index in range(count)],
        },
        repeats=repeats,
    )
    score = overlap_score(times["computing"], times["copying"], times["at once"])
    print(score.renamed(f"overlap of {count} copies of {format_bytes(nbytes)} and chains"))


def reading_a_trace(counts=(250_000, 500_000, 1_000_000)):
    """Print what reading a trace of so many events takes."""
    with tempfile.TemporaryDirectory() as folder:
        matrix = jnp.eye(64)
        block(chain(matrix, 200))
        with jax.profiler.trace(folder):
            block(chain(matrix, 200))
        (file,) = Path(folder).rglob("*.xplane.pb")
        recorded = file.read_bytes()
        planes = jax.profiler.ProfileData.from_serialized_xspace(recorded).planes
        events = sum(1 for plane in planes for line in plane.lines for _ in line.events)
        for count in counts:
            # An XSpace is a list of planes: one behind the other, two of them are one again.
            file.write_bytes(recorded * round(count / events))
            with PeakMemory() as memory:
                timer = Timer()
                read_trace(file)
                seconds = timer.stop()
            print(
                f"reading a trace of {count} events: {format_seconds(seconds)}, "
                f"{format_bytes(memory.increase)}"
            )


def main():
    use_cpu_devices(3)
    print(f"jax {jax.__version__}, {os.cpu_count()} cores")
    x = jnp.ones(2)
    increment = jax.jit(lambda x: x + 1)
    block(increment(x))

    extra_cost("one start and stop of Timer, beyond reading the clock", use_timer, read_clock)
    extra_cost("noticing compilations (Benchmark, measure), beyond the clock", record, read_clock)
    extra_cost("InFlight.submit, beyond the call", submit_to(increment, x), lambda: increment(x))
    extra_cost("host_memory()", host_memory, lambda: None)
    ratio("host_memory() over asking ps", host_memory, ask_ps)

    matrix = jnp.eye(64)
    length = links(matrix, 0.005)
    ratio(
        "loop with InFlight(4) over the loop without a bound",
        lambda: loop(4, matrix, length),
        lambda: loop(None, matrix, length),
    )
    ratio(
        "import d2lpar over import jax, each in a new process",
        lambda: import_in_a_new_process("d2lpar"),
        lambda: import_in_a_new_process("jax"),
        repeats=9,
    )
    overlap_of_chains()
    overlap_of_copies()
    reading_a_trace()


def submit_to(function, x):
    """Return a turn that submits a call to a window that is always open."""
    window = InFlight(4)
    return lambda: window.submit(function, x)


def loop(max_in_flight, matrix, length):
    """Run a training loop's worth of calls through a window."""
    with InFlight(max_in_flight) as window:
        for _ in range(40):
            matrix = window.submit(chain, matrix, length)
    return matrix


if __name__ == "__main__":
    main()
