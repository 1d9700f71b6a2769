"""Draw timelines, graphs and measurements with matplotlib."""

from __future__ import annotations

import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from d2lpar._measure.quantity import Quantity
from d2lpar._plain.errors import WhenUsed
from d2lpar._plain.format import DEVICE, HOST, format_value
from d2lpar._timeline.graph import is_copy, layout_of, require_graph
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
    "wait": "#8A8A8A",
    "annotation": "#44AA99",
}
"""The colors of the book. Each means the same in every figure, and is safe for the color-blind.

Python is blue, devices are warm, ways of waiting are cool or gray. From M. Okabe and K. Ito, Color
Universal Design (2008); olive, teal, wine and sand from P. Tol, Color Schemes (2021).
"""

WIDTH = 5.6
"""Inches of a figure as wide as the text.

Type of 10.5 points is then 9 pixels high on a phone, where the text is 350 pixels wide, and 18 on a
desktop, where the text is 688 pixels wide.
"""

_DEVICES = {"CPU": (DEVICE, "#CC79A7", "#E69F00"), "GPU": ("#882255", "#F0E442", "#DDCC77")}


def device_color(name: str) -> str:
    """Return the color that a device, or Python, has in every figure.

    Args:
        name: A device, such as `"CPU 0"`, or a row of a timeline, which may be Python's.

    Returns:
        A color of matplotlib; CPU 3 and CPU 0 have the same, since each kind has three colors.

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
    """Set matplotlib's style to the book's: vector graphics, sized for a phone, on white.

    In dark mode, the book's style sheet inverts the figures. Call `use_style` once, in one of the
    first cells of a notebook.
    """
    plt.rcParams.update(
        {
            "figure.figsize": (WIDTH, 2.4),
            "figure.constrained_layout.use": True,
            "figure.facecolor": "white",
            "savefig.pad_inches": 0.04,  # The layout's own margin, so that the page keeps WIDTH.
            "font.size": 10.5,
            "axes.titlesize": "medium",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,  # Grid lines over a bar would look like its ends.
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "svg.hashsalt": "d2lpar",  # The same figure is the same file.
        }
    )
    # Only a notebook has imported IPython and has a shell. In a script, set_matplotlib_formats
    # would create a shell, and other libraries would then take the script for a notebook.
    ipython = sys.modules.get("IPython")
    if ipython and ipython.get_ipython():
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")


def plot_graph(graph: nx.DiGraph, path: Sequence[int] = ()) -> plt.Axes:
    """Draw a computational graph in layers, each operator below those that it needs.

    Args:
        graph: A graph from `computation_graph`. Nodes that have a device are drawn in its color.
        path: Nodes of a path to be drawn bold, such as the `critical_path`.

    Returns:
        The axes. Each node is a box with its operator and, in a graph of up to a dozen nodes, its
        shape; a larger graph is drawn without its inputs. A `device_put` is a dot in the color of
        its target. An edge that skips layers leads around their boxes, unless the graph is too
        large to be read.

    Raises:
        ValueError: If `graph` is not a graph.
    """
    require_graph(graph, "plot_graph()")
    from matplotlib.path import Path

    detailed = len(graph) <= 12
    operators = {n: name for n, name in graph.nodes(data="operator") if name != "input"}
    if not detailed:
        graph = graph.subgraph(operators)
    longest = max(map(len, operators.values()), default=0)
    # Inches for each box, which is as wide as the words in it.
    width, height = (1.95, 0.7) if detailed else (max(1.08, 0.1 * longest + 0.2), 0.5)
    layout = layout_of(graph)
    size = (max(WIDTH, width * layout.width), height * layout.height + 0.4)
    axes = plt.figure(figsize=size).add_subplot()
    axes.set_axis_off()
    on_path = set(itertools.pairwise(path))
    for edge in sorted(graph.edges, key=on_path.__contains__):  # Bold last: edges share lanes.
        # In each layer, two points: at the head and at the foot of the box, or of the lane.
        points = [(x, y + side) for x, y in layout.edges[edge] for side in (0.3, -0.3)]
        (x, y), (x2, y2) = (layout.nodes[node] for node in edge)
        from_dot, to_dot = (is_copy(graph, node) for node in edge)
        points = [(x, y - 0.1)] * from_dot + points[1:-1] + [(x2, y2 + 0.1)] * to_dot
        bold = edge in on_path
        axes.add_patch(
            patches.FancyArrowPatch(
                path=Path(points),
                arrowstyle="-|>",
                mutation_scale=11,
                color="black" if bold else "#555555",
                linewidth=2.2 if bold else 1.0,
            )
        )
    for node, attributes in graph.nodes.items():
        x, y = layout.nodes[node]
        color = COLORS["host" if attributes["operator"] == "input" else "device"]
        if attributes["device"]:
            color = device_color(attributes["device"])
        if is_copy(graph, node):
            axes.plot(x, y, "o", color=color, markersize=9)
            continue
        numbers = "".join(f" {value}" for value in attributes["constants"] if np.ndim(value) == 0)
        text = f"{attributes['name'] or attributes['operator']}{numbers}"
        if detailed:
            text += f"\n{attributes['dtype']}{list(attributes['shape'])}"
        axes.add_patch(
            patches.FancyBboxPatch(
                (x - 0.42, y - 0.26),
                0.84,
                0.52,
                boxstyle="round,pad=0.0416",
                facecolor="white",
                edgecolor=color,
                linewidth=2.6 if node in path else 1.6,
            )
        )
        axes.text(x, y, text, ha="center", va="center")
    margin = max(0.0, WIDTH / width - layout.width) / 2
    axes.set(xlim=(-margin, layout.width + margin), ylim=(-layout.height + 0.5, 0.5))
    devices = sorted({device for _, device in graph.nodes(data="device")} - {None})
    handles = [
        patches.Patch(facecolor="white", edgecolor=device_color(name), linewidth=1.6, label=name)
        for name in devices
    ]
    if any(is_copy(graph, node) for node in graph):
        (dot,) = axes.plot([], [], "o", color=COLORS["model"], markersize=9, label="copy")
        handles.append(dot)
    if handles:
        axes.figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return axes


def plot_timelines(timelines: Mapping[str, Timeline]) -> list[plt.Axes]:
    """Draw timelines as Gantt charts, one above the other on one scale of time.

    Args:
        timelines: Timelines from `record_trace`, by the title of their chart. Each run of a program
            is a bar; runs too short to be told apart are drawn as one.

    Returns:
        The axes, one for each timeline. Python's row is on top, blue where it dispatches and white
        where it waits. Each name that the function gave to a part of itself
        (`jax.profiler.TraceAnnotation`) has a color of its own, and names that differ only by a
        final number share one. Below is a row for each device and copy engine. Copies are hatched.
        A legend names the kinds of bars that are there.

    Raises:
        ValueError: If there is no timeline.
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
    events = [event for timeline in timelines.values() for event in timeline.events]
    longest = max((event.end for event in events), default=0) or 1
    styles = _styles(events)
    for axes, (title, timeline) in zip(charts, timelines.items(), strict=True):
        _draw_timeline(axes, timeline, longest, styles)
        axes.set_title(title, loc="left")
    _draw_legend(figure, events, styles)
    format_axis(charts[-1].xaxis, "s")
    charts[-1].set_xlim(0, longest / 1e9)
    charts[-1].xaxis.set_major_locator(ticker.MaxNLocator(6))
    watched = frozenset().union(*(timeline.watched for timeline in timelines.values()))
    source = Timeline(tuple(events), watched).source.replace("; ", ";\n")
    charts[-1].set_xlabel(f"time since the call, {source}")
    return list(charts)


