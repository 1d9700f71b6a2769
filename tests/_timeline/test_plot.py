import itertools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from drawings import legend, style_of_the_book, svg, texts
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path

from d2lpar import Event, Quantity, Timeline, computation_graph, cpu
from d2lpar._timeline import plot
from d2lpar._timeline.plot import error_bars, format_axis, format_log_axis, interval_ends

_style = pytest.fixture(style_of_the_book, autouse=True)


def graph_of(edges):
    """Return a graph from words such as "a-b b-c"; its nodes have all attributes for drawing."""
    graph = nx.DiGraph(edge.split("-") for edge in edges.split())
    for node, attributes in graph.nodes.items():
        attributes |= dict(operator=node, name=None, constants=(), shape=(), dtype="f", device=None)
    return graph


FORK = graph_of("x-a a-s1 s1-s2 s2-s3 a-copy copy-m1 m1-m2 m2-m3 m3-back s3-mean back-mean")
DIAMOND = graph_of("x-a a-copy copy-c c-back back-join a-b b-join")
SKIP = graph_of("x-a a-b b-c c-d a-d")
RESIDUAL = graph_of("x-a w-a a-b b-add x-add add-c w-c c-d d-sum add-sum")


def test_a_graph_shows_each_operator_with_its_numbers_and_its_shape_unless_it_is_large():
    x = jnp.ones((1, 2))
    axes = plot.plot_graph(computation_graph(lambda x, y: x * y + 2, x, x))
    assert texts(axes) == [
        "x\nfloat32[1, 2]",
        "y\nfloat32[1, 2]",
        "mul\nfloat32[1, 2]",
        "add 2.0\nfloat32[1, 2]",
    ]
    large = random_graph(0)
    assert texts(plot.plot_graph(large)) == list(large)


def test_nodes_are_drawn_in_the_color_of_their_device_and_the_legend_names_each():
    def program(x):
        return x + 1, jax.device_put(x * 2, cpu(1)) + 1

    axes = plot.plot_graph(computation_graph(program, jax.device_put(jnp.ones(2), cpu(0))))
    edges = {to_hex(box.get_edgecolor()).upper() for box in boxes(axes)}
    assert edges == {plot.device_color("CPU 0"), plot.device_color("CPU 1")}
    assert legend(axes) == ["CPU 0", "CPU 1", "copy"]


def test_a_copy_is_a_dot_in_the_color_of_its_target_and_a_large_graph_has_no_inputs():
    many = jnp.ones((20, 2))
    graph = computation_graph(lambda x, *_: jax.device_put(x + 1, cpu(1)) + 2, *many)
    axes = plot.plot_graph(graph)
    assert texts(axes) == ["add 1.0", "add 2.0"]
    dot, _ = axes.lines  # The other is in the legend.
    assert dot.get_color() == plot.device_color("CPU 1")
    to_dot, from_dot = lines(axes)
    (x,), (y,) = dot.get_data()
    for end in (to_dot[-1], from_dot[0]):
        assert math.dist(end, (x, y)) < 0.2


def test_the_words_of_a_large_graph_are_as_large_as_all_others_and_within_their_boxes():
    long = "-".join(["replicas[0][0]", *"abcdefghijkl"])
    axes = plot.plot_graph(graph_of(" ".join(map("-".join, itertools.pairwise(long.split("-"))))))
    axes.figure.draw_without_rendering()
    for text, box in zip(axes.texts, boxes(axes), strict=True):
        assert text.get_fontsize() == plt.rcParams["font.size"]
        assert text.get_window_extent().width < box.get_window_extent().width


# --- Colors -----------------------------------------------------------------------------------

# Linear light as people see it who lack the cones for long, middle or short waves (G. Machado et
# al., 2009, A Physiologically-based Model for Simulation of Color Vision Deficiency).
SIGHT = {
    "normal": np.eye(3),
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}


def in_the_dark(color):
    """Return a color behind the filter of the style sheet: invert(0.93) hue-rotate(180deg)."""
    turn = [[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]]
    return np.clip(np.dot(turn, np.clip(0.93 - 0.86 * np.array(color), 0, 1)), 0, 1)


def oklab(color, sight="normal"):
    """Return the coordinates of a color in a space of even differences (B. Ottosson, 2020)."""
    to_cones = [[0.412, 0.536, 0.051], [0.212, 0.681, 0.107], [0.088, 0.282, 0.630]]
    to_lab = [[0.210, 0.794, -0.004], [1.978, -2.429, 0.451], [0.026, 0.783, -0.809]]
    return np.dot(to_lab, np.cbrt(np.dot(to_cones, np.dot(SIGHT[sight], linear(color)))))


