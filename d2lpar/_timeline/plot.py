"""Draw timelines, graphs and measurements with matplotlib."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from d2lpar._measure.quantity import Quantity
from d2lpar._plain.errors import WhenUsed
from d2lpar._plain.format import DEVICE, HOST, format_value
from d2lpar._timeline.graph import layout_of, require_graph
from d2lpar._timeline.timeline import ANNOTATION, COPY, PYTHON, Event, Timeline

if TYPE_CHECKING:
    import matplotlib.pyplot as plt
    import networkx as nx
    from matplotlib import patches, ticker
    from matplotlib.axis import Axis
else:
    nx = WhenUsed("networkx", extra="plot")
    plt = WhenUsed("matplotlib.pyplot", extra="plot")
    patches = WhenUsed("matplotlib.patches", extra="plot")
    ticker = WhenUsed("matplotlib.ticker", extra="plot")

COLORS = {
    "host": HOST,
    "device": DEVICE,
    "barrier": "#444444",
    "window": "#009E73",
    "none": "#56B4E9",
    "other": "#999933",
    "model": "#777777",
    "wait": "#BBBBBB",
    "annotation": "#44AA99",
}
"""One color for one thing throughout the book, safe for color-blind readers.

Python is blue, devices are warm, ways of waiting are cool or grey. From M. Okabe and K. Ito, Color
Universal Design (2008); olive, teal, wine and sand from P. Tol, Color Schemes (2021).
"""

WIDTH = 5.6
"""Inches of a figure that is as wide as the text.

