import itertools

import pytest
from drawings import texts
from fakes import FakeArray, FakeDevice
from matplotlib.colors import to_hex
from tables import cells_of
from timelines import event, timeline

from d2lpar import COLORS, Quantity, compare
from d2lpar.book import asynchronous_computation as page


def test_the_time_is_that_of_the_operation_alone(clock):
    held = page.time_held({"slow": lambda y, s, i: clock.advance(3)}, seconds=1e-4, clock=clock)
    assert held["slow"].seconds == 3


def test_the_table_sets_operations_that_wait_beside_those_that_go_on():
    held = {"a < b": (True, 0.02), "f(y)": (False, 1e-5), "c": (True, 0.01)}
    table = page.HeldTable((name, page.Held(*each)) for name, each in held.items())
    _, first, second = cells_of(table._repr_html_())
    assert first == ["a < b", "20 ms", "", "f(y)", "10 µs", ""]
    assert second == ["c", "10 ms", "", "", "", ""]


@pytest.mark.parametrize(("t1", "t2"), [(3, 5), (5, 3), (4, 4)])
def test_the_durations_are_those_of_the_two_ends_and_the_model_follows_from_them(clock, t1, t2):
    device = FakeDevice(clock)
    ways = {
        "one iteration": lambda: device.run(t2, dispatch=t1),
        "one call": lambda: device.run(t2),
        "nine calls": lambda: [device.run(t2) for _ in range(9)],
    }
    times = compare(ways, clock=clock)
    found = page.Pipeline.of(times, iterations=10)
    assert (found.t1.median, found.t2.median) == (t1, t2)
    assert found.with_barrier.median == 10 * (t1 + t2)
    assert found.without.median == t1 + t2 + 9 * max(t1, t2)


def test_results_are_counted_that_are_unfinished_at_the_same_time(clock):
    ready_at = iter([5, 1, 9])

    def call():
        clock.advance(2)
        return FakeArray(clock, next(ready_at))

    assert page.most_unfinished(call, 3) == 1
    assert clock.now == 9


def test_the_calls_lie_between_the_two_ends_and_no_words_overlap():
    axes = page.plot_two_ends()
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    x = {text.get_text().split("\n")[0]: text.get_position()[0] for text in axes.texts}
    assert x["Python"] < x["tanh(z)"] < x["y + 2"] < x["x @ x"] < x["device"]


def test_the_same_steps_of_two_loops_are_numbered_and_begin_and_end_with_a_run():
    def loop(period):
        return timeline(
            event("Python", 0, 1, "step", "dispatch"),
            *(event("CPU 0", n * period, n * period + 10, "step", "", n) for n in range(6)),
            event("CPU 0", period + 10, period + 12, "other", "", 9),
        )

    axes = page.plot_steps({"slow": loop(30), "fast": loop(20)}, "step", 2, 4)
    assert [texts(chart) for chart in axes] == [["step 2", "step 3", "step 4"]] * 2
    shown = [chart.collections[0].get_paths() for chart in axes]
    last = [max(path.get_extents().x1 for path in paths) for paths in shown]
    assert last == pytest.approx([90e-9, 60e-9])
    assert "since the end of step 1" in axes[-1].get_xlabel()


def test_steps_that_the_profiler_did_not_see_are_no_error():
    watched = timeline(event("Python", 0, 1, "step", "dispatch"), event("CUDA 0", 0, 99, "result"))
    (axes,) = page.plot_steps({"a loop": watched}, "step", 1, 2)
    assert texts(axes) == ["result"]


def test_calls_are_numbered_from_one_and_the_line_stands_behind_the_limit():
    axes = page.plot_calls([1e-5, 1e-5, 1e-2], limit=2)
    points, line = axes.lines
    assert list(points.get_xdata()) == [1, 2, 3]
    assert list(line.get_xdata()) == [2.5, 2.5]
    assert texts(axes) == ["after 2 calls"]


def test_each_way_has_a_bar_of_its_color_in_each_panel_with_its_unit():
    roles = {"barrier": "barrier", "free": "none"}
    panels = {
        "time": {name: Quantity(name, (0.1, 0.2), "s") for name in roles},
        "memory": {name: Quantity(name, (2e6, 4e6), "B") for name in roles},
    }
    time, memory = page.plot_ways(panels, roles)
    assert [bar.get_width() for bar in memory.patches] == [3e6, 3e6]
    colors = [to_hex(bar.get_facecolor()).upper() for bar in time.patches]
    assert colors == [COLORS[role].upper() for role in roles.values()]
    memory.figure.draw_without_rendering()
    assert any("MB" in label.get_text() for label in memory.get_xticklabels())
    assert [label.get_text() for label in time.get_yticklabels()] == list(roles)
