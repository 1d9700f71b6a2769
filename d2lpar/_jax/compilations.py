"""Notice when XLA compiles, from JAX's public monitoring events."""

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import jax

# JAX sends this event for each program that XLA compiles, or that JAX reads from its persistent
# cache. A call of a compiled program sends none.
_COMPILED = "/jax/core/compile/backend_compile_duration"

_listeners: list[Callable[[str], None]] = []
_lock = threading.Lock()


@functools.cache
def _listen() -> None:
    # jax 0.7 cannot unregister a single listener, so the process has one, registered at the first
    # use and idle while `_listeners` is empty.
    jax.monitoring.register_event_duration_secs_listener(_note)


def _note(event: str, seconds: float, **details: str | int) -> None:
    if event == _COMPILED:
        for listener in tuple(_listeners):
            listener(str(details.get("fun_name", "a function without a name")))


@contextmanager
def compilations_heard(listener: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of each that XLA compiles, in the thread that compiles."""
    _listen()
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        # By identity: the `append` methods of two equal lists are equal.
        with _lock:
            _listeners[:] = [other for other in _listeners if other is not listener]


@contextmanager
def record_compilations() -> Iterator[list[str]]:
    """List the functions that are compiled inside a `with` block, or read from JAX's disk cache.

    Yields:
        The names, such as `"jit(double)"`, appended as each compilation ends. Those of other
        threads count too.

    Example:
        >>> import jax, numpy as np
        >>> double = jax.jit(lambda x: 2 * x)
        >>> with record_compilations() as first:
        ...     _ = double(np.ones(3))
        >>> with record_compilations() as second:
        ...     _ = double(np.ones(3))
        >>> len(first) > 0, len(second)
        (True, 0)
    """
    log: list[str] = []
    with compilations_heard(log.append):
        yield log


def listed(compiled: Iterable[str]) -> str:
    """Return the names that `record_compilations` lists as text, with a count instead of repeats.

    Example:
        >>> listed(["jit(f)", "jit(g)", "jit(f)"])
        '2 times jit(f), jit(g)'
    """
    counts = Counter(compiled).items()
    return ", ".join(name if n == 1 else f"{n} times {name}" for name, n in counts)