# The style of each kind of bar, in the order of the legend; annotations stand between the kinds of
# Python's row and the kinds of the devices' rows. Runs are pale, so that their names can be read:
# black in light mode, and white in dark mode, where the page inverts the figure.
_PYTHON_STYLES = {
    "dispatch": {},
    "waits": {"facecolor": "white", "edgecolor": COLORS["wait"], "linewidth": 1.0},
}
_DEVICE_STYLES = {"runs": {"alpha": 0.7}, "copy": {"hatch": "////", "alpha": 0.75}}
_KINDS = {"dispatch": "dispatch", "wait": "waits", "": "runs", COPY: "copy"}
_ANNOTATION_COLORS = (COLORS["annotation"], "#DDCC77", "#999933")


def _kind(event: Event) -> str:
    """Return the name of an event in the legend: "read" for "read #1" as for "read #2"."""
    if event.operator == ANNOTATION:
        return re.sub(r"\W*\d+$", "", event.program) or event.program
    return _KINDS[event.operator]


def _styles(events: Sequence[Event]) -> dict[str, dict[str, Any]]:
    """Return the style of each kind among the events, in the order of the legend."""
    names = dict.fromkeys(_kind(event) for event in events if event.operator == ANNOTATION)
    colors = zip(names, itertools.cycle(_ANNOTATION_COLORS), strict=False)
    annotations = {name: {"facecolor": color} for name, color in colors}
    kinds = {_kind(event) for event in events}
    styles = _PYTHON_STYLES | annotations | _DEVICE_STYLES
    return {kind: style for kind, style in styles.items() if kind in kinds}


