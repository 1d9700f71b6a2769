"""Know whether JAX traces: then no array has a value, and a clock times the tracing."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from d2lpar.errors import ArgumentError

# Private here, public in jax.extend, which imports Pallas: that adds options to JAX, and JAX 0.12
# then compiles anew whatever was compiled before.
try:
    from jax._src.core import get_opaque_trace_state
except ImportError:
    from jax.extend.core import get_opaque_trace_state


def require_values(what: str, tree: Any = None) -> None:
    """Refuse to go on while JAX traces.

    Args:
        what: Was called, as the message names it: `"measure()"`.
        tree: If what was called needs only the values of these arrays, refuse only if one of them
            has none.

    Raises:
        ArgumentError: If this thread is in a function that jit, grad, vmap or the like transform.
    """
    # First: a tree has many leaves, and nearly always this is so.
    if get_opaque_trace_state() == _outside():
        return
    if tree is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        raise ArgumentError(
            f"{what} was called while JAX traces a function, for jit, grad, vmap or scan: there "
            "no array has a value yet, and what takes time is the tracing. Call it outside, "
            "around the function that JAX has transformed."
        )


@functools.cache
def _outside() -> Any:
    with ThreadPoolExecutor(1) as thread:  # Whoever asks first may be inside.
        return thread.submit(get_opaque_trace_state).result()
