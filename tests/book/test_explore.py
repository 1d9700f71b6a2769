import itertools
import math

import altair as alt
import pytest
import vl_convert

from d2lpar.book import explore
from d2lpar.errors import ArgumentError
from d2lpar.plot import COLOURS, device_colour
from d2lpar.timeline import Event, Timeline

WIDTH = 250


def drawn(explorable, **values):
    """Return what a browser would draw with sliders at these values: the marks, in order."""
    spec = explorable.chart.to_dict()
    names = [parameter["name"] for parameter in spec["params"]]
    for name, value in values.items():
        spec["params"][names.index(name)]["value"] = value
    scene = vl_convert.vegalite_to_scenegraph(spec, vl_version=vl_version())["scenegraph"]
    return list(marks_of(scene))


def vl_version():
    """Return the version of Vega-Lite that Altair writes, as vl_convert names it."""
    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


def marks_of(item):
    for inner in item.get("items", []):
        if item.get("marktype") in ("rect", "text", "area") and item.get("role") == "mark":
            yield item["marktype"], inner
        else:
            yield from marks_of(inner)


def bars_of(marks, colour):
    """Return the left and right end of each bar of a colour, as shares of the width."""
    rects = [item for kind, item in marks if kind == "rect" and item["fill"] == colour]
    return sorted((item["x"] / WIDTH, (item["x"] + item["width"]) / WIDTH) for item in rects)


def simulated(t1, t2, t3, count, limit):
    """Return when each operation was dispatched and computed, step by step."""
    dispatched, computed = [], []
    for k in range(count):
        free = dispatched[-1] if k else 0
        allowed = computed[k - limit] + t3 if k >= limit else 0
        dispatched.append(max(free, allowed) + t1)
        computed.append(max(dispatched[-1], computed[-1] if k else 0) + t2)
    return dispatched, computed


def as_python(expression):
    """Return an expression of Vega with Python's names; its `+`, `*`, `/` and `%` are the same."""
    return eval(f"lambda k, t1, t2, t3, L: {expression}", {"floor": math.floor})


def test_the_closed_form_is_what_a_simulation_gives():
    computed_at = as_python(explore._computed("k"))
    times = (0.5, 2, 5, 10)
    for t1, t2, t3, limit in itertools.product(times, times, (0, 3, 9.5), (1, 2, 3, 7, 16)):
        _, computed = simulated(t1, t2, t3, 16, limit)
        found = [computed_at(k, t1, t2, t3, limit) for k in range(16)]
        assert found == computed, (t1, t2, t3, limit)


@pytest.mark.parametrize(
    ("t1", "t2", "t3", "count", "limit"),
    [(2, 0.5, 3, 7, 16), (2, 5, 9.5, 7, 2), (2, 2, 0, 7, 3), (1, 1, 1, 1, 1), (0.5, 10, 10, 16, 2)],
)
def test_the_pipeline_is_drawn_as_it_is_simulated(t1, t2, t3, count, limit):
    marks = drawn(explore.pipeline(), t1=t1, t2=t2, t3=t3, N=count, L=limit)
    dispatched, computed = simulated(t1, t2, t3, count, limit)
    longest = count * (t1 + t2 + t3)

    def shares(ends, takes):
        return [pytest.approx(((end - takes) / longest, end / longest)) for end in ends]

    assert bars_of(marks, COLOURS["host"]) == shares(dispatched, t1)
    assert bars_of(marks, COLOURS["device"]) == shares(computed, t2)
    total = computed[-1] + t3
    said = [item["text"] for kind, item in marks if kind == "text"]
    no_limit = t1 + t2 + t3 + (count - 1) * max(t1, t2)
    assert [float(text) for text in said] == pytest.approx([longest, total, no_limit])


