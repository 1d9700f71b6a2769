import itertools
import random

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from graphs import FORK, graph_of
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from timelines import event, timeline

from d2lpar import (
    DeviceError,
    computation_graph,
    cpu,
    critical_path,
    record_trace,
    seconds_of,
    width,
)
from d2lpar._timeline.graph import layout_of
from d2lpar._timeline.timeline import PYTHON
from d2lpar.book.workloads import chain

X = jnp.ones((1, 2))


def operators(graph):
    return [operator for _, operator in graph.nodes(data="operator")]


def devices(graph):
    return [device for _, device in graph.nodes(data="device")]


def on(index):
    """Return an array that belongs to a CPU device."""
    return jax.device_put(X, cpu(index))


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


def test_each_of_several_results_of_an_operator_can_be_needed():
    graph = computation_graph(lambda x: jnp.sin(jnp.split(x, 2, axis=1)[1]), X)
    assert operators(graph)[-2:] == ["split", "sin"]
    assert list(graph.edges) == [(0, 1), (1, 2)]


def test_an_unused_input_stands_alone():
    graph = computation_graph(lambda x, unused: x + 1, X, X)
    assert list(nx.isolates(graph)) == [1]


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("scan", lambda x: jax.lax.scan(lambda c, _: (c + 1, c), x, None, length=3)),
        ("scan", lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c * 2, x)),
        ("while", lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c * 2, x)),
        ("cond", lambda x: jax.lax.cond(x[0, 0] > 0, lambda c: c + 1, lambda c: c - 1, x)),
        ("<lambda>", lambda x: jax.jit(lambda y: y * 2)(x)),
    ],
)
def test_control_flow_or_a_call_is_one_node_on_the_device_of_its_operands(operator, function):
    graph = computation_graph(function, on(1))
    assert operators(graph).count(operator) == 1
    assert nx.is_directed_acyclic_graph(graph)
    assert set(devices(graph)) == {"CPU 1"}


def test_a_call_of_another_jitted_function_is_one_node_with_its_name():
    @jax.jit
    def inner(x):
        return x * 2 + 1

    nameless = jax.jit(lambda x: x - 1)
    graph = computation_graph(lambda x: nameless(inner(inner(x))), X)
    assert operators(graph) == ["input", "inner", "inner", "<lambda>"]
    assert list(graph.edges) == [(0, 1), (1, 2), (2, 3)]


def test_an_operator_without_a_result_is_there_as_well():
    graph = computation_graph(lambda x: jax.debug.print("{}", x), X)
    assert list(graph.edges) == [(0, 1)]


def test_the_function_is_traced_and_not_run():
    graph = computation_graph(jnp.sin, jax.ShapeDtypeStruct((10**6, 10**6), jnp.float32))
    assert operators(graph)[-1] == "sin"


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "names"),
    [
        (lambda x, y: x * y, (X, X), {}, ["x", "y"]),
        (lambda pair, z: pair[0] * pair[1] + z, ((X, X), X), {}, ["pair[0]", "pair[1]", "z"]),
        (lambda d: d["b"] - d["a"], ({"b": X, "a": X},), {}, ["d['a']", "d['b']"]),
        (lambda *many: sum(many), (X, X), {}, ["many[0]", "many[1]"]),
        (lambda x, *, b, a: x * b - a, (X,), {"b": X, "a": X}, ["x", "a", "b"]),
        (lambda x, unset=None: x * 2, (X, None), {}, ["x"]),
        (jax.jit(lambda x: x), (X,), {}, ["x"]),
    ],
)
def test_an_input_has_the_name_that_the_function_gives_it(function, args, kwargs, names):
    graph = computation_graph(function, *args, **kwargs)
    found = [node["name"] for node in graph.nodes.values() if node["operator"] == "input"]
    assert found == names


# --- Devices ----------------------------------------------------------------------------------


def test_an_operator_runs_on_the_device_that_its_arguments_belong_to():
    graph = computation_graph(lambda x, y: jnp.sin(x * y) + 1, on(1), X)
    assert devices(graph) == ["CPU 1", None, "CPU 1", "CPU 1", "CPU 1"]


def test_where_nothing_decides_the_device_there_is_none():
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    for x in (X, np.ones(2), 3.0, shape):
        assert devices(computation_graph(lambda x: 2 * x, x)) == [None, None]


