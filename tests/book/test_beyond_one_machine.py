import pytest

from d2lpar import Quantity
from d2lpar.book.beyond_one_machine import MessageCost, plot_processes, plot_speed_ups


def test_the_cost_of_messages_is_a_line_through_the_smallest_and_the_largest():
    times = {
        1000: Quantity("small", [0.004, 0.005], "s"),
        5000: Quantity("middle", [9.0, 9.0], "s"),
        9000: Quantity("large", [0.012, 0.013], "s"),
    }
    cost = MessageCost.of(times)
    assert cost.alpha.samples == (0.004, 0.005)
    assert cost.beta.samples == pytest.approx((1e-6, 1e-6))
    assert cost.seconds(3, 2000) == pytest.approx(3 * 0.0045 + 0.002)


# --- Figures ------------------------------------------------------------------------------------


def test_each_process_has_a_row_with_what_its_python_did_and_the_first_is_on_top():
    axes = plot_processes([(1.0, 1.0001, 1.0003, 1.05), (1.0, 1.049, 1.0492, 1.05)])
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["process 0", "process 1"]
    assert axes.yaxis_inverted()
    written = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert written == {"waits": 0, "sleeps": 1}


def test_each_way_to_sum_has_points_and_a_line_of_one_color_and_the_rows_are_written_out():
    twice = Quantity("speed-up", [2.0] * 9)
    axes = plot_speed_ups(
        [64, 4096], {"a": [twice, twice], "b": [twice, twice]}, {"a": [1, 2], "b": [0.5, 1]}
    )
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "4,096"]
    lines = {line.get_label(): line for line in axes.lines}
    assert set(lines["one process"].get_ydata()) == {1}
    assert lines["predicted"].get_linestyle() == "--"
    _, *predicted = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [list(line.get_ydata()) for line in predicted] == [[1, 2], [0.5, 1]]
    points = [container.lines[0].get_color() for container in axes.containers]
    assert points == [line.get_color() for line in predicted]
    assert len(set(points)) == 2
