"""The work that checks hand to an answer: long enough for one core to be seen unfinished."""

import functools
from collections.abc import Callable

import jax
import numpy as np

from d2lpar._devices import cpu
from d2lpar.book.exercises.report import Untestable
from d2lpar.book.workloads import chain

LINKS = 2000  # Some ten milliseconds for one core: long beside a wake-up of Python.


@jax.jit
def work(x: jax.Array) -> jax.Array:
    """Keep one core busy for a while; the result tells its inputs and their order apart."""
    return 0.9 * x + chain(x, LINKS)


def inputs(count: int, device: jax.Device, seed: int = 0) -> list[jax.Array]:
    """Return ready matrices that differ from each other."""
    draws = np.random.default_rng(seed).standard_normal((count, 64, 64), dtype=np.float32)
    return jax.block_until_ready([jax.device_put(draw, device) for draw in draws])


@functools.cache
def right_results(count: int, device: jax.Device, seed: int = 0) -> tuple[jax.Array, ...]:
    """Return what `work` makes of the same inputs; no answer gets hold of these."""
    return tuple(jax.block_until_ready([work(x) for x in inputs(count, device, seed)]))


def require_asynchrony() -> None:
    """Refuse to judge where nothing is dispatched asynchronously."""
    x = inputs(1, cpu())[0]
    jax.block_until_ready(work(x))
    if all(ready_at_once(work, x) for _ in range(3)):
        raise Untestable(
            "Calls are not dispatched asynchronously here: each is done when it returns. Restart "
            "Python without jax_cpu_enable_async_dispatch=False."
        )


def ready_at_once(function: Callable, x: jax.Array) -> bool:
    """Say whether a result is ready when the call returns."""
    result = function(x)
    ready = result.is_ready()
    jax.block_until_ready(result)
    return ready