PAIR = Mesh(np.array([cpu(0), cpu(1)]), "d")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (cpu(2), "CPU 2"),
        (SingleDeviceSharding(cpu(1)), "CPU 1"),
        (NamedSharding(PAIR, PartitionSpec()), "CPU 0, CPU 1"),
        (None, "CPU 0"),
        (jax.memory.Space.Device, "CPU 0"),
    ],
    ids=str,
)
def test_a_copy_has_the_device_that_it_leads_to_and_so_has_what_follows(target, name):
    graph = computation_graph(lambda x: jax.device_put(x, target) * 2, on(0))
    assert operators(graph) == ["input", "device_put", "mul"]
    assert devices(graph) == ["CPU 0", name, name]


def test_an_array_from_outside_the_function_is_an_input_with_a_device_and_without_a_name():
    outside = on(1)
    graph = computation_graph(lambda x: x * outside, X)
    assert operators(graph) == ["input", "input", "mul"]
    assert [name for _, name in graph.nodes(data="name")] == [None, "x", None]
    assert devices(graph) == ["CPU 1", None, "CPU 1"]


def test_each_array_of_a_copied_tuple_is_a_node_of_its_own():
    targets = (cpu(1), cpu(2))
    graph = computation_graph(lambda x, y: jnp.sin(jax.device_put((x, y), targets)[1]), X, X)
    assert operators(graph) == ["input", "input", "device_put", "device_put", "sin"]
    assert list(graph.edges) == [(0, 2), (1, 3), (3, 4)]
    assert devices(graph) == [None, None, "CPU 1", "CPU 2", "CPU 2"]


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("add", lambda x, y: x * 2 + y),
        ("cond", lambda x, y: jax.lax.cond(True, lambda a, b: a, lambda a, b: b, x, y)),
    ],
)
def test_arrays_of_two_devices_in_one_operator_are_an_error_that_names_them(operator, function):
    with pytest.raises(DeviceError) as caught:
        computation_graph(function, on(1), on(0))
    assert str(caught.value) == (
        f"{operator!r} is given arrays of CPU 0 and CPU 1, which JAX refuses: copy them to one "
        "device with jax.device_put first."
    )


def test_a_copy_brings_arrays_of_two_devices_together():
    graph = computation_graph(lambda x, y: jax.device_put(x, cpu(1)) + y, on(0), on(1))
    assert devices(graph) == ["CPU 0", "CPU 1", "CPU 1", "CPU 1"]


# --- Critical paths ---------------------------------------------------------------------------


def test_one_slow_operator_can_outweigh_a_chain():
    graph = computation_graph(lambda x: (jnp.sin(x), jnp.cos(x) * 2 + 1), X)
    assert operators(graph) == ["input", "sin", "cos", "mul", "add"]
    assert critical_path(graph) == [2, 3, 4]
    assert critical_path(graph, {1: 5, 2: 1, 3: 1, 4: 1}) == [1]


def test_what_takes_no_time_is_left_out_at_both_ends_but_not_between():
    graph = nx.path_graph(5, create_using=nx.DiGraph)
    assert critical_path(graph, {1: 1.0, 3: 1.0}) == [1, 2, 3]
    assert critical_path(nx.DiGraph([(0, 1), (2, 3)]), {0: 5, 1: 1, 3: 2}) == [0, 1]


@pytest.mark.parametrize("graph", [nx.DiGraph(), nx.path_graph(3, create_using=nx.DiGraph)])
def test_where_nothing_takes_time_the_critical_path_is_empty(graph):
    assert critical_path(graph, {}) == []


def test_the_width_is_the_largest_set_of_nodes_of_which_none_needs_another():
    chance = random.Random(0)
    for _ in range(30):
        graph = nx.gnp_random_graph(8, chance.random(), seed=chance.randrange(10**6), directed=True)
        graph = nx.DiGraph((a, b) for a, b in graph.edges if a < b)
        closure = nx.transitive_closure(graph)
        widest = max(
            len(chosen)
            for size in range(len(graph) + 1)
            for chosen in itertools.combinations(graph, size)
            if not any(closure.has_edge(*pair) for pair in itertools.permutations(chosen, 2))
        )
        assert width(graph, graph.nodes) == widest


