"""Wait for asynchronous results, and bound how many calls are in flight.

How it works. JAX can wait for arrays (`jax.block_until_ready`), not for a device. `wait_all` relies
on a device working through its queue in order: what is put at the end of the queue, a tiny
addition, is done when everything before it is. `InFlight` keeps the results of each call in a line,
one for each set of devices, and before a further call waits for the oldest. `blocks_host` treats an
operation as a black box: if its operands are still not ready when it has returned, it has not
waited for them.
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from d2lpar._devices import all_devices, require_device
from d2lpar._errors import require_count, require_function, require_values


@jax.jit
def _add_one(x: jax.Array) -> jax.Array:
    return x + 1


def wait_for(tree: Any) -> Any:
    """Wait as `jax.block_until_ready` does, but say of donated arrays what became of them."""
    require_values("jax.block_until_ready()", tree)
    try:
        return jax.block_until_ready(tree)
    except RuntimeError as error:
        if not any(map(is_deleted, jax.tree.leaves(tree))):
            raise  # What went wrong on the device.
        raise ValueError(
            "There is nothing to wait for in an array that was deleted, or donated to a call "
            "(donate_argnums): wait for what that call returned."
        ) from error


def is_deleted(leaf: Any) -> bool:
    """Say whether something is an array that was deleted, or donated to a call."""
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def wait_all(devices: Sequence[jax.Device] | None = None) -> None:
    """Wait for all devices: for everything that this thread has dispatched, kept or not.

    JAX has no such call. This one puts a sentinel, a tiny addition, at the end of each device's
    queue and waits for it: a queue works in order, so everything before it is done as well. Work
    that another Python thread dispatched, and copies that no program needs, are not covered.

    Args:
        devices: The devices to wait for; every local one if None.

    Raises:
        D2lparError: If JAX traces.
        TypeError: If `devices` is no list of devices.

    Example:
        >>> wait_all()
    """
    require_values("wait_all()")
    if devices is None:  # JAX itself lists only those of its default kind.
        devices = list(dict.fromkeys(all_devices() + jax.local_devices()))
    if not isinstance(devices, Sequence) or not devices:
        raise TypeError(
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
    wait_for(sentinels)
    jax.effects_barrier()


def blocks_host(
    operation: Callable[..., Any], make_unready: Callable[[], Sequence[jax.Array]], tries: int = 3
) -> bool:
    """Say whether an operation blocks the host until its operands have been computed.

    The operation is a black box: it is called on arrays that are still being computed, and what
    counts is whether they are ready when it returns. If they are not, it certainly did not wait.
    If they are, the machine may merely have been slow to return, so it is tried again.

    Args:
        operation: Takes the arrays.
        make_unready: Dispatches some milliseconds of work and returns its results, all of them
            outputs of *one* jitted function, so that they are ready at the same time.
        tries: How many times in a row the arrays must be ready to call it blocking.

    Returns:
        True if the operation blocks, and also if the arrays were ready to begin with, as they
        always are without asynchronous dispatch.

    Raises:
        TypeError: If one of the two cannot be called.
        ValueError: If `tries` is no integer of at least 1, or no array is left to ask.

    Example:
        >>> import jax.numpy as jnp
        >>> products = jax.jit(lambda x: (x @ x @ x, x @ x))
        >>> blocks_host(lambda y, z: float(z[0, 0]), lambda: products(jnp.eye(1000)))
        True
    """
    require_values("blocks_host()")
    require_count("tries", tries, at_least=1)
    for function in (operation, make_unready):
        if not callable(function):
            raise TypeError(
                "blocks_host() needs an operation and a function that makes its operands, found "
                f"{function!r}: blocks_host(float, lambda: [f(x)])."
            )
    operation(*wait_for(make_unready()))  # Whatever it compiles must not look like waiting.
    for _ in range(tries):
        arrays = make_unready()
        operation(*arrays)
        # An operation may delete an operand, and a deleted one must not be asked (jax < 0.11.2).
        kept = [array for array in arrays if not array.is_deleted()]
        if not kept:
            raise ValueError(
                "blocks_host() has no array left to ask whether it is ready: let make_unready "
                "return a further result, which the operation leaves alone."
            )
        ready = all(array.is_ready() for array in kept)
        wait_all()  # The next try must not find this one's work in the queue.
        if not ready:
            return False
    return True


class InFlight:
    """Bound how many asynchronous calls are in flight: dispatched, and not finished.

    A barrier after every call leaves the device idle while Python prepares the next one; no
    barrier at all lets Python run far ahead and keep every input in memory. A window of a few
    calls keeps most of the speed, and holds only a few inputs. It cannot deadlock: it only ever
    waits for calls it has already handed to JAX.

    Args:
        max_in_flight: The most calls to have unfinished, at least 1; None sets no bound and only
            counts.

    Attributes:
        most_in_flight: The most calls that were seen unfinished at once.

    Raises:
        ValueError: If `max_in_flight` is no integer of at least 1, nor None; or if all that a
            call returned was donated to a later one, so that nothing is left to wait for.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> step = jax.jit(lambda x: x + 1)
        >>> x = jnp.float32(0)
        >>> with InFlight(max_in_flight=2) as window:
        ...     for _ in range(10):
        ...         x = window.submit(step, x)
        >>> float(x), window.most_in_flight <= 2
        (10.0, True)
    """

    def __init__(self, max_in_flight: int | None) -> None:
        require_values("InFlight()")
        if max_in_flight is not None:
            require_count(
                "max_in_flight",
                max_in_flight,
                at_least=1,
                way_out="1 waits for each call before the next; None sets no bound.",
            )
        self.max_in_flight: int | None = max_in_flight
        self.most_in_flight = 0
        # One line for each set of devices, as each is worked through in order; with its number, so
        # that the oldest call of all is known.
        self._lines: dict[frozenset, deque[tuple[int, list[Any]]]] = {}
        self._number = itertools.count()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` as soon as there is room for it, and return what it returns.

        Args:
            function: Dispatches work to JAX. It must *return* what it dispatches, as arrays or a
                tree of them: that is what is waited for.
            *args: Passed on to it.
            **kwargs: Passed on to it.
        """
        require_function("submit", function)
        self._forget_finished()
        while self.max_in_flight is not None and self._pending >= self.max_in_flight:
            self._wait_for_oldest()
        result = function(*args, **kwargs)
        if arrays := [x for x in jax.tree.leaves(result) if hasattr(x, "is_ready")]:
            where = frozenset(array.sharding for array in arrays)
            self._lines.setdefault(where, deque()).append((next(self._number), arrays))
        self._forget_finished()
        self.most_in_flight = max(self.most_in_flight, self._pending)
        return result

    def drain(self) -> None:
        """Wait for every call that is still unfinished."""
        while self._pending:
            self._wait_for_oldest()

    @property
    def _pending(self) -> int:
        return sum(map(len, self._lines.values()))

    def __enter__(self) -> "InFlight":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.drain()
        else:
            # What went wrong matters more than what is still running.
            self._lines.clear()

    def _wait_for_oldest(self) -> None:
        line = min(filter(None, self._lines.values()), key=lambda line: line[0][0])
        _, arrays = line.popleft()
        kept = _kept(arrays)
        if arrays and not kept:
            raise ValueError(
                "Everything this call returned was donated to a later call, so InFlight has "
                "nothing to wait for. Let the function also return something small that is "
                "not donated, such as the loss."
            )
        wait_for(kept)

    def _forget_finished(self) -> None:
        # From the front of each line only: a call must not cost more the more are pending.
        for line in self._lines.values():
            while line and _is_done(line[0][1]):
                line.popleft()


def _kept(arrays: list[Any]) -> list[Any]:
    # A donated array is deleted: nobody can wait for it, and asking whether it is ready crashes
    # before jax 0.11.2.
    return [array for array in arrays if not array.is_deleted()]


def _is_done(arrays: list[Any]) -> bool:
    kept = _kept(arrays)
    return all(array.is_ready() for array in kept) if kept else not arrays
