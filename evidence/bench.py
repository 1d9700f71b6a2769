"""What d2lpar itself costs, against what it promises: `make bench`.

A row of `ROWS` is a promise: a title, the function that measures the cost, and the goal. A missed
goal is printed and is no error: the machine may have been busy with something else.
"""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar import Benchmark, InFlight, Quantity, compare, watch
from d2lpar._jax.devices import this_machine
from d2lpar._plain.format import format_value
from d2lpar.book.workloads import Work, host_batch, init_mlp, train_step

TURNS = 1000


def per_turn(work: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that does `work` many times, which takes long enough to time."""

    def repeat():
        for _ in range(TURNS):
            work()

    return repeat


def extra_cost(
    function: Callable[[], Any],
    baseline: Callable[[], Any],
    repeats: int = 31,
    clock: Callable[[], float] = time.thread_time,
) -> Quantity:
    """Return the seconds that a turn of a function costs beyond a turn of `baseline`.

    The clock counts the CPU time of this thread only. In a thousand turns on a busy machine other
    processes often get the core, and their time is no cost of ours.
    """
    times = compare({"ours": function, "baseline": baseline}, repeats=repeats, clock=clock)
    extra = times["ours"].total - times["baseline"].total
    return Quantity("cost of a turn", tuple(seconds / TURNS for seconds in extra.samples), "s")


def read_clock() -> None:
    """Read the clock twice, as every timing must."""
    time.perf_counter()
    time.perf_counter()


def cost_of_benchmark() -> Quantity:
    def use_benchmark():
        with Benchmark("x"):
            read_clock()

    with contextlib.redirect_stdout(io.StringIO()):  # A terminal has a speed of its own.
        return extra_cost(per_turn(use_benchmark), per_turn(read_clock))


def price_of_a_window() -> Quantity:
    """Compare the training loop of the chapter, fed by the host, with a window and without."""
    parameters = init_mlp(jax.random.key(0), (2048, 256, 1))
    template, targets = np.ones((1024, 2048), np.float32), jnp.zeros((1024, 1))

    def train(window):
        trained = parameters
        for _ in range(24):
            inputs = jax.device_put(host_batch(template))
            trained, _ = window.submit(train_step, trained, inputs, targets)
        return trained

    ways = {"ours": lambda: train(InFlight(4)), "baseline": lambda: train(InFlight(None))}
    return compare(ways, repeats=41).ratio("ours", "baseline")


def price_of_watching(turn: Callable[[], Any], turns: int = 200) -> Quantity:
    """Compare the turns of a loop, watched and unwatched; the report is made after the last."""
    turn()

    def loop():
        began = time.perf_counter()
        for _ in range(turns):
            turn()
        return time.perf_counter() - began

    def watched():
        with watch():
            return loop()

    ways = {"watched": watched, "unwatched": loop}
    times = compare(ways, observe={"loop": float}, units={"loop": "s"}, repeats=15)
    return times.ratio("watched", "unwatched", of="loop")


def steps_of_one_core() -> Quantity:
    """Watch steps of 5 ms, whose loss is read in each."""
    work = Work()
    return price_of_watching(lambda: float(work(5e-3)[0, 0]))


def eager_calls() -> Quantity:
    """Watch steps of a thousand eager calls each."""

    def turn():
        y = jnp.ones(3)
        for _ in range(1000):
            y = y + 1
        return jax.block_until_ready(y)

    return price_of_watching(turn, turns=40)


ROWS: dict[str, tuple[Callable[[], Quantity], float]] = {
    "Benchmark, beyond reading the clock": (cost_of_benchmark, 5e-6),
    "a training loop with InFlight(4), over InFlight(None)": (price_of_a_window, 1 / 0.97),
    "steps of 5 ms that take one core, watched over unwatched": (steps_of_one_core, 1.05),
    "a thousand eager calls a step, watched over unwatched": (eager_calls, 1.10),
}


def main() -> int:
    """Measure each row and return 0, or 1 if one of them could not be measured."""
    load = os.getloadavg()[0]
    print(f"jax {jax.__version__}, {this_machine().cores} cores, load {load:.1f}", flush=True)
    goals = []
    for title, (measured, at_most) in ROWS.items():
        try:
            goal = measured().rename(title) < at_most
        except Exception as error:
            print(f"{title}: could not be measured: {type(error).__name__}: {error}")
        else:
            goals.append(goal)
            limit = format_value(at_most, goal.quantity.unit)
            print(f"{goal.quantity!r}; goal < {limit}: {goal.verdict}", flush=True)
    met = sum(goal.verdict == "holds" for goal in goals)
    print(f"{met} of {len(goals)} goals are met.")
    return int(len(goals) < len(ROWS))


if __name__ == "__main__":
    sys.exit(main())
