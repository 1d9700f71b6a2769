"""Draw timelines, graphs and measurements; the one module with matplotlib."""

import os
import platform
from collections.abc import Mapping, Sequence

import jax
import jaxlib
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from d2lpar.measurement import Measurement
from d2lpar.quantity import Quantity
from d2lpar.units import format_value

COLOURS = {
    "host": "#0072B2",
    "device": "#D55E00",
    "barrier": "#0072B2",
    "window": "#009E73",
    "none": "#D55E00",
    "other": "#CC79A7",
    "model": "#555555",
}
"""One colour for one thing throughout the book, safe for colour-blind readers.

From M. Okabe and K. Ito, Color Universal Design (2008).
"""


def use_style() -> None:
    """Make figures of one look: vector graphics, sized for a phone, on white.

    The book's style sheet turns them dark in dark mode. Call it once, in a notebook's first cells.
    """
    plt.rcParams.update(
        {
            "figure.figsize": (5.2, 3.2),
            "figure.constrained_layout.use": True,
            "figure.facecolor": "white",
            "font.size": 10.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "svg.hashsalt": "d2lpar",  # The same figure is the same file.
        }
    )
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:  # Outside a notebook there is no inline backend to tell.
        return
    set_matplotlib_formats("svg")


def draw_times(measurements: Mapping[str, Measurement]) -> Axes:
    """Draw when Python had control back and when the result was ready, arm by arm.

    Args:
        measurements: What `compare` returns.

    Returns:
        The axes, with the medians and their 95 % intervals on a logarithmic scale of seconds.
    """
    axes = plt.figure(figsize=(5.2, 0.9 + 0.55 * len(measurements))).add_subplot()
    names = list(measurements)
    for colour, marker, label, offset in (
        ("host", "o", "Python has control back", 0.12),
        ("device", "s", "result is ready", -0.12),
    ):
        quantities = [m.dispatch if colour == "host" else m.total for m in measurements.values()]
        medians = [q.median for q in quantities]
        rows = np.arange(len(names))[::-1] + offset
        axes.errorbar(
            medians,
            rows,
            xerr=_error_bars(quantities),
            fmt=marker,
            color=COLOURS[colour],
            label=label,
            capsize=3,
        )
    axes.set_yticks(np.arange(len(names))[::-1], names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.set_xscale("log")
    _format_axis(axes.xaxis, "s")
    axes.set_xlabel("time")
    axes.figure.legend(loc="outside upper center", ncols=2)
    return axes


def draw_stack() -> Axes:
    """Draw what a program of this process goes through on its way to the devices of JAX.

    Returns:
        The axes; every version, thread and device in it is the one at hand.
    """
    devices = jax.local_devices()
    shown = devices[:4]
    axes = plt.figure(figsize=(5.2, 3.9)).add_subplot()
    axes.set_axis_off()
    axes.set(xlim=(0, 10), ylim=(0, 10))
    client = devices[0].platform.upper()
    _box(axes, 5, 8.9, 7.4, f"front end: Python {platform.python_version()}, jax {jax.__version__}")
    _box(axes, 5, 6.6, 7.4, f"XLA program (jaxlib {jaxlib.__version__}), compiled once")
    width = 8.6 / len(shown)
    for index, device in enumerate(shown):
        x = 0.7 + width * (index + 0.5)
        _arrow(axes, (5, 5.95), (x, 4.95))
        _box(axes, x, 4.3, width * 0.9, "queue" if len(shown) > 2 else "queue of calls", "device")
        _arrow(axes, (x, 3.65), (x, 2.55))
        more = f" (+{len(devices) - 4})" if index == 3 and len(devices) > 4 else ""
        _box(axes, x, 1.9, width * 0.9, f"{client} {device.id}{more}", "device")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    _arrow(axes, (5, 8.25), (5, 7.25))
    axes.text(5.3, 7.75, "dispatch: returns at once", va="center", fontsize=9.5)
    plural = "s" * (cores != 1)
    on = f"on {cores} CPU core{plural}" if client == "CPU" else devices[0].device_kind
    axes.text(5, 0.65, f"back end: works through the queue, {on}", ha="center", fontsize=9.5)
    return axes


def draw_graph(graph: nx.DiGraph) -> Axes:
    """Draw a computational graph in layers: whoever waits for nobody is at the top.

    Args:
        graph: What `computation_graph` returns.

    Returns:
        The axes.
    """
    layers = list(nx.topological_generations(graph))
    widest = max(len(layer) for layer in layers)
    axes = plt.figure(figsize=(max(4.0, 2.1 * widest), 0.9 * len(layers) + 0.3)).add_subplot()
    axes.set_axis_off()
    positions = {
        node: ((index + 0.5) / len(layer) * widest * 4, -2 * depth)
        for depth, layer in enumerate(layers)
        for index, node in enumerate(sorted(layer))
    }
    for start, end in graph.edges:
        (x0, y0), (x1, y1) = positions[start], positions[end]
        _arrow(axes, (x0, y0 - 0.58), (x1, y1 + 0.58))
    for node, (x, y) in positions.items():
        of = graph.nodes[node]
        numbers = "".join(f" {value}" for value in of["constants"] if np.ndim(value) == 0)
        text = f"{of['operator']}{numbers}\n{of['dtype']}{list(of['shape'])}"
        _box(axes, x, y, 3.4, text, "host" if of["operator"] == "input" else "device")
    axes.set(xlim=(0, widest * 4), ylim=(-2 * len(layers) + 1.1, 0.9))
    return axes


def draw_calls(seconds: Sequence[float], limit: int) -> Axes:
    """Draw how long each of many calls held Python.

    Args:
        seconds: The time of each call, in their order.
        limit: The number of calls that returned at once; a line is drawn behind it.

    Returns:
        The axes.
    """
    axes = plt.figure().add_subplot()
    numbers = np.arange(1, len(seconds) + 1)
    axes.plot(numbers, seconds, ".", color=COLOURS["host"])
    axes.axvline(limit + 0.5, color=COLOURS["model"], linestyle="--", linewidth=1)
    axes.annotate(
        f"after {limit} calls",
        (limit + 0.5, 0.5),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
    )
    axes.set_yscale("log")
    _format_axis(axes.yaxis, "s")
    axes.set(xlabel="call", ylabel="Python is held for")
    return axes


def draw_loops(
    sizes: Sequence[int],
    waiting: Sequence[Quantity],
    running_ahead: Sequence[Quantity],
    model: tuple[Sequence[int], Sequence[float], Sequence[float]] | None = None,
) -> Axes:
    """Draw the time of one turn of a loop over the operator's size, with and without a barrier.

    Args:
        sizes: Elements of the operator's array.
        waiting: Seconds a turn, with a barrier in each.
        running_ahead: Seconds a turn, with one barrier at the end.
        model: Sizes, and what a model says for both loops, in seconds.

    Returns:
        The axes, both logarithmic.
    """
    axes = plt.figure(figsize=(5.2, 3.6)).add_subplot()
    for quantities, role, marker, label in (
        (waiting, "barrier", "o", "barrier in each turn"),
        (running_ahead, "none", "s", "one barrier at the end"),
    ):
        axes.errorbar(
            sizes,
            [q.median for q in quantities],
            yerr=_error_bars(quantities),
            fmt=marker,
            color=COLOURS[role],
            label=label,
            capsize=3,
        )
    if model is not None:
        model_sizes, *curves = model
        labels = ("model: $t_1+t_2+t_3$", r"model: $\max(t_1, t_2)$")
        for curve, style, label in zip(curves, ("-", "--"), labels, strict=True):
            axes.plot(model_sizes, curve, style, color=COLOURS["model"], lw=1.2, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _format_axis(axes.yaxis, "s")
    axes.set(xlabel="elements", ylabel="time of one turn")
    axes.figure.legend(loc="outside upper center", ncols=2)
    return axes


def draw_epochs(epochs: Mapping[str, Sequence[float]], styles: Mapping[str, str]) -> Axes:
    """Draw when each minibatch of an epoch had been handed out.

    Args:
        epochs: Seconds since the epoch began, for each minibatch, by name.
        styles: A role of `COLOURS` for each name.

    Returns:
        The axes.
    """
    axes = plt.figure().add_subplot()
    for name, seconds in epochs.items():
        numbers = np.arange(1, len(seconds) + 1)
        axes.plot(numbers, seconds, color=COLOURS[styles[name]], label=name)
    axes.set(xlabel="minibatch", ylabel="Python is done with it after (s)", ylim=(0, None))
    axes.legend()
    return axes


def draw_memory(
    most_in_flight: Mapping[str, Quantity],
    peaks: Mapping[str, Quantity],
    batch_bytes: int,
    styles: Mapping[str, str],
) -> Axes:
    """Draw peak memory over the most steps in flight, for several ways of waiting.

    Args:
        most_in_flight: The most unfinished steps in each run, by name.
        peaks: How far memory rose in each run, in bytes, by name.
        batch_bytes: The size of one minibatch; a line shows in flight times that.
        styles: A role of `COLOURS` for each name.

    Returns:
        The axes.
    """
    axes = plt.figure(figsize=(5.2, 3.6)).add_subplot()
    markers = iter("o^sDv")
    for name, counts in most_in_flight.items():
        colour = COLOURS[styles[name]]
        axes.plot(counts.samples, peaks[name].samples, next(markers), color=colour, label=name)
    most = max(count for counts in most_in_flight.values() for count in counts.samples)
    line = np.array([0, most])
    axes.plot(
        line, line * batch_bytes, "--", lw=1, color=COLOURS["model"], label="one minibatch each"
    )
    _format_axis(axes.yaxis, "B")
    axes.set(xlabel="most steps in flight", ylabel="peak memory above the start")
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return axes


def _error_bars(quantities: Sequence[Quantity]) -> np.ndarray:
    """Return the distances from each median to the ends of its interval, clipped to the samples."""
    ends = []
    for quantity in quantities:
        low, high = quantity.interval
        low, high = max(low, min(quantity.samples)), min(high, max(quantity.samples))
        ends.append((quantity.median - low, high - quantity.median))
    return np.array(ends).T


def _format_axis(axis, unit: str) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_value(value, unit)))


def _box(axes: Axes, x: float, y: float, width: float, text: str, role: str = "host") -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - 0.5),
            width,
            1.0,
            boxstyle="round,pad=0.08",
            facecolor="white",
            edgecolor=COLOURS[role],
            linewidth=1.6,
        )
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=COLOURS["model"])
    )
