"""Figures to explore: sliders that work in the page, without a kernel; the one module with Altair.

A chart is drawn for the width of a phone. On a larger screen the page scales it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt

from d2lpar.errors import ArgumentError
from d2lpar.plot import COLOURS, device_colour
from d2lpar.timeline import COPY, Timeline

MIME_TYPE = "application/vnd.d2lpar.explorable+json"
"""The type under which a notebook keeps an explorable, of which the book makes a figure."""

_WIDTH = 250  # Pixels, without the labels.


@dataclass(frozen=True)
class Explorable:
    """A chart with sliders, shown when it is the last value of a cell.

    Attributes:
        chart: The chart; its description says what is to be seen, for those who do not see it.
    """

    chart: alt.TopLevelMixin

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return it as Altair shows a chart in this notebook, and as the book reads it."""
        shown = self.chart._repr_mimebundle_(include, exclude)
        data, *_ = shown if isinstance(shown, tuple) else (shown,)  # Or data and metadata.
        return data | {MIME_TYPE: self.chart.to_dict()}


# --- The pipeline -----------------------------------------------------------------------------

_MOST = 16  # Operations. So many fit beside each other on a phone.


def pipeline() -> Explorable:
    """Return a chart of the pipeline of front end and back end, with a slider for each part.

    Python dispatches an operation within t1, the device computes it within t2, and t3 later Python
    knows. Each end does one at a time. With a limit of L, Python dispatches an operation only when
    it knows of the one that was asked for L before it. Times like these are longest paths, which
    have a closed form here: operation k, counted from zero, is computed at

        t1 + t2 + max(k m, (k div L) (t1 + t2 + t3) + (k mod L) m)    with m = max(t1, t2),

    as a path either follows the slower end, or goes all the way round L operations at a time (F.
    Baccelli et al., 1992, Synchronization and Linearity, chapter 2).

    Returns:
        A Gantt chart, the operations in flight, and the time that all of them take with a barrier
        in each turn, with the limit, and without it. Times are in milliseconds.

    Example:
        >>> pipeline().chart.to_dict()["params"][0]["name"]
        't1'
    """
    sliders = [
        _slider("t1", 2, 0.5, 10, 0.5, "t₁ dispatch (ms)"),
        _slider("t2", 5, 0.5, 10, 0.5, "t₂ compute (ms)"),
        _slider("t3", 3, 0, 10, 0.5, "t₃ return (ms)"),
        _slider("N", 8, 1, _MOST, 1, "N operations"),
        _slider("L", _MOST, 1, _MOST, 1, "limit in flight"),
    ]
    scale = alt.Scale(domainMin=0, domainMax=alt.ExprRef("N * (t1 + t2 + t3)"), nice=False)
    known = f"{_computed('(datum.k - L)')} + t3"
    operations = (
        alt.Chart(alt.sequence(_MOST, as_="k"))
        .transform_filter("datum.k < N")
        .transform_calculate(
            dispatched=f"t1 + max(datum.k * t1, datum.k < L ? 0 : {known})",
            computed=_computed("datum.k"),
        )
    )
    awaited = "datum.k + L < N || datum.k == N - 1"  # Python waits for no others.
    gantt = alt.layer(
        _bars(operations, scale, "dispatch", "datum.dispatched", "t1", "host"),
        _bars(operations, scale, "compute", "datum.computed", "t2", "device"),
        _bars(
            operations.transform_filter(awaited),
            scale,
            "return",
            "datum.computed + t3",
            "t3",
            "model",
        ),
    )
    in_flight = (
        operations.transform_fold(["dispatched", "computed"], as_=["event", "time"])
        .transform_calculate(change="datum.event == 'dispatched' ? 1 : -1")
        .transform_window(
            in_flight="sum(change)", sort=[alt.SortField("time"), alt.SortField("change")]
        )
        .mark_area(interpolate="step-after", color=COLOURS["window"], opacity=0.7)
        .encode(
            alt.X("time:Q", scale=scale, title=None),
            alt.Y("in_flight:Q", stack=None, title=None, axis=alt.Axis(tickMinStep=1, tickCount=4)),
        )
    )
    totals = {
        "barrier in each turn": "N * (t1 + t2 + t3)",
        "with the limit": f"{_computed('(N - 1)')} + t3",
        "no limit": "t1 + t2 + t3 + (N - 1) * max(t1, t2)",
    }
    total = (
        alt.Chart(alt.sequence(1))
        .transform_calculate(**totals)
        .transform_fold(list(totals), as_=["way", "total"])
        .encode(
            alt.X("total:Q", scale=scale, title="time (ms)"), alt.Y("way:N", sort=None, title=None)
        )
    )
    numbers = total.mark_text(align="right", dx=-4, color="white").encode(text="total:Q")
    parts = [
        gantt.properties(title="What works when", height=84),
        in_flight.properties(title="Results in flight, which hold memory", height=56),
        (total.mark_bar(height=18, color=COLOURS["model"]) + numbers).properties(
            title="Until Python has the last result", height=78
        ),
    ]
    return _stacked(
        parts,
        sliders,
        "Three charts over one axis of time. In the first, Python dispatches operations one after "
        "the other, the device computes them one after the other, and the last result returns. In "
        "the second, results in flight pile up and are worked off. In the third, bars compare how "
        "long it takes with a barrier in each turn, with a limit, and without one.",
    )


