from d2lpar import COLORS, Measurement, PeakMemory, Quantity
from d2lpar.book import measuring_asynchronous_code as page


def measured(name, *seconds):
    return Measurement(name, *(Quantity(name, seconds, "s") for _ in range(2)))


def places_of(line):
    return list(line.get_xdata())


def test_every_pair_is_in_the_picture_however_far_out_it_lies():
    ratio = Quantity("B over A", [0.1, *[1.0] * 8, 7.0])
    axes = page.plot_pairs(ratio)
    assert places_of(axes.lines[0]) == list(ratio.samples)
    low, high = axes.get_xlim()
    assert low < 0.1
    assert high > 7
    near = page.plot_pairs(Quantity("B over A", [1.0] * 9))  # A half and two, for comparison.
    assert near.get_xlim()[0] < 0.5 < 2 < near.get_xlim()[1]


def test_the_points_of_an_arm_stand_where_it_was_called():
    arms = {"A": measured("A", 1.0, 4.0), "B": measured("B", 2.0, 3.0)}
    in_turn, in_a_row = page.plot_orders({"in turn": (arms, "ABBA"), "in a row": (arms, "AABB")})
    points = [line for line in in_turn.lines if line.get_marker() in "os"]
    assert [places_of(line) for line in points] == [[1, 4], [2, 3]]
    assert [list(line.get_ydata()) for line in points] == [[1, 4], [2, 3]]
    points = [line for line in in_a_row.lines if line.get_marker() in "os"]
    assert [places_of(line) for line in points] == [[1, 2], [3, 4]]
    assert [axes.get_title() for axes in (in_turn, in_a_row)] == ["in turn", "in a row"]


def test_memory_is_drawn_above_its_start_with_a_square_where_one_reads_it_in_the_end():
    readings = iter([100, 700, 150] * 2)
    watched = {}
    for name in ("barrier", "none"):
        watched[name] = PeakMemory(lambda: 0)
        watched[name].samples = [(0.1 * n, next(readings)) for n in range(3)]
    axes = page.plot_memory(watched)
    curves, squares = axes.lines[::2], axes.lines[1::2]
    assert [list(line.get_ydata()) for line in curves] == [[0, 600, 50]] * 2
    assert [list(line.get_ydata()) for line in squares] == [[50]] * 2
    assert [line.get_color() for line in curves] == [COLORS["barrier"], COLORS["none"]]
