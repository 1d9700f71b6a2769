"""Exercise Y2: many small operators."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._devices import cpu
from d2lpar._measurement import compare
from d2lpar.book.exercises.answers import Rejection, call_answer, require_array
from d2lpar.book.exercises.report import Report, exercise


@exercise("Y2")
def check_y2(many: Callable) -> Report:
    """Check whether many small operators became faster than one call for each.

    Args:
        many: `many(operator)` returns a function of an array of shape `(n, 16, 16)` that applies
            `operator`, which takes a `(16, 16)` array, to each of its matrices, and returns the
            results as an array of the same shape.

    Returns:
        A report.

    Example:
        >>> def one_by_one(operator):
        ...     return lambda xs: jnp.stack([operator(x) for x in xs])
        >>> check_y2(one_by_one).verdict
        'not yet'
    """
    draws = np.random.default_rng(0).standard_normal((100, 16, 16), dtype=np.float32)
    xs = jax.block_until_ready(jax.device_put(draws, cpu()))

    def loop():
        return jnp.stack([_operator(x) for x in xs])

    right = loop()
    (faster,) = call_answer(many, [(_operator,)], "my_many(operator)")
    if not callable(faster):
        raise Rejection(
            f"my_many(operator) returned {type(faster).__name__}, not a function.",
            "It is to return a function of the matrices, as jit and vmap do.",
        )
    usage = "my_many(operator)(xs)"
    (found,) = call_answer(faster, [(xs,)], usage)
    require_array(found, right, "What the function that my_many has made returned")
    arms = {"yours": lambda: faster(xs), "loop": loop}
    (times,) = call_answer(lambda: compare(arms, repeats=15, warmup=2), [()], usage)
    # The fastest round of each: a busy machine only ever adds to a time.
    fastest = {arm: min(measured.total.samples) for arm, measured in times.items()}
    ratio = fastest["loop"] / fastest["yours"]
    if ratio < 2:
        words = "about as fast as" if ratio > 0.7 else "slower than"
        raise Rejection(
            f"The results are right, but it is {words} a loop of one call for each matrix (the "
            f"loop takes {ratio:.2f} times as long).",
            "How many calls does Python make, and how much work is in each? What can hand all of "
            "it over at once?",
        )
    return f"The results are right; a loop takes {ratio:.1f} times as long."


@jax.jit
def _operator(x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ x.T)
