"""The measurements and figures of *Asynchronous Computation* and of its solutions."""

import copy
import functools
import html
import itertools
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import altair as alt
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from d2lpar._measure.comparison import Comparison
from d2lpar._measure.quantity import Quantity
from d2lpar._measure.waiting import blocks_host
from d2lpar._plain.format import as_table, format_seconds, in_one_line, share_bar
from d2lpar._timeline.plot import COLORS, WIDTH, error_bars, format_axis, plot_timelines
from d2lpar._timeline.timeline import PYTHON, Timeline
from d2lpar.book.explore import Explorable, slider, stacked
from d2lpar.book.workloads import Work, chain

# --- Operations that make Python wait -------------------------------------------------------------


Operation = Callable[[jax.Array, jax.Array, jax.Array], object]

NEED_A_VALUE: dict[str, Operation] = {
    "y.block_until_ready()": lambda y, s, i: y.block_until_ready(),
    "np.asarray(y)": lambda y, s, i: np.asarray(y),
    "np.array(y)": lambda y, s, i: np.array(y),
    "np.dot(y, y)": lambda y, s, i: np.dot(y, y),
    "jax.device_get(y)": lambda y, s, i: jax.device_get(y),
    "y.tolist()": lambda y, s, i: y.tolist(),
    "str(s)": lambda y, s, i: str(s),
    "pickle.dumps(y)": lambda y, s, i: pickle.dumps(y),
    "jnp.nonzero(y)": lambda y, s, i: jnp.nonzero(y),
    "jnp.unique(y)": lambda y, s, i: jnp.unique(y),
    "y[y > 0]": lambda y, s, i: y[y > 0],
    "float(s)": lambda y, s, i: float(s),
    "s.item()": lambda y, s, i: s.item(),
    "range(i)": lambda y, s, i: range(i),
    "[1, 2][i]": lambda y, s, i: [1, 2][i],
    "if s > 0": lambda y, s, i: bool(s > 0),
    "max(s, s)": lambda y, s, i: max(s, s),
    "f'{s:.3f}'": lambda y, s, i: f"{s:.3f}",
}
"""Operations that need a value of a matrix `y`, a float `s` or an integer `i`."""

NEED_NONE: dict[str, Operation] = {
    "y.shape, y.dtype": lambda y, s, i: (y.shape, y.dtype),
    "len(y)": lambda y, s, i: len(y),
    "y + 1": lambda y, s, i: y + 1,
    "np.ones(n) + y": lambda y, s, i: np.ones(y.shape, np.float32) + y,
    "y.T": lambda y, s, i: y.T,
    "y[0, 0]": lambda y, s, i: y[0, 0],
    "y.at[0].set(0)": lambda y, s, i: y.at[0].set(0),
    "y.astype(int)": lambda y, s, i: y.astype(int),
    "jnp.exp(y)": lambda y, s, i: jnp.exp(y),
    "jnp.allclose(y, y)": lambda y, s, i: jnp.allclose(y, y),
    "np.sum(y)": lambda y, s, i: np.sum(y),
    "s > 0": lambda y, s, i: s > 0,
    "jax.device_put(y)": lambda y, s, i: jax.device_put(y),
    "y.copy_to_host_async()": lambda y, s, i: y.copy_to_host_async(),
    "copy.deepcopy(y)": lambda y, s, i: copy.deepcopy(y),
    "y.is_ready()": lambda y, s, i: y.is_ready(),
    "jax.live_arrays()": lambda y, s, i: jax.live_arrays(),
    "jax.effects_barrier()": lambda y, s, i: jax.effects_barrier(),
}
"""Operations that dispatch another computation, or need only what is known without the values."""


@dataclass(frozen=True)
class Held:
    """Whether an operation on an unfinished array waited, and how long it held Python."""

    waits: bool
    seconds: float


