"""What *Beyond One Machine* models and draws, and the solutions of its exercises."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from d2lpar._measure.quantity import Quantity
from d2lpar._timeline.plot import COLORS, WIDTH, error_bars, format_axis, format_log_axis
from d2lpar.book.explore import Explorable, slider, stacked

# --- What messages cost, and when a second process pays -------------------------------------------


class MessageCost(NamedTuple):
    """What an all-reduce takes: a latency for each message, and the time of its bytes.

    The model is that of R. W. Hockney (1994, The communication challenge for MPP, Parallel
    Computing 20), whose two numbers are called alpha and beta.

    Attributes:
        alpha: Seconds for each message, however small.
        beta: Seconds for each byte.
    """

    alpha: Quantity
    beta: Quantity

    @classmethod
    def of(cls, times: dict[int, Quantity]) -> "MessageCost":
        """Find both from the times of a small and of a large message, round by round.

        Only the smallest and the largest size, in bytes, are looked at.
        """
        small, large = min(times), max(times)
        beta = (times[large] - times[small]) / (large - small)
        return cls(times[small].rename("alpha"), beta.rename("beta"))

    def seconds(self, messages: int, size: float) -> float:
        """Return what so many messages, one after the other, take that have `size` bytes in all."""
        return messages * self.alpha.median + size * self.beta.median


def break_even(sizes: Sequence[float], speed_ups: Sequence[float]) -> float:
    """Return the size from which on it pays, between two measured ones.

    That is where the last rise through 1 is, on logarithmic scales; the smallest size if it pays
    everywhere. Where it pays nowhere, the rise at the end is continued, but to no more than a
    thousand times the largest size.
    """
    xs, ys = np.log(sizes), np.log(speed_ups)
    below = [index for index, y in enumerate(ys) if y < 0]
    if not below:
        return float(sizes[0])
    left = min(below[-1], len(xs) - 2)
    slope = (ys[left + 1] - ys[left]) / (xs[left + 1] - xs[left])
    furthest = xs[-1] + np.log(1000)
    found = min(xs[left] - ys[left] / slope, furthest) if slope > 0 else furthest
    return round(float(np.exp(found)), 6)


# --- A thousand machines to explore ---------------------------------------------------------------


_DOUBLINGS = 10  # Up to 1024 machines.


def explore_machines() -> Explorable:
    """Return a chart of the speed-up by many machines in a model, with a slider for each part.

    A step computes for C on one machine, and its n bytes of gradients are added up in a ring: in
    2 (p - 1) rounds, each of which costs a latency and n/p bytes (P. Patarasuk and X. Yuan, 2009,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, Journal of Parallel and
    Distributed Computing 69). Nothing overlaps. Scaling is strong with the same minibatch for all,
    and weak with as many rows for each. It begins with the latency and the bandwidth of InfiniBand
    NDR, for which the chapter has the sources.
    """
    sliders = [
        slider("C", 500, 50, 5000, 50, "compute (ms)"),
        slider("a", 14, 0, 300, 2, "latency (µs)"),
        slider("B", 50, 1, 500, 1, "bandwidth (GB/s)"),
        slider("n", 400, 10, 2000, 10, "gradients (MB)"),
    ]
    # Milliseconds: a megabyte at a gigabyte per second takes one.
    ring = "2 * (datum.p - 1) * (a / 1000 + n / B / datum.p)"
    ways = {
        "machine for machine": "datum.p",
        "weak scaling": f"datum.p * C / (C + {ring})",
        "strong scaling": f"C / (C / datum.p + {ring})",
    }
    domain = [1, 2**_DOUBLINGS]
    scale = alt.Scale(type="log", base=2, domain=domain, nice=False)
    axis = alt.Axis(values=[4**k for k in range(_DOUBLINGS // 2 + 1)], format="d")
    colors = [COLORS[role] for role in ("model", "window", "device")]
    lines = (
        alt.Chart(alt.sequence(_DOUBLINGS + 1, as_="k"))
        .transform_calculate(p="pow(2, datum.k)")
        .transform_calculate(**ways)
        .transform_fold(list(ways), as_=["way", "speed_up"])
        .mark_line(clip=True, point=alt.OverlayMarkDef(size=24))
        .encode(
            alt.X("p:Q", scale=scale, axis=axis, title="machines"),
            alt.Y("speed_up:Q", scale=scale, axis=axis, title=None),
            alt.Color(
                "way:N",
                sort=list(ways),
                scale=alt.Scale(domain=list(ways), range=colors),
                legend=alt.Legend(title=None, orient="top", direction="vertical"),
            ),
            alt.StrokeDash(
                "way:N",
                scale=alt.Scale(domain=list(ways), range=[[4, 3], [1, 0], [1, 0]]),
                legend=None,
            ),
            tooltip=[
                alt.Tooltip("way:N", title="scaling"),
                alt.Tooltip("p:Q", title="machines"),
                alt.Tooltip("speed_up:Q", title="speed-up", format=".1f"),
            ],
        )
        .properties(title="Speed-up", height=220)
    )
    return stacked(
        [lines],
        sliders,
        "Speed-up over the number of machines, from 1 to 1024, both on logarithmic scales. A "
        "dashed diagonal is a machine for a machine. Weak scaling follows it and then falls "
        "behind; strong scaling rises, has a peak where the latencies of the ring take over, and "
        "falls.",
    )


# --- Figures --------------------------------------------------------------------------------------


def plot_processes(spans: Sequence[tuple[float, float, float, float]]) -> Axes:
    """Draw what the Python of each of several processes does while all add something up.

    Each gives four times in seconds, of one clock: when all began, when it made its call, when it
    had control back, and when it had the result. Python dispatches in blue, waits in white, and
    does something else in the color of the barrier, before its call.
    """
    axes = plt.figure(figsize=(WIDTH, 0.4 * len(spans) + 0.75)).add_subplot()
    zero = min(begin for begin, *_ in spans)
    longest = max(done for *_, done in spans) - zero
    styles = {
        "sleeps": {"facecolor": COLORS["barrier"], "alpha": 0.35},
        # In front, for what comes after it would cover what it is widened by.
        "": {"facecolor": COLORS["host"], "edgecolor": COLORS["host"], "zorder": 2},
        "waits": {"facecolor": "white", "edgecolor": COLORS["wait"]},
    }
    for row, times in enumerate(spans):
        ends = [time - zero for time in times]
        for (name, style), start, end in zip(styles.items(), ends, ends[1:], strict=False):
            width = max(end - start, longest / _TWO_PIXELS if name == "" else 0)
            axes.broken_barh([(start, width)], (row - 0.36, 0.72), **style)
            if name and width > 0.2 * longest:
                axes.text(start + width / 2, row, name, ha="center", va="center")
    axes.set_yticks(range(len(spans)), [f"process {number}" for number in range(len(spans))])
    axes.set(ylim=(len(spans) - 0.5, -0.5), xlim=(-0.01 * longest, 1.02 * longest))
    axes.set_xlabel("time since both began, on the clock of this machine")
    axes.grid(axis="y", visible=False)
    format_axis(axes.xaxis, "s")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    return axes


_TWO_PIXELS = 130  # Of the 260 that the axes are wide on a phone.


def plot_speed_ups(
    rows: Sequence[int],
    measured: Mapping[str, Sequence[Quantity]],
    predicted: Mapping[str, Sequence[float]],
) -> Axes:
    """Draw speed-ups by a second process over the rows of a minibatch, as points and as lines.

    Both are given by the way in which the gradient is summed, up to three of them. A line at 1 is
    one process.
    """
    axes = plt.figure(figsize=(WIDTH, 2.9)).add_subplot()
    axes.axhline(1, color=COLORS["model"], lw=1)
    looks = (("window", "o", 0.95), ("none", "s", 1), ("barrier", "^", 1.05))
    for (way, ratios), (role, marker, aside) in zip(measured.items(), looks, strict=False):
        axes.plot(rows, predicted[way], "--", color=COLORS[role], lw=1.2)
        axes.errorbar(
            [aside * count for count in rows],  # So that no bar hides another.
            [ratio.median for ratio in ratios],
            yerr=error_bars(ratios),
            fmt=marker,
            color=COLORS[role],
            label=way,
            capsize=3,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [f"{count:,}" for count in rows])
    axes.set_yscale("log")
    format_log_axis(axes.yaxis, "")
    axes.set(xlabel="rows of the minibatch", ylabel="speed-up")
    axes.figure.legend(loc="outside upper center", ncols=len(measured))
    return axes
