import enum
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar._jax.requests import Value, caches, request_of


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

    def apply(self, x):
        return self(x)


class OtherModel(Model):
    pass


def wrapped(function):
    return lambda x: function(x)


def scaled(rate):
    return lambda x: rate * x


def mapped(axes):
    return jax.vmap(jnp.multiply, axes)


def identity_of(function, *args):
    request = request_of({"fun": function, "args": args, "kwargs": {}})
    return request.identity, request.switches


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (scaled(1), scaled(2.0)),
        (scaled(np.ones(3)), scaled(jnp.ones(4))),
        (wrapped(jax.jit(scaled(1))), wrapped(jax.jit(scaled(2)))),
        (functools.partial(scaled, 1), functools.partial(scaled, 2)),
        (Model().apply, Model().apply),
        (Model(scaled(1)), Model(scaled(2))),
        (jax.grad(scaled(1)), jax.grad(scaled(2))),
    ],
)
def test_functions_with_the_same_code_are_one_program(function, other):
    assert identity_of(function) == identity_of(other)


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (wrapped(jnp.tanh), wrapped(jnp.sin)),
        (wrapped(max), wrapped(min)),
        (wrapped([jnp.sin, jnp.tanh]), wrapped([jnp.tanh, jnp.sin])),
        (jax.jit(wrapped(jnp.tanh)), jax.jit(wrapped(jnp.sin))),
        (functools.partial(scaled, "train"), functools.partial(scaled, "test")),
        (functools.partial(scaled, True), functools.partial(scaled, False)),
        (Model().apply, OtherModel().apply),
        (Model(jnp.tanh), Model(jnp.sin)),
        (mapped((0, None)), mapped((None, 0))),
        (jax.grad(scaled(1)), jax.value_and_grad(scaled(1))),
    ],
)
def test_a_wrapper_is_another_program_for_each_function_that_it_wraps(function, other):
    assert identity_of(function) != identity_of(other)


def test_a_function_that_refers_to_itself_is_described_as_well():
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    assert identity_of(factorial) == identity_of(factorial)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        ((1, "a", None), "(1, 'a', None)"),
        (Mode.TRAIN, "Mode.TRAIN"),
        ("a" * 100, "'" + "a" * 39),
        pytest.param(10**5000, "int", id="too long to print"),
        (np.ones(3), "ndarray"),
        ((np.ones(3),), "tuple"),
        (Model(), "Model"),
        (scaled, "function scaled"),
        (jnp.tanh, "function tanh"),
        (jax.devices()[0], str(jax.devices()[0])),
    ],
)
def test_a_value_is_text_if_it_is_simple_and_else_its_type(value, text):
    assert Value.of(value).text == text


def test_a_function_of_a_library_is_the_users_if_it_calls_one_of_the_user():
    assert request_of({"fun": jax.vmap(jnp.sin), "args": (), "kwargs": {}}).of_library
    assert not request_of({"fun": jax.vmap(scaled(1)), "args": (), "kwargs": {}}).of_library


def test_the_token_is_another_once_the_caches_are_empty():
    before = caches()
    assert caches() is before
    jax.clear_caches()
    assert caches() is not before
