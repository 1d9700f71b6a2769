"""Wait for asynchronous results, and bound how many calls are in flight.

How it works. `InFlight` keeps the pending calls in a line, oldest first. If there is no room for a
further call, it waits for the oldest one that still has something to wait for, and so for all
before it. In a loop that donates its state, `x = window.submit(step, x)`, this may not be the first
in line. An example with a bound of 2: x1 is the array that call 1 returned, and s2 is a sentinel
behind call 2, a tiny addition at the end of its queue (see `wait_all`)::

    submit   waits for               line afterwards
    1        nothing                 1: x1
    2        nothing                 1: x1 (deleted)       2: x2, s2
    3        x2, so for 1 and 2      3: x3, s3
    4        nothing                 3: x3 (deleted), s3   4: x4, s4
    5        s3                      4: x4 (deleted), s4   5: x5, s5

Call 1 has no sentinel, since only call 2, which deletes x1, shows that the loop donates.
"""

import contextlib
import functools
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
    """Wait as `jax.block_until_ready` does, but explain an error about donated arrays."""
    require_values("jax.block_until_ready()", tree)
    try:
        return jax.block_until_ready(tree)
    except RuntimeError as error:
        if not any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(tree)):
            raise  # No array was deleted: this is an error of the device.
        raise ValueError(
            "An array that was deleted, or donated to a call (donate_argnums), cannot be waited "
            "for: wait for that call's result."
        ) from error


# `contextlib.contextmanager` would set `__traceback__`, which a frozen exception refuses.
class ExplainDonation(contextlib.AbstractContextManager):
    """Turn JAX's error about a deleted array into one that names the function and a way out."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, RuntimeError | ValueError) and _GONE.search(str(error)):
            raise ValueError(
                f"{self._name!r} needs an array that was deleted, or donated to an earlier call "
                "(donate_argnums). To call it repeatedly, pass its state from call to call: "
                "d2lpar.carried(step, state, ...) is a function without arguments that does so."
            ) from error


_GONE = re.compile(r"(array|buffer) has been deleted|deleted or donated buffer", re.IGNORECASE)


def unwrap_key(leaf: Any) -> Any:
    """Return the data of a typed key (`jax.random.key`), which has no `is_ready`, or the leaf."""
    if hasattr(leaf, "is_ready") or not isinstance(leaf, jax.Array):
        return leaf
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def wait_all(devices: Sequence[jax.Device] | None = None) -> None:
    """Wait for all devices: for each program that this thread has dispatched, kept or not.

    JAX has no such call. This one puts a sentinel, a tiny addition, at the end of each queue and
    waits for it: a queue works in order, so everything before it is done as well. On CPU devices,
    each thread of Python has a queue for each device, and all programs over several devices share
    one more, whichever thread has dispatched them. Queues keep no order with each other: a program
    on one device may overtake one over that device and others, and the other way round.

    Programs on one device that another thread dispatched, and copies that no program needs, are
    not covered. Nor does a call that has failed raise its error here, unless its program has a
    callback. (MXNet's `waitall` waits for the work of all threads, and raises.)

    Args:
        devices: The devices to wait for; every local one if None. If one is a CPU device, all
            programs over several CPU devices are waited for as well.

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
    wait_for(sentinels(_queues_of(devices)))
    jax.effects_barrier()


def sentinels(groups: Iterable[Sequence[jax.Device]]) -> list[jax.Array]:
    """Put a tiny addition behind the programs over each of these groups of devices."""
    in_mesh = not jax.sharding.get_abstract_mesh().empty
    additions = []
    for group in groups:
        spread = _spread_over(tuple(group))
        zeros = jax.device_put(np.zeros(len(group), np.float32), spread)
        # Within `jax.set_mesh`, JAX refuses arrays that lie elsewhere than on its mesh.
        with jax.set_mesh(spread.mesh) if in_mesh else contextlib.nullcontext():
            additions.append(_add_one(zeros))
    return additions


@functools.cache  # Making one takes half as long as a sentinel.
def _spread_over(devices: tuple[jax.Device, ...]) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), "d"), PartitionSpec("d"))


