"""Wait for asynchronous results, and bound how many calls are in flight.

How it works. JAX can wait for arrays (`jax.block_until_ready`), not for a device. `wait_all` relies
on a device working through its queue in order: what is put at the end of the queue, a tiny
addition, is done when everything before it is. `InFlight` keeps an array or two of each call in a
line, one for each set of devices, and before a further call waits for the oldest. Where a call has
left nothing to wait for, since it returned nothing, or all of it was donated to the next call, such
an addition behind it tells. `blocks_host` treats an operation as a black box: if its operands are
still not ready when it has returned, it has not waited for them.
"""

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from d2lpar._jax.devices import all_devices, require_device
from d2lpar._jax.reads import waits_allowed
from d2lpar._jax.state import require_values
from d2lpar._plain.errors import require_count, require_function


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


class ExplainDonation:
    """Say the way out where JAX says that an array is gone which a function of this name needs."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, RuntimeError | ValueError) and _GONE.search(str(error)):
            raise ValueError(
                f"{self._name!r} needs an array that was deleted, or donated to an earlier call "
                "(donate_argnums). To call it again and again, hand its state from call to call: "
                "d2lpar.carried(step, state, ...) is a function without arguments that does."
            ) from error


_GONE = re.compile(r"(array|buffer) has been deleted|deleted or donated buffer", re.IGNORECASE)


def is_deleted(leaf: Any) -> bool:
    """Say whether something is an array that was deleted, or donated to a call."""
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def arrays_in(tree: Any) -> list[Any]:
    """Return the arrays of a tree as what can be asked `is_ready`."""
    return [array for array in map(unwrap_key, jax.tree.leaves(tree)) if hasattr(array, "is_ready")]


def unwrap_key(leaf: Any) -> Any:
    """Return the data in place of a typed key (`jax.random.key`), which has no `is_ready`."""
    if hasattr(leaf, "is_ready") or not isinstance(leaf, jax.Array):
        return leaf
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


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
    if devices is None:
        devices = _every_device()
    if not isinstance(devices, Sequence) or not devices:
        raise TypeError(
            f"wait_all() needs a list of devices, or None for all of them, found {devices!r}."
        )
    for device in devices:
        require_device(device, "wait_all()")
    wait_for(sentinels(devices))
    jax.effects_barrier()


def sentinels(devices: Sequence[jax.Device]) -> list[jax.Array]:
    """Put a tiny addition at the end of each queue of these devices: done when all before it is."""
    found = [_add_one(jax.device_put(np.float32(0), device)) for device in devices]
    for kind in {device.platform for device in devices}:
        group = [device for device in devices if device.platform == kind]
        # Programs over several CPU devices have a queue of their own.
        if len(group) > 1:
            spread = NamedSharding(Mesh(np.array(group), "d"), PartitionSpec("d"))
            found.append(_add_one(jax.device_put(np.zeros(len(group), np.float32), spread)))
    return found


def _every_device() -> list[jax.Device]:
    # JAX itself lists only those of its default kind.
    return list(dict.fromkeys(all_devices() + jax.local_devices()))


def blocks_host(
    operation: Callable[..., Any], make_unready: Callable[[], Sequence[Any]], tries: int = 3
) -> bool:
    """Say whether an operation blocks the host until its operands have been computed.

    The operation is a black box: it is called on arrays that are still being computed, and what
    counts is whether they are ready when it returns. If they are not, it certainly did not wait.
    If they are, the machine may merely have been slow to return, so it is tried again.

    Args:
        operation: Takes the operands.
        make_unready: Dispatches some milliseconds of work and returns its results, a list of
            operands, which are arrays, typed keys or trees of them: all of them outputs of *one*
            jitted function, so that they are ready at the same time.
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
        operands = make_unready()
        operation(*operands)
        # An operation may delete an operand, and a deleted one must not be asked (jax < 0.11.2).
        kept = _kept(arrays_in(operands))
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

    For each set of devices, it keeps the first and the last array that a call has returned there,
    and no others; the call counts as finished when these are ready. The results of one jitted
    function become ready together. A function in Python that makes several calls on a device should
    return a result of the last one first or last, since a device works in the order of the calls.

    If a call returns no array, since it changes an object in place, or if all of them are donated
    to the next call, a sentinel is put into the queues of the devices behind it, as by `wait_all`,
    and waited for in their place. That costs some 50 µs for each queue.

    Args:
        max_in_flight: The most calls to have unfinished, at least 1; None sets no bound and only
            counts.

    Attributes:
        most_in_flight: The most calls that were seen unfinished at once.

    Raises:
        ValueError: If `max_in_flight` is no integer of at least 1, nor None.

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
        # A line for each choice of sets of devices, as each set is worked through in order.
        self._lines: dict[frozenset[_Devices], deque[_Call]] = {}
        self._number = itertools.count()
        self._ends: dict[tuple[Any, ...], dict[_Devices, set[int]]] = {}
        self._last: dict[frozenset[_Devices], list[Any]] = {}

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` as soon as there is room for it, and return what it returns.

        Args:
            function: Dispatches work to JAX, and returns arrays or a tree of them, which are waited
                for; if it returns none, whatever this thread has dispatched is waited for.
            *args: Passed on to it.
            **kwargs: Passed on to it.
        """
        require_function("submit", function)
        self._forget_finished()
        while self.max_in_flight is not None and self._pending >= self.max_in_flight:
            self._wait_for_oldest()
        result = function(*args, **kwargs)
        self._line_up(function, jax.tree.leaves(result))
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

    def _line_up(self, function: Callable[..., Any], leaves: list[Any]) -> None:
        # Where thousands of leaves lie takes longer to ask than the call takes, so once must do for
        # all that look alike. By its name, since a function may hold what is to be forgotten.
        name = getattr(function, "__qualname__", type(function).__qualname__)
        key = (name, len(leaves), *map(_devices_of, leaves[:1]))
        ends = self._ends.get(key)
        if not ends or any(_devices_of(leaves[i]) != on for on, of in ends.items() for i in of):
            ends = self._ends[key] = _first_and_last(leaves)
        arrays = [unwrap_key(leaves[i]) for of in ends.values() for i in sorted(of)]
        where = frozenset(ends)
        # What the last call returned may have been donated to this one: then so will this one's be.
        donates = not _kept(self._last.get(where, arrays))
        behind = _sentinels_on(where) if donates else []
        self._lines.setdefault(where, deque()).append(_Call(next(self._number), arrays, behind))
        self._last[where] = arrays

    def _wait_for_oldest(self) -> None:
        where = min(filter(self._lines.get, self._lines), key=lambda on: self._lines[on][0].number)
        count, left = _oldest(self._lines[where])
        _forget(self._lines[where], count)
        with waits_allowed():
            wait_for(left or _sentinels_on(where))

    def _forget_finished(self) -> None:
        # From the front of each line only: a call must not cost more the more are pending.
        for line in self._lines.values():
            count, left = _oldest(line)
            while left and all(array.is_ready() for array in left):
                _forget(line, count)
                count, left = _oldest(line)


_Devices = frozenset[jax.Device]


class _Call(NamedTuple):
    """A call in flight: its number among all, arrays that it returned, and sentinels behind it."""

    number: int
    arrays: list[Any]
    behind: list[jax.Array]


def _first_and_last(leaves: Iterable[Any]) -> dict[_Devices, set[int]]:
    """Return where the first and the last array on each set of devices stand."""
    found: dict[_Devices, set[int]] = {}
    for index, leaf in enumerate(leaves):
        if devices := _devices_of(leaf):
            found[devices] = {min(found.get(devices, {index})), index}
    return found


def _devices_of(leaf: Any) -> _Devices:
    array = unwrap_key(leaf)
    return frozenset(array.sharding.addressable_devices if hasattr(array, "is_ready") else ())


def _sentinels_on(where: frozenset[_Devices]) -> list[jax.Array]:
    devices = sorted(frozenset().union(*where), key=lambda device: device.id)
    return sentinels(devices or _every_device())


def _oldest(line: Iterable[_Call]) -> tuple[int, list[Any]]:
    """Return how many calls are finished when the first is that has something left to wait for.

    And what that is; a later call on the same devices implies those before it.
    """
    count = 0
    for count, call in enumerate(line, 1):
        if left := _kept(call.arrays) or call.behind:
            return count, left
    return count, []


def _forget(line: deque[_Call], count: int) -> None:
    for _ in range(count):
        line.popleft()


def _kept(arrays: list[Any]) -> list[Any]:
    # A donated array is deleted: nobody can wait for it, and asking whether it is ready crashes
    # before jax 0.11.2.
    return [array for array in arrays if not array.is_deleted()]
