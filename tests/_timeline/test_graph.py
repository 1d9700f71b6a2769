import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from d2lpar import DeviceError, computation_graph, cpu, critical_path

X = jnp.ones((1, 2))


def operators(graph):
    return [operator for _, operator in graph.nodes(data="operator")]


def devices(graph):
    return [device for _, device in graph.nodes(data="device")]


def on(index):
    return jax.device_put(X, cpu(index))


OUTSIDE = on(1)


@jax.jit
def inner(x):
    return x * 2 + 1


def calls(x):
    return jax.jit(lambda x: x - 1)(inner(inner(x)))


def copies(x, y):
    return jnp.sin(jax.device_put((x, y), (cpu(1), cpu(2)))[1])


HUGE = jax.ShapeDtypeStruct((10**6, 10**6), jnp.float32)


@pytest.mark.parametrize(
    ("function", "inputs", "operators_after", "edges"),
    [
        (lambda x: jnp.sin(jnp.split(x, 2, axis=1)[1]), (X,), ["split", "sin"], [(0, 1), (1, 2)]),
        (lambda x, unused: x + 1, (X, X), ["add"], [(0, 2)]),
        (calls, (X,), ["inner", "inner", "<lambda>"], [(0, 1), (1, 2), (2, 3)]),
        (copies, (X, X), ["device_put", "device_put", "sin"], [(0, 2), (1, 3), (3, 4)]),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c * 2, x), (X,), ["scan"], [(0, 1)]),
        (jnp.sin, (HUGE,), ["sin"], [(0, 1)]),  # Traced, and not run.
    ],
)
def test_each_operator_has_an_edge_from_each_result_that_it_needs(
    function, inputs, operators_after, edges
):
    graph = computation_graph(function, *inputs)
    assert operators(graph) == ["input"] * len(inputs) + operators_after
    assert list(graph.edges) == edges


def test_a_node_has_the_shape_and_dtype_of_its_result_and_the_numbers_of_the_program():
    for node in computation_graph(lambda x: 2 - x, X).nodes.values():
        assert (node["shape"], node["dtype"]) == ((1, 2), np.float32)
        assert node["constants"] == ((2.0,) if node["operator"] == "sub" else ())


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "names"),
    [
        (lambda x, y: x * y, (X, X), {}, ["x", "y"]),
        (lambda pair, z: pair[0] * pair[1] + z, ((X, X), X), {}, ["pair[0]", "pair[1]", "z"]),
        (lambda x, *, b, a: x * b - a, (X,), {"b": X, "a": X}, ["x", "a", "b"]),
        (lambda x, unset=None: x * 2, (X, None), {}, ["x"]),
        (jax.jit(lambda x: x), (X,), {}, ["x"]),
        (lambda x: x * OUTSIDE, (X,), {}, [None, "x"]),
    ],
)
def test_an_input_has_the_name_that_the_function_gives_it(function, args, kwargs, names):
    nodes = computation_graph(function, *args, **kwargs).nodes.values()
    assert [node["name"] for node in nodes if node["operator"] == "input"] == names


@pytest.mark.parametrize(
    ("function", "args", "names"),
    [
        (lambda x, y: jnp.sin(x * y) + 1, (on(1), X), ["CPU 1", None, "CPU 1", "CPU 1", "CPU 1"]),
        (lambda x: x * OUTSIDE, (X,), ["CPU 1", None, "CPU 1"]),
        (copies, (X, X), [None, None, "CPU 1", "CPU 2", "CPU 2"]),
        (
            lambda x, y: jax.device_put(x, cpu(1)) + y,
            (on(0), on(1)),
            ["CPU 0", "CPU 1", "CPU 1", "CPU 1"],
        ),
        *((lambda x: 2 * x, (x,), [None, None]) for x in (X, np.ones(2), 3.0, HUGE)),
    ],
)
def test_an_operator_has_the_device_of_its_arguments_if_anything_decides_it(function, args, names):
    assert devices(computation_graph(function, *args)) == names


PAIR = jax.sharding.Mesh(np.array([cpu(0), cpu(1)]), "d")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (cpu(2), "CPU 2"),
        (jax.sharding.SingleDeviceSharding(cpu(1)), "CPU 1"),
        (jax.NamedSharding(PAIR, jax.P()), "CPU 0, CPU 1"),
        (None, "CPU 0"),
        (jax.memory.Space.Device, "CPU 0"),
    ],
    ids=str,
)
def test_a_copy_and_the_operators_after_it_have_the_device_of_its_target(target, name):
    graph = computation_graph(lambda x: jax.device_put(x, target) * 2, on(0))
    assert devices(graph) == ["CPU 0", name, name]


def test_arrays_of_two_devices_in_one_operator_are_an_error_that_names_them():
    with pytest.raises(DeviceError, match=r"'add' is given arrays of CPU 0 and CPU 1.*copy"):
        computation_graph(lambda x, y: x * 2 + y, on(1), on(0))


def test_one_slow_operator_can_outweigh_a_chain():
    graph = computation_graph(lambda x: (jnp.sin(x), jnp.cos(x) * 2 + 1), X)
    assert operators(graph) == ["input", "sin", "cos", "mul", "add"]
    assert critical_path(graph) == [2, 3, 4]
    assert critical_path(graph, {1: 5, 2: 1, 3: 1, 4: 1}) == [1]


def test_nodes_that_take_no_time_are_left_out_at_both_ends_but_not_between():
    graph = nx.path_graph(5, create_using=nx.DiGraph)
    assert critical_path(graph, {1: 1.0, 3: 1.0}) == [1, 2, 3]
    assert critical_path(nx.DiGraph([(0, 1), (2, 3)]), {0: 5, 1: 1, 3: 2}) == [0, 1]
    assert critical_path(graph, {}) == critical_path(nx.DiGraph()) == []