def _queues_of(devices: Sequence[jax.Device]) -> list[Sequence[jax.Device]]:
    """Return a group for each device, and all CPU devices if any of these devices is one."""
    cpus = [device for device in all_devices() if device.platform == "cpu"]
    together = len(cpus) > 1 and not set(cpus).isdisjoint(devices)
    return [*([device] for device in devices), *([cpus] if together else [])]


def _every_device() -> list[jax.Device]:
    # `jax.local_devices()` lists only the devices of the default kind, such as GPUs.
    return list(dict.fromkeys(all_devices() + jax.local_devices()))


def blocks_host(
    operation: Callable[..., Any], make_unready: Callable[[], Sequence[Any]], tries: int = 3
) -> bool:
    """Say whether an operation blocks the host until its operands have been computed.

    The operation is a black box: it is called on arrays that are still being computed. If they are
    not ready when it returns, it certainly did not wait. If they are, the machine may merely have
    been slow to return, so it is tried again.

    Args:
        operation: Takes the operands.
        make_unready: Dispatches some milliseconds of work and returns its results, a list of
            operands: arrays, typed keys or trees of them. They must all be outputs of *one* jitted
            function, so that they are ready at the same time.
        tries: How many times in a row the arrays must be ready to call it blocking.

    Returns:
        True if the operation blocks, and also if the arrays were ready to begin with, as they
        always are without asynchronous dispatch.

    Raises:
        TypeError: If one of the two cannot be called.
        ValueError: If `tries` is no integer of at least 1, or no operand is left that is an array:
            the operation has deleted it.
        D2lparError: If JAX traces.

    Example:
        >>> import jax, jax.numpy as jnp
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
    operation(*wait_for(make_unready()))  # Compile now: compiling looks like waiting.
    for _ in range(tries):
        operands = make_unready()
        operation(*operands)
        leaves = map(unwrap_key, jax.tree.leaves(operands))
        arrays = _not_deleted(leaf for leaf in leaves if hasattr(leaf, "is_ready"))
        if not arrays:
            raise ValueError(
                "blocks_host() has no array left whose readiness it can check: make_unready must "
                "return another result, which the operation leaves alone."
            )
        ready = all(array.is_ready() for array in arrays)
        wait_all()  # Else the work of this try would delay the next one.
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
    (CPU devices keep no order between programs on one device and on several: return both results.)

    A call may leave nothing to wait for: it returns no array, since it changes an object in place,
    or all of its arrays are donated to the next call. A sentinel is then put behind it, as by
    `wait_all`, into each queue that its arrays came from, or into all queues. That costs some 50 µs
    for a queue of one device, and several times that for the queue of several CPU devices.

    Args:
        max_in_flight: The most calls to have unfinished, at least 1; None sets no bound and only
            counts.

    Attributes:
        most_in_flight: The most calls that were unfinished at once.

    Raises:
        ValueError: If `max_in_flight` is no integer of at least 1, nor None.
        D2lparError: If JAX traces.

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
        self._lines: dict[frozenset[_Devices], _Line] = {}
        self._numbers = itertools.count()
        self._layouts: dict[tuple[Any, ...], _Layout] = {}

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` as soon as there is room for it, and return what it returns.

        Args:
            function: Dispatches work to JAX, and returns arrays or a tree of them, which are waited
                for; if it returns none, everything that this thread has dispatched is waited for.
            *args: Passed on to it. JAX may read a NumPy array as late as when the call runs: pass a
                copy of a buffer that you fill again.
            **kwargs: Likewise, by name.

        Raises:
            TypeError: If `function` cannot be called.
            Exception: Any exception of the function, or of a call that is waited for.
        """
        require_function("submit", function)
        self._forget_finished()
        while self.max_in_flight is not None and self._pending >= self.max_in_flight:
            self._wait_for_oldest()
        result = function(*args, **kwargs)
        self._append(function, jax.tree.leaves(result))
        self._forget_finished()
        self.most_in_flight = max(self.most_in_flight, self._pending)
        return result

    def drain(self) -> None:
        """Wait for every call that is still unfinished."""
        while self._pending:
            self._wait_for_oldest()

    @property
    def _pending(self) -> int:
        return sum(len(line.calls) for line in self._lines.values())

    def __enter__(self) -> "InFlight":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.drain()
        else:
            self._lines.clear()  # Waiting would only delay the exception.

    def _append(self, function: Callable[..., Any], leaves: list[Any]) -> None:
        layout = self._layout_of(function, leaves)
        arrays = [unwrap_key(leaves[i]) for ends in layout.values() for i in sorted(ends)]
        devices = frozenset(layout)
        if devices not in self._lines:
            self._lines[devices] = _Line(devices)
        self._lines[devices].append(next(self._numbers), arrays)

    def _layout_of(self, function: Callable[..., Any], leaves: list[Any]) -> "_Layout":
        # Asking thousands of leaves for their devices takes longer than the call. So the layout of
        # an earlier call is used again while the first and last arrays lie where they lay then.
        # The key has the function's name: the function itself may hold large arrays.
        name = getattr(function, "__qualname__", type(function).__qualname__)
        key = (name, len(leaves), *map(_devices_of, leaves[:1]))
        known = self._layouts.get(key, {})
        same = (_devices_of(leaves[i]) == on for on, ends in known.items() for i in ends)
        if not known or not all(same):
            self._layouts[key] = _first_and_last(leaves)
        return self._layouts[key]

    def _wait_for_oldest(self) -> None:
        lines = (line for line in self._lines.values() if line.calls)
        min(lines, key=lambda line: line.calls[0].number).wait_for_oldest()

    def _forget_finished(self) -> None:
        for line in self._lines.values():
            line.forget_finished()


