import itertools

import networkx as nx
import pytest
from graphs import DIAMOND, FORK, RESIDUAL, SKIP, TRAINING_STEP, graph_of

from d2lpar._graph import Lane, layers_of, positions_of, width_of

GRAPHS = {
    "fork and join": FORK,
    "diamond": DIAMOND,
    "training step": TRAINING_STEP,
    "skip": SKIP,
    "residual": RESIDUAL,
}
graphs = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def widest_layer(graph):
    layers, _ = layers_of(graph)
    return max(map(width_of, layers))


def placed(graph):
    """Return where each node and lane stands, in boxes across and layers down."""
    return positions_of(*layers_of(graph), widest_layer(graph))


@graphs
def test_every_edge_leads_down_layer_by_layer(graph):
    layers, routes = layers_of(graph)
    layer_of = {node: number for number, layer in enumerate(layers) for node in layer}
    assert set(routes) == set(graph.edges)
    for (start, end), route in routes.items():
        assert (route[0], route[-1]) == (start, end)
        numbers = [layer_of[node] for node in route]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


@graphs
def test_what_stands_in_one_layer_is_side_by_side_and_within_the_widest(graph):
    layers, _ = layers_of(graph)
    position = placed(graph)
    for layer in layers:
        ends = sorted(
            (position[n][0] - width_of([n]) / 2, position[n][0] + width_of([n]) / 2) for n in layer
        )
        assert ends[0][0] > -1e-6
        assert ends[-1][1] < widest_layer(graph) + 1e-6
        assert all(one[1] < other[0] + 1e-6 for one, other in itertools.pairwise(ends))


def test_an_input_stands_just_above_who_needs_it_first():
    position = placed(graph_of("a-b b-c c-d late-d"))
    assert position["late"][1] == position["c"][1]


def test_a_chain_stays_in_its_column_and_who_joins_two_stands_between_them():
    x = {node: across for node, (across, _) in placed(FORK).items()}
    for chain in ("x", "a"), ("s1", "s2", "s3"), ("copy", "m1", "m2", "m3", "back"):
        assert [x[node] for node in chain] == pytest.approx([x[chain[0]]] * len(chain))
    for node in "a", "mean":
        assert x[node] == pytest.approx((x["s1"] + x["m1"]) / 2)


def test_edges_from_one_node_share_their_way_past_others():
    past_four = graph_of("a-b b-c c-d d-e e-f a-c a-d a-e a-f")
    beside_one = graph_of("a-b b-c c-d d-e e-f a-f")
    assert widest_layer(past_four) == widest_layer(beside_one)


def test_a_way_past_a_box_takes_less_room_than_a_box():
    assert width_of(["box", Lane("from", 1)]) < 2
    most_boxes_side_by_side = 5
    assert widest_layer(TRAINING_STEP) < most_boxes_side_by_side + 1


def test_a_graph_too_large_to_be_followed_has_straight_edges():
    steps = " ".join(f"{number}-{number + 1} {number}-60" for number in range(60))
    layers, routes = layers_of(graph_of(steps))
    assert not any(isinstance(node, Lane) for layer in layers for node in layer)
    assert all(list(edge) == route for edge, route in routes.items())


def test_a_graph_without_nodes_has_no_place():
    assert placed(nx.DiGraph()) == {}
