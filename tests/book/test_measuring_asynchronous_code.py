from d2lpar import COLORS, PeakMemory
from d2lpar.book import measuring_asynchronous_code as page


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
