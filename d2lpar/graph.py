"""Turn a jaxpr into the nodes and edges of its computational graph."""

from collections.abc import Callable

import jax
import networkx as nx
import numpy as np


def computation_graph(function: Callable, /, *args, **kwargs) -> nx.DiGraph:
    """Trace a function and return who needs whose result.

    Args:
        function: What to trace; it is not run.
        *args: Arguments of the right shapes and dtypes.
        **kwargs: Likewise, by name.

    Returns:
        A directed acyclic graph. Each node is an input or an operator of the function's jaxpr,
        numbered in the order in which the program lists them; an edge leads from a result to the
        operator that needs it. Nodes have the attributes `operator` (`"input"` or the name of the
        primitive), `shape` and `dtype` of its first result, and `constants`, the numbers written
        in the program itself. A call of another jitted function, or a loop, is one node.

    Example:
        >>> import jax.numpy as jnp
        >>> graph = computation_graph(lambda x, y: x * y + 2, jnp.ones(3), jnp.ones(3))
        >>> [graph.nodes[node]["operator"] for node in graph]
        ['input', 'input', 'mul', 'add']
        >>> list(graph.edges)
        [(0, 2), (1, 2), (2, 3)]
    """
    jaxpr = jax.make_jaxpr(function)(*args, **kwargs).jaxpr
    graph = nx.DiGraph()
    made_by = {}

    def add(operator, outputs, constants=()):
        node = len(graph)
        of_first = outputs[0].aval if outputs else None
        graph.add_node(
            node,
            operator=operator,
            shape=getattr(of_first, "shape", ()),
            dtype=getattr(of_first, "dtype", None),
            constants=tuple(constants),
        )
        made_by.update(dict.fromkeys(outputs, node))
        return node

    for variable in (*jaxpr.constvars, *jaxpr.invars):
        add("input", [variable])
    for equation in jaxpr.eqns:
        # A literal carries its value; a variable does not, and was made by an earlier node.
        literals = [np.asarray(x.val)[()] for x in equation.invars if hasattr(x, "val")]
        node = add(equation.primitive.name, equation.outvars, literals)
        for operand in equation.invars:
            if not hasattr(operand, "val"):
                graph.add_edge(made_by[operand], node)
    return graph