class HeldTable(dict[str, Held]):
    """Operations by name, each with its `Held`; a table in a notebook."""

    def _repr_html_(self) -> str:
        longest = max((held.seconds for held in self.values()), default=0.0)
        columns = [
            [_cells(name, held, longest) for name, held in self.items() if held.waits == waits]
            for waits in (True, False)
        ]
        rows = [
            [*left, *right]
            for left, right in itertools.zip_longest(*columns, fillvalue=["", "", ""])
        ]
        return as_table(["waits", "for", "", "returns", "after", ""], rows)


def _cells(name: str, held: Held, longest: float) -> list[str]:
    seconds = format_seconds(held.seconds)
    color = COLORS["wait"] if held.waits else COLORS["host"]
    bar = share_bar(held.seconds / longest, color, f"holds Python for {seconds}")
    return [f"<code>{html.escape(name)}</code>", in_one_line(seconds), bar]


def time_held(
    operations: Mapping[str, Operation] = NEED_A_VALUE | NEED_NONE,
    seconds: float = 0.01,
    clock: Callable[[], float] = time.perf_counter,
) -> HeldTable:
    """Call each operation on unfinished arrays, and time how long it holds Python.

    Args:
        operations: Functions of a matrix, a float and an integer, all results of one program,
            in the order of the table.
        seconds: The time that the device needs for the program.
        clock: The clock to read.
    """
    work = Work()

    @functools.partial(jax.jit, static_argnums=1)
    def unready(matrix, length):
        # Only a corner of a GPU's large matrix: the wait is timed, not the conversion.
        y = chain(matrix, length)[:256, :256]
        return y, jnp.abs(y).sum(), jnp.argmax(y) % 2

    def held_by(operation):
        times = []

        def timed(*arrays):
            start = clock()
            operation(*arrays)
            times.append(clock() - start)

        waits = blocks_host(timed, lambda: unready(work.matrix, work.links(seconds)))
        return Held(waits, float(np.median(times[1:])))  # The first call compiles.

    return HeldTable((name, held_by(operation)) for name, operation in operations.items())


# --- The threads that JAX uses --------------------------------------------------------------------


_PRODUCTS = """
from pathlib import Path
import jax, jax.numpy as jnp

def on_core():  # The nanoseconds that each thread has spent on a core.
    tasks = list(Path("/proc/self/task").iterdir())
    return {task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks}

product = jax.jit(lambda x: x @ x)
x = jnp.ones((1500, 1500))
product(x).block_until_ready()
for _ in range(6):
    before = on_core()
    product(x).block_until_ready()
    spent = [time - before.get(thread, 0) for thread, time in on_core().items()]
    print(sum(10 * time > max(spent) for time in spent))
"""


def can_count_threads() -> bool:
    """Return whether the system counts the time of each thread on a core, as Linux does."""
    return Path("/proc/self/schedstat").exists()


def threads_taken(environments: Mapping[str, Mapping[str, str]]) -> dict[str, Quantity]:
    """Count the threads that JAX uses for large products, in a process for each environment.

    A thread counts if it does more than a tenth of what the busiest one does. Unlike the number of
    busy cores, this count is the same on a busy machine.

    Args:
        environments: Variables to add to the environment, by the name of the result.
    """
    # JAX would start threads for each of several CPU devices, so drop the settings that add some.
    ours = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}

    def count(more: Mapping[str, str]) -> tuple[float, ...]:
        environment = ours | {"JAX_PLATFORMS": "cpu"} | more
        command = [sys.executable, "-c", _PRODUCTS]
        printed = subprocess.check_output(command, env=environment, text=True)
        return tuple(map(float, printed.split()))

    with ThreadPoolExecutor(2) as pool:  # Each process mostly imports JAX.
        counts = zip(environments, pool.map(count, environments.values()), strict=True)
        return {name: Quantity(f"threads, {name}", samples) for name, samples in counts}


# --- The three durations of a loop with two ends --------------------------------------------------


