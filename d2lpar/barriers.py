"""Wait for asynchronous results: the one place where d2lpar blocks."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from d2lpar._tracing import require_values
from d2lpar.devices import all_devices, require_device
from d2lpar.errors import ArgumentError, require_count

WAITING = "d2lpar.block"
"""What the profiler calls the time that Python spends in `block`."""


@jax.jit
def _add_one(x: jax.Array) -> jax.Array:
    return x + 1


def block(tree: Any) -> Any:
    """Wait until every array in `tree` has been computed.

    A recording (`trace.record_trace`) shows the time it takes as waiting.

    Args:
        tree: An array, or any nesting of lists, tuples and dictionaries of arrays. Whatever is
            not an array of JAX is passed over.

    Returns:
        The same tree.

    Raises:
        ArgumentError: If JAX traces, or an array was deleted or donated.
        Exception: What went wrong while an array was computed.

    Example:
        >>> import jax.numpy as jnp
        >>> block({"loss": jnp.float32(2) * 3})
        {'loss': Array(6., dtype=float32)}
    """
    require_values("block()", tree)
    try:
        with jax.profiler.TraceAnnotation(WAITING):
            return jax.block_until_ready(tree)
    except RuntimeError as error:
        if not any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(tree)):
            raise  # What went wrong on the device.
        raise ArgumentError(
            "There is nothing to wait for in an array that was deleted, or donated to a call "
            "(donate_argnums): wait for what that call returned."
        ) from error


def wait_all(devices: Sequence[jax.Device] | None = None) -> None:
    """Wait for everything this thread has dispatched, also for results nobody kept.

    JAX has no such call. This one puts a sentinel, a tiny addition, at the end of each device's
    queue and waits for it: a queue works in order, so everything before it is done as well. Work
    that another Python thread dispatched, and copies that no program needs, are not covered.

    Args:
        devices: The devices to wait for; every local one if None.

    Raises:
        ArgumentError: If JAX traces, or `devices` is no list of devices.

    Example:
        >>> wait_all()
    """
    require_values("wait_all()")
    if devices is None:  # JAX itself lists only those of its default kind.
        devices = list(dict.fromkeys(all_devices() + jax.local_devices()))
    if not isinstance(devices, Sequence) or not devices:
        raise ArgumentError(
            f"wait_all() needs a list of devices, or None for all of them, found {devices!r}."
        )
    for device in devices:
        require_device(device, "wait_all()")
    sentinels = [_add_one(jax.device_put(np.float32(0), d)) for d in devices]
    for kind in {device.platform for device in devices}:
        group = [device for device in devices if device.platform == kind]
        # Programs over several CPU devices have a queue of their own.
        if len(group) > 1:
            spread = NamedSharding(Mesh(np.array(group), "d"), PartitionSpec("d"))
            zeros = np.zeros(len(group), np.float32)
            sentinels.append(_add_one(jax.device_put(zeros, spread)))
    block(sentinels)
    jax.effects_barrier()


def makes_wait(
    operation: Callable[..., Any], make_unready: Callable[[], Sequence[jax.Array]], tries: int = 3
) -> bool:
    """Say whether an operation makes Python wait for its operands.

    The operation is a black box: it is called on arrays that are still being computed, and what
    counts is whether they are ready when it returns. If they are not, it certainly did not wait.
    If they are, the machine may merely have been slow to return, so it is tried again.

    Args:
        operation: Takes the arrays.
        make_unready: Dispatches some milliseconds of work and returns its results, all of them
            outputs of *one* jitted function, so that they are ready at the same time.
        tries: How many times in a row the arrays must be ready to call it waiting.

    Returns:
        True if the operation waits, and also if the arrays were ready to begin with, as they
        always are without asynchronous dispatch.

    Raises:
        ArgumentError: If `tries` is no integer of at least 1, or no array is left to ask.

    Example:
        >>> import jax.numpy as jnp
        >>> products = jax.jit(lambda x: (x @ x @ x, x @ x))
        >>> makes_wait(lambda y, z: float(z[0, 0]), lambda: products(jnp.eye(1000)))
        True
    """
    require_values("makes_wait()")
    require_count("tries", tries, at_least=1)
    operation(*block(make_unready()))  # Whatever it compiles must not look like waiting.
    for _ in range(tries):
        arrays = make_unready()
        operation(*arrays)
        # An operation may delete an operand, and a deleted one must not be asked (jax < 0.11.2).
        kept = [array for array in arrays if not array.is_deleted()]
        if not kept:
            raise ArgumentError(
                "makes_wait() has no array left to ask whether it is ready: let make_unready "
                "return a further result, which the operation leaves alone."
            )
        ready = all(array.is_ready() for array in kept)
        wait_all()  # The next try must not find this one's work in the queue.
        if not ready:
            return False
    return True
