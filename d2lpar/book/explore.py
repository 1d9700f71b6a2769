"""Charts with sliders that work in the page, without a kernel, by Vega-Altair.

A chart has the width of a phone. On a larger screen the page scales it.
"""

from dataclasses import dataclass
from typing import Any

import altair as alt

MIME_TYPE = "application/vnd.d2lpar.explorable+json"
"""The MIME type of an explorable among a notebook's outputs, which the book turns into a figure."""

_WIDTH = 250  # Pixels, without the labels.


@dataclass(frozen=True)
class Explorable:
    """A chart with sliders, shown when it is the last value of a cell.

    The chart's description is its alternative text for readers who cannot see it.
    """

    chart: alt.TopLevelMixin

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return Altair's own output for this notebook, and the specification for the book."""
        bundle = self.chart._repr_mimebundle_(include, exclude)
        # Altair returns the data alone, or a pair of data and metadata.
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        return data | {MIME_TYPE: self.chart.to_dict()}


def slider(
    name: str, value: float, low: float, high: float, step: float, label: str
) -> alt.Parameter:
    """Return a parameter of a chart, with a slider for the reader to set it."""
    bind = alt.binding_range(min=low, max=high, step=step, name=label)
    return alt.param(name=name, value=value, bind=bind)


def stacked(
    parts: list[alt.Chart | alt.LayerChart], sliders: list[alt.Parameter], description: str
) -> Explorable:
    """Return charts stacked vertically, with their sliders, in the style of the book."""
    parts = [part.properties(width=_WIDTH) for part in parts]
    chart = (
        alt.vconcat(*parts, spacing=10, description=description)
        .add_params(*sliders)
        .configure(background="white", font="DejaVu Sans, sans-serif")
        .configure_view(stroke=None)
        .configure_axisX(labelFlush=False)
        .configure_axis(labelFontSize=11, titleFontSize=11, titleFontWeight="normal")
        .configure_title(fontSize=12, fontWeight="normal", anchor="start", frame="group")
        .configure_text(fontSize=11)
    )
    return Explorable(chart)