def linear(color):
    return np.where(color > 0.04045, ((color + 0.055) / 1.055) ** 2.4, color / 12.92)


@pytest.mark.parametrize("seen", [np.array, in_the_dark], ids=["light", "dark"])
def test_two_devices_differ_for_everybody_and_the_frame_of_a_wait_stands_out(seen):
    def shade(color, alpha=1.0):
        return seen(alpha * np.array(to_rgb(color)) + 1 - alpha)

    for alpha, sight in itertools.product((0.7, 1), SIGHT):  # Bars are pale, and boxes are not.
        devices = (shade(plot.device_color(name), alpha) for name in ("CPU 0", "CPU 1"))
        assert math.dist(*(oklab(color, sight) for color in devices)) > 0.12
    colors = plot.COLORS["wait"], "white"
    frame, page = (linear(shade(color)) @ [0.213, 0.715, 0.072] + 0.05 for color in colors)
    assert max(frame, page) / min(frame, page) > 3


def random_graph(seed):
    pairs = nx.gnp_random_graph(16, 0.2, seed, directed=True).edges
    return graph_of(" ".join(f"{start}-{end}" for start, end in pairs if start < end))


SMALL_GRAPHS = {
    "fork and join": FORK,
    "diamond": DIAMOND,
    "skip": SKIP,
    "residual": RESIDUAL,
    "no edges": computation_graph(lambda x, y, z: None, *jnp.ones((3, 2))),
    "no nodes": computation_graph(lambda: None),
    **{f"random {seed}": random_graph(seed) for seed in range(3)},
}
small_graphs = pytest.mark.parametrize("graph", SMALL_GRAPHS.values(), ids=SMALL_GRAPHS)


@small_graphs
def test_boxes_lie_within_the_picture_with_no_other_box_or_edge_behind_them(graph):
    axes = plot.plot_graph(graph)
    inner = [box.get_bbox() for box in boxes(axes)]
    assert all(axes.viewLim.contains(*corner) for box in inner for corner in box.corners())
    assert not any(box.overlaps(other) for box, other in itertools.combinations(inner, 2))
    paths = map(Path, lines(axes))
    assert not any(
        path.intersects_bbox(box, filled=False) for path, box in itertools.product(paths, inner)
    )


@small_graphs
def test_each_edge_leads_from_the_foot_of_its_start_to_the_head_of_its_end(graph):
    axes = plot.plot_graph(graph)
    drawn = lines(axes)
    assert sorted(ends_of(line, graph, axes) for line in drawn) == sorted(graph.edges)
    for line in drawn:
        heights = [y for _, y in line]
        assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize(
    ("graph", "path"),
    [(DIAMOND, ["a", "b", "join"]), (RESIDUAL, ["x", "add", "sum"]), (SKIP, ["a", "d"])],
)
def test_the_nodes_and_edges_of_a_path_are_bold_where_they_skip_layers_as_well(graph, path):
    axes = plot.plot_graph(graph, path)
    widths = [arrow.get_linewidth() for arrow in arrows(axes)]
    bold = [line for line, width in zip(lines(axes), widths, strict=True) if width == max(widths)]
    assert {ends_of(line, graph, axes) for line in bold} == set(itertools.pairwise(path))
    assert widths == sorted(widths)  # Bold over fine where they share their way.
    edges = {node: box.get_linewidth() for node, box in zip(graph, boxes(axes), strict=True)}
    assert {node for node in graph if edges[node] == max(edges.values())} == set(path)


def test_each_row_of_a_timeline_is_drawn_once_and_python_on_top():
    events = (
        Event("Python", "f", "dispatch", 0, 0, 10),
        Event("Python", "block", "wait", 1, 10, 990),
        Event("CPU 0", "f", "dot", 0, 10, 400),
        Event("CPU 0", "f", "add", 0, 410, 590),
        Event("CPU 1", "device_put", "memory copy", 0, 500, 500),
    )
    (axes,) = plot.plot_timelines({"title": Timeline(events, frozenset({"CPU 1"}))})
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["CPU 1", "CPU 0", "Python"]
    bars = Counter(rows[height] for height, *_ in bars_of(axes))
    assert bars == {"Python": 2, "CPU 0": 1, "CPU 1": 1}  # One for a run, not an operator.
    assert axes.get_title(loc="left") == "title"
    assert "CPU 1 from watching" in axes.get_xlabel()
    assert sorted(texts(axes)) == ["device_put", "f", "waits"]
    assert legend(axes) == ["dispatch", "waits", "runs", "copy"]


