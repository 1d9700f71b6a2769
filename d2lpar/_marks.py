"""What figures are put together from: error bars, axes with units, boxes and arrows."""

from collections.abc import Sequence

import numpy as np

from d2lpar._extras import needs
from d2lpar.quantity import Quantity
from d2lpar.units import format_value

with needs("plot"):
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter


def error_bars(quantities: Sequence[Quantity]) -> np.ndarray:
    """Return the distances from each median to the ends of its interval, clipped to the samples."""
    ends = [(quantity.median, *interval_ends(quantity)) for quantity in quantities]
    return np.array([(median - low, high - median) for median, low, high in ends]).T


def interval_ends(quantity: Quantity) -> tuple[float, float]:
    """Return the ends of the interval, clipped to the samples, as it may be infinite."""
    low, high = quantity.interval
    return max(low, min(quantity.samples)), min(high, max(quantity.samples))


def format_log_axis(axis: Axis, unit: str) -> None:
    """Label a logarithmic axis, at 2 and 5 as well if it spans little."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axis.set_minor_formatter(NullFormatter())
    if unit or high < 1e4:
        format_axis(axis, unit)


def format_axis(axis: Axis, unit: str) -> None:
    """Label an axis with numbers that carry their unit; a large one without any has a prefix."""
    with_prefix = EngFormatter()

    def label(value: float, _: object) -> str:
        if not value:
            return "0"
        return with_prefix(value) if not unit and value >= 1e4 else format_value(value, unit)

    axis.set_major_formatter(FuncFormatter(label))


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    text: str,
    colour: str,
    height: float = 1.0,
    bold: bool = False,
) -> None:
    """Draw a box with rounded corners around a text; its middle is at `x` and `y`."""
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
    axes.text(x, y, text, ha="center", va="center", fontsize=11)


def arrow(axes: Axes, *points: tuple[float, float], bold: bool = False) -> None:
    """Draw an arrow along some points, by the shortest way."""
    axes.add_patch(
        FancyArrowPatch(
            path=Path(points),
            arrowstyle="-|>",
            mutation_scale=11,
            color="black" if bold else "#555555",
            linewidth=2.2 if bold else 1.0,
        )
    )
