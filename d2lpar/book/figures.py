"""Figures that one page of the book draws."""

import math
import platform
from collections.abc import Mapping, Sequence

import jax
import jaxlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from d2lpar._marks import arrow, box, error_bars, format_axis, format_log_axis, interval_ends
from d2lpar.devices import device_name
from d2lpar.machine import usable_cores
from d2lpar.plot import COLOURS
from d2lpar.quantity import Predicate, Quantity


def draw_stack() -> Axes:
    """Draw what a program of this process goes through on its way to the devices of JAX.

    Returns:
        The axes; every version, thread and device in it is the one at hand.
    """
    devices = jax.local_devices()
    shown = devices[:4]
    axes = plt.figure(figsize=(5.2, 3.2)).add_subplot()
    axes.set_axis_off()
    axes.set(xlim=(0, 10), ylim=(0, 10))
    client = devices[0].platform.upper()
    python = f"front end: Python {platform.python_version()}, jax {jax.__version__}"
    program = f"XLA program (jaxlib {jaxlib.__version__}), compiled once"
    box(axes, 5, 8.9, 7.4, python, COLOURS["host"])
    box(axes, 5, 6.6, 7.4, program, COLOURS["model"])
    width = 8.6 / len(shown)
    for index, device in enumerate(shown):
        x = 0.7 + width * (index + 0.5)
        arrow(axes, (5, 5.95), (x, 4.95))
        box(
            axes,
            x,
            4.3,
            width * 0.9,
            "queue" if len(shown) > 2 else "queue of calls",
            COLOURS["device"],
        )
        arrow(axes, (x, 3.65), (x, 2.55))
        more = f" (+{len(devices) - 4})" if index == 3 and len(devices) > 4 else ""
        box(axes, x, 1.9, width * 0.9, f"{device_name(device)}{more}", COLOURS["device"])
    cores = usable_cores()
    arrow(axes, (5, 8.25), (5, 7.25))
    axes.text(5.3, 7.75, "dispatch: returns at once", va="center", fontsize=11)
    plural = "s" * (cores != 1)
    on = f"on {cores} CPU core{plural}" if client == "CPU" else devices[0].device_kind
    axes.text(5, 0.65, f"back end: works through the queue, {on}", ha="center", fontsize=11)
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
    format_axis(axes.yaxis, "s")
    axes.set(xlabel="call", ylabel="Python is held for")
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


def draw_ways(
    panels: Mapping[str, Mapping[str, Quantity]], styles: Mapping[str, str]
) -> list[Axes]:
    """Draw what several ways of doing the same cost, in panels side by side.

    Args:
        panels: For each title a quantity by the name of the way; the ways are the same in all.
        styles: A role of `COLOURS` for each way.

    Returns:
        The axes, with a bar for each median, from zero, and its interval as a line.
    """
    names = list(next(iter(panels.values())))
    figure = plt.figure(figsize=(5.2, 1.0 + 0.42 * len(names)))
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    places = np.arange(len(names))[::-1]
    for axes, (title, quantities) in zip(all_axes, panels.items(), strict=True):
        found = [quantities[name] for name in names]
        axes.barh(
            places,
            [quantity.median for quantity in found],
            xerr=error_bars(found),
            color=[COLOURS[styles[name]] for name in names],
            error_kw={"lw": 1.2, "ecolor": COLOURS["model"]},
            height=0.62,
        )
        axes.set_yticks(places, names)
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        format_axis(axes.xaxis, found[0].unit)
        axes.set_title(title, fontsize=11, loc="left")
    return list(all_axes)


def draw_processes(spans: Sequence[tuple[float, float, float, float]]) -> Axes:
    """Draw what the Python of each of several processes does while all add something up.

    Args:
        spans: For each process, read from one clock in seconds: when all began, when it asked, when
            it had control back, and when it had the result.

    Returns:
        The axes, with a row for each process, the first on top. Python dispatches in blue, waits in
        white, and does something else in the colour of the barrier, before it asks.
    """
    axes = plt.figure(figsize=(5.2, 0.5 * len(spans) + 0.9)).add_subplot()
    zero = min(begin for begin, *_ in spans)
    longest = max(done for *_, done in spans) - zero
    styles = {
        "sleeps": {"facecolor": COLOURS["barrier"], "alpha": 0.35},
        "": {"facecolor": COLOURS["host"], "edgecolor": COLOURS["host"]},
        "waits": {"facecolor": "white", "edgecolor": COLOURS["wait"]},
    }
    for row, times in enumerate(spans):
        ends = [time - zero for time in times]
        for (name, style), start, end in zip(styles.items(), ends, ends[1:], strict=False):
            width = max(end - start, 0.004 * longest if name == "" else 0)  # A sliver is seen.
            axes.broken_barh([(start, width)], (row - 0.36, 0.72), **style)
            if name and width > 0.2 * longest:
                axes.text(start + width / 2, row, name, ha="center", va="center", fontsize=11)
    axes.set_yticks(range(len(spans)), [f"process {number}" for number in range(len(spans))])
    axes.set(ylim=(len(spans) - 0.5, -0.5), xlim=(0, 1.02 * longest))
    axes.set_xlabel("time since both began, on the clock of this machine")
    axes.grid(axis="y", visible=False)
    format_axis(axes.xaxis, "s")
    axes.xaxis.set_major_locator(MaxNLocator(6))
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
                xerr=error_bars([predicate.quantity]),
                fmt="o" if exact else "s",
                color=COLOURS["other" if exact else "device"],
                mfc="white" if exact else None,
                capsize=3,
            )
        _shade_where_it_holds(axes, list(found.values()))
        axes.set_yticks(places, list(found), fontsize=11)
        axes.set_ylim(-0.7, len(found) - 0.3)
        axes.grid(axis="y", visible=False)
        axes.set_title(claimed, fontsize=11, loc="left")
        axes.set_xlabel(next(iter(found.values())).quantity.name)
    return list(all_axes)


def _shade_where_it_holds(axes: Axes, predicates: Sequence[Predicate]) -> None:
    """Show all points and the bounds of the first comparison, and shade where it holds."""
    claimed = predicates[0]
    bounds = [bound for bound in (claimed.low, claimed.high) if math.isfinite(bound)]
    shown = [end for predicate in predicates for end in interval_ends(predicate.quantity)] + bounds
    lowest, highest = min(shown), max(shown)
    if lowest > 0 and highest / lowest > 5:
        axes.set_xscale("log")
        axes.set_xlim(lowest / 1.3, highest * 1.3)
        format_log_axis(axes.xaxis, "")
    else:
        pad = 0.08 * (highest - lowest)
        axes.set_xlim(lowest - pad, highest + pad)
    left, right = axes.get_xlim()
    inside = {">": (claimed.high, right), "<": (left, claimed.low)}
    low, high = inside.get(claimed.relation, (claimed.low, claimed.high))
    if math.isfinite(low) and math.isfinite(high):  # A bound may be a quantity of few samples.
        axes.axvspan(low, high, color=COLOURS["window"], alpha=0.25, lw=0)
