"""What d2lpar itself costs, and how much overlaps here: `make bench`.

Usage: python evidence/bench.py [--quick]

Each row is a quantity with its 95 % interval, most of them measured in turn with what they are
compared with. It is printed as soon as it is there, with its goal if it has one. A goal that is
missed is said and is no error: the machine may have had something else to do.
"""

import argparse
import contextlib
import io
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from run_notebook import ROOT, notebooks, run_notebook

from d2lpar import (
    Benchmark,
    InFlight,
    PeakMemory,
    Predicate,
    Quantity,
    Timer,
    compare,
    format_bytes,
    host_memory,
    measure,
    overlap_score,
    read_trace,
    record_compilations,
    two_devices,
    use_cpu_devices,
    watch,
)
from d2lpar._devices import this_machine
from d2lpar._format import format_value
from d2lpar.book.workloads import Work, chain, chain_into, host_batch, init_mlp, train_step

TURNS = 1000

Row = Quantity | Predicate
"""What a benchmark finds: a quantity, compared with a bound if there is a goal."""


# --- What a turn costs ------------------------------------------------------------------------


def per_turn(work: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that does `work` many times, so that it is worth timing."""

    def repeat():
        for _ in range(TURNS):
            work()

    return repeat


def extra_cost(
    title: str,
    arm: Callable[[], Any],
    baseline: Callable[[], Any],
    repeats: int = 31,
    clock: Callable[[], float] = time.thread_time,
) -> Quantity:
    """Return what one of the many turns of `arm` costs beyond one of `baseline`, in seconds.

    The clock counts what this thread keeps a core busy. A thousand turns take so long that on a
    busy machine another process often gets the core in between, and its time is no cost of ours.
    """
    times = compare({"arm": arm, "baseline": baseline}, repeats=repeats, clock=clock)
    rounds = zip(times["arm"].total.samples, times["baseline"].total.samples, strict=True)
    return Quantity(title, tuple((a - b) / TURNS for a, b in rounds), "s")


def ratio(title: str, arm: Callable[[], Any], baseline: Callable[[], Any]) -> Quantity:
    """Return how many times as long `arm` takes as `baseline`."""
    times = compare({"arm": arm, "baseline": baseline}, repeats=15)
    return (times["arm"].total / times["baseline"].total).rename(title)


def read_clock() -> None:
    time.perf_counter()
    time.perf_counter()


def cost_of_timer() -> list[Row]:
    timer = Timer()

    def use_timer():
        timer.start()
        timer.stop()

    title = "start and stop of Timer, beyond reading the clock"
    return [extra_cost(title, per_turn(use_timer), per_turn(read_clock))]


def cost_of_benchmark() -> list[Row]:
    def record():
        with record_compilations():
            read_clock()

    def use_benchmark():
        with Benchmark("x"):
            read_clock()

    noticing = "noticing compilations (Benchmark, measure), beyond reading the clock"
    whole = "Benchmark, with writing its line to memory, beyond reading the clock"
    with contextlib.redirect_stdout(io.StringIO()):  # A terminal has a speed of its own.
        return [
            extra_cost(noticing, per_turn(record), per_turn(read_clock)),
            extra_cost(whole, per_turn(use_benchmark), per_turn(read_clock)) < 5e-6,
        ]


def cost_of_measure() -> list[Row]:
    ready = jax.block_until_ready(jnp.ones(2))

    def by_hand():
        for _ in range(TURNS):
            time.perf_counter()
            jax.block_until_ready(ready_again())
            time.perf_counter()

    def ready_again():
        return ready

    def by_measure():
        measure(ready_again, repeats=TURNS, warmup=0)

    title = f"measure, a repeat of {TURNS}, beyond a loop with a clock and a barrier"
    return [extra_cost(title, by_measure, by_hand) < 5e-6]


def cost_of_submit() -> list[Row]:
    increment = jax.jit(lambda x: x + 1)
    x, window = jnp.ones(2), InFlight(4)
    submit = per_turn(lambda: window.submit(increment, x))
    return [
        extra_cost("InFlight.submit, beyond the call", submit, per_turn(lambda: increment(x))),
        submit_while_pending(30, over=3) < 1.5,
    ]


def submit_while_pending(many: int, over: int) -> Quantity:
    """Return how long a call of `submit` takes while many are pending, over while few are."""
    work = Work()

    def run(pending: int) -> tuple[jax.Array, float]:
        unready, window = work(0.02), InFlight(None)
        for _ in range(pending):
            window.submit(lambda: unready)
        timer = Timer()
        for _ in range(10):
            window.submit(lambda: unready)
        return unready, timer.stop() / 10

    times = compare(
        {"many": lambda: run(many), "few": lambda: run(over)},
        observe={"seconds": lambda result: result[1]},
        repeats=15,
    )
    named = f"InFlight.submit with {many} calls pending, over with {over}"
    return times.ratio("many", "few", of="seconds").rename(named)


def price_of_watching(steps: int = 50) -> list[Row]:
    """Compare a loop of steps of 5 ms, whose loss is read in each, watched and unwatched."""
    work = Work()

    def loop():
        for _ in range(steps):
            float(work(0.005)[0, 0])

    def watched():
        with watch():
            loop()

    return [ratio("a loop of 5 ms steps, watched over unwatched", watched, loop) < 1.05]


def cost_of_host_memory() -> list[Row]:
    ps = ["ps", "-o", "rss=", "-p", str(os.getpid())]

    def ask_ps():
        subprocess.run(ps, check=True, capture_output=True)

    return [
        extra_cost("host_memory()", per_turn(host_memory), per_turn(lambda: None)) < 100e-6,
        ratio("host_memory() over asking ps", host_memory, ask_ps),
    ]


IMPORTS = """
from time import perf_counter as now
began = now()
import jax
then = now()
import d2lpar
print(then - began, now() - began)
"""


def cost_of_importing(repeats: int = 21) -> list[Row]:
    """Return what importing d2lpar takes, which begins with importing jax, over jax alone.

    Both are timed in one process, a new one each time, since processes differ by more than that.
    """
    command = [sys.executable, "-c", IMPORTS]
    outputs = [subprocess.check_output(command, text=True) for _ in range(1 + repeats)]
    pairs = [tuple(map(float, output.split())) for output in outputs[1:]]  # Files are cached now.
    jax_alone, both = (Quantity("import", times, "s") for times in zip(*pairs, strict=True))
    title = "import d2lpar over import jax, in a new process"
    return [(both / jax_alone).rename(title) < 1.05]


# --- What overlaps ----------------------------------------------------------------------------


def links(matrix: jax.Array, seconds: float) -> int:
    """Return how long a chain must be to take so many seconds."""
    return max(1, round(seconds / (measure(chain, matrix, 2000).total.median / 2000)))


def window_by_hand(max_in_flight: int) -> Callable[..., tuple[Any, jax.Array]]:
    """Return a `submit` that waits for the oldest step's loss, and does nothing else."""
    in_flight: deque[jax.Array] = deque()

    def submit(step, *args):
        if len(in_flight) == max_in_flight:
            in_flight.popleft().block_until_ready()
        trained, loss = step(*args)
        in_flight.append(loss)
        return trained, loss

    return submit


def training_with_a_window(rounds: int = 41, rounds_of_memory: int = 9) -> list[Row]:
    """Compare a loop over batches from the host with a window of four and without a bound.

    The network and its batches are those of the chapter. On a CPU that is host and device at once,
    any waiting costs some percent, so a window that waits by hand is timed as well: what it costs
    too is the price of a bound on that machine, and not of InFlight.

    Memory is probed in further rounds. In these the device first gets something else to do, so that
    it is behind from the start, as otherwise only a fast host can get ahead of it.
    """
    parameters = init_mlp(jax.random.key(0), (2048, 256, 1))
    template, targets = np.ones((1024, 2048), np.float32), jnp.zeros((1024, 1))
    matrix = jnp.eye(64)
    busy = links(matrix, 0.3)

    def train(submit, links_before=0):
        trained = parameters
        before = chain(matrix, links_before) if links_before else None
        for _ in range(24):
            inputs = jax.device_put(host_batch(template))
            trained, _ = submit(train_step, trained, inputs, targets)
            del inputs
        return before, trained

    def peak(max_in_flight):
        with PeakMemory() as memory:
            jax.block_until_ready(train(InFlight(max_in_flight).submit, busy))
        return memory.increase

    times = compare(
        {
            "InFlight(4)": lambda: train(InFlight(4).submit),
            "a window by hand": lambda: train(window_by_hand(4)),
            "InFlight(None)": lambda: train(InFlight(None).submit),
        },
        repeats=rounds,
    )
    speed, speed_by_hand = (
        (times["InFlight(None)"].total / times[arm].total).rename(
            f"throughput of a training loop with {arm} over InFlight(None)"
        )
        for arm in ("InFlight(4)", "a window by hand")
    )
    peaks = {4: [], None: []}
    for round_ in range(-1, rounds_of_memory):  # The first does not count.
        for bound in peaks if round_ % 2 == 0 else reversed(peaks):
            increase = peak(bound)
            if round_ >= 0:
                peaks[bound].append(increase)
    window, no_bound = (
        Quantity(f"peak memory of that loop with InFlight({bound})", tuple(found), "B")
        for bound, found in peaks.items()
    )
    one_over_other = (window / no_bound).rename("the one peak over the other")
    return [speed > 0.97, speed_by_hand, window, no_bound, one_over_other]


def overlap_of_chains(repeats: int = 31) -> list[Row]:
    """Return how much single-threaded work on two CPU devices overlaps: 1 is perfect."""
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
    return [replace(score, name="overlap of chains on two CPU devices")]


def overlap_of_copies(count: int = 20, nbytes: int = 8_000_000, repeats: int = 41) -> list[Row]:
    """Return how much of copying to another CPU device hides behind computing.

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
    return [replace(score, name=f"overlap of {count} copies of {format_bytes(nbytes)} and chains")]


# --- What takes longer ------------------------------------------------------------------------


def reading_traces() -> list[Row]:
    """Return what reading traces takes, each in a new process, which has no memory to reuse."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        recorded = a_thousand_events(Path(folder))
        for power, repeats in ((3, 15), (4, 15), (5, 7), (6, 3)):
            file = Path(folder) / "trace.xplane.pb"
            # An XSpace is a list of planes: one behind the other, two of them are one again.
            file.write_bytes(recorded * 10 ** (power - 3))
            with multiprocessing.get_context("spawn").Pool(1) as process:
                increase, seconds = process.apply(read_again_and_again, (file, repeats))
            title = f"reading a trace of about 10^{power} events"
            rows += [
                Quantity(title, seconds, "s"),
                Quantity(f"{title}, peak memory", (increase,), "B"),
            ]
    return rows


def a_thousand_events(folder: Path) -> bytes:
    """Record a trace of about so many events, of which a chain of any length causes a few more."""
    matrix, length = jnp.eye(64), 100
    for number in range(2):
        jax.block_until_ready(chain(matrix, length))
        with jax.profiler.trace(folder / str(number)):
            jax.block_until_ready(chain(matrix, length))
        (file,) = (folder / str(number)).rglob("*.xplane.pb")
        recorded = file.read_bytes()
        planes = jax.profiler.ProfileData.from_serialized_xspace(recorded).planes
        events = sum(1 for plane in planes for line in plane.lines for _ in line.events)
        length = max(1, round(length * 1000 / events))
    return recorded


def read_again_and_again(file: Path, repeats: int) -> tuple[int, tuple[float, ...]]:
    """Return by how much memory grows when a trace is read once, and then what reading takes."""
    with PeakMemory() as memory:
        read_trace(file)
    timer = Timer()
    for _ in range(repeats):
        timer.start()
        read_trace(file)
        timer.stop()
    return memory.increase, tuple(timer.times)


def commands() -> list[Row]:
    """Return what the commands take that everybody runs, beside the notebooks' own time."""
    print("Now the notebooks, the book and the tests; this takes some minutes ...", flush=True)
    timer = Timer()
    for notebook in notebooks():
        run_notebook(notebook, strict=False, timeout=900)
    executing = timer.stop()
    rows, goals = [], {"book FORCE=1": 140, "book": 3, "test": 360}
    for target, goal in goals.items():
        # The flags of the `make` that runs this are not those of the book.
        environment = {name: v for name, v in os.environ.items() if not name.startswith("MAKE")}
        command = ["make", *target.split(), f"PYTHON={sys.executable}"]
        timer.start()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        seconds = timer.stop()
        if done.returncode:
            raise RuntimeError(f"`make {target}`: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        rows.append(
            Quantity(
                f"make {target}" + ", once the book is built" * (target == "test"), (seconds,), "s"
            )
            < goal
        )
    return [Quantity("executing the notebooks of the book", (executing,), "s"), *rows]


# --- The report -------------------------------------------------------------------------------


def verdict(goal: Predicate) -> str:
    """Return the verdict of a comparison; a single run has no interval, so only that run's."""
    if len(goal.quantity.samples) > 1:
        return goal.verdict
    return f"{replace(goal, quantity=replace(goal.quantity, exact=True)).verdict} in one run"


def line(row: Row) -> str:
    """Return a row as it is printed."""
    quantity = row.quantity if isinstance(row, Predicate) else row
    printed = str(quantity)
    if not math.isfinite(quantity.interval[0]):
        runs = "one run" if len(quantity.samples) == 1 else f"{len(quantity.samples)} runs"
        value = format_value(quantity.median, quantity.unit)
        printed = f"{quantity.name}: {value} ({runs}, too few for an interval)"
    if row is quantity:
        return printed
    return f"{printed}; goal {row.relation} {format_value(row.low, quantity.unit)}: {verdict(row)}"


def summary(rows: Iterable[Row]) -> str:
    """Return how many goals are met, and which are missed or undecided."""
    goals = [row for row in rows if isinstance(row, Predicate)]
    others = [goal for goal in goals if not verdict(goal).startswith("holds")]
    said = [f"{len(goals) - len(others)} of {len(goals)} goals are met."]
    for goal in others:
        missed = verdict(goal).startswith("fails")
        said.append(f"{'Missed' if missed else 'Undecided'}: {line(goal)}")
    return "\n".join(said)


QUICK = (
    cost_of_timer,
    cost_of_benchmark,
    cost_of_measure,
    cost_of_submit,
    price_of_watching,
    cost_of_host_memory,
    cost_of_importing,
    training_with_a_window,
    overlap_of_chains,
    overlap_of_copies,
    reading_traces,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks and return 0, or 1 if one of them could not be run."""
    use_cpu_devices(3)
    parser = argparse.ArgumentParser(description="Measure what d2lpar costs.")
    parser.add_argument(
        "--quick", action="store_true", help="leave out `make book` and `make test`"
    )
    benchmarks = QUICK if parser.parse_args(arguments).quick else (*QUICK, commands)
    load = os.getloadavg()[0]
    print(f"jax {jax.__version__}, {this_machine().cores} cores, load {load:.1f}", flush=True)
    rows, failed = [], 0
    for benchmark in benchmarks:
        try:
            found = benchmark()
        except Exception as error:  # The others can still be measured.
            failed += 1
            print(f"{benchmark.__name__} could not be run: {type(error).__name__}: {error}")
            continue
        rows += found
        print(*map(line, found), sep="\n", flush=True)
    print(summary(rows))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
