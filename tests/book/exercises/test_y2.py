import jax
import jax.numpy as jnp
import pytest
from attempts import require_accepted, require_not_yet, require_told, to_numpy

from d2lpar.book.exercises import check_y2

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def vectorized(operator):
    return jax.jit(jax.vmap(operator))


def one_program(operator):
    return jax.jit(lambda xs: jax.lax.map(operator, xs))


RIGHT = {"vectorized": (vectorized,), "one program": (one_program,)}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_y2(*answers))


def anew(operator):
    return lambda xs: jax.jit(jax.vmap(lambda x: operator(x)))(xs)


def leaking(operator):
    traced = []
    leak = jax.jit(lambda xs: (traced.append(jax.vmap(operator)(xs)), xs)[1])
    return lambda xs: (leak(xs), traced[-1])[1]


WRONG = {
    "the loop": (
        (lambda operator: lambda xs: jnp.stack([operator(x) for x in xs]),),
        "a loop of one call for each matrix",
    ),
    "anew": ((anew,), r"XLA compiles in each call of your function: jit\(<lambda>\)"),
    "the operator": ((lambda operator: operator,), "Your function raised"),
    "its result": (
        (lambda operator: operator(jnp.ones((16, 16))),),
        r"my_many\(operator\) returned ArrayImpl, not a function",
    ),
    "to NumPy": ((lambda operator: to_numpy(vectorized(operator)),), "NumPy's, not JAX's"),
    "another axis": (
        (lambda operator: jax.vmap(operator, in_axes=1, out_axes=1),),
        r"has the shape \(100, 16, 100\), but \(100, 16, 16\)",
    ),
    "transposed": (
        (lambda operator: jax.vmap(lambda x: operator(x.T)),),
        "What the function that my_many has made returned is wrong",
    ),
    "no result": (
        (lambda operator: lambda xs: None,),
        r"through my_many\(operator\)\(xs\) end",
    ),
    "leaks": ((leaking,), "is a tracer, which stands for an array while JAX traces"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_y2(*WRONG[name][0]), name, WRONG)


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_y2(3), "was given an int, which cannot be called")
