"""Turn a jaxpr into its computational graph, find the critical path, and lay the graph out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from d2lpar._jax.devices import device_name
from d2lpar._plain.errors import DeviceError, WhenUsed, require_function

if TYPE_CHECKING:
    import networkx as nx
else:
    nx = WhenUsed("networkx", extra="plot")


def computation_graph(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> nx.DiGraph:
    """Trace a function and return its computational graph: which operator needs which result.

    Args:
        function: The function to trace; it is not run.
        *args: Arguments of the right shapes and dtypes.
        **kwargs: Likewise, by name.

    Returns:
        A directed acyclic graph. Each node is an input or an operator of the function's jaxpr,
        numbered in the order of the program. An edge leads from a result to the operator that needs
        it. A call of another jitted function, or a loop, is one node. Nodes have these attributes:

        * `operator`: `"input"`, the name of the jitted function, or the name of the primitive.
        * `name`: The name of an input in the function, such as `"x"` or `"pair[0]"`, or None.
        * `shape` and `dtype`: The shape and dtype of the first result.
        * `constants`: The numbers written in the program itself.
        * `device`: The name of the device, as `device_put` in the program or the arguments decide
          it, or None where nothing does and JAX takes its default. A `device_put` has the device
          that it copies to.

    Raises:
        DeviceError: If an operator is given arrays of different devices, which JAX would refuse.
        TypeError: If `function` cannot be called.

    Example:
        >>> import jax.numpy as jnp
        >>> graph = computation_graph(lambda x, y: x * y + 2, jnp.ones(3), jnp.ones(3))
        >>> [graph.nodes[node]["operator"] for node in graph]
        ['input', 'input', 'mul', 'add']
        >>> list(graph.edges)
        [(0, 2), (1, 2), (2, 3)]
    """
    require_function("computation_graph", function)
    closed = jax.make_jaxpr(function)(*args, **kwargs)
    jaxpr = closed.jaxpr
    graph = nx.DiGraph()
    made_by = {}

    def add(
        operator: str,
        outputs: Sequence[Any],
        operands: Sequence[Any] = (),
        device: str | None = None,
        name: str | None = None,
    ) -> None:
        node = len(graph)
        first_result = outputs[0].aval if outputs else None
        # A literal has a value, `val`; a variable has none, and an earlier node made it.
        constants = [np.asarray(x.val)[()] for x in operands if hasattr(x, "val")]
        needed = [made_by[x] for x in operands if not hasattr(x, "val")]
        graph.add_node(
            node,
            operator=operator,
            name=name,
            shape=getattr(first_result, "shape", ()),
            dtype=getattr(first_result, "dtype", None),
            constants=tuple(constants),
            device=device or _device_of_operands(operator, [graph.nodes[n] for n in needed]),
        )
        graph.add_edges_from((other, node) for other in needed)
        made_by.update(dict.fromkeys(outputs, node))

    for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
        add("input", [variable], device=_device_of_argument(value))
    arguments = jax.tree.leaves((args, kwargs))
    names = jaxpr.debug_info.safe_arg_names(len(arguments))
    for variable, value, name in zip(jaxpr.invars, arguments, names, strict=True):
        add("input", [variable], device=_device_of_argument(value), name=name or None)
    for equation in jaxpr.eqns:
        if equation.primitive.name == "device_put":  # One equation may copy a whole tree.
            copies = zip(equation.invars, equation.outvars, equation.params["devices"], strict=True)
            for operand, output, target in copies:
                add("device_put", [output], [operand], _device_of_target(target))
        else:
            primitive = equation.primitive.name
            operator = equation.params["name"] if primitive == "jit" else primitive
            add(operator, equation.outvars, equation.invars)
    return graph


def critical_path(graph: nx.DiGraph, seconds: Mapping[int, float] | None = None) -> list[int]:
    """Return the critical path, the longest chain of operators that need one another.

    However many devices there are, the program takes at least as long as this chain.

    Args:
        graph: A graph from `computation_graph`.
        seconds: The seconds that each node takes; a node that is missing takes no time. If None, an
            operator counts 1 and an input 0.

    Returns:
        The nodes of the chain, in order, from the first that takes time to the last.

    Raises:
        ValueError: If `graph` is not a graph.

    Example:
        >>> import jax.numpy as jnp
        >>> graph = computation_graph(lambda x: (jnp.sin(x), jnp.cos(x) * 2), 1.0)
        >>> [graph.nodes[node]["operator"] for node in critical_path(graph)]
        ['cos', 'mul']
    """
    require_graph(graph, "critical_path()")
    if seconds is None:
        operators = graph.nodes(data="operator")
        seconds = {node: 1.0 for node, operator in operators if operator != "input"}
    cost = {node: seconds.get(node, 0.0) for node in graph}
    weighted = nx.DiGraph()  # networkx weighs edges: each gets the cost of its end.
    weighted.add_weighted_edges_from((start, end, cost[end]) for start, end in graph.edges)
    weighted.add_weighted_edges_from(("start", node, cost[node]) for node in graph)
    path = nx.dag_longest_path(weighted)[1:] if len(graph) else []
    return list(itertools.dropwhile(lambda node: not cost[node], path))


def require_graph(graph: Any, caller: str) -> None:
    """Raise an error unless the argument is a graph."""
    if not isinstance(graph, nx.DiGraph):
        raise ValueError(
            f"{caller} needs a graph, found {type(graph).__name__}: pass the result of "
            "computation_graph(function, *args)."
        )


def is_copy(graph: nx.DiGraph, node: int) -> bool:
    """Return whether a node copies an array to a device."""
    return graph.nodes[node]["operator"] == "device_put"


def _device_of_argument(value: Any) -> str | None:
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.committed:
        return _names(value.devices())
    return None


def _device_of_target(target: Any) -> str | None:
    """Return the name of the target of a `device_put`, or None if the device stays the same."""
    if isinstance(target, jax.Device):
        return _names([target])
    sharding = getattr(target, "sharding", target)  # A layout has a sharding.
    return _names(sharding.device_set) if isinstance(sharding, jax.sharding.Sharding) else None


def _names(devices: Iterable[jax.Device]) -> str:
    return ", ".join(map(device_name, sorted(devices, key=lambda device: device.id)))


def _device_of_operands(operator: str, operands: Iterable[Mapping[str, Any]]) -> str | None:
    devices = sorted({attributes["device"] for attributes in operands} - {None})
    if len(devices) > 1:
        raise DeviceError(
            f"{operator!r} is given arrays of {' and '.join(devices)}, which JAX refuses: copy "
            "them to one device with jax.device_put first."
        )
    return devices[0] if devices else None


Point = tuple[float, float]


class Layout(NamedTuple):
    """The positions of nodes and edges: boxes across, and layers down."""

    width: float
    height: int
    nodes: dict[int, Point]
    edges: dict[tuple[int, int], list[Point]]


_MOST_LANES = 1000  # With more lanes the layout takes long, and no reader can follow the edges.


def layout_of(graph: nx.DiGraph) -> Layout:
    r"""Return the positions of the nodes of a graph, and the points on the way of each edge.

    How it works. Nodes get layers, then an order within each layer, then a position across, as in
    K. Sugiyama et al., 1981, Methods for Visual Understanding of Hierarchical System Structures. An
    edge that skips layers passes each of them in a lane, narrower than a box; the edges of one node
    share its lanes. A copy is a dot. Here "|" is the lane of `a` in the layer of `b`:

        layer 0    a
                  / \
        layer 1  b   |
                  \ /
        layer 2    c
    """
    depth = {}
    for layer, nodes in enumerate(nx.topological_generations(graph)):
        depth |= dict.fromkeys(nodes, layer)
    for node in graph:  # An input is put just above the first operator that needs it.
        if not graph.in_degree(node) and graph.out_degree(node):
            depth[node] = min(depth[after] for after in graph.successors(node)) - 1
    routes = {}
    for start, end in graph.edges:
        lanes = [(start, layer) for layer in range(depth[start] + 1, depth[end])]
        routes[start, end] = [start, *lanes, end]
    if len(set().union(*routes.values())) > len(graph) + _MOST_LANES:
        routes = {edge: list(edge) for edge in graph.edges}
    steps = nx.DiGraph()  # From layer to layer, by way of the lanes.
    steps.add_nodes_from(depth)
    for route in routes.values():
        nx.add_path(steps, route)
    layers = [[] for _ in range(1 + max(depth.values(), default=0))]
    for node in steps:
        layers[depth[node] if node in graph else node[1]].append(node)
    _sort(layers, steps)
    room = {n: 1.0 if n in graph else 0.25 for n in steps}
    room |= {node: 0.5 for node in graph if is_copy(graph, node)}
    width = max(1.0, *(sum(room[node] for node in layer) for layer in layers))
    across = _columns(layers, steps, room, width) if steps else {}
    places = {node: (across[node], -y) for y, layer in enumerate(layers) for node in layer}
    edges = {edge: [places[node] for node in route] for edge, route in routes.items()}
    return Layout(width, len(layers), {node: places[node] for node in graph}, edges)


def _sort(layers: list[list], steps: nx.DiGraph) -> None:
    """Sort each layer by the mean position of its neighbors, so that few edges cross.

    Eight sweeps, down and up in turn, each by the neighbors in the layer before.
    """
    x = {node: (index + 0.5) / len(layer) for layer in layers for index, node in enumerate(layer)}
    for sweep in range(8):
        down = sweep % 2 == 0
        neighbors = steps.predecessors if down else steps.successors
        for layer in layers if down else reversed(layers):
            mean = {n: np.mean([x[other] for other in neighbors(n)] or x[n]) for n in layer}
            layer.sort(key=mean.get)
            x |= {node: (index + 0.5) / len(layer) for index, node in enumerate(layer)}


def _columns(layers: list[list], steps: nx.DiGraph, room: dict, width: float) -> dict:
    """Return the position of each node across, so that edges are as upright as the order allows.

    A linear program, as in E. R. Gansner et al., 1993, A Technique for Drawing Directed Graphs. Let
    x be the positions, and S the matrix with a row for each step, so that S x is how far each step
    leads aside. Node i of S'S x is then the sum of its distances from its neighbors, 0 in their
    middle, which decides where upright edges leave a choice:

        minimize    w |S x| + 0.01 |S'S x|, where w is 8 in a chain and 1 elsewhere
        subject to  x[right] - x[left] >= (room[right] + room[left]) / 2, of neighbors in a layer
                    room / 2 <= x <= width - room / 2

    A linear program has no |y|, but a bound t with -t <= y <= t, which is minimized instead.
    """
    from scipy.optimize import linprog  # Slow to import, and only graphs need it.
    from scipy.sparse import block_array, eye_array, vstack

    half_room = np.array([room[node] / 2 for node in steps])
    side_by_side = nx.DiGraph()
    for layer in layers:
        nx.add_path(side_by_side, layer)
    apart = nx.incidence_matrix(side_by_side, steps, oriented=True).T  # A row for each pair.
    aside = nx.incidence_matrix(steps, oriented=True).T  # The matrix S.
    small = vstack([aside, aside.T @ aside])
    weights = [
        8.0 if steps.out_degree(start) == 1 == steps.in_degree(end) else 1.0
        for start, end in steps.edges
    ]
    weights += [0.01] * len(steps)
    bound = eye_array(len(weights))
    rows = [  # The columns of the matrix are x and t. Each row times (x, t) is at least `least`.
        [small, bound],  # y >= -t
        [-small, bound],  # y <= t
        [apart, None],
    ]
    least = [np.zeros(2 * len(weights)), abs(apart) @ half_room]
    solution = linprog(
        [0.0] * len(steps) + weights,
        A_ub=-block_array(rows),
        b_ub=-np.concatenate(least),
        bounds=[*zip(half_room, width - half_room, strict=True)] + [(0, None)] * len(weights),
    )
    return dict(zip(steps, solution.x, strict=False))
