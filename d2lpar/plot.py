"""Draw timelines, graphs and measurements; the one module with matplotlib."""

import itertools
import math
import platform
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jaxlib
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from d2lpar.devices import device_name
from d2lpar.errors import ArgumentError
from d2lpar.machine import usable_cores
from d2lpar.measurement import Measurement
from d2lpar.quantity import Predicate, Quantity
from d2lpar.trace import COPY, PYTHON, Timeline
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

_DEVICES = {"CPU": ("#D55E00", "#56B4E9", "#E69F00"), "GPU": ("#009E73", "#CC79A7", "#F0E442")}


def device_colour(name: str) -> str:
    """Return the colour that a device, or Python, has in every figure.

    Args:
        name: A device, such as `"CPU 0"`, or a row of a timeline, which may be Python's.

    Returns:
        A colour of matplotlib; with more than three devices of one kind they come again.

    Example:
        >>> device_colour("CPU 0") == device_colour("CPU 3") != device_colour("CPU 1")
        True
    """
    if name.startswith(PYTHON):
        return COLOURS["host"]
    kind, _, rest = name.partition(" ")
    number = rest.partition(" ")[0].rstrip(",")
    if kind not in _DEVICES or not number.isdigit():
        return COLOURS["device"]
    return _DEVICES[kind][int(number) % len(_DEVICES[kind])]


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
            "axes.axisbelow": True,  # Lines over a bar would look like its ends.
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
        _box(
            axes,
            x,
            4.3,
            width * 0.9,
            "queue" if len(shown) > 2 else "queue of calls",
            COLOURS["device"],
        )
        _arrow(axes, (x, 3.65), (x, 2.55))
        more = f" (+{len(devices) - 4})" if index == 3 and len(devices) > 4 else ""
        _box(axes, x, 1.9, width * 0.9, f"{device_name(device)}{more}", COLOURS["device"])
    cores = usable_cores()
    _arrow(axes, (5, 8.25), (5, 7.25))
    axes.text(5.3, 7.75, "dispatch: returns at once", va="center", fontsize=9.5)
    plural = "s" * (cores != 1)
    on = f"on {cores} CPU core{plural}" if client == "CPU" else devices[0].device_kind
    axes.text(5, 0.65, f"back end: works through the queue, {on}", ha="center", fontsize=9.5)
    return axes


def draw_graph(graph: nx.DiGraph, path: Sequence[int] = ()) -> Axes:
    """Draw a computational graph in layers: whoever waits for nobody is at the top.

    Args:
        graph: What `computation_graph` returns. Nodes that have a device are drawn in its colour.
        path: Nodes of a path to be set off, such as the `critical_path`.

    Returns:
        The axes. With more than a dozen nodes each shows its operator only, not its shape. An edge
        that skips layers leads around their boxes, unless the graph is too large to be read.
    """
    detailed = len(graph) <= 12
    width, height = (2.1, 0.9) if detailed else (1.12, 0.62)  # Inches for each box.
    layers, routes = _layers(graph)
    widest = max(1.0, *map(_width, layers))
    positions = _positions(layers, routes, widest)
    size = (max(4.0, width * widest), height * len(layers) + 0.5)
    axes = plt.figure(figsize=size).add_subplot()
    axes.set_axis_off()
    on_path = set(itertools.pairwise(path))
    for edge in sorted(routes, key=on_path.__contains__):  # Bold last: others may share its lane.
        route = [positions[node] for node in routes[edge]]
        points = [(x, y + side) for x, y in route for side in (0.3, -0.3)]
        _arrow(axes, *points[1:-1], bold=edge in on_path)
    for node, of in graph.nodes.items():
        numbers = "".join(f" {value}" for value in of["constants"] if np.ndim(value) == 0)
        text = f"{of['name'] or of['operator']}{numbers}"
        if detailed:
            text += f"\n{of['dtype']}{list(of['shape'])}"
        colour = COLOURS["host" if of["operator"] == "input" else "device"]
        if of["device"]:
            colour = device_colour(of["device"])
        _box(axes, *positions[node], 0.84, text, colour, height=0.52, bold=node in path)
    margin = max(0.0, 4.0 / width - widest) / 2
    axes.set(xlim=(-margin, widest + margin), ylim=(-len(layers) + 0.5, 0.5))
    devices = sorted({of["device"] for of in graph.nodes.values()} - {None})
    if devices:
        handles = [
            Patch(facecolor="white", edgecolor=device_colour(name), linewidth=1.6, label=name)
            for name in devices
        ]
        axes.figure.legend(handles=handles, loc="outside upper center", ncols=len(devices))
    return axes


class _Lane(NamedTuple):
    """Where the edges from a node pass a layer in which they do not end: a dummy node."""

    start: int
    layer: int


