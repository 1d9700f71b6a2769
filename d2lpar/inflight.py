"""Bound how far the host runs ahead of the device."""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import jax

from d2lpar._tracing import require_values
from d2lpar.barriers import block
from d2lpar.errors import ArgumentError, require_count, require_function


class InFlight:
    """Let at most a given number of calls be dispatched and unfinished at a time.

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
        ArgumentError: If `max_in_flight` is no integer of at least 1, nor None; or if all that a
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
            raise ArgumentError(
                "Everything this call returned was donated to a later call, so InFlight has "
                "nothing to wait for. Let the function also return something small that is "
                "not donated, such as the loss."
            )
        block(kept)

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
