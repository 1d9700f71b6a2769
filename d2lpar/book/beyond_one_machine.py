"""The models and figures of *Beyond One Machine* and of its solutions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from d2lpar._measure.quantity import Quantity
from d2lpar._timeline.plot import COLORS, WIDTH, format_axis, plot_curves
from d2lpar.book.explore import Explorable, slider, stacked

# --- The cost of messages -------------------------------------------------------------------------


class MessageCost(NamedTuple):
    """The time of an all-reduce: a latency for each message, and a time for each byte.

    The model is Hockney's, with his names alpha and beta (R. W. Hockney, 1994, The communication
    challenge for MPP, Parallel Computing 20).

    Attributes:
        alpha: Seconds for each message, independent of its size.
        beta: Seconds for each byte.
    """

    alpha: Quantity
    beta: Quantity

    @classmethod
    def of(cls, times: dict[int, Quantity]) -> "MessageCost":
        """Fit both numbers, round by round, to the times of messages by their size in bytes.

        The fit uses only the smallest and the largest size.
        """
        small, large = min(times), max(times)
        beta = (times[large] - times[small]) / (large - small)
        return cls(times[small].rename("alpha"), beta.rename("beta"))

    def seconds(self, messages: int, size: float) -> float:
        """Return the predicted time of consecutive messages with `size` bytes in all."""
        return messages * self.alpha.median + size * self.beta.median


# --- A thousand machines to explore ---------------------------------------------------------------


_DOUBLINGS = 10  # Up to 1024 machines.


def explore_machines() -> Explorable:
    """Return a chart of the modeled speed-up by many machines, with a slider for each parameter.

    A step computes for C on one machine, and a ring of p machines adds up its n bytes of
    gradients. The ring takes 2 (p - 1) rounds, and each round costs a latency and n/p bytes
    (P. Patarasuk and X. Yuan, 2009, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, Journal of Parallel and Distributed Computing 69). Nothing overlaps. In strong
    scaling the machines share one minibatch; in weak scaling each machine keeps as many rows. The
    sliders start at the latency and bandwidth of InfiniBand NDR; the chapter cites the sources.
    """
    sliders = [
        slider("C", 500, 50, 5000, 50, "compute (ms)"),
        slider("a", 14, 0, 300, 2, "latency (µs)"),
        slider("B", 50, 1, 500, 1, "bandwidth (GB/s)"),
        slider("n", 400, 10, 2000, 10, "gradients (MB)"),
    ]
    # In milliseconds: a megabyte at a gigabyte per second takes one millisecond.
    ring = "2 * (datum.p - 1) * (a / 1000 + n / B / datum.p)"
    ways = {
        "ideal": "datum.p",
        "weak scaling": f"datum.p * C / (C + {ring})",
        "strong scaling": f"C / (C / datum.p + {ring})",
    }
    # The vertical axis begins below one: far out, strong scaling is slower than one machine.
    x, y = ({"domain": [low, 2**_DOUBLINGS], "base": 2, "type": "log"} for low in (1, 0.5))
    axis = alt.Axis(values=[4**k for k in range(_DOUBLINGS // 2 + 1)], format="d")
    colors = [COLORS[role] for role in ("model", "window", "device")]
    legend = alt.Legend(title=None, orient="top", direction="vertical", symbolType="stroke")
    lines = (
        alt.Chart(alt.sequence(_DOUBLINGS + 1, as_="k"))
        .transform_calculate(p="pow(2, datum.k)")
        .transform_calculate(**ways)
        .transform_fold(list(ways), as_=["way", "speed_up"])
        .mark_line(clip=True, point=alt.OverlayMarkDef(size=24))
        .encode(
            alt.X("p:Q", scale=alt.Scale(**x, nice=False), axis=axis, title="machines"),
            alt.Y("speed_up:Q", scale=alt.Scale(**y, nice=False), axis=axis, title=None),
            alt.Color(
                "way:N",
                sort=list(ways),
                scale=alt.Scale(domain=list(ways), range=colors),
                legend=legend,
            ),
            alt.StrokeDash(
                "way:N",
                scale=alt.Scale(domain=list(ways), range=[[4, 3], [1, 0], [1, 0]]),
                legend=legend,
            ),
            tooltip=[
                alt.Tooltip("way:N", title="scaling"),
                alt.Tooltip("p:Q", title="machines"),
                alt.Tooltip("speed_up:Q", title="speed-up", format=".2f"),
            ],
        )
        .properties(title="Speed-up", height=220)
    )
    return stacked(
        [lines],
        sliders,
        "Speed-up over the number of machines, from 1 to 1024, both on logarithmic scales. The "
        "dashed diagonal is the ideal. Weak scaling follows it and then falls "
        "behind; strong scaling rises, has a peak where the latencies of the ring take over, and "
        "falls.",
    )


# --- Figures --------------------------------------------------------------------------------------


def plot_processes(spans: Sequence[tuple[float, float, float, float]]) -> Axes:
    """Draw Python's time in each of several processes during an all-reduce.

    Args:
        spans: For each process, four times in seconds on one clock: the common start, the call,
            the return of the call, and the arrival of the result. Between them, Python first does
            something else (in the color of a barrier), then dispatches (blue), then waits (white).
    """
    axes = plt.figure(figsize=(WIDTH, 0.4 * len(spans) + 0.75)).add_subplot()
    zero = min(begin for begin, *_ in spans)
    longest = max(done for *_, done in spans) - zero
    styles = {
        "sleeps": {"facecolor": COLORS["barrier"], "alpha": 0.35},
        # A short dispatch is drawn wider than it was, in front of the wait that follows.
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


_TWO_PIXELS = 130  # The axes are 260 pixels wide on a phone, so this share of them is 2 pixels.


def plot_speed_ups(
    rows: Sequence[int],
    measured: Mapping[str, Sequence[Quantity]],
    predicted: Mapping[str, Sequence[float]],
) -> Axes:
    """Draw speed-ups by a second process over the rows of a minibatch.

    Measurements are points and predictions are dashed lines, for up to four ways of summing the
    gradient. The line at 1 is the speed of one process.
    """
    axes = plot_curves(
        rows,
        measured,
        models={"one process": (rows, [1] * len(rows)), "predicted": ([], [])},
        xlabel="rows of the minibatch",
        ylabel="speed-up",
    )
    for way, points in zip(measured, axes.containers, strict=True):
        axes.plot(rows, predicted[way], "--", color=points.lines[0].get_color(), lw=1.2)
    axes.figure.set_figheight(4.2)
    axes.set_xticks(rows, [f"{count:,}" for count in rows])
    return axes
