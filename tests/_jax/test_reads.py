import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar import D2lparError, no_waits, record_trace, waits_allowed
from d2lpar._jax import reads


def all_that_is_replaced():
    owners = {id(owner): owner for owner, _ in reads._attributes()}
    return [dict(vars(owner)) for owner in owners.values()]


def test_after_the_last_block_all_is_as_it_was():
    before = all_that_is_replaced()
    first, second = (reads.reads_heard(lambda *_: None) for _ in range(2))
    first.__enter__()
    assert all_that_is_replaced() != before
    second.__enter__()
    first.__exit__(None, None, None)
    assert all_that_is_replaced() != before
    second.__exit__(None, None, None)
    assert all_that_is_replaced() == before


def test_an_array_that_was_read_is_forgotten_when_nobody_keeps_it():
    y = jnp.ones(1000)
    gone = weakref.ref(y)
    with reads.reads_heard(lambda *_: None):
        values = np.asarray(y)
    values = memoryview(values).tobytes()
    del y
    gc.collect()
    assert gone() is None
    assert len(values) == 4000


def test_a_read_through_several_attributes_is_told_once():
    heard = []
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")), "d")
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    # JAX refuses the buffers of the first two, and NumPy asks again.
    for y in (jax.device_put(np.ones(3), spread), jnp.ones(3, jnp.bfloat16), jnp.ones(3)):
        for read in (lambda y: np.asarray(y), lambda y: np.array(y), jax.device_get, str):
            with reads.reads_heard(lambda kind, _: heard.append(kind)):
                read(y)
    assert heard == ["value"] * 12


def test_a_recording_inside_shows_its_waits_and_both_are_put_back():
    before = all_that_is_replaced()
    product = jax.jit(lambda x: (x @ x).sum())
    x = jnp.eye(500)
    float(product(x))
    with no_waits(), waits_allowed():
        _, timeline = record_trace(lambda: float(product(x)))
    assert ("float", "wait") in [(event.program, event.operator) for event in timeline.events]
    assert all_that_is_replaced() == before


def test_a_version_of_jax_that_reads_in_another_way_is_refused(monkeypatch):
    monkeypatch.setattr(reads, "READ_ATTRIBUTES", ())
    reads.require_hearing.cache_clear()
    with pytest.raises(D2lparError, match=r"cannot detect float with jax .*another version"):
        reads.require_hearing()
