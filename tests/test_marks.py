import math

import matplotlib
import numpy as np
import pytest
from drawings import style_of_the_book

from d2lpar import Quantity
from d2lpar._plot import error_bars, format_axis, format_log_axis, interval_ends

NINE = Quantity("nine", range(1, 10), "s")  # The interval of their median is 2 to 8.
FEW = Quantity("few", (1.0, 2.0, 4.0), "s")


@pytest.fixture
def axes():
    with style_of_the_book():
        yield matplotlib.pyplot.figure().add_subplot()


def labels(axis):
    axis.figure.draw_without_rendering()
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


def test_an_error_bar_reaches_to_the_ends_of_the_interval():
    np.testing.assert_allclose(error_bars([NINE, NINE / 2]), [[3, 1.5], [3, 1.5]])


def test_where_there_is_no_interval_the_samples_are_the_ends():
    assert not math.isfinite(FEW.interval[0])
    assert interval_ends(FEW) == (1, 4)


@pytest.mark.parametrize(
    ("unit", "ticks", "shown"),
    [
        ("s", [0, 1e-3, 2e-3], ["0", "1 ms", "2 ms"]),
        ("", [0, 3e6, 6e6], ["0", "3 M", "6 M"]),
        ("", [0, 25e3, 50e3], ["0", "25 k", "50 k"]),
    ],
)
def test_numbers_have_units_large_ones_without_any_a_prefix_and_zero_is_bare(
    axes, unit, ticks, shown
):
    axes.set_xlim(0, ticks[-1])
    axes.set_xticks(ticks)
    format_axis(axes.xaxis, unit)
    assert labels(axes.xaxis) == shown


@pytest.mark.parametrize(
    ("limits", "shown", "hidden"), [((1e-3, 9e-3), "5 ms", "3 ms"), ((1e-3, 1), "10 ms", "50 ms")]
)
def test_a_logarithmic_axis_has_more_labels_where_it_spans_little(axes, limits, shown, hidden):
    axes.set_xscale("log")
    axes.set_xlim(limits)
    format_log_axis(axes.xaxis, "s")
    assert shown in labels(axes.xaxis)
    assert hidden not in labels(axes.xaxis)