def _draw_legend(
    figure: plt.Figure, events: Sequence[Event], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    """Name the kinds of bars; one that several devices have shows the color of each."""
    from matplotlib.legend_handler import HandlerTuple

    handles = {}
    for kind, style in styles.items():
        rows = sorted({event.device for event in events if _kind(event) == kind})
        colors = dict.fromkeys(style.get("facecolor") or device_color(row) for row in rows)
        handles[kind] = tuple(
            patches.Patch(**{"facecolor": color, "edgecolor": "white", "linewidth": 0, **style})
            for color in colors
        )
    letters = [len(kind) + 5 for kind in handles]  # The patch is as wide as five letters.
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
    axes: plt.Axes, timeline: Timeline, longest: int, styles: Mapping[str, Mapping[str, Any]]
) -> None:
    rows = timeline.rows
    for height, row in enumerate(reversed(rows)):
        by_kind = defaultdict(list)
        for event in timeline.row(row):
            by_kind[_kind(event)].append(event)
        annotations = by_kind.keys() - {*_KINDS.values()}
        # Annotations lie below the calls made inside them, and long bars below short ones.
        longest_of = {kind: max(e.duration for e in events) for kind, events in by_kind.items()}
        order = sorted(by_kind, key=lambda kind: (kind not in annotations, -longest_of[kind]))
        for number, kind in enumerate(order):
            bars = _merge_narrow(by_kind[kind], longest / 500)
            style = {"facecolor": device_color(row), **styles[kind]}
            _draw_bars(axes, height, bars, style, longest)
            above = [event for other in order[number + 1 :] for event in by_kind[other]]
            for bar in bars:
                start, end = _uncovered(bar, above) if kind in annotations else (bar.start, bar.end)
                name = "waits" if bar.program and kind == "waits" else bar.program
                # A name that does not fit is shortened to its number: "reads 7" to "7".
                texts = name, *re.findall(r"(?<= )\d+$", name), ""
                room = (end - start) / longest - 0.003
                if text := next(text for text in texts if 0.017 * len(text) < room or not text):
                    axes.text(
                        (start + end) / 2e9,
                        height,
                        text,
                        ha="center",
                        va="center",
                        color="white" if kind == "dispatch" else "black",
                    )
    # A thread that the program has named needs no "Python" before its name.
    names = [re.sub(rf"^{PYTHON} (?!\d)", "", row) for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(-0.6, max(1, len(rows) - 1) + 0.6)
    axes.grid(axis="y", visible=False)
    if all(row.startswith(PYTHON) for row in rows):
        above = len(rows) / 2 if rows else 0.5
        axes.text(longest / 2e9, above, "no device had anything to do", ha="center", va="center")


def _draw_bars(
    axes: plt.Axes, height: int, bars: Sequence[Event], style: Mapping[str, Any], longest: int
) -> None:
    """Draw bars of one kind; narrow bars are lines, whose width is in points and not in seconds."""
    bottom, top, color = height - 0.36, height + 0.36, style["facecolor"]
    wide = [bar for bar in bars if bar.duration > longest / 280]
    edges = ["white" if bar.program else color for bar in wide]
    axes.broken_barh(
        [(bar.start / 1e9, bar.duration / 1e9) for bar in wide],
        (bottom, top - bottom),
        **{"edgecolor": edges, "linewidth": 0.5, **style},
    )
    # A white margin sets a line off from wide bars of the same color; all lines lie above all
    # margins. Waits are hollow and need none.
    lines = [(bar.start + bar.end) / 2e9 for bar in bars if bar.duration <= longest / 280]
    margin = {"color": "white", "linewidth": 1.6 if color == "white" else 2.6, "zorder": 1.5}
    line = {"color": style.get("edgecolor", color), "linewidth": 1.6, "zorder": 2}
    axes.vlines(lines, bottom, top, **margin, clip_on=False)
    axes.vlines(lines, bottom, top, **line, alpha=style.get("alpha"), clip_on=False)


def _uncovered(bar: Event, above: Sequence[Event]) -> tuple[int, int]:
    """Return the start and end of the widest part of a bar that no bar above covers."""
    widest, start = (bar.start, bar.start), bar.start
    for cover_start, cover_end in [*sorted((e.start, e.end) for e in above), (bar.end, bar.end)]:
        part = start, min(cover_start, bar.end)
        widest = max(widest, part, key=lambda part: part[1] - part[0])
        start = max(start, cover_end)
    return widest


def _merge_narrow(events: Sequence[Event], narrow: float) -> list[Event]:
    """Merge events too close to be told apart; a merged or narrow one has no name."""
    bars: list[Event] = []
    for event in events:
        if event.duration > narrow:
            bars.append(event)
        elif bars and not bars[-1].program and event.start - bars[-1].end < narrow:
            end = max(bars[-1].end, event.end)
            bars[-1] = bars[-1]._replace(duration=end - bars[-1].start)
        else:
            bars.append(event._replace(program=""))
    return bars


def plot_curves(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[Quantity]],
    *,
    xlabel: str,
    ylabel: str,
    models: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
) -> plt.Axes:
    """Draw measured quantities over a parameter, and the predictions of models as lines.

    Args:
        xs: The values of the parameter.
        curves: The quantities of each curve, one for each value in `xs`, by the name of the curve;
            up to four curves.
        xlabel: The parameter.
        ylabel: The measured quantity.
        models: Values of the parameter and a model's predictions for them, by the name of the
            model; up to three.

    Returns:
        The axes with medians and their 95% intervals, a little apart; both scales are logarithmic.

    Raises:
        ValueError: If there is no curve, or too many curves or models.
    """
    models = models or {}
    if not len(xs) or not curves:
        raise ValueError("plot_curves() needs at least one parameter value and one curve.")
    if len(curves) > 4 or len(models) > 3:
        raise ValueError(
            "plot_curves() has styles for four curves and three models, found "
            f"{len(curves)} and {len(models)}: draw two figures."
        )
    axes = plt.figure(figsize=(WIDTH, 2.75)).add_subplot()
    styles = zip(("barrier", "none", "window", "other"), "os^D", strict=True)
    for number, (label, quantities) in enumerate(curves.items()):
        role, marker = next(styles)
        axes.errorbar(
            np.array(xs) * (max(xs) / min(xs)) ** (0.015 * (number - (len(curves) - 1) / 2)),
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
    format_log_axis(axes.xaxis, "")
    format_log_axis(axes.yaxis, next(iter(curves.values()))[0].unit)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.figure.legend(loc="outside upper center", ncols=2)
    return axes


def error_bars(quantities: Sequence[Quantity]) -> np.ndarray:
    """Return the distances from each median to the ends of its interval, clipped to the samples."""
    ends = [(quantity.median, *interval_ends(quantity)) for quantity in quantities]
    return np.array([(median - low, high - median) for median, low, high in ends]).T


def interval_ends(quantity: Quantity) -> tuple[float, float]:
    """Return the ends of the interval, clipped to the samples: an interval may be infinite."""
    low, high = quantity.interval
    return max(low, min(quantity.samples)), min(high, max(quantity.samples))


def format_log_axis(axis: Axis, unit: str) -> None:
    """Label a logarithmic axis in steps that leave at least three labels.

    From a factor of 200 on, every power of ten has a label; below, 1, 2 and 5 times each; below a
    factor of 10, finer steps, and even ones where those give too few.
    """
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    finer = ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)), ticker.MaxNLocator(6, steps=[1, 2, 5, 10])
    for locator in finer if high / low < 10 else ():
        if sum(low <= tick <= high for tick in axis.get_majorticklocs()) < 3:
            axis.set_major_locator(locator)
    axis.set_minor_formatter(ticker.NullFormatter())
    if unit or high < 1e4:
        format_axis(axis, unit)


def format_axis(axis: Axis, unit: str) -> None:
    """Label an axis with numbers and their unit; large numbers without a unit get a prefix."""
    with_prefix = ticker.EngFormatter()

    def label(value: float, _: object) -> str:
        if not value:
            return "0"
        return with_prefix(value) if not unit and value >= 1e4 else format_value(value, unit)

    axis.set_major_formatter(ticker.FuncFormatter(label))