@dataclass(frozen=True)
class Pipeline:
    """A loop: Python prepares a call, a device computes it, and Python learns of the result.

    An iteration with a barrier takes t1 + t2 + t3. Without barriers, Python and the device work at
    the same time, and all iterations take t1 + t2 + t3 + (iterations - 1) max(t1, t2):

                a barrier in each       one barrier at the end
        Python  11....3311....33        1111......33
        device  ..2222....2222..        ..22222222..

    Attributes:
        t1: The seconds that Python needs to prepare and dispatch a call.
        t2: The seconds that the device needs to compute it.
        with_barrier: The model's seconds for all iterations with a barrier in each.
        without: The model's seconds for all iterations with a barrier at the end.
    """

    t1: Quantity
    t2: Quantity
    with_barrier: Quantity
    without: Quantity

    @classmethod
    def of(cls, times: Comparison, iterations: int) -> "Pipeline":
        """Return the stages and the model, round by round, from three measurements.

        Args:
            times: A comparison with the arms `"one iteration"`, which prepares and calls once;
                `"one call"`, without the preparing; and `"nine calls"`, with a wait only after all
                are dispatched.
            iterations: The number of iterations that the model predicts.
        """
        iteration = times["one iteration"]
        t1 = iteration.dispatch.rename("t1")
        # The eight more calls wait in the queue, so each adds only its computing.
        eight_calls = times["nine calls"].total - times["one call"].total
        t2 = (eight_calls / 8).rename("t2")
        rounds = list(zip(iteration.total.samples, t1.samples, t2.samples, strict=True))
        level = times.level

        def model(name, seconds):
            return Quantity(name, tuple(seconds), "s", level=level)

        return cls(
            t1,
            t2,
            model("model, with barriers", (iterations * whole for whole, _, _ in rounds)),
            model("model", (whole + (iterations - 1) * max(a, b) for whole, a, b in rounds)),
        )


def most_unfinished(call: Callable[[], jax.Array], times: int) -> int:
    """Return the largest number of unfinished results while a call is repeated.

    The call's work must take far longer than a query whether a result is ready.
    """
    results, most = [], 0
    for _ in range(times):
        results.append(call())
        most = max(most, sum(not result.is_ready() for result in results))
    jax.block_until_ready(results)
    return most


# --- A pipeline to explore ------------------------------------------------------------------------


# Only the lowest of the three charts has labels on the shared axis.
_GRID_ONLY = alt.Axis(labels=False, ticks=False, title=None)

_TURNS = 8  # The number of operations that fit side by side on a phone.
_LONGEST = {"t1": 6, "t2": 6, "t3": 4}  # The ends of the sliders, in milliseconds.


