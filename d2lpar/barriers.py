"""Wait for asynchronous results: the one place where d2lpar blocks."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

_bump = jax.jit(lambda sentinel: sentinel + 1)


def block(tree: Any) -> Any:
    """Wait until every array in `tree` has been computed.

    Args:
        tree: An array, or any nesting of lists, tuples and dictionaries of arrays. Whatever is
            not an array of JAX is passed over.

    Returns:
        The same tree.

    Example:
        >>> import jax.numpy as jnp
        >>> block({"loss": jnp.float32(2) * 3})
        {'loss': Array(6., dtype=float32)}
    """
    return jax.block_until_ready(tree)


def wait_all(devices: Sequence[jax.Device] | None = None) -> None:
    """Wait for everything this thread has dispatched, also for results nobody kept.

    JAX has no such call. This one puts a sentinel, a tiny addition, at the end of each device's
    queue and waits for it: a queue works in order, so everything before it is done as well. Work
    that another Python thread dispatched, and copies from a GPU to the host, are not covered.

    Args:
        devices: The devices to wait for; every local one if None.

    Example:
        >>> wait_all()
    """
    if devices is None:
        # The CPU is there beside any accelerator, but `jax.local_devices()` does not list it.
        platforms = {device.platform for device in jax.local_devices()} | {"cpu"}
        devices = [d for platform in platforms for d in jax.local_devices(backend=platform)]
    block([_bump(jax.device_put(np.float32(0), device)) for device in devices])
    jax.effects_barrier()