_MOST_LANES = 1000  # Beyond, to place them takes long, and nobody can follow the edges anyway.
_Layers = list[list[int | _Lane]]
_Routes = dict[tuple[int, int], list[int | _Lane]]


def _width(nodes: Sequence[int | _Lane]) -> float:
    """Return the room for nodes side by side, in boxes."""
    return sum(0.25 if isinstance(node, _Lane) else 1.0 for node in nodes)


def _layers(graph: nx.DiGraph) -> tuple[_Layers, _Routes]:
    """Return the layers, from the top, and the nodes and lanes that each edge leads through."""
    depth = {}
    for node in nx.topological_sort(graph):
        depth[node] = max((depth[before] + 1 for before in graph.predecessors(node)), default=0)
    for node in graph:  # An input stands just above who needs it first.
        if not graph.in_degree(node) and graph.out_degree(node):
            depth[node] = min(depth[after] for after in graph.successors(node)) - 1
    lanes = {
        (start, end): [_Lane(start, layer) for layer in range(depth[start] + 1, depth[end])]
        for start, end in graph.edges
    }
    if len(set().union(*lanes.values())) > _MOST_LANES:
        lanes = dict.fromkeys(lanes, ())
    depth |= {lane: lane.layer for passed in lanes.values() for lane in passed}
    layers = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node in depth:
        layers[depth[node]].append(node)
    return layers, {(start, end): [start, *lanes[start, end], end] for start, end in lanes}


def _positions(
    layers: _Layers, routes: _Routes, widest: float
) -> dict[int | _Lane, tuple[float, float]]:
    """Return where each node and lane is drawn, in boxes across and layers down."""
    steps = nx.DiGraph()
    for layer in layers:
        steps.add_nodes_from(layer)
    for route in routes.values():
        nx.add_path(steps, route)
    _order(layers, steps)
    x = _columns(layers, steps, widest)
    return {node: (x[node], -float(y)) for y, layer in enumerate(layers) for node in layer}


def _order(layers: _Layers, steps: nx.DiGraph) -> None:
    """Sort each layer by the middle of its neighbours, down and up again: few lines cross then.

    K. Sugiyama et al., 1981, Methods for Visual Understanding of Hierarchical System Structures.
    """
    x = {}

    def spread(layer):
        for index, node in enumerate(layer):
            x[node] = (index + 0.5) / len(layer)

    for layer in layers:
        spread(layer)
    for sweep in range(8):
        neighbours = steps.predecessors if sweep % 2 == 0 else steps.successors
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            places = {node: [x[other] for other in neighbours(node)] or [x[node]] for node in layer}
            layer.sort(key=lambda node: sum(places[node]) / len(places[node]))
            spread(layer)


def _columns(layers: _Layers, steps: nx.DiGraph, widest: float) -> dict[int | _Lane, float]:
    """Return how far across each node is, so that lines are as upright as the order allows.

    A linear program, as in E. R. Gansner et al., 1993, A Technique for Drawing Directed Graphs.
    """
    from scipy.optimize import linprog  # Slow to import, and only graphs need it.
    from scipy.sparse import block_array, eye_array, vstack

    if not steps:
        return {}
    nodes = list(steps)
    half = np.array([_width([node]) / 2 for node in nodes])
    beside = nx.DiGraph()
    for layer in layers:
        nx.add_path(beside, layer)
    apart = nx.incidence_matrix(beside, nodes, oriented=True).T  # Times x: how far neighbours are.
    step = nx.incidence_matrix(steps, nodes, oriented=True).T
    # To be kept small: how far each step leads aside, above all in a chain; and, where that leaves
    # a choice, how far each node is from the middle of its neighbours.
    aside = vstack([step, step.T @ step])
    weights = [
        8.0 if steps.out_degree(start) == 1 == steps.in_degree(end) else 1.0
        for start, end in steps.edges
    ]
    weights += [0.01] * len(nodes)
    bound = eye_array(len(weights))
    solution = linprog(
        [0.0] * len(nodes) + weights,
        A_ub=-block_array([[aside, bound], [-aside, bound], [apart, None]]),
        b_ub=-np.concatenate([np.zeros(2 * len(weights)), abs(apart) @ half]),
        bounds=[*zip(half, widest - half, strict=True)] + [(0, None)] * len(weights),
    )
    return dict(zip(nodes, solution.x, strict=False))


