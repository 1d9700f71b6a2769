"""Note the calls that a function makes, and what was unfinished at each of them."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from d2lpar._devices import device_name
from d2lpar.book.exercises.answers import Rejection


class Call(NamedTuple):
    """A call that a reader's function has made, and what had been called before.

    Attributes:
        label: What was called.
        number: Counts the calls of that, from 0.
        result: What it returned.
        thread: The Python thread that called.
        earlier: All calls before this one.
        unfinished: Those of them whose result was not ready then.
    """

    label: str
    number: int
    result: jax.Array
    thread: int
    earlier: tuple["Call", ...]
    unfinished: tuple["Call", ...]

    @property
    def where(self) -> str:
        """The names of the devices that its result lies on."""
        return " and ".join(sorted(map(device_name, self.result.devices())))

    def found_busy(self, label: str) -> bool:
        """Say whether earlier calls of something were unfinished.

        Args:
            label: What was called.
        """
        return any(call.label == label for call in self.unfinished)


class CallLog:
    """The calls that a reader's function makes of functions that the check has handed in.

    Attributes:
        calls: The calls, in their order.

    Example:
        >>> import jax.numpy as jnp
        >>> log = CallLog()
        >>> double = log.watch("double()", jax.jit(lambda x: 2 * x))
        >>> _ = double(double(jnp.ones(3)))
        >>> [call.number for call in log.of("double()")]
        [0, 1]
    """

    def __init__(self):
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def watch(self, label: str, function: Callable) -> Callable:
        """Return a function that does the same and notes each of its calls.

        Args:
            label: What to call it.
            function: It returns an array.
        """

        def watched(*args, **kwargs):
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
                raise Rejection(
                    f"{label} was called while JAX was tracing, so all its calls became one "
                    "program.",
                    "Do without jit, vmap or scan around it: here each call is to be one of its "
                    "own.",
                )
            # On a single core, whoever waits for a copy of an array may wake up before the thread
            # that made the copy has said that the array itself is ready. Let it.
            time.sleep(5e-4)
            with self._lock:  # So that calls of several threads are in some order.
                earlier = tuple(self.calls)
                unfinished = tuple(call for call in earlier if not _is_done(call.result))
                result = function(*args, **kwargs)
                self.calls.append(
                    Call(
                        label,
                        len(self.of(label)),
                        result,
                        threading.get_ident(),
                        earlier,
                        unfinished,
                    )
                )
            return result

        return watched

    def of(self, label: str) -> list[Call]:
        """Return the calls of one function.

        Args:
            label: What it is called.
        """
        return [call for call in self.calls if call.label == label]

    def require_count(self, label: str, count: int) -> None:
        """Reject an answer that has not called a function so many times.

        Args:
            label: What the function is called.
            count: How many times.

        Raises:
            Rejection: If it has not.
        """
        found = len(self.of(label))
        if found != count:
            raise Rejection(
                f"{label} was called {found} time{'s' * (found != 1)}; it takes {count} calls.",
                "Does your loop take each item once, the first and the last as well?",
            )


def _is_done(array: jax.Array) -> bool:
    return array.is_deleted() or array.is_ready()  # A deleted one must not be asked.