def explore_pipeline() -> Explorable:
    """Return a chart of the pipeline of Python and a device, with a slider for each parameter.

    Python dispatches an operation within t1, the device computes it within t2, and t3 later Python
    knows. Python and the device each handle one operation at a time. With a limit of L, Python
    dispatches operation k only when it knows that operation k - L is done. The completion times
    are longest paths, with a closed form here: operation k, counted from zero, is done at

        t1 + t2 + max(k m, (k div L) (t1 + t2 + t3) + (k mod L) m)    with m = max(t1, t2).

    A longest path either follows the slower end, or makes a full round trip for every L operations
    (F. Baccelli et al., 1992, Synchronization and Linearity, chapter 2).
    """
    sliders = [
        slider("t1", 3, 0.5, _LONGEST["t1"], 0.5, "t₁ dispatch (ms)"),
        slider("t2", 5, 0.5, _LONGEST["t2"], 0.5, "t₂ compute (ms)"),
        slider("t3", 4, 0, _LONGEST["t3"], 0.5, "t₃ return (ms)"),
        slider("L", 2, 1, _TURNS, 1, "limit"),
    ]
    # The axis has a fixed scale, so that a bar grows visibly with its slider.
    scale = alt.Scale(domain=[0, _TURNS * sum(_LONGEST.values())], nice=False)
    returned = f"{_computed('(datum.k - L)')} + t3"
    operations = alt.Chart(alt.sequence(_TURNS, as_="k")).transform_calculate(
        dispatched=f"t1 + max(datum.k * t1, datum.k < L ? 0 : {returned})",
        computed=_computed("datum.k"),
    )
    last = _TURNS - 1
    # Python waits for no others.
    returns = operations.transform_filter(f"datum.k + L <= {last} || datum.k == {last}")
    gantt = alt.layer(
        _bars(operations, scale, "dispatch", "datum.dispatched", "t1", "host"),
        _bars(operations, scale, "compute", "datum.computed", "t2", "device"),
        _bars(returns, scale, "return", "datum.computed + t3", "t3", "model"),
    )
    in_flight = (
        operations.transform_fold(["dispatched", "computed"], as_=["event", "time"])
        .transform_calculate(change="datum.event == 'dispatched' ? 1 : -1")
        .transform_window(
            in_flight="sum(change)", sort=[alt.SortField("time"), alt.SortField("change")]
        )
        .mark_area(interpolate="step-after", color=COLORS["window"], opacity=0.7)
        .encode(
            alt.X("time:Q", scale=scale, axis=_GRID_ONLY),
            alt.Y(
                "in_flight:Q",
                stack=None,
                title=None,
                scale=alt.Scale(domain=[0, _TURNS]),
                axis=alt.Axis(values=[0, 4, 8]),
            ),
        )
    )
    totals = {
        "barrier in each iteration": f"{_TURNS} * (t1 + t2 + t3)",
        "with the limit": f"{_computed(str(last))} + t3",
        "no limit": f"t1 + t2 + t3 + {last} * max(t1, t2)",
    }
    total = (
        alt.Chart(alt.sequence(1))
        .transform_calculate(**totals)
        .transform_fold(list(totals), as_=["way", "total"])
        .transform_calculate(said="datum.way + ': ' + datum.total + ' ms.'")
        .encode(
            alt.X("total:Q", scale=scale, title="time (ms)"), alt.Y("way:N", sort=None, title=None)
        )
    )
    numbers = total.mark_text(align="right", dx=-4, color="white").encode(
        text="total:Q", description="said:N"
    )
    parts = [
        gantt.properties(title="What works when", height=72),
        in_flight.properties(title="Queued or running", height=48),
        (total.mark_bar(height=18, color=COLORS["model"]) + numbers).properties(
            title="Until Python has the last result", height=66
        ),
    ]
    return stacked(
        parts,
        sliders,
        "Three charts over one axis of time. In the first, Python dispatches operations one after "
        "the other, the device computes them one after the other, and the last result returns. In "
        "the second, operations pile up and are worked off. In the third, bars compare how "
        "long it takes with a barrier in each iteration, with a limit, and without one.",
    )


def _computed(k: str) -> str:
    """Return the Vega expression for the time when operation k is done."""
    slower = "max(t1, t2)"
    around = f"floor({k} / L) * (t1 + t2 + t3) + ({k} % L) * {slower}"
    return f"t1 + t2 + max({k} * {slower}, {around})"


def _bars(
    operations: alt.Chart, scale: alt.Scale, row: str, end: str, takes: str, role: str
) -> alt.Chart:
    """Return one row of the Gantt chart of the pipeline."""
    return (
        operations.transform_calculate(
            number="datum.k + 1", row=f"'{row}'", begin=f"{end} - {takes}", end=end, takes=takes
        )
        .mark_bar(height=18, color=COLORS[role], stroke="white", strokeWidth=1)
        .encode(
            alt.X("begin:Q", scale=scale, axis=_GRID_ONLY),
            alt.X2("end:Q"),
            alt.Y("row:N", sort=["dispatch", "compute", "return"], title=None),
            tooltip=[
                alt.Tooltip("number:Q", title="operation"),
                alt.Tooltip("row:N", title="step"),
                alt.Tooltip("begin:Q", title="starts (ms)"),
                alt.Tooltip("takes:Q", title="takes (ms)"),
            ],
        )
    )


# --- Figures --------------------------------------------------------------------------------------


