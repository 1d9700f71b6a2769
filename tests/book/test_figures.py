from types import SimpleNamespace

import jax
import pytest
from drawings import style_of_the_book, svg, texts
from matplotlib.colors import to_hex

from d2lpar import COLORS, Quantity, exact
from d2lpar.book import figures


@pytest.fixture(autouse=True)
def _style():
    with style_of_the_book():
        yield


def test_the_stack_names_the_versions_and_the_devices_at_hand():
    words = " ".join(texts(figures.plot_stack()))
    assert jax.__version__ in words
    assert f"{jax.devices()[0].platform.upper()} {jax.devices()[0].id}" in words


def test_many_devices_are_drawn_as_a_few_and_the_number_of_the_others(monkeypatch):
    devices = [
        SimpleNamespace(platform="cpu", id=n, device_kind="cpu", memory_stats=None)
        for n in range(8)
    ]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    words = texts(figures.plot_stack())
    assert "CPU 3 (+4)" in words
    assert not any("CPU 4" in word for word in words)


def test_calls_are_numbered_from_one_and_the_line_stands_behind_the_limit():
    axes = figures.plot_calls([1e-5, 1e-5, 1e-2], limit=2)
    points, line = axes.lines
    assert list(points.get_xdata()) == [1, 2, 3]
    assert list(line.get_xdata()) == [2.5, 2.5]
    assert texts(axes) == ["after 2 calls"]


def test_epochs_keep_the_colour_of_each_way_of_waiting():
    roles = {"barrier": "barrier", "free": "none"}
    axes = figures.plot_epochs({"barrier": [1, 2], "free": [0.1, 2]}, roles)
    colors = {line.get_label(): line.get_color() for line in axes.lines}
    assert colors == {name: COLORS[role] for name, role in roles.items()}


def test_each_way_has_a_bar_of_its_colour_in_each_panel_with_its_unit():
    roles = {"barrier": "barrier", "free": "none"}
    panels = {
        "time": {name: Quantity(name, (0.1, 0.2), "s") for name in roles},
        "memory": {name: Quantity(name, (2e6, 4e6), "B") for name in roles},
    }
    time, memory = figures.plot_ways(panels, roles)
    assert [bar.get_width() for bar in memory.patches] == [3e6, 3e6]
    colors = [to_hex(bar.get_facecolor()).upper() for bar in time.patches]
    assert colors == [COLORS[role].upper() for role in roles.values()]
    memory.figure.draw_without_rendering()
    assert any("MB" in label.get_text() for label in memory.get_xticklabels())
    assert [label.get_text() for label in time.get_yticklabels()] == list(roles)


def test_the_same_figure_is_the_same_file():
    first, second = (svg(figures.plot_calls([1e-5, 1e-2], limit=1)) for _ in range(2))

    def without_date(text):
        return [line for line in text.splitlines() if "<dc:date>" not in line]

    assert without_date(first) == without_date(second)


def test_findings_show_a_point_for_each_source_and_shade_where_the_claim_holds():
    printed, measured = exact("gain", 1.03), Quantity("gain", (1.2, 1.3, 1.3, 1.3, 1.4, 1.5))
    (above, between) = figures.plot_findings(
        {
            "faster": {"edition": printed > 1.1, "here": measured > 1.1},
            "about as fast": {"here": measured.between(0.1, 10)},
        }
    )
    assert [label.get_text() for label in above.get_yticklabels()] == ["edition", "here"]
    assert [axes.get_title(loc="left") for axes in (above, between)] == ["faster", "about as fast"]
    assert (above.get_xscale(), between.get_xscale()) == ("linear", "log")
    (shaded,) = above.patches
    assert (shaded.get_x(), shaded.get_x() + shaded.get_width()) == (1.1, above.get_xlim()[1])
    assert above.get_xlim()[0] < 1.03
    (shaded,) = between.patches
    assert shaded.get_width() == pytest.approx(9.9)
    assert "<svg" in svg(above)


def test_where_a_claim_over_two_quantities_holds_lies_beyond_the_interval_of_the_second():
    more = Quantity("more", (4.0, 4.5, 4.5, 4.5, 4.5, 5.0))
    less = Quantity("less", (1.0, 2.0, 2.0, 2.0, 2.0, 3.0))
    (axes,) = figures.plot_findings({"more than less": {"here": more > less}})
    (shaded,) = axes.patches
    assert shaded.get_x() == 3.0
    (axes,) = figures.plot_findings({"nobody knows": {"here": more > Quantity("few", (1.0, 2.0))}})
    assert list(axes.patches) == []


def test_a_finding_from_too_few_samples_is_drawn_all_the_same():
    (axes,) = figures.plot_findings({"less": {"here": Quantity("ratio", (2.0, 3.0)) < 1}})
    (shaded,) = axes.patches
    assert shaded.get_x() + shaded.get_width() == 1


def test_each_process_has_a_row_with_what_its_python_did_and_the_first_is_on_top():
    axes = figures.plot_processes([(1.0, 1.0001, 1.0003, 1.05), (1.0, 1.049, 1.0492, 1.05)])
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["process 0", "process 1"]
    assert axes.yaxis_inverted()
    written = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert written == {"waits": 0, "sleeps": 1}
