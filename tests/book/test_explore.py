import altair as alt
import pytest
import vl_convert

from d2lpar import COLORS
from d2lpar.book.asynchronous_computation import explore_pipeline
from d2lpar.book.beyond_one_machine import explore_machines

WIDTH = 250


def drawn(explorable, **values):
    """Return the marks that a browser would draw with sliders at these values, in order."""
    spec = explorable.chart.to_dict()
    names = [parameter["name"] for parameter in spec["params"]]
    for name, value in values.items():
        spec["params"][names.index(name)]["value"] = value
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    scene = vl_convert.vegalite_to_scenegraph(spec, vl_version=version)["scenegraph"]
    return list(marks_of(scene))


def marks_of(item):
    for inner in item.get("items", []):
        if item.get("marktype") in ("rect", "text", "area") and item.get("role") == "mark":
            yield item["marktype"], inner
        else:
            yield from marks_of(inner)


def bars_of(marks, color):
    """Return the left and right end of each bar of a color, as shares of the width."""
    rects = [item for kind, item in marks if kind == "rect" and item["fill"] == color]
    return sorted((item["x"] / WIDTH, (item["x"] + item["width"]) / WIDTH) for item in rects)


def simulated(t1, t2, t3, count, limit):
    dispatched, computed = [], []
    for k in range(count):
        free = dispatched[-1] if k else 0
        allowed = computed[k - limit] + t3 if k >= limit else 0
        dispatched.append(max(free, allowed) + t1)
        computed.append(max(dispatched[-1], computed[-1] if k else 0) + t2)
    return dispatched, computed


@pytest.mark.parametrize(
    ("t1", "t2", "t3", "limit"),
    [(2, 0.5, 3, 8), (2, 5, 3.5, 2), (2, 2, 0, 3), (1, 1, 1, 1), (0.5, 6, 4, 2), (3, 1, 3.5, 2)],
)
def test_the_pipeline_is_drawn_as_it_is_simulated_on_an_axis_that_stays(t1, t2, t3, limit):
    marks = drawn(explore_pipeline(), t1=t1, t2=t2, t3=t3, L=limit)
    dispatched, computed = simulated(t1, t2, t3, 8, limit)
    longest = 8 * (t1 + t2 + t3)

    def shares(ends, takes):
        return [pytest.approx(((end - takes) / 128, end / 128)) for end in ends]

    assert bars_of(marks, COLORS["host"]) == shares(dispatched, t1)
    assert bars_of(marks, COLORS["device"]) == shares(computed, t2)
    total = computed[-1] + t3
    said = [item["text"] for kind, item in marks if kind == "text"]
    no_limit = t1 + t2 + t3 + 7 * max(t1, t2)
    assert [float(text) for text in said] == pytest.approx([longest, total, no_limit])


# --- A thousand machines ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "latency", "bandwidth", "size"), [(500, 50, 10, 400), (50, 0, 1, 10)]
)
def test_the_lines_of_the_fleet_are_the_formula_of_a_ring(compute, latency, bandwidth, size):
    spec = explore_machines().chart.to_dict()
    (lines,) = spec["vconcat"]
    ways = {each["as"]: each["calculate"] for each in lines["transform"] if "calculate" in each}
    machine = type("Datum", (), {"p": 16})()
    known = {"datum": machine, "C": compute, "a": latency, "B": bandwidth, "n": size}
    found = {way: eval(expression, {}, known) for way, expression in ways.items() if way != "p"}
    per_round = latency * 1e-6 + size * 1e6 / 16 / (bandwidth * 1e9)
    talking = 2 * 15 * per_round
    seconds = compute / 1000
    assert found["ideal"] == 16
    assert found["strong scaling"] == pytest.approx(seconds / (seconds / 16 + talking))
    assert found["weak scaling"] == pytest.approx(16 * seconds / (seconds + talking))
    # The chapter lets the reader find a speed-up of 0.95.
    assert lines["encoding"]["y"]["scale"]["domain"][0] < 0.95
