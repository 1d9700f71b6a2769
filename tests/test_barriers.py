import jax
import jax.numpy as jnp
import pytest
from fakes import FakeArray, FakeDevice

from d2lpar import blocks_host, wait_all
from d2lpar.book.workloads import chain

# `is_ready` would not tell: for some microseconds after `wait_all` it may still say no.
WHAT_WAIT_ALL_LEAVES = """
import time, jax
from d2lpar import wait_all
from d2lpar.book.workloads import chain
for device in jax.local_devices(backend="cpu"):
    matrix = jax.device_put(jax.numpy.eye(64), device)
    jax.block_until_ready(chain(matrix, 5000))
    wait_all()
    start = time.perf_counter()
    result = chain(matrix, 5000)
    wait_all()
    waited = time.perf_counter()
    jax.block_until_ready(result)
    print("little" if time.perf_counter() - waited < (waited - start) / 2 else "much")
"""


def test_block_waits_for_every_array_of_a_tree_and_returns_the_tree(clock):
    tree = {"late": FakeArray(clock, 5), "rest": [FakeArray(clock, 2), (FakeArray(clock, 3),)]}
    assert jax.block_until_ready(tree) == tree
    assert clock.now == 5


@pytest.mark.parametrize("tree", [None, [], 3, "text", {"a": [1.5, None]}])
def test_block_passes_over_what_is_not_an_array(tree):
    assert jax.block_until_ready(tree) == tree


@pytest.mark.timed
def test_wait_all_waits_for_what_was_dispatched_on_every_device(run_python):
    assert run_python(WHAT_WAIT_ALL_LEAVES, JAX_NUM_CPU_DEVICES="2") == "little\nlittle"


def test_wait_all_can_be_told_which_devices():
    wait_all(jax.local_devices()[:1])


@pytest.mark.parametrize(
    ("operation", "waits"),
    [
        (lambda y, z: z.block_until_ready(), True),
        (lambda y, z: float(z[0, 0]), True),
        (lambda y, z: y + z, False),
        (lambda y, z: z.shape, False),
    ],
)
def test_an_operation_is_found_to_wait_or_not(operation, waits):
    two_results = jax.jit(lambda x: (chain(x, 5000), 2 * x))
    assert blocks_host(operation, lambda: two_results(jnp.eye(64))) is waits


def test_an_operation_that_once_returned_late_is_not_said_to_wait(clock):
    device, late = FakeDevice(clock), iter([0, 100, 100, 0])
    operation = lambda array: clock.advance(next(late))  # noqa: E731
    assert not blocks_host(operation, lambda: [device.run(5)], tries=3)


def test_an_operand_that_the_operation_deletes_is_not_asked(clock):
    device = FakeDevice(clock)
    assert not blocks_host(lambda y, z: z.delete(), lambda: [device.run(5), device.run(0)])


def test_an_operation_must_be_tried_at_least_once():
    with pytest.raises(ValueError, match=r"tries must be .* at least 1, found 0"):
        blocks_host(jax.block_until_ready, list, tries=0)


@pytest.mark.timed
def test_waiting_for_everything_includes_programs_that_span_several_devices(run_python):
    program = """
import time, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from d2lpar import wait_all
from d2lpar.book.workloads import chain

spread = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
chains = jax.jit(jax.vmap(lambda matrix: chain(matrix, 5000)))
matrices = jax.device_put(jnp.ones((len(jax.devices()), 64, 64)), spread)
jax.block_until_ready(chains(matrices))
wait_all()
start = time.perf_counter()
result = chains(matrices)
wait_all()
waited = time.perf_counter()
jax.block_until_ready(result)
print(len(jax.devices()), time.perf_counter() - waited < (waited - start) / 2)
"""
    assert run_python(program, JAX_NUM_CPU_DEVICES="2") == "2 True"


def test_an_operation_that_leaves_no_array_to_ask_is_refused():
    with pytest.raises(ValueError, match="no array left to ask"):
        blocks_host(lambda array: array.delete(), lambda: [jnp.ones(3) + 1])
