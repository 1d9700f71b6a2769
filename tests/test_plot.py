import io

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import pytest

from d2lpar import Quantity, compare, plot
from d2lpar.graph import computation_graph


@pytest.fixture(autouse=True)
def style():
    """The book's style on a backend without a screen, and everything closed afterwards."""
    with matplotlib.rc_context():
        matplotlib.use("agg")
        plot.use_style()
        yield
    plt.close("all")


def svg(axes):
    """Return the figure as the book shows it."""
    file = io.StringIO()
    axes.figure.savefig(file, format="svg")
    return file.getvalue()


def texts(axes):
    return [text.get_text() for text in axes.texts]


def legend(axes):
    """Return the labels of the legend, which stands on the figure or on the axes."""
    (found,) = axes.figure.legends or [axes.get_legend()]
    return [text.get_text() for text in found.get_texts()]


def quantity(*samples, unit="s"):
    return Quantity("time", samples, unit)


def test_times_show_both_moments_of_each_arm_in_the_order_given():
    x = jnp.ones(10)
    axes = plot.draw_times(compare({"first": lambda: x + 1, "second": lambda: x + 2}, repeats=6))
    assert {label.get_text() for label in axes.get_yticklabels()} == {"first", "second"}
    heights = dict(zip(("first", "second"), axes.get_yticks(), strict=True))
    assert heights["first"] > heights["second"]
    assert legend(axes) == ["Python has control back", "result is ready"]


def test_times_of_too_few_repeats_to_have_an_interval_are_drawn_all_the_same():
    axes = plot.draw_times(compare({"once": lambda: jnp.ones(3) + 1}, repeats=1))
    assert "<svg" in svg(axes)


def test_the_stack_names_the_versions_and_the_devices_at_hand():
    words = " ".join(texts(plot.draw_stack()))
    assert jax.__version__ in words
    assert f"{jax.devices()[0].platform.upper()} {jax.devices()[0].id}" in words


def test_many_devices_are_drawn_as_a_few_and_the_number_of_the_others(run_python):
    program = """
import matplotlib; matplotlib.use("agg")
from d2lpar import plot
print([text.get_text() for text in plot.draw_stack().texts])
"""
    assert "CPU 3 (+4)" in run_python(program, JAX_NUM_CPU_DEVICES="8")


def test_a_graph_shows_each_operator_with_its_numbers_and_shape():
    x = jnp.ones((1, 2))
    axes = plot.draw_graph(computation_graph(lambda x, y: x * y + 2, x, x))
    assert texts(axes) == [
        "x\nfloat32[1, 2]",
        "y\nfloat32[1, 2]",
        "mul\nfloat32[1, 2]",
        "add 2.0\nfloat32[1, 2]",
    ]


def test_who_waits_for_nobody_is_drawn_above_who_waits():
    axes = plot.draw_graph(computation_graph(lambda x: x * 3 + 2, jnp.ones(2)))
    heights = [text.get_position()[1] for text in axes.texts]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 3


def test_calls_are_numbered_from_one_and_the_line_stands_behind_the_limit():
    axes = plot.draw_calls([1e-5, 1e-5, 1e-2], limit=2)
    points, line = axes.lines
    assert list(points.get_xdata()) == [1, 2, 3]
    assert list(line.get_xdata()) == [2.5, 2.5]
    assert texts(axes) == ["after 2 calls"]


@pytest.mark.parametrize("model", [None, ([10, 100], [3e-5, 4e-5], [1e-5, 2e-5])])
def test_loops_are_drawn_with_and_without_a_model(model):
    times = [quantity(1, 2, 3, 4, 5, 6), quantity(2, 3, 4, 5, 6, 7)]
    axes = plot.draw_loops([10, 100], times, times, model)
    assert len(legend(axes)) == (2 if model is None else 4)
    assert axes.get_xlabel() == "elements"


def test_epochs_and_memory_keep_one_colour_for_one_way_of_waiting():
    roles = {"barrier": "barrier", "free": "none"}
    epochs = plot.draw_epochs({"barrier": [1, 2], "free": [0.1, 2]}, roles)
    counts = {"barrier": quantity(1, 1, unit=""), "free": quantity(20, 24, unit="")}
    peaks = {"barrier": quantity(9e6, 8e6, unit="B"), "free": quantity(2e8, 1.9e8, unit="B")}
    memory = plot.draw_memory(counts, peaks, batch_bytes=8_000_000, styles=roles)
    for name, line in zip(roles, memory.lines, strict=False):
        assert line.get_label() == name
        assert (
            line.get_color() == next(x for x in epochs.lines if x.get_label() == name).get_color()
        )
    memory.figure.canvas.draw()
    assert "200 MB" in [label.get_text() for label in memory.get_yticklabels()]


def test_the_same_figure_is_the_same_file():
    first, second = (svg(plot.draw_calls([1e-5, 1e-2], limit=1)) for _ in range(2))

    def without_date(text):
        return [line for line in text.splitlines() if "<dc:date>" not in line]

    assert without_date(first) == without_date(second)
