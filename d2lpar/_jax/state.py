"""Ask what state JAX is in, without importing or starting JAX.

Each function looks JAX's module up in `sys.modules`: a program that has not imported JAX, or has
not yet asked for a device, must not notice the question. Starting JAX takes a GPU's memory.
"""

import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from d2lpar._plain.errors import D2lparError


def has_started() -> bool:
    """Return whether JAX has found its devices."""
    return bool(_backends())


def has_accelerator() -> bool:
    """Return whether JAX has started, and with more than CPU devices."""
    return bool(_backends().keys() - {"cpu"})


def _backends() -> dict[str, Any]:
    return getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or {}


def is_recording() -> bool:
    """Return whether the program itself records a trace with `jax.profiler`."""
    state = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
    # The attribute is called `session` from JAX 0.12 on.
    return any(getattr(state, name, None) for name in ("profile_session", "session"))


def process_count() -> int:
    """Return how many processes `jax.distributed.initialize` has joined; 1 without it."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "num_processes", None) or 1


def dispatches_synchronously() -> bool:
    """Return whether the program has switched asynchronous dispatch on CPU devices off."""
    values = getattr(getattr(sys.modules.get("jax"), "config", None), "values", {})
    return values.get("jax_cpu_enable_async_dispatch") is False


def require_values(caller: str, tree: Any = None) -> None:
    """Refuse to go on while JAX traces: no array has a value then, and a clock times the tracing.

    A caller that needs only the values of a tree of arrays is refused only if one is a tracer.
    """
    if "jax" not in sys.modules:
        return
    import jax

    # Cheap test first: JAX is rarely tracing, and walking the tree is slow.
    if _trace_state()() == _state_outside():
        return
    if tree is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        raise D2lparError(
            f"{caller} was called while JAX traces a function, for jit, grad, vmap or scan: arrays "
            "have no values there yet, and the time is that of tracing. Call it outside, around "
            "the transformed function."
        )


@functools.cache
def _trace_state() -> Callable[[], Any]:
    # The public name is in jax.extend, which imports Pallas: that adds options to JAX's
    # configuration, and JAX 0.12 then compiles every function anew.
    try:
        from jax._src.core import get_opaque_trace_state
    except ImportError:
        from jax.extend.core import get_opaque_trace_state
    return get_opaque_trace_state


@functools.cache
def _state_outside() -> Any:
    with ThreadPoolExecutor(1) as thread:  # A new thread, since the calling one may be tracing.
        return thread.submit(_trace_state()).result()
