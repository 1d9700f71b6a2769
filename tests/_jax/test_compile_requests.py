import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar._jax.compile_requests import identify


class Model:
    def __init__(self, activation=jnp.tanh):
        self.activation = activation

    def __call__(self, x):
        return self.activation(x)

    def after_evaluation(self):
        self.evaluate = jax.jit(self.after_evaluation)
        return self


def wrapped(function):
    return lambda x: function(x)


def scaled(rate):
    return lambda x: rate * x


@pytest.mark.parametrize(
    ("function", "other", "is_same"),
    [
        (scaled(1), scaled(2.0), True),
        (wrapped(jax.jit(scaled(np.ones(3)))), wrapped(jax.jit(scaled(np.ones(4)))), True),
        (functools.partial(scaled, 1), functools.partial(scaled, 2), True),
        (functools.partial(scaled, True), functools.partial(scaled, False), False),
        (Model().__call__, Model().after_evaluation().__call__, True),
        (Model(scaled(1)), Model(scaled(2)), True),
        (Model(jnp.tanh), Model(jnp.sin), False),
        (functools.wraps(max)(scaled(1)), functools.wraps(min)(scaled(1)), False),
        (wrapped([jnp.sin, jnp.tanh]), wrapped([jnp.tanh, jnp.sin]), False),
        (jax.jit(wrapped(jnp.tanh)), jax.jit(wrapped(jnp.sin)), False),
        (jax.grad(scaled(1)), jax.grad(scaled(2)), True),
        (jax.grad(scaled(1)), jax.value_and_grad(scaled(1)), False),
    ],
)
def test_functions_are_one_program_if_they_call_the_same_code(function, other, is_same):
    assert (identify(function) == identify(other)) is is_same
    assert [identify(jax.vmap(f))[1] for f in (jnp.sin, function)] == [True, False]
