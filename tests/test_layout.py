import pytest
from graphs import FORK, graph_of

from d2lpar._graph import layout_of


def test_an_input_stands_just_above_who_needs_it_first():
    nodes = layout_of(graph_of("a-b b-c c-d late-d")).nodes
    assert nodes["late"][1] == nodes["c"][1]


def test_a_chain_stays_in_its_column_and_who_joins_two_stands_between_them():
    x = {node: across for node, (across, _) in layout_of(FORK).nodes.items()}
    for chain in ("x", "a"), ("s1", "s2", "s3"), ("copy", "m1", "m2", "m3", "back"):
        assert [x[node] for node in chain] == pytest.approx([x[chain[0]]] * len(chain))
    for node in "a", "mean":
        assert x[node] == pytest.approx((x["s1"] + x["m1"]) / 2)


@pytest.mark.parametrize("skipping", ["a-f", "a-c a-d a-e a-f"], ids=["one", "four"])
def test_edges_from_one_node_share_a_way_past_others_that_is_narrower_than_a_box(skipping):
    assert layout_of(graph_of(f"a-b b-c c-d d-e e-f {skipping}")).width == 1.25
