"""The figures of *Measuring Asynchronous Code*."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, MultipleLocator

from d2lpar._measure.comparison import Measurement
from d2lpar._measure.memory import PeakMemory
from d2lpar._measure.quantity import Quantity
from d2lpar._timeline.plot import COLORS, WIDTH, error_bars, format_axis


def plot_timed_calls(seconds: Mapping[str, Sequence[float]]) -> Axes:
    """Draw how many seconds each call held Python, timed in two ways."""
    axes = plt.figure(figsize=(WIDTH, 2.55)).add_subplot()
    for (label, times), role, marker in zip(seconds.items(), ("host", "other"), "o^", strict=True):
        calls = range(1, len(times) + 1)
        axes.plot(calls, times, marker, color=COLORS[role], ms=3.5, label=label)
    axes.set_yscale("log")
    format_axis(axes.yaxis, "s")
    axes.set(xlabel="call", ylabel="Python is held for")
    axes.figure.legend(loc="outside upper center", ncols=2)
    return axes


def plot_pairs(ratio: Quantity) -> Axes:
    """Draw the ratio of each pair, and below them the median with its interval."""
    axes = plt.figure(figsize=(WIDTH, 1.8)).add_subplot()
    # Random heights keep the points apart; the fixed seed keeps the figure the same.
    heights = np.random.default_rng(0).uniform(0.75, 1.25, len(ratio.samples))
    axes.plot(ratio.samples, heights, ".", color=COLORS["host"], alpha=0.6)
    bars = {"xerr": error_bars([ratio]), "capsize": 4, "ms": 12}
    axes.errorbar([ratio.median], [0], fmt="|", color=COLORS["device"], **bars)
    axes.axvline(1, color=COLORS["model"], linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(0.9 * min(0.5, *ratio.samples), 1.1 * max(2, *ratio.samples))
    axes.set_yticks([1, 0], ["single pairs", "median of all"])
    axes.set_ylim(-0.6, 1.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("time of B over time of A")
    return axes


def plot_orders(orders: Mapping[str, tuple[Mapping[str, Measurement], str]]) -> list[Axes]:
    """Draw the times of two functions over the call number, in a panel for each order of calls.

    Args:
        orders: For each panel, by its title, the two measurements by a one-letter name, and the
            order of the calls, such as `"ABBA"`.
    """
    figure = plt.figure()
    charts = figure.subplots(1, len(orders), sharey=True, squeeze=False)[0]
    for axes, (title, (arms, order)) in zip(charts, orders.items(), strict=True):
        roles = ("host", "device")
        for (arm, measured), role, marker in zip(arms.items(), roles, "os", strict=True):
            when = [number for number, name in enumerate(order, 1) if name == arm]
            axes.plot(when, measured.total.samples, marker, color=COLORS[role], ms=4.5, label=arm)
            axes.axhline(measured.total.median, color=COLORS[role], linestyle="--", lw=1)
        axes.set_title(title)
        axes.set(xlabel="call", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    format_axis(charts[0].yaxis, "s")
    charts[0].set_ylabel("time")
    charts[0].legend()
    return list(charts)


def plot_looks(shares: Mapping[str, Sequence[float]]) -> Axes:
    """Draw how often a test found a winner among equals, over the number of looks; dashed: 5%."""
    axes = plt.figure().add_subplot()
    for (label, share), role in zip(shares.items(), ("none", "window"), strict=True):
        axes.plot(range(1, len(share) + 1), share, "o-", color=COLORS[role], label=label)
    axes.axhline(0.05, color=COLORS["model"], linestyle="--", linewidth=1)
    axes.set(xlabel="looks", ylabel="share with a winner", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MultipleLocator(0.05))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend()
    return axes


def plot_memory(watched: Mapping[str, PeakMemory]) -> Axes:
    """Draw memory over time, with a square at the end, where a reading after a barrier falls."""
    axes = plt.figure().add_subplot()
    for (label, memory), role in zip(watched.items(), ("barrier", "none"), strict=True):
        seconds = [when for when, _ in memory.samples]
        grown = [count - memory.before for _, count in memory.samples]
        axes.plot(seconds, grown, color=COLORS[role], label=label)
        axes.plot(seconds[-1], grown[-1], "s", color=COLORS[role])
    format_axis(axes.xaxis, "s")
    format_axis(axes.yaxis, "B")
    axes.set(xlabel="time", ylabel="memory above the start", xlim=(0, None))
    axes.figure.legend(loc="outside upper center", ncols=2)
    return axes
