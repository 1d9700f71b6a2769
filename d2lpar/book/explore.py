"""Figures to explore: sliders that work in the page, without a kernel; the one module with Altair.

A chart is drawn for the width of a phone. On a larger screen the page scales it.
"""

from dataclasses import dataclass
from typing import Any

import altair as alt

from d2lpar.plot import COLOURS

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

# The lowest chart says what the lines of all three are.
_GRID_ONLY = alt.Axis(labels=False, ticks=False, title=None)
_TURNS = 8  # Operations. So many fit beside each other on a phone.
_LONGEST = {"t1": 6, "t2": 6, "t3": 4}  # Milliseconds.


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
        A Gantt chart, the operations that are queued or running, and the time that all of them take
        with a barrier in each turn, with the limit, and without it. Times are in milliseconds.

    Example:
        >>> pipeline().chart.to_dict()["params"][0]["name"]
        't1'
    """
    sliders = [
        _slider("t1", 3, 0.5, _LONGEST["t1"], 0.5, "t₁ dispatch (ms)"),
        _slider("t2", 5, 0.5, _LONGEST["t2"], 0.5, "t₂ compute (ms)"),
        _slider("t3", 4, 0, _LONGEST["t3"], 0.5, "t₃ return (ms)"),
        _slider("L", 2, 1, _TURNS, 1, "limit"),
    ]
    # The same axis wherever the sliders stand: a bar that grows is seen to grow.
    scale = alt.Scale(domain=[0, _TURNS * sum(_LONGEST.values())], nice=False)
    known = f"{_computed('(datum.k - L)')} + t3"
    operations = alt.Chart(alt.sequence(_TURNS, as_="k")).transform_calculate(
        dispatched=f"t1 + max(datum.k * t1, datum.k < L ? 0 : {known})",
        computed=_computed("datum.k"),
    )
    last = _TURNS - 1
    awaited = f"datum.k + L <= {last} || datum.k == {last}"  # Python waits for no others.
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
            alt.X("time:Q", scale=scale, axis=_GRID_ONLY),
            alt.Y(
                "in_flight:Q",
                stack=None,
                title=None,
                scale=alt.Scale(domain=[0, _TURNS]),
                axis=alt.Axis(values=[0, 4, 8]),
            ),
        )
    )
    totals = {
        "barrier in each turn": f"{_TURNS} * (t1 + t2 + t3)",
        "with the limit": f"{_computed(str(last))} + t3",
        "no limit": f"t1 + t2 + t3 + {last} * max(t1, t2)",
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
        in_flight.properties(title="Queued or running", height=56),
        (total.mark_bar(height=18, color=COLOURS["model"]) + numbers).properties(
            title="Until Python has the last result", height=78
        ),
    ]
    return _stacked(
        parts,
        sliders,
        "Three charts over one axis of time. In the first, Python dispatches operations one after "
        "the other, the device computes them one after the other, and the last result returns. In "
        "the second, operations pile up and are worked off. In the third, bars compare how "
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
            alt.X("begin:Q", scale=scale, axis=_GRID_ONLY),
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


# --- A thousand machines ----------------------------------------------------------------------

_DOUBLINGS = 10  # Up to 1024 machines.


def fleet() -> Explorable:
    """Return a chart of the speed-up by many machines in a model, with a slider for each part.

    A step computes for C on one machine, and its n bytes of gradients are added up in a ring: in
    2 (p - 1) rounds, each of which costs a latency and n/p bytes (P. Patarasuk and X. Yuan, 2009,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, Journal of Parallel and
    Distributed Computing 69). Nothing overlaps.

    Returns:
        Curves over the number of machines, both axes logarithmic, of the speed-up with the same
        minibatch for all, strong scaling, with as many rows for each, weak scaling, and of a
        machine for a machine.

    Example:
        >>> [parameter["name"] for parameter in fleet().chart.to_dict()["params"]]
        ['C', 'a', 'B', 'n']
    """
    sliders = [
        _slider("C", 500, 50, 5000, 50, "compute (ms)"),
        _slider("a", 50, 0, 500, 10, "latency (µs)"),
        _slider("B", 10, 1, 100, 1, "bandwidth (GB/s)"),
        _slider("n", 400, 10, 2000, 10, "gradients (MB)"),
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
    colours = [COLOURS[role] for role in ("model", "window", "device")]
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
                scale=alt.Scale(domain=list(ways), range=colours),
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
    return _stacked(
        [lines],
        sliders,
        "Speed-up over the number of machines, from 1 to 1024, both on logarithmic scales. A "
        "dashed diagonal is a machine for a machine. Weak scaling follows it and then falls "
        "behind; strong scaling rises, has a peak where the latencies of the ring take over, and "
        "falls.",
    )


# --- How it is put together -------------------------------------------------------------------


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