_Devices = frozenset[jax.Device]

_Layout = dict[_Devices, set[int]]
"""At which leaves of a result the first and the last array on each set of devices stand."""


class _Call(NamedTuple):
    """A call in flight: its number among all calls, its arrays, and the sentinels behind it."""

    number: int
    arrays: list[Any]
    sentinels: list[jax.Array]


class _Line:
    """The pending calls with results on the same sets of devices, oldest first.

    They finish in this order, since a device does. So only the front of the line is looked at, and
    a call costs no more the more calls are pending.
    """

    def __init__(self, devices: frozenset[_Devices]) -> None:
        self._devices = devices
        self.calls: deque[_Call] = deque()
        self._last_arrays: list[Any] | None = None

    def append(self, number: int, arrays: list[Any]) -> None:
        # If this call has deleted the arrays of the last one (they were donated), the next call
        # will delete the arrays of this one: put a sentinel behind it, as behind a call without
        # arrays. The first call has no last one; its own arrays are not deleted yet.
        last = arrays if self._last_arrays is None else self._last_arrays
        behind = [] if _not_deleted(last) else self._sentinels()
        self.calls.append(_Call(number, arrays, behind))
        self._last_arrays = arrays

    def wait_for_oldest(self) -> None:
        position, arrays = self._oldest()
        self._forget(position)  # First: waiting raises if the call has failed on the device.
        with waits_allowed():
            wait_for(arrays or self._sentinels())

    def forget_finished(self) -> None:
        position, arrays = self._oldest()
        while arrays and all(array.is_ready() for array in arrays):
            self._forget(position)
            position, arrays = self._oldest()

    def _oldest(self) -> tuple[int, list[Any]]:
        """Return the first call that can still be waited for: its position, from 1, and its arrays.

        If all arrays were deleted, this is the end of the line, without arrays.
        """
        for position, call in enumerate(self.calls, 1):
            if arrays := _not_deleted(call.arrays) or call.sentinels:
                return position, arrays
        return len(self.calls), []

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self.calls.popleft()

    def _sentinels(self) -> list[jax.Array]:
        groups = [sorted(group, key=lambda device: device.id) for group in self._devices]
        return sentinels(groups or _queues_of(_every_device()))


def _first_and_last(leaves: list[Any]) -> _Layout:
    layout: _Layout = {}
    for index, leaf in enumerate(leaves):
        if devices := _devices_of(leaf):
            layout[devices] = {min(layout.get(devices, {index})), index}
    return layout


def _devices_of(leaf: Any) -> _Devices:
    array = unwrap_key(leaf)
    return frozenset(array.sharding.addressable_devices if hasattr(array, "is_ready") else ())


def _not_deleted(arrays: Iterable[Any]) -> list[Any]:
    # `is_ready` of a deleted array crashes the process before jax 0.11.2.
    return [array for array in arrays if not array.is_deleted()]
