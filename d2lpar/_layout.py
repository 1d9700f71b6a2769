"""Place the nodes of a graph in layers, so that its edges are short and few of them cross."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from d2lpar._extras import needs

with needs("plot"):
    import networkx as nx


class Lane(NamedTuple):
    """Where the edges from a node pass a layer in which they do not end: a dummy node."""

    start: int
    layer: int


_MOST_LANES = 1000  # Beyond, to place them takes long, and nobody can follow the edges anyway.

Layers = list[list[int | Lane]]

Routes = dict[tuple[int, int], list[int | Lane]]


def width_of(nodes: Sequence[int | Lane]) -> float:
    """Return the room for nodes side by side, in boxes."""
    return sum(0.25 if isinstance(node, Lane) else 1.0 for node in nodes)


def layers_of(graph: nx.DiGraph) -> tuple[Layers, Routes]:
    """Return the layers, from the top, and the nodes and lanes that each edge leads through."""
    depth = {}
    for node in nx.topological_sort(graph):
        depth[node] = max((depth[before] + 1 for before in graph.predecessors(node)), default=0)
    for node in graph:  # An input stands just above who needs it first.
        if not graph.in_degree(node) and graph.out_degree(node):
            depth[node] = min(depth[after] for after in graph.successors(node)) - 1
    lanes = {
        (start, end): [Lane(start, layer) for layer in range(depth[start] + 1, depth[end])]
        for start, end in graph.edges
    }
    if len(set().union(*lanes.values())) > _MOST_LANES:
        lanes = dict.fromkeys(lanes, ())
    depth |= {lane: lane.layer for passed in lanes.values() for lane in passed}
    layers = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node in depth:
        layers[depth[node]].append(node)
    return layers, {(start, end): [start, *lanes[start, end], end] for start, end in lanes}


def positions_of(
    layers: Layers, routes: Routes, widest: float
) -> dict[int | Lane, tuple[float, float]]:
    """Return where each node and lane is drawn, in boxes across and layers down."""
    steps = nx.DiGraph()
    for layer in layers:
        steps.add_nodes_from(layer)
    for route in routes.values():
        nx.add_path(steps, route)
    _order(layers, steps)
    x = _columns(layers, steps, widest)
    return {node: (x[node], -float(y)) for y, layer in enumerate(layers) for node in layer}


def _order(layers: Layers, steps: nx.DiGraph) -> None:
    """Sort each layer by the middle of its neighbours, down and up again: few lines cross then.

    K. Sugiyama et al., 1981, Methods for Visual Understanding of Hierarchical System Structures.
    """
    x = {}

    def spread(layer: list[int | Lane]) -> None:
        for index, node in enumerate(layer):
            x[node] = (index + 0.5) / len(layer)

    for layer in layers:
        spread(layer)
    for sweep in range(8):
        neighbours = steps.predecessors if sweep % 2 == 0 else steps.successors
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            places = {node: [x[other] for other in neighbours(node)] or [x[node]] for node in layer}
            layer.sort(key=lambda node: sum(places[node]) / len(places[node]))
            spread(layer)


def _columns(layers: Layers, steps: nx.DiGraph, widest: float) -> dict[int | Lane, float]:
    """Return how far across each node is, so that lines are as upright as the order allows.

    A linear program, as in E. R. Gansner et al., 1993, A Technique for Drawing Directed Graphs.
    """
    from scipy.optimize import linprog  # Slow to import, and only graphs need it.
    from scipy.sparse import block_array, eye_array, vstack

    if not steps:
        return {}
    nodes = list(steps)
    half = np.array([width_of([node]) / 2 for node in nodes])
    beside = nx.DiGraph()
    for layer in layers:
        nx.add_path(beside, layer)
    apart = nx.incidence_matrix(beside, nodes, oriented=True).T  # Times x: how far neighbours are.
    step = nx.incidence_matrix(steps, nodes, oriented=True).T
    # To be kept small: how far each step leads aside, above all in a chain; and, where that leaves
    # a choice, how far each node is from the middle of its neighbours.
    aside = vstack([step, step.T @ step])
    weights = [
        8.0 if steps.out_degree(start) == 1 == steps.in_degree(end) else 1.0
        for start, end in steps.edges
    ]
    weights += [0.01] * len(nodes)
    bound = eye_array(len(weights))
    solution = linprog(
        [0.0] * len(nodes) + weights,
        A_ub=-block_array([[aside, bound], [-aside, bound], [apart, None]]),
        b_ub=-np.concatenate([np.zeros(2 * len(weights)), abs(apart) @ half]),
        bounds=[*zip(half, widest - half, strict=True)] + [(0, None)] * len(weights),
    )
    return dict(zip(nodes, solution.x, strict=False))
