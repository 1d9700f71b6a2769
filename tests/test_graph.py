import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from d2lpar.graph import computation_graph

X = jnp.ones((1, 2))


def operators(graph):
    return [operator for _, operator in graph.nodes(data="operator")]


def test_two_inputs_are_independent_and_their_sum_needs_both():
    # z = x * y + 2, the graph of the original section.
    graph = computation_graph(lambda x, y: x * y + 2, X, X)
    assert operators(graph) == ["input", "input", "mul", "add"]
    assert list(graph.edges) == [(0, 2), (1, 2), (2, 3)]
    assert {(node["shape"], str(node["dtype"])) for node in graph.nodes.values()} == {
        ((1, 2), "float32")
    }


def test_a_number_of_the_program_is_a_constant_of_its_operator_and_no_node():
    graph = computation_graph(lambda x: 2 - x, X)
    assert operators(graph) == ["input", "sub"]
    assert [node["constants"] for node in graph.nodes.values()] == [(), (2.0,)]


def test_a_result_used_twice_by_one_operator_is_one_edge():
    assert list(computation_graph(lambda x: x + x, X).edges) == [(0, 1)]


def test_each_of_several_results_of_an_operator_can_be_needed():
    graph = computation_graph(lambda x: jnp.sin(jnp.split(x, 2, axis=1)[1]), X)
    assert operators(graph)[-2:] == ["split", "sin"]
    assert list(graph.edges) == [(0, 1), (1, 2)]


def test_an_array_from_outside_the_function_is_an_input():
    outside = np.arange(2.0)
    graph = computation_graph(lambda x: x[0] * outside, X)
    assert operators(graph).count("input") == 2
    assert len(list(nx.weakly_connected_components(graph))) == 1


def test_an_unused_input_stands_alone():
    graph = computation_graph(lambda x, unused: x + 1, X, X)
    assert list(nx.isolates(graph)) == [1]


@pytest.mark.parametrize("function", [lambda x: x, lambda x: 3.0], ids=["input", "number"])
def test_an_output_that_nothing_computes_adds_no_node(function):
    graph = computation_graph(function, X)
    assert operators(graph) == ["input"]
    assert not graph.edges


def test_an_output_that_is_an_input_does_not_hide_the_others():
    assert operators(computation_graph(lambda x: (x, x + 1), X)) == ["input", "add"]


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("scan", lambda x: jax.lax.scan(lambda c, _: (c + 1, c), x, None, length=3)),
        ("scan", lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c * 2, x)),
        ("while", lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c * 2, x)),
        ("cond", lambda x: jax.lax.cond(x[0, 0] > 0, lambda c: c + 1, lambda c: c - 1, x)),
    ],
)
def test_control_flow_is_one_node(operator, function):
    graph = computation_graph(function, X)
    assert operators(graph).count(operator) == 1
    assert nx.is_directed_acyclic_graph(graph)


def test_a_call_of_another_jitted_function_is_one_node():
    inner = jax.jit(lambda x: x * 2 + 1)
    assert len(computation_graph(lambda x: inner(x), X)) == 2


def test_an_operator_without_a_result_is_there_as_well():
    graph = computation_graph(lambda x: jax.debug.print("{}", x), X)
    assert list(graph.edges) == [(0, 1)]


def test_the_function_is_traced_and_not_run():
    graph = computation_graph(jnp.sin, jax.ShapeDtypeStruct((10**6, 10**6), jnp.float32))
    assert operators(graph)[-1] == "sin"
