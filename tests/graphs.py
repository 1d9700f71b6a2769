"""Graphs made by hand, from words such as `a-b b-c`."""

import networkx as nx


def graph_of(edges):
    """Return a graph from words such as "a-b b-c"; its nodes have all attributes for drawing."""
    graph = nx.DiGraph(edge.split("-") for edge in edges.split())
    for node, attributes in graph.nodes.items():
        attributes |= dict(operator=node, name=None, constants=(), shape=(), dtype="f", device=None)
    return graph


FORK = graph_of("x-a a-s1 s1-s2 s2-s3 a-copy copy-m1 m1-m2 m2-m3 m3-back s3-mean back-mean")
DIAMOND = graph_of("x-a a-copy copy-c c-back back-join a-b b-join")
TRAINING_STEP = graph_of(
    "batch-split "
    + " ".join(
        f"split-x{d} x{d}-forward1{d} w1{d}-forward1{d} forward1{d}-forward2{d} w2{d}-forward2{d} "
        f"forward1{d}-backward2{d} w2{d}-backward2{d} forward2{d}-backward2{d} backward2{d}-g2{d} "
        f"backward2{d}-backward1{d} x{d}-backward1{d} backward1{d}-g1{d} g1{d}-update1 "
        f"g2{d}-update2 update1-put1{d} update2-put2{d}"
        for d in "AB"
    )
    + " w1-update1 w2-update2"
)
SKIP = graph_of("x-a a-b b-c c-d a-d")
RESIDUAL = graph_of("x-a w-a a-b b-add x-add add-c w-c c-d d-sum add-sum")
