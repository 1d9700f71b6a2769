import jax
import jax.numpy as jnp
import numpy as np
import pytest

import d2lpar
from d2lpar import D2lparError
from d2lpar._jax import state
from d2lpar._measure.waiting import wait_for

CALLS = {
    "measure": lambda x: d2lpar.measure(jnp.sin, x),
    "compare": lambda x: d2lpar.compare({"sin": lambda: jnp.sin(x)}),
    "wait_all": lambda x: d2lpar.wait_all(),
    "blocks_host": lambda x: d2lpar.blocks_host(float, lambda: [x]),
    "record_trace": lambda x: d2lpar.record_trace(jnp.sin, x),
    "watch": lambda x: d2lpar.watch().__enter__(),
    "no_waits": lambda x: d2lpar.no_waits().__enter__(),
    "Timer": lambda x: d2lpar.Timer(),
    "Benchmark": lambda x: d2lpar.Benchmark().__enter__(),
    "PeakMemory": lambda x: d2lpar.PeakMemory().__enter__(),
    "InFlight": lambda x: d2lpar.InFlight(2),
}


@pytest.mark.parametrize("name", CALLS)
def test_where_no_array_has_a_value_nothing_is_timed_or_waited_for(name):
    @jax.jit
    def traced(x):
        CALLS[name](x)
        return x

    with pytest.raises(D2lparError, match=rf"{name}.* was called while JAX traces"):
        traced(jnp.ones(3))


def test_what_has_a_value_under_jit_may_be_waited_for():
    constant = jnp.arange(3)
    assert jax.jit(lambda x: x + len(wait_for(constant)))(1) == 4


def test_the_first_look_may_come_while_jax_traces():
    state._state_outside.cache_clear()
    with pytest.raises(D2lparError, match="while JAX traces"):
        jax.vmap(lambda x: d2lpar.Timer())(np.ones(3))
    d2lpar.Timer()


def test_what_was_compiled_before_is_not_compiled_again_after_the_first_look(run_python):
    program = (
        "import jax; double = jax.jit(lambda x: 2 * x); x = double(1.0)\n"
        "from d2lpar import Timer, record_compilations\n"
        "Timer()\n"
        "with record_compilations() as compiled: double(1.0)\n"
        "print(compiled)"
    )
    assert run_python(program) == "[]"
