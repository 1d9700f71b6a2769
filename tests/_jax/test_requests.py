import enum
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar._jax.requests import Value, identify


class Mode(enum.Enum):
    TRAIN = 1


class Model:
    """An object that nobody may print or compare."""

    def __init__(self, activation=jnp.tanh):
        self.activation = activation

    def __call__(self, x):
        return self.activation(x)

    def __repr__(self):
        raise AssertionError("printed")

    def jit_evaluation(self):
        self.evaluation = jax.jit(self.jit_evaluation)
        return self


def wrapped(function):
    return lambda x: function(x)


def scaled(rate):
    return lambda x: rate * x


@pytest.mark.parametrize(
    ("function", "other", "is_same"),
    [
        (scaled(1), scaled(2.0), True),
        (scaled(np.ones(3)), scaled(np.ones(4)), True),
        (wrapped(jax.jit(scaled(1))), wrapped(jax.jit(scaled(2))), True),
        (functools.partial(scaled, 1), functools.partial(scaled, 2), True),
        (Model().__call__, Model().jit_evaluation().__call__, True),
        (Model(scaled(1)), Model(scaled(2)), True),
        (jax.grad(scaled(1)), jax.grad(scaled(2)), True),
        (wrapped(jnp.tanh), wrapped(jnp.sin), False),
        (wrapped(max), wrapped(min), False),
        (wrapped([jnp.sin, jnp.tanh]), wrapped([jnp.tanh, jnp.sin]), False),
        (jax.jit(wrapped(jnp.tanh)), jax.jit(wrapped(jnp.sin)), False),
        (functools.partial(scaled, True), functools.partial(scaled, False), False),
        (Model(jnp.tanh).__call__, Model(jnp.sin).__call__, False),
        (jax.grad(scaled(1)), jax.value_and_grad(scaled(1)), False),
    ],
)
def test_functions_are_one_program_if_all_that_they_call_has_the_same_code(
    function, other, is_same
):
    assert (identify(function) == identify(other)) is is_same


def test_a_function_of_a_library_is_the_users_if_it_calls_one_of_the_user():
    assert [identify(jax.vmap(f))[1] for f in (jnp.sin, scaled(1))] == [True, False]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, "a", None), "(1, 'a', None)"),
        (Mode.TRAIN, "Mode.TRAIN"),
        ("a" * 100, "'" + "a" * 39),
        (Model(), "Model"),
        (scaled, "scaled"),
    ],
)
def test_a_value_is_told_as_text_if_it_is_simple_and_else_by_its_type(value, text):
    assert Value.of(value).text == text
