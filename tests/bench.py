"""What d2lpar itself costs: `make bench`. Ratios with 95 % intervals, measured in turn."""

import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp

from d2lpar import Quantity, Timer, block, compare, host_memory, measure, record_compilations
from d2lpar.inflight import InFlight
from d2lpar.workloads import chain

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


def main():
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
    links = round(0.005 / (measure(chain, matrix, 2000).total.median / 2000))
    ratio(
        "loop with InFlight(4) over the loop without a bound",
        lambda: loop(4, matrix, links),
        lambda: loop(None, matrix, links),
    )
    ratio(
        "import d2lpar over import jax, each in a new process",
        lambda: import_in_a_new_process("d2lpar"),
        lambda: import_in_a_new_process("jax"),
        repeats=9,
    )


def submit_to(function, x):
    """Return a turn that submits a call to a window that is always open."""
    window = InFlight(4)
    return lambda: window.submit(function, x)


def loop(max_in_flight, matrix, links):
    """Run a training loop's worth of calls through a window."""
    with InFlight(max_in_flight) as window:
        for _ in range(40):
            matrix = window.submit(chain, matrix, links)
    return matrix


if __name__ == "__main__":
    main()
