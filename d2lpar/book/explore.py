"""Charts to explore: sliders that work in the page, without a kernel, by Vega-Altair.

A chart is drawn for the width of a phone. On a larger screen the page scales it.
"""

from dataclasses import dataclass
from typing import Any

import altair as alt

MIME_TYPE = "application/vnd.d2lpar.explorable+json"
"""The type under which a notebook keeps an explorable, of which the book makes a figure."""

_WIDTH = 250  # Pixels, without the labels.


@dataclass(frozen=True)
class Explorable:
    """A chart with sliders, shown when it is the last value of a cell.

    Its description says what is to be seen, for those who do not see it.
    """

    chart: alt.TopLevelMixin

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return it as Altair shows a chart in this notebook, and as the book reads it."""
        shown = self.chart._repr_mimebundle_(include, exclude)
        data, *_ = shown if isinstance(shown, tuple) else (shown,)  # Or data and metadata.
        return data | {MIME_TYPE: self.chart.to_dict()}


def slider(
    name: str, value: float, low: float, high: float, step: float, label: str
) -> alt.Parameter:
    """Return a parameter of a chart that the reader sets."""
    bind = alt.binding_range(min=low, max=high, step=step, name=label)
    return alt.param(name=name, value=value, bind=bind)


def stacked(
    parts: list[alt.Chart | alt.LayerChart], sliders: list[alt.Parameter], description: str
) -> Explorable:
    """Return charts below one another, with their sliders, in the style of the book."""
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