def test_inputs_do_not_count_for_the_width_and_other_nodes_only_if_named():
    graph = computation_graph(lambda x, y: (jnp.sin(x) * y, jnp.cos(x)), X, X)
    assert width(graph) == 2
    assert width(graph, [node for node in graph if graph.nodes[node]["operator"] == "cos"]) == 1
    assert width(graph, []) == 0


# --- Graphs and timelines ---------------------------------------------------------------------


def found_seconds(nodes, *events):
    """Return what `seconds_of` finds for nodes given as pairs of an operator and a device."""
    graph = nx.DiGraph()
    for number, (operator, device) in enumerate(nodes):
        graph.add_node(number, operator=operator, device=device)
    return seconds_of(graph, timeline(*events))


def test_each_operator_gets_the_time_of_its_own_run():
    found = found_seconds(
        [("input", None), ("f", "CPU 0"), ("g", "CPU 0"), ("f", "CPU 1"), ("f", "CPU 0")],
        event(PYTHON, 0, 70, "f", "dispatch"),
        event("CPU 0", 0, 10, "f", "a", run=0),
        event("CPU 0", 10, 25, "g", "a", run=1),
        event("CPU 0", 25, 40, "g", "b", run=1),
        event("CPU 1", 10, 30, "f", "a", run=0),
        event("CPU 0", 60, 65, "f", "a", run=2),
    )
    assert found == pytest.approx({1: 10e-9, 2: 30e-9, 3: 20e-9, 4: 5e-9})


def test_an_operator_without_a_device_ran_on_the_only_one_of_its_program():
    dispatch = event(PYTHON, 0, 5, operator="dispatch")
    runs = event("GPU 0", 1, 8, run=0), event("GPU 0", 10, 12, run=1)
    found = found_seconds([("f", None), ("f", None), ("f", None)], dispatch, *runs)
    assert found == pytest.approx({0: 7e-9, 1: 2e-9})


def test_no_run_counts_twice_where_only_some_operators_have_a_device():
    runs = [event("CPU 0", 10 * n, 10 * n + n, run=n) for n in (1, 2, 3)]
    found = found_seconds([("f", "CPU 0"), ("f", None), ("f", "CPU 0")], *runs)
    assert found == pytest.approx({0: 1e-9, 1: 2e-9, 2: 3e-9})


@pytest.mark.parametrize("default", [0, 1])
def test_of_several_devices_an_operator_without_one_ran_on_the_default(default):
    runs = [event("CPU 0", 0, 1, run=0), event("CPU 1", 0, 2, run=1), event("CPU 1", 2, 5, run=2)]
    with jax.default_device(cpu(default)):
        found = found_seconds([("f", "CPU 1"), ("f", None)], *runs)
    assert found == pytest.approx({0: 2e-9, 1: [1e-9, 3e-9][default]})


@jax.jit
def work(matrix):
    return chain(matrix, 300)


def test_a_recorded_function_s_graph_finds_its_runs_and_copies():
    def function(matrix):
        return work(jax.device_put(work(matrix), cpu(1)))

    first = jax.device_put(jnp.eye(64), cpu(0))
    jax.block_until_ready(function(first))  # Nothing compiles while it is recorded.
    graph = computation_graph(function, first)
    _, run = record_trace(function, first)
    assert len(seconds_of(graph, run)) == 2  # The copy is not returned, so nobody sees it.


# --- Layout -------------------------------------------------------------------------------------


def test_an_input_stands_just_above_who_needs_it_first():
    nodes = layout_of(graph_of("a-b b-c c-d late-d")).nodes
    assert nodes["late"][1] == nodes["c"][1]


def test_a_chain_stays_in_its_column_and_who_joins_two_stands_between_them():
    x = {node: across for node, (across, _) in layout_of(FORK).nodes.items()}
    for column in ("x", "a"), ("s1", "s2", "s3"), ("copy", "m1", "m2", "m3", "back"):
        assert [x[node] for node in column] == pytest.approx([x[column[0]]] * len(column))
    for node in "a", "mean":
        assert x[node] == pytest.approx((x["s1"] + x["m1"]) / 2)


@pytest.mark.parametrize("skipping", ["a-f", "a-c a-d a-e a-f"], ids=["one", "four"])
def test_edges_from_one_node_share_a_way_past_others_that_is_narrower_than_a_box(skipping):
    assert layout_of(graph_of(f"a-b b-c c-d d-e e-f {skipping}")).width == 1.25
