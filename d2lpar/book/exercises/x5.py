"""Exercise X5: where asynchrony ends."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._devices import cpu
from d2lpar.book.exercises.answers import Rejection, call_answer, require_truth
from d2lpar.book.exercises.report import Report, exercise
from d2lpar.book.exercises.work import ready_at_once, require_asynchrony


def _loop(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 200_000, lambda _, c: 0.5 * c + x, x)


# Each takes some milliseconds or more of an argument of this shape.
_PROGRAMS = {
    "A product of two 1500x1500 matrices": (jax.jit(lambda x: x @ x), (1500, 1500)),
    "exp(x) of eight million elements": (jax.jit(jnp.exp), (8_000_000,)),
    "exp(x) + 1 of eight million elements": (jax.jit(lambda x: jnp.exp(x) + 1), (8_000_000,)),
    "Reversing eight million elements": (jax.jit(lambda x: x[::-1]), (8_000_000,)),
    "A loop of 200,000 turns over 100 elements": (jax.jit(_loop), (100,)),
    "A loop of 200,000 turns over 1000 elements": (jax.jit(_loop), (1000,)),
}


@exercise("X5")
def check_x5(runs_inline: Callable) -> Report:
    """Check whether an answer can tell which programs run inside the call on a CPU.

    Args:
        runs_inline: `runs_inline(function, x)` says whether the call `function(x)` computes
            everything before it returns. The function is jitted, and `x` is on the CPU and ready.

    Returns:
        A report.

    Example:
        >>> check_x5(lambda function, x: False).verdict
        'not yet'
    """
    require_asynchrony()
    shapes = {shape for _, shape in _PROGRAMS.values()}
    array = {shape: jax.device_put(np.ones(shape, np.float32), cpu()) for shape in shapes}
    cases = {name: (function, array[shape]) for name, (function, shape) in _PROGRAMS.items()}
    truth = {}
    for name, (function, x) in cases.items():
        jax.block_until_ready(function(x))
        truth[name] = all(ready_at_once(function, x) for _ in range(5))
    calls = [case for case in cases.values() for _ in range(3)]
    found = call_answer(runs_inline, calls, "my_runs_inline(function, x)")
    for number, (name, inline) in enumerate(truth.items()):
        said = found[3 * number : 3 * number + 3]
        # One time in three, a noisy machine may fool a measurement.
        if sum(require_truth(answer) != inline for answer in said) > 1:
            does = "runs inside the call" if inline else "goes on after the call has returned"
            says = "goes on after the call" if inline else "runs inside the call"
            raise Rejection(
                f"{name} {does}; your function says that it {says}.",
                "It is not the size of the array that decides. Time the call, and time until the "
                "result is ready, after one call that compiles. What do the programs that run "
                "inside the call have in common?",
            )
    return f"Your function is right about {len(truth)} programs."