def test_the_legend_has_the_colors_of_the_devices_in_the_order_of_their_rows():
    events = tuple(Event(f"CPU {number}", "f", "", 0, 0, 10) for number in (1, 0))
    (axes,) = plot.plot_timelines({"title": Timeline(events)})
    shown = [patch.get_facecolor()[:3] for patch in axes.figure.legends[0].findobj(Rectangle)]
    assert shown == [to_rgb(plot.device_color(device)) for device in ("CPU 0", "CPU 1")]


def test_annotations_lie_below_the_calls_inside_them_and_each_name_has_a_color():
    events = (
        Event("Python", "step", "annotation", 0, 0, 900),
        Event("Python", "read #1", "annotation", 1, 0, 300),
        Event("Python", "f", "dispatch", 2, 100, 20),
        Event("Python", "read #2", "annotation", 3, 400, 100),
        Event("CPU 0", "f", "", 0, 100, 900),
    )
    (axes,) = plot.plot_timelines({"title": Timeline(events)})
    assert legend(axes) == ["dispatch", "step", "read", "runs"]
    python = [bar for bar in bars_of(axes) if bar[0] == 1]
    assert [round(x * 1e9) for _, x, _ in python] == [0, 0, 400, 100]  # The last is on top.
    assert len({color for *_, color in python}) == 3
    places = {text.get_text(): text.get_position()[0] * 1e9 for text in axes.texts}
    assert 120 < places["read #1"] < 300  # Beside the dispatch.
    assert places["step"] > 500


def test_a_name_without_room_is_shortened_to_its_number_and_a_named_thread_is_not_called_python():
    rows = ("Python", "Python 2", "Python reader 1")
    events = [Event(row, "reads 12", "annotation", 0, 0, 50) for row in rows]
    (axes,) = plot.plot_timelines({"": Timeline((*events, Event("CPU 0", "f", "", 0, 0, 1000)))})
    assert sorted(texts(axes)) == ["12", "12", "12", "f"]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["CPU 0", "reader 1", "Python 2", "Python"]