def plot_two_ends() -> Axes:
    """Draw how Python puts calls into a queue, and how a device takes them out in order."""
    axes = plt.figure(figsize=(WIDTH, 1.55)).add_subplot(xlim=(0, 10), ylim=(-0.3, 3.2))
    axes.set_axis_off()
    calls = {"tanh(z)": (3.85, "model"), "y + 2": (5.1, "model"), "x @ x": (6.2, "model")}
    ends = {"Python\n(front end)": (1, "host"), "device\n(back end)": (9, "device")}
    for text, (x, role) in {**calls, **ends}.items():
        edge = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": COLORS[role]}
        axes.text(x, 1.9, text, ha="center", va="center", bbox=edge | {"linewidth": 1.6})
    back = {"linestyle": "--", "connectionstyle": "bar,fraction=-0.08"}
    for start, end, y, style in ((2, 3.1, 1.9, {}), (6.9, 8, 1.9, {}), (9, 1, 1.2, back)):
        arrow = {"arrowstyle": "-|>", "color": "#555555", "shrinkA": 0, "shrinkB": 0} | style
        axes.annotate("", (end, y), (start, y), arrowprops=arrow)
    axes.text(0, 2.9, "puts calls in, and goes on")
    axes.text(10, 2.9, "takes them out in order", ha="right")
    axes.text(5, 0.8, "queue", ha="center")
    axes.text(5, -0.25, "at a barrier, Python waits for a result", ha="center")
    return axes


def plot_steps(
    timelines: Mapping[str, Timeline], program: str, first: int, last: int
) -> list[Axes]:
    """Draw steps of training loops on one scale, from the end of the step before the first of them.

    Each step runs the program once. The runs are numbered from 0, and `first` is at least 1. If the
    profiler saw too few runs, as on a GPU that it may not watch, the loops are drawn whole.
    """
    shown = {}
    for title, timeline in timelines.items():
        events = timeline.programs.events
        runs = [e for e in events if e.program == program and not e.device.startswith(PYTHON)]
        if len(runs) <= last:
            return plot_timelines(timelines)
        names = {run: f"{program} {number}" for number, run in enumerate(runs)}
        named = [event._replace(program=names.get(event, event.program)) for event in events]
        start = runs[first - 1].end
        after = (
            e._replace(start=max(e.start - start, 0), duration=e.end - max(e.start, start))
            for e in named
            if e.end > start
        )
        shown[title] = replace(timeline, events=tuple(after)).first((runs[last].end - start) / 1e9)
    charts = plot_timelines(shown)
    charts[-1].set_xlabel(f"time since the end of step {first - 1}, {timeline.source}")
    return charts


def plot_calls(seconds: Sequence[float], limit: int) -> Axes:
    """Draw how long each call held Python, and a line after the calls that returned at once."""
    axes = plt.figure().add_subplot()
    numbers = np.arange(1, len(seconds) + 1)
    axes.plot(numbers, seconds, ".", color=COLORS["host"])
    axes.axvline(limit + 0.5, color=COLORS["model"], linestyle="--", linewidth=1)
    axes.annotate(
        f"after {limit} calls",
        (limit + 0.5, 0.5),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
    )
    axes.set_yscale("log")
    format_axis(axes.yaxis, "s")
    axes.set(xlabel="call", ylabel="Python is held for")
    return axes


def plot_ways(
    panels: Mapping[str, Mapping[str, Quantity]], styles: Mapping[str, str]
) -> list[Axes]:
    """Draw the costs of several ways to do the same work, in panels side by side.

    Args:
        panels: For each panel, by its title, the cost of each way by name. A bar reaches from zero
            to the median; a line shows the interval.
        styles: For each way, the role of its color in `COLORS`.
    """
    names = list(next(iter(panels.values())))
    figure = plt.figure(figsize=(WIDTH, 0.85 + 0.36 * len(names)))
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    places = np.arange(len(names))[::-1]
    for axes, (title, quantities) in zip(all_axes, panels.items(), strict=True):
        costs = [quantities[name] for name in names]
        axes.barh(
            places,
            [quantity.median for quantity in costs],
            xerr=error_bars(costs),
            color=[COLORS[styles[name]] for name in names],
            error_kw={"lw": 1.2, "ecolor": COLORS["model"]},
            height=0.62,
        )
        axes.set_yticks(places, names)
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        format_axis(axes.xaxis, costs[0].unit)
        axes.set_title(title, loc="left")
    return list(all_axes)