def _computed(k: str) -> str:
    """Return the expression of Vega for when operation k is computed."""
    slower = "max(t1, t2)"
    around = f"floor({k} / L) * (t1 + t2 + t3) + ({k} % L) * {slower}"
    return f"t1 + t2 + max({k} * {slower}, {around})"


def _bars(
    operations: alt.Chart, scale: alt.Scale, row: str, end: str, takes: str, role: str
) -> alt.Chart:
    """Return one row of the Gantt chart of the pipeline."""
    return (
        operations.transform_calculate(
            number="datum.k + 1", row=f"'{row}'", begin=f"{end} - {takes}", end=end, takes=takes
        )
        .mark_bar(height=18, color=COLOURS[role], stroke="white", strokeWidth=1)
        .encode(
            alt.X("begin:Q", scale=scale, title=None),
            alt.X2("end:Q"),
            alt.Y("row:N", sort=["dispatch", "compute", "return"], title=None),
            tooltip=[
                alt.Tooltip("number:Q", title="operation"),
                alt.Tooltip("row:N", title="step"),
                alt.Tooltip("begin:Q", title="starts (ms)"),
                alt.Tooltip("takes:Q", title="takes (ms)"),
            ],
        )
    )


# --- Timelines --------------------------------------------------------------------------------


def timelines(timelines: Mapping[str, Timeline]) -> Explorable:
    """Return recorded timelines, to zoom into them and to ask each bar what it is.

    Args:
        timelines: What `record_trace` returns, by the title to be shown.

    Returns:
        A Gantt chart for each timeline, one above the other on one scale of time. Two sliders
        choose the part that is shown; a third goes from bar to bar and says what hovering says.

    Raises:
        ArgumentError: If there is no event to be shown.
    """
    timelines = {title: timeline.programs for title, timeline in timelines.items()}
    events = [(title, e) for title, timeline in timelines.items() for e in timeline.events]
    if not events:
        raise ArgumentError(
            f"{len(timelines)} timelines without an event were given; record_trace returns others."
        )
    bars = [
        {
            "number": number,
            "title": title,
            "device": event.device,
            "operator": f"{event.program} {event.operator}".strip(),
            "begin": event.start / 1e6,
            "end": event.end / 1e6,
            "colour": device_colour(event.device),
            "opacity": {"wait": 0.35, COPY: 0.6}.get(event.operator, 1),
        }
        for number, (title, event) in enumerate(events, start=1)
    ]
    sliders = [
        _slider("from_", 0, 0, 99, 1, "from (%)"),
        _slider("show", 100, 1, 100, 1, "show (%)"),
        _slider("chosen", 1, 1, len(bars), 1, "what is this bar?"),
    ]
    percent = max(bar["end"] for bar in bars) / 100
    begin = f"min(from_, 100 - show) * {percent}"
    scale = alt.Scale(
        domainMin=alt.ExprRef(begin),
        domainMax=alt.ExprRef(f"{begin} + show * {percent}"),
        nice=False,
        zero=False,
    )
    data = alt.Chart(alt.Data(values=bars)).transform_calculate(takes="datum.end - datum.begin")
    is_chosen = "datum.number == chosen"

    def chart_of(title, rows):
        placed = data.transform_filter(alt.datum.title == title).encode(
            alt.X("begin:Q", scale=scale, title="time since the call (ms)"),
            alt.X2("end:Q"),
            alt.Y("device:N", sort=list(rows), title=None),
        )
        # A white edge sets bars apart; of a bar that is hardly wider it would leave nothing.
        is_wide = alt.when(f"datum.takes > show * {percent / 100}")
        filled = placed.mark_bar(height=18, clip=True, strokeWidth=0.5).encode(
            alt.Color("colour:N", scale=None),
            alt.Opacity("opacity:Q", scale=None),
            stroke=is_wide.then(alt.value("white")).otherwise(alt.Stroke("colour:N", scale=None)),
            tooltip=[
                alt.Tooltip("device:N"),
                alt.Tooltip("operator:N"),
                alt.Tooltip("begin:Q", title="starts (ms)", format=".3f"),
                alt.Tooltip("takes:Q", title="takes (ms)", format=".3f"),
            ],
        )
        chosen = placed.transform_filter(is_chosen).mark_bar(
            aria=False, height=20, clip=True, filled=False, stroke="black", strokeWidth=2
        )
        return alt.layer(filled, chosen).properties(title=title, height=alt.Step(26))

    said = data.transform_filter(is_chosen).transform_calculate(
        line1="datum.title + ', ' + datum.device + ': ' + datum.operator",
        line2="'starts at ' + format(datum.begin, '.3f') + ' ms, takes ' + "
        "format(datum.takes, '.3f') + ' ms'",
    )
    lines = [
        said.mark_text(align="left").encode(x=alt.value(-70), y=alt.value(y), text=f"{line}:N")
        for line, y in (("line1", 4), ("line2", 20))
    ]
    charts = [chart_of(title, timeline.rows) for title, timeline in timelines.items()]
    return _stacked(
        [alt.layer(*lines).properties(height=24), *charts],
        sliders,
        f"A Gantt chart for each of: {', '.join(timelines)}. Each has a row for Python and one for "
        "each device, with a bar for each call, wait, copy or run of a program.",
    )


# --- Common to both ---------------------------------------------------------------------------


def _slider(
    name: str, value: float, low: float, high: float, step: float, label: str
) -> alt.Parameter:
    """Return a parameter of a chart that the reader sets."""
    bind = alt.binding_range(min=low, max=high, step=step, name=label)
    return alt.param(name=name, value=value, bind=bind)


def _stacked(
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