def test_a_bar_however_short_is_seen_and_told_from_those_beside_it():
    hour = 3_600_000
    events = (
        Event("CPU 0", "f", "", 0, 0, hour // 2),
        Event("CPU 0", "g", "", 1, hour // 2, 1),
        Event("CPU 0", "f", "", 2, hour // 2 + 1, hour // 2 - 2),
        Event("CPU 0", "g", "", 3, hour - 1, 1),
    )
    (axes,) = plot.plot_timelines({"title": Timeline(events)})
    figure = axes.figure
    figure.set_dpi(2 * 688 / plot.WIDTH)  # The pixels of a good screen.
    figure.canvas.draw()
    left, above_the_names = axes.transData.transform((0, 0.25)).astype(int)
    blue = np.asarray(figure.canvas.buffer_rgba())[-above_the_names, left:, 2]
    bars = [len(list(run)) for white, run in itertools.groupby(blue > 150) if not white]
    assert len(bars) == 4
    assert min(bars) >= 4


def test_timelines_in_one_figure_have_one_scale_of_time():
    short, long = (Timeline((Event("CPU 0", "f", "", 0, 0, n),)) for n in (1000, 4000))
    axes = plot.plot_timelines({"short": short, "long": long})
    assert len({chart.get_xlim() for chart in axes}) == 1
    assert axes[0].get_xlim() == (0, 4e-6)


def test_three_thousand_runs_are_merged_into_as_many_bars_as_can_be_told_apart():
    events = tuple(Event("CPU 0", "f", "", n, 1000 * n, 900) for n in range(3000))
    (axes,) = plot.plot_timelines({"many": Timeline(events)})
    assert len(bars_of(axes)) == 1
    assert len(svg(axes)) < 50_000
    spread = tuple(Event("CPU 0", "f", "", n, 1000 * n, 1) for n in range(0, 3000, 10))
    (axes,) = plot.plot_timelines({"with gaps": Timeline(spread)})
    assert len(bars_of(axes)) == 300


def test_a_timeline_without_devices_says_that_they_had_nothing_to_do():
    (axes,) = plot.plot_timelines({"idle": Timeline((Event("Python", "f", "dispatch", 0, 0, 9),))})
    assert texts(axes)[-1] == "no device had anything to do"
    (axes,) = plot.plot_timelines({"nothing at all": Timeline(())})
    assert "<svg" in svg(axes)


def boxes(axes):
    return [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]


def arrows(axes):
    return [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]


def lines(axes):
    axes.figure.draw_without_rendering()
    return [arrow.get_path().to_polygons(closed_only=False)[0] for arrow in arrows(axes)]


def ends_of(line, graph, axes):
    centres = {node: text.get_position() for node, text in zip(graph, axes.texts, strict=True)}
    return tuple(
        min(centres, key=lambda node: math.dist(centres[node], point))
        for point in (line[0], line[-1])
    )


def bars_of(axes):
    """Return the height of the row, the start, and the color of each bar, from below."""
    bars = []
    for collection in sorted(axes.collections, key=lambda collection: collection.zorder):
        is_line = isinstance(collection, LineCollection)
        colors = collection.get_edgecolor() if is_line else collection.get_facecolor()
        for path, color in zip(collection.get_paths(), itertools.cycle(map(tuple, colors))):
            box = path.get_extents()
            if not is_line or color[:3] != (1, 1, 1):  # White lines are margins.
                bars.append((round(box.y0 + 0.36), box.x0, color))
    return bars


def test_curves_are_drawn_with_their_models_and_each_looks_different():
    times = [Quantity("time", range(n, n + 6), "s") for n in (1, 2)]
    model = {"straight": ([10, 100], [1, 2])}
    axes = plot.plot_curves(
        [10, 100], {"a": times, "b": times}, models=model, xlabel="elements", ylabel="time"
    )
    assert sorted(legend(axes)) == ["a", "b", "straight"]
    curves = [line for line in axes.lines if line.get_marker() in "os"]
    assert len({line.get_color() for line in curves}) == 2
    assert not {*curves[0].get_xdata()} & {*curves[1].get_xdata()}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("elements", "time")


def test_the_style_makes_no_script_look_like_a_notebook(run_python):
    program = "import d2lpar, IPython; d2lpar.use_style(); print(IPython.get_ipython())"
    assert run_python(program) == "None"


# --- Axes and error bars ----------------------------------------------------------------------


def test_an_error_bar_reaches_to_the_ends_of_the_interval_or_else_to_the_samples():
    nine = Quantity("nine", range(1, 10), "s")  # The interval of the median is 2 to 8.
    np.testing.assert_allclose(error_bars([nine, nine / 2]), [[3, 1.5], [3, 1.5]])
    few = Quantity("few", (1.0, 2.0, 4.0), "s")
    assert not math.isfinite(few.interval[0])
    assert interval_ends(few) == (1, 4)


def labels(axis):
    axis.figure.draw_without_rendering()
    low, high = axis.get_view_interval()
    ticks = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in ticks if low <= place <= high]


@pytest.mark.parametrize(
    ("unit", "ticks", "shown"),
    [
        ("s", [0, 1e-3, 2e-3], ["0", "1 ms", "2 ms"]),
        ("", [0, 3e6, 6e6], ["0", "3 M", "6 M"]),
        ("", [0, 25e3, 50e3], ["0", "25 k", "50 k"]),
    ],
)
def test_numbers_have_units_large_ones_without_any_a_prefix_and_zero_is_bare(unit, ticks, shown):
    axis = plt.figure().add_subplot().xaxis
    axis.set_ticks(ticks)
    format_axis(axis, unit)
    assert labels(axis) == shown


@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        ((1e-3, 1), ["1 ms", "10 ms", "100 ms", "1 s"]),
        ((1e-3, 9e-3), ["1 ms", "2 ms", "5 ms"]),
        ((1.1e-3, 5.2e-3), ["1.5 ms", "2 ms", "3 ms", "5 ms"]),
        ((8.8e-3, 22e-3), ["10 ms", "15 ms", "20 ms"]),
        ((9e-3, 15.5e-3), ["10 ms", "12 ms", "14 ms"]),
    ],
)
def test_a_logarithmic_axis_has_several_labels_however_little_it_spans(limits, shown):
    axes = plt.figure().add_subplot(yscale="log", ylim=limits)
    format_log_axis(axes.yaxis, "s")
    assert labels(axes.yaxis) == shown