@pytest.mark.parametrize("limit", [1, 5])
def test_the_pipeline_counts_what_is_in_flight_and_keeps_to_the_limit(limit):
    marks = drawn(explore.pipeline(), t1=1, t2=4, t3=2, N=10, L=limit)
    dispatched, computed = simulated(1, 4, 2, 10, limit)
    heights = [item["height"] for kind, item in marks if kind == "area"]
    most = max(
        sum(d <= at < c for d, c in zip(dispatched, computed, strict=True)) for at in dispatched
    )
    assert most <= limit
    assert len(heights) == 2 * 10
    one = max(heights) / most
    steps = [round(height / one) for height in heights]
    assert [abs(after - before) for before, after in itertools.pairwise([0, *steps])] == [1] * 20


def timeline(*events):
    return Timeline(tuple(Event(*event) for event in events))


IN_TURN = timeline(
    ("Python", "chain", "dispatch", 1, 0, 1_000_000),
    ("CPU 0", "chain", "", 1, 1_000_000, 3_000_000),
    ("Python", "chain", "wait", 1, 1_000_000, 9_000_000),
    ("CPU 1", "product", "", 2, 5_000_000, 5_000_000),
)
AT_ONCE = timeline(("CPU 1", "product", "", 2, 0, 2_000_000))


def test_each_bar_of_the_timelines_is_where_its_event_was():
    marks = drawn(explore.timelines({"in turn": IN_TURN, "at once": AT_ONCE}))
    assert bars_of(marks, COLOURS["host"]) == [(0, 0.1), (0.1, 1)]
    assert bars_of(marks, device_colour("CPU 0")) == [(0.1, 0.4)]
    assert bars_of(marks, device_colour("CPU 1")) == [(0, 0.2), (0.5, 1)]


def test_a_bar_too_narrow_for_a_white_edge_has_one_of_its_own_colour():
    short = ("CPU 1", "copy", "", 1, 0, 20_000)
    explorable = explore.timelines({"": timeline(short, ("CPU 0", "chain", "", 1, 0, 9_000_000))})
    for show, edge in ((100, device_colour("CPU 1")), (1, "white")):
        marks = drawn(explorable, show=show)
        (bar,) = (item for kind, item in marks if item.get("fill") == device_colour("CPU 1"))
        assert bar["stroke"] == edge


def test_the_chosen_bar_is_framed_on_top_of_the_others():
    marks = drawn(explore.timelines({"in turn": IN_TURN}), chosen=1)
    rects = [item for kind, item in marks if kind == "rect"]
    assert [item.get("stroke") == "black" for item in rects] == [False] * 4 + [True]
    assert rects[-1]["x"] + rects[-1]["width"] == pytest.approx(0.1 * WIDTH)


def test_two_sliders_zoom_into_the_timelines_and_never_beyond_their_end():
    explorable = explore.timelines({"in turn": IN_TURN})
    for begin in 50, 80:
        marks = drawn(explorable, from_=begin, show=50)
        assert bars_of(marks, device_colour("CPU 1")) == [(0, 1)]


def test_a_slider_says_what_each_bar_is():
    explorable = explore.timelines({"in turn": IN_TURN, "at once": AT_ONCE})
    said = {
        number: [item["text"] for kind, item in drawn(explorable, chosen=number) if kind == "text"]
        for number in (1, 5)
    }
    assert said == {
        1: ["in turn, Python: chain dispatch", "starts at 0.000 ms, takes 1.000 ms"],
        5: ["at once, CPU 1: product", "starts at 0.000 ms, takes 2.000 ms"],
    }


def test_timelines_without_an_event_are_refused():
    with pytest.raises(ArgumentError, match="1 timelines without an event were given; record_tr"):
        explore.timelines({"empty": Timeline(())})


def test_a_notebook_gets_the_chart_and_the_book_its_specification():
    explorable = explore.pipeline()
    shown = explorable._repr_mimebundle_()
    assert "vegaEmbed" in shown["text/html"]
    assert shown[explore.MIME_TYPE] == explorable.chart.to_dict()
    assert len(shown[explore.MIME_TYPE]["description"].split()) > 10


def test_what_is_shown_follows_the_renderer_that_the_user_has_chosen():
    with alt.renderers.enable("mimetype"):
        shown = explore.pipeline()._repr_mimebundle_()
    assert "text/html" not in shown
    assert explore.MIME_TYPE in shown