def draw_timelines(timelines: Mapping[str, Timeline]) -> list[Axes]:
    """Draw what ran where and when, one chart above the other on one scale of time.

    Args:
        timelines: What `record_trace` returns, by the title to be shown. Each run of a program is
            a bar; runs too short to be seen apart are drawn as one.

    Returns:
        The axes, one for each timeline. Python's row is on top, strong where it dispatches and
        faint where it waits; below is a row for each device and copy engine. Copies are hatched.
    """
    timelines = {title: timeline.programs for title, timeline in timelines.items()}
    heights = [max(2, len(timeline.rows)) for timeline in timelines.values()]
    figure = plt.figure(figsize=(5.2, 0.36 * sum(heights) + 0.45 * len(heights) + 0.6))
    charts = figure.subplots(
        len(timelines), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    longest = max(timeline.elapsed for timeline in timelines.values()) or 1e-9
    for axes, (title, timeline) in zip(charts, timelines.items(), strict=True):
        _draw_timeline(axes, timeline, longest)
        axes.set_title(title, loc="left", fontsize=10.5)
    _format_axis(charts[-1].xaxis, "s")
    charts[-1].set_xlim(0, longest)
    charts[-1].xaxis.set_major_locator(MaxNLocator(6))
    every = [event for timeline in timelines.values() for event in timeline.events]
    watched = frozenset().union(*(timeline.watched for timeline in timelines.values()))
    source = Timeline(tuple(every), watched).source.replace("; ", ";\n")
    charts[-1].set_xlabel(f"time since the call, {source}", fontsize=9)
    return list(charts)


def _draw_timeline(axes: Axes, timeline: Timeline, longest: float) -> None:
    rows = timeline.rows
    for height, row in enumerate(reversed(rows)):
        events = timeline.row(row)
        colour = device_colour(row)
        for kind, style in _BARS.items():
            spans = [
                (event.start / 1e9, event.duration / 1e9, event.program)
                for event in events
                if event.operator == kind
            ]
            bars = _merge_narrow(spans, narrow=longest / 500)
            axes.broken_barh(
                [(start, width) for start, width, _ in bars],
                (height - 0.36, 0.72),
                facecolor=colour,
                edgecolor=["white" if name else colour for *_, name in bars] or colour,
                linewidth=0.7,
                **style,
            )
            for start, width, name in bars:
                if name and width > longest * (0.015 * len(name) + 0.01):
                    axes.text(
                        start + width / 2,
                        height,
                        "waits" if kind == "wait" else name,
                        ha="center",
                        va="center",
                        fontsize=8.5,
                        color="white" if kind == "dispatch" else "black",
                    )
    axes.set_yticks(range(len(rows)), rows[::-1])
    axes.set_ylim(-0.6, max(1, len(rows) - 1) + 0.6)
    axes.grid(axis="y", visible=False)
    if all(row.startswith(PYTHON) for row in rows):
        above = len(rows) / 2 if rows else 0.5
        axes.text(longest / 2, above, "no device had anything to do", ha="center", va="center")


# How the kinds of events look. A run is lighter than its colour, for the name on it: black here,
# and white on what the light becomes in the dark.
_BARS = {
    "dispatch": {},
    "wait": {"alpha": 0.3},
    COPY: {"hatch": "////", "alpha": 0.75},
    "": {"alpha": 0.7},
}


def _merge_narrow(
    spans: Sequence[tuple[float, float, str]], narrow: float
) -> list[tuple[float, float, str]]:
    """Merge bars that could not be told apart; a merged or narrow one has no name."""
    merged: list[tuple[float, float, str]] = []
    for start, width, name in spans:
        if width > narrow:
            merged.append((start, width, name))
        elif merged and not merged[-1][2] and start - sum(merged[-1][:2]) < narrow:
            first, before, _ = merged[-1]
            merged[-1] = (first, max(before, start + width - first), "")
        else:
            merged.append((start, width, ""))
    return merged


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


def draw_curves(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[Quantity]],
    *,
    xlabel: str,
    ylabel: str,
    models: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
) -> Axes:
    """Draw measured quantities over a parameter, and what models say beside them.

    Args:
        xs: The values of the parameter.
        curves: For each value a quantity, by the name of the curve; up to four.
        xlabel: The parameter.
        ylabel: What was measured.
        models: Values of the parameter and what a model says for them, by the name of the model;
            up to three.

    Returns:
        The axes with medians and their 95 % intervals; both scales are logarithmic.

    Raises:
        ArgumentError: If there are more than that.
    """
    models = models or {}
    if len(curves) > 4 or len(models) > 3:
        raise ArgumentError(
            "draw_curves() has looks for four curves and three models, found "
            f"{len(curves)} and {len(models)}: draw two figures."
        )
    axes = plt.figure(figsize=(5.2, 3.6)).add_subplot()
    looks = zip(("barrier", "none", "window", "other"), "os^D", strict=True)
    for (label, quantities), (role, marker) in zip(curves.items(), looks, strict=False):
        axes.errorbar(
            xs,
            [q.median for q in quantities],
            yerr=_error_bars(quantities),
            fmt=marker,
            color=COLOURS[role],
            label=label,
            capsize=3,
        )
    for (label, (model_xs, ys)), line in zip(models.items(), ("-", "--", ":"), strict=False):
        axes.plot(model_xs, ys, line, color=COLOURS["model"], lw=1.2, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _format_log_axis(axes.xaxis, "")
    _format_log_axis(axes.yaxis, next(iter(curves.values()))[0].unit)
    axes.set(xlabel=xlabel, ylabel=ylabel)
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
    markers = iter("o^sDvPX")
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


def draw_findings(panels: Mapping[str, Mapping[str, Predicate]]) -> list[Axes]:
    """Draw what several sources found beside the bound of what is claimed.

    Args:
        panels: For each claim a comparison by its source, which may be an edition or a machine.
            The claim holds where the panel is shaded.

    Returns:
        The axes of the panels, one below the other. What was counted is hollow, what was sampled
        is filled and has a bar for its 95 % interval.
    """
    heights = [1.05 + 0.28 * len(found) for found in panels.values()]
    figure = plt.figure(figsize=(5.2, sum(heights)), layout="constrained")
    # The label of an axis is not to be read with the title below it.
    figure.get_layout_engine().set(h_pad=0.12)
    all_axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (claimed, found) in zip(all_axes, panels.items(), strict=True):
        places = np.arange(len(found))[::-1]
        for place, predicate in zip(places, found.values(), strict=True):
            exact = predicate.quantity.exact
            axes.errorbar(
                [predicate.quantity.median],
                [place],
                xerr=_error_bars([predicate.quantity]),
                fmt="o" if exact else "s",
                color=COLOURS["other" if exact else "device"],
                mfc="white" if exact else None,
                capsize=3,
            )
        _shade_where_it_holds(axes, list(found.values()))
        axes.set_yticks(places, list(found), fontsize=8.5)
        axes.set_ylim(-0.7, len(found) - 0.3)
        axes.grid(axis="y", visible=False)
        axes.set_title(claimed, fontsize=10, loc="left")
        axes.set_xlabel(next(iter(found.values())).quantity.name)
    return list(all_axes)


def _shade_where_it_holds(axes: Axes, predicates: Sequence[Predicate]) -> None:
    """Show all points and the bounds of the first comparison, and shade where it holds."""
    claimed = predicates[0]
    bounds = [bound for bound in (claimed.low, claimed.high) if math.isfinite(bound)]
    shown = [end for predicate in predicates for end in _ends(predicate.quantity)] + bounds
    lowest, highest = min(shown), max(shown)
    if lowest > 0 and highest / lowest > 5:
        axes.set_xscale("log")
        axes.set_xlim(lowest / 1.3, highest * 1.3)
        _format_log_axis(axes.xaxis, "")
    else:
        pad = 0.08 * (highest - lowest)
        axes.set_xlim(lowest - pad, highest + pad)
    left, right = axes.get_xlim()
    inside = {">": (claimed.high, right), "<": (left, claimed.low)}
    low, high = inside.get(claimed.relation, (claimed.low, claimed.high))
    if math.isfinite(low) and math.isfinite(high):  # A bound may be a quantity of few samples.
        axes.axvspan(low, high, color=COLOURS["window"], alpha=0.25, lw=0)


def _error_bars(quantities: Sequence[Quantity]) -> np.ndarray:
    """Return the distances from each median to the ends of its interval, clipped to the samples."""
    ends = [(quantity.median, *_ends(quantity)) for quantity in quantities]
    return np.array([(median - low, high - median) for median, low, high in ends]).T


def _ends(quantity: Quantity) -> tuple[float, float]:
    """Return the ends of the interval, clipped to the samples, as it may be infinite."""
    low, high = quantity.interval
    return max(low, min(quantity.samples)), min(high, max(quantity.samples))


def _format_log_axis(axis, unit: str) -> None:
    """Label a logarithmic axis, at 2 and 5 as well if it spans little."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axis.set_minor_formatter(NullFormatter())
    if unit or high < 1e4:
        _format_axis(axis, unit)


def _format_axis(axis, unit: str) -> None:
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: format_value(value, unit) if value else "0")
    )


def _box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    text: str,
    colour: str = COLOURS["host"],
    height: float = 1.0,
    bold: bool = False,
) -> None:
    pad = 0.08 * height
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle=f"round,pad={pad}",
            facecolor="white",
            edgecolor=colour,
            linewidth=2.6 if bold else 1.6,
        )
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5)


def _arrow(axes: Axes, *points: tuple[float, float], bold: bool = False) -> None:
    axes.add_patch(
        FancyArrowPatch(
            path=Path(points),
            arrowstyle="-|>",
            mutation_scale=11,
            color="black" if bold else COLOURS["model"],
            linewidth=2.2 if bold else 1.0,
        )
    )