With type of 10.5 points, it is 9 pixels high on a phone, where the text is 350 pixels wide, and 18
at a desk, where it is 688.
"""

_DEVICES = {"CPU": (DEVICE, "#E69F00", "#CC79A7"), "GPU": ("#882255", "#F0E442", "#DDCC77")}


def device_color(name: str) -> str:
    """Return the color that a device, or Python, has in every figure.

    Args:
        name: A device, such as `"CPU 0"`, or a row of a timeline, which may be Python's.

    Returns:
        A color of matplotlib; with more than three devices of one kind they come again.

    Example:
        >>> device_color("CPU 0") == device_color("CPU 3") != device_color("CPU 1")
        True
    """
    if name.startswith(PYTHON):
        return COLORS["host"]
    numbered = re.match(r"(CPU|GPU) (\d+)", name)
    if not numbered:
        return COLORS["device"]
    colors = _DEVICES[numbered[1]]
    return colors[int(numbered[2]) % len(colors)]


def use_style() -> None:
    """Set matplotlib's style to that of the book: vector graphics, sized for a phone, on white.

    The book's style sheet turns them dark in dark mode. Call it once, in a notebook's first cells.
    """
    plt.rcParams.update(
        {
            "figure.figsize": (WIDTH, 2.4),
            "figure.constrained_layout.use": True,
            "figure.facecolor": "white",
            "savefig.pad_inches": 0.04,  # What the layout leaves free, so that WIDTH is kept.
            "font.size": 10.5,
            "axes.titlesize": "medium",
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
    # Only a notebook has an inline backend to tell, and has imported IPython. Elsewhere, telling it
    # would make a shell, and whoever asks for one would take this for a notebook.
    ipython = sys.modules.get("IPython")
    if ipython and ipython.get_ipython():
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")


def plot_graph(graph: nx.DiGraph, path: Sequence[int] = ()) -> plt.Axes:
    """Draw a computational graph in layers, each operator below those that it needs.

    Args:
        graph: What `computation_graph` returns. Nodes that have a device are drawn in its color.
        path: Nodes of a path to be set off, such as the `critical_path`.

    Returns:
        The axes. With more than a dozen nodes each shows its operator only, not its shape. An edge
        that skips layers leads around their boxes, unless the graph is too large to be read.

    Raises:
        ValueError: If `graph` is none.
    """
    require_graph(graph, "plot_graph()")
    detailed = len(graph) <= 12
    width, height = (1.95, 0.7) if detailed else (1.08, 0.5)  # Inches for each box.
    layout = layout_of(graph)
    size = (max(WIDTH, width * layout.width), height * layout.height + 0.4)
    axes = plt.figure(figsize=size).add_subplot()
    axes.set_axis_off()
    on_path = set(itertools.pairwise(path))
    for edge in sorted(graph.edges, key=on_path.__contains__):  # Bold last: edges share lanes.
        points = [(x, y + side) for x, y in layout.edges[edge] for side in (0.3, -0.3)]
        arrow(axes, *points[1:-1], bold=edge in on_path)
    for node, attributes in graph.nodes.items():
        numbers = "".join(f" {value}" for value in attributes["constants"] if np.ndim(value) == 0)
        text = f"{attributes['name'] or attributes['operator']}{numbers}"
        size = None if detailed or len(text) < 13 else "small"
        if detailed:
            text += f"\n{attributes['dtype']}{list(attributes['shape'])}"
        color = COLORS["host" if attributes["operator"] == "input" else "device"]
        if attributes["device"]:
            color = device_color(attributes["device"])
        place = layout.nodes[node]
        box(axes, *place, 0.84, text, color, height=0.52, bold=node in path, size=size)
    margin = max(0.0, WIDTH / width - layout.width) / 2
    axes.set(xlim=(-margin, layout.width + margin), ylim=(-layout.height + 0.5, 0.5))
    devices = sorted({device for _, device in graph.nodes(data="device")} - {None})
    if devices:
        handles = [
            patches.Patch(
                facecolor="white", edgecolor=device_color(name), linewidth=1.6, label=name
            )
            for name in devices
        ]
        axes.figure.legend(handles=handles, loc="outside upper center", ncols=len(devices))
    return axes


def plot_timelines(timelines: Mapping[str, Timeline]) -> list[plt.Axes]:
    """Draw timelines as Gantt charts, one above the other on one scale of time.

    Args:
        timelines: What `record_trace` returns, by the title to be shown. Each run of a program is
            a bar; runs too short to be seen apart are drawn as one.

    Returns:
        The axes, one for each timeline. Python's row is on top, blue where it dispatches, white
        where it waits, and in a color of its own for each name that the function itself gave to
        something (`jax.profiler.TraceAnnotation`), a number at its end aside; below is a row for
        each device and copy engine. Copies are hatched. A legend says which of these there are.

    Raises:
        ValueError: If there is none.
    """
    if not isinstance(timelines, Mapping) or not timelines:
        raise ValueError(
            "plot_timelines() needs a dictionary of timelines by title, found "
            f'{type(timelines).__name__}: plot_timelines({{"title": record_trace(f)[1]}}).'
        )
    timelines = {title: timeline.programs for title, timeline in timelines.items()}
    heights = [max(2, len(timeline.rows)) for timeline in timelines.values()]
    figure = plt.figure(figsize=(WIDTH, 0.3 * sum(heights) + 0.38 * len(heights) + 0.75))
    charts = figure.subplots(
        len(timelines), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    longest = max(timeline.elapsed for timeline in timelines.values()) or 1e-9
    every = [event for timeline in timelines.values() for event in timeline.events]
    looks = _looks(every)
    for axes, (title, timeline) in zip(charts, timelines.items(), strict=True):
        _draw_timeline(axes, timeline, longest, looks)
        axes.set_title(title, loc="left")
    _draw_legend(figure, every, looks)
    format_axis(charts[-1].xaxis, "s")
    charts[-1].set_xlim(0, longest)
    charts[-1].xaxis.set_major_locator(ticker.MaxNLocator(6))
    watched = frozenset().union(*(timeline.watched for timeline in timelines.values()))
    source = Timeline(tuple(every), watched).source.replace("; ", ";\n")
    charts[-1].set_xlabel(f"time since the call, {source}")
    return list(charts)


# How the kinds of events look. A run is lighter than its color, for the name on it: black here, and
# white on what the light becomes in the dark.
_BARS = {
    "dispatch": {},
    "waits": {"facecolor": "white", "edgecolor": COLORS["wait"], "linewidth": 1.0},
    "runs": {"alpha": 0.7},
    "copy": {"hatch": "////", "alpha": 0.75},
}
_ORDER = ("dispatch", "waits"), ("runs", "copy")  # With names between.
_KINDS = {"dispatch": "dispatch", "wait": "waits", "": "runs", COPY: "copy"}
_ANNOTATIONS = (COLORS["annotation"], "#DDCC77", "#999933")


def _kind(event: Event) -> str:
    """Return what an event is called in the legend: of "read #1" and "read #2", both are "read"."""
    if event.operator == ANNOTATION:
        return re.sub(r"\W*\d+$", "", event.program) or event.program
    return _KINDS[event.operator]


def _looks(events: Sequence[Event]) -> dict[str, dict[str, Any]]:
    """Return how each kind looks that there is, in the order of the legend."""
    names = dict.fromkeys(_kind(event) for event in events if event.operator == ANNOTATION)
    named = {
        name: {"facecolor": color}
        for name, color in zip(names, itertools.cycle(_ANNOTATIONS), strict=False)
    }
    python, devices = ({kind: _BARS[kind] for kind in kinds} for kinds in _ORDER)
    kinds = {_kind(event) for event in events}
    return {kind: look for kind, look in (python | named | devices).items() if kind in kinds}


def _draw_legend(
    figure: plt.Figure, events: Sequence[Event], looks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Say what the bars are; devices differ in color."""
    from matplotlib.legend_handler import HandlerTuple

    handles = {}
    for kind, look in looks.items():
        colors = {
            look.get("facecolor") or device_color(e.device) for e in events if _kind(e) == kind
        }
        handles[kind] = tuple(
            patches.Patch(**{"facecolor": color, "edgecolor": "white", "linewidth": 0, **look})
            for color in sorted(colors)
        )
    letters = [len(kind) + 5 for kind in handles]  # With the patch before it.
    figure.legend(
        handles.values(),
        handles,
        loc="outside upper center",
        ncols=len(handles) if sum(letters) < 64 else max(1, 64 // max(letters)),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        columnspacing=1.2,
        handletextpad=0.5,
    )


def _draw_timeline(
    axes: plt.Axes, timeline: Timeline, longest: float, looks: Mapping[str, Mapping[str, Any]]
) -> None:
    rows = timeline.rows
    for height, row in enumerate(reversed(rows)):
        kinds: dict[str, list[tuple[float, float, str]]] = {kind: [] for kind in looks}
        for event in timeline.row(row):
            span = (event.start / 1e9, event.duration / 1e9, event.program)
            kinds[_kind(event)].append(span)
        # Names lie under the calls that are made meanwhile, and of names the longer ones.
        order = sorted(kinds, key=lambda kind: (kind in _BARS, -_longest(kinds[kind])))
        for number, kind in enumerate(order):
            bars = _merge_narrow(kinds[kind], narrow=longest / 500)
            bars = _widen(bars, longest, minimum=longest / (500 if kind == "waits" else 280))
            color = looks[kind].get("facecolor", device_color(row))
            axes.broken_barh(
                [(start, width) for start, width, _ in bars],
                (height - 0.36, 0.72),
                **{
                    "facecolor": color,
                    "edgecolor": ["white" if name else color for *_, name in bars] or color,
                    "linewidth": 0.5,
                    **looks[kind],
                },
            )
            above = [span for other in order[number + 1 :] for span in kinds[other]]
            for start, width, name in bars:
                start, width = _free(start, width, above) if kind not in _BARS else (start, width)
                if name and width > longest * (0.017 * len(name) + 0.003):
                    axes.text(
                        start + width / 2,
                        height,
                        "waits" if kind == "waits" else name,
                        ha="center",
                        va="center",
                        color="white" if kind == "dispatch" else "black",
                    )
    axes.set_yticks(range(len(rows)), rows[::-1])
    axes.set_ylim(-0.6, max(1, len(rows) - 1) + 0.6)
    axes.grid(axis="y", visible=False)
    if all(row.startswith(PYTHON) for row in rows):
        above = len(rows) / 2 if rows else 0.5
        axes.text(longest / 2, above, "no device had anything to do", ha="center", va="center")


def _longest(spans: Sequence[tuple[float, float, str]]) -> float:
    return max((width for _, width, _ in spans), default=0.0)


def _free(
    start: float, width: float, above: Sequence[tuple[float, float, str]]
) -> tuple[float, float]:
    """Return the widest part of a bar on which none of those above it lies."""
    free, at, end = (start, 0.0), start, start + width
    for first, length, _ in sorted([*above, (end, 0.0, "")]):
        if start < first + length and first <= end:
            free = max(free, (at, first - at), key=lambda part: part[1])
            at = max(at, first + length)
    return free


def _widen(
    bars: Sequence[tuple[float, float, str]], longest: float, minimum: float
) -> list[tuple[float, float, str]]:
    """Make bars as wide as can be seen, at the cost of wide ones beside them; such have no name."""
    gap, wide = longest / 500, 3 * minimum
    found: list[tuple[float, float, str]] = []
    for number, (start, width, name) in enumerate(bars):
        if width < minimum:
            following = [first for first, length, _ in bars[number + 1 :][:1] if length < wide]
            room = min((0.7 * (first - start) for first in following), default=minimum)
            width, name = max(width, min(minimum, room)), ""
            start = min(start, longest - width)  # Beyond the end it would be cut off.
        if found and (excess := found[-1][0] + found[-1][1] + gap - start) > 0:
            first, length, before = found[-1]
            if not name and length > wide:
                found[-1] = first, length - excess, before
            elif not before and width > wide:
                start, width = start + excess, width - excess
        found.append((start, width, name))
    return found


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


def plot_curves(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[Quantity]],
    *,
    xlabel: str,
    ylabel: str,
    xunit: str = "",
    models: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
) -> plt.Axes:
    """Draw measured quantities over a parameter, and what models say beside them.

    Args:
        xs: The values of the parameter.
        curves: The quantities of each curve, one for each value in `xs`, by the name of the curve;
            up to four curves.
        xlabel: The parameter.
        ylabel: What was measured.
        xunit: The unit of the parameter, `"s"` or `"B"`, if it has one.
        models: Values of the parameter and what a model says for them, by the name of the model;
            up to three.

    Returns:
        The axes with medians and their 95 % intervals; both scales are logarithmic.

    Raises:
        ValueError: If there is no curve, or there are more than that.
    """
    models = models or {}
    if not len(xs) or not curves:
        raise ValueError("plot_curves() needs a value of the parameter and a curve, or more.")
    if len(curves) > 4 or len(models) > 3:
        raise ValueError(
            "plot_curves() has looks for four curves and three models, found "
            f"{len(curves)} and {len(models)}: draw two figures."
        )
    axes = plt.figure(figsize=(WIDTH, 2.75)).add_subplot()
    looks = zip(("barrier", "none", "window", "other"), "os^D", strict=True)
    for (label, quantities), (role, marker) in zip(curves.items(), looks, strict=False):
        axes.errorbar(
            xs,
            [q.median for q in quantities],
            yerr=error_bars(quantities),
            fmt=marker,
            color=COLORS[role],
            label=label,
            capsize=3,
        )
    for (label, (model_xs, ys)), line in zip(models.items(), ("-", "--", ":"), strict=False):
        axes.plot(model_xs, ys, line, color=COLORS["model"], lw=1.2, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    format_log_axis(axes.xaxis, xunit)
    format_log_axis(axes.yaxis, next(iter(curves.values()))[0].unit)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.figure.legend(loc="outside upper center", ncols=2)
    return axes


def error_bars(quantities: Sequence[Quantity]) -> np.ndarray:
    """Return the distances from each median to the ends of its interval, clipped to the samples."""
    ends = [(quantity.median, *interval_ends(quantity)) for quantity in quantities]
    return np.array([(median - low, high - median) for median, low, high in ends]).T


def interval_ends(quantity: Quantity) -> tuple[float, float]:
    """Return the ends of the interval, clipped to the samples, as it may be infinite."""
    low, high = quantity.interval
    return max(low, min(quantity.samples)), min(high, max(quantity.samples))


def format_log_axis(axis: Axis, unit: str) -> None:
    """Label a logarithmic axis, in smaller steps if it spans little, and evenly if hardly any."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    finer = ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)), ticker.MaxNLocator(6, steps=[1, 2, 5, 10])
    for locator in finer if high / low < 10 else ():
        if sum(low <= place <= high for place in axis.get_majorticklocs()) < 3:
            axis.set_major_locator(locator)
    axis.set_minor_formatter(ticker.NullFormatter())
    if unit or high < 1e4:
        format_axis(axis, unit)


def format_axis(axis: Axis, unit: str) -> None:
    """Label an axis with numbers that carry their unit; a large one without any has a prefix."""
    with_prefix = ticker.EngFormatter()

    def label(value: float, _: object) -> str:
        if not value:
            return "0"
        return with_prefix(value) if not unit and value >= 1e4 else format_value(value, unit)

    axis.set_major_formatter(ticker.FuncFormatter(label))


def box(
    axes: plt.Axes,
    x: float,
    y: float,
    width: float,
    text: str,
    color: str,
    height: float = 1.0,
    bold: bool = False,
    size: str | None = None,
) -> None:
    """Draw a box with rounded corners around a text; its middle is at `x` and `y`."""
    pad = 0.08 * height
    axes.add_patch(
        patches.FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle=f"round,pad={pad}",
            facecolor="white",
            edgecolor=color,
            linewidth=2.6 if bold else 1.6,
        )
    )
    axes.text(x, y, text, ha="center", va="center", size=size)


def arrow(axes: plt.Axes, *points: tuple[float, float], bold: bool = False) -> None:
    """Draw an arrow along some points, by the shortest way."""
    from matplotlib.path import Path

    axes.add_patch(
        patches.FancyArrowPatch(
            path=Path(points),
            arrowstyle="-|>",
            mutation_scale=11,
            color="black" if bold else "#555555",
            linewidth=2.2 if bold else 1.0,
        )
    )
