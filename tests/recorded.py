"""Work on two devices that can be recorded."""

import functools

import jax
import jax.numpy as jnp

from d2lpar import cpu
from d2lpar.book.workloads import chain

FIRST, SECOND = (jax.device_put(jnp.eye(64), cpu(index)) for index in (0, 1))


@functools.partial(jax.jit, static_argnums=1)
def work(matrix, length=300):
    return chain(matrix, length)
