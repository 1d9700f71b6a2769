"""Notice when XLA compiles, from JAX's public monitoring events."""

import functools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import jax

# One event for each program that XLA compiles (or reads from the persistent cache); a call of a
# program that is already there sends none.
_COMPILED = "/jax/core/compile/backend_compile_duration"

_open_logs: list[list[str]] = []
_lock = threading.Lock()


@functools.cache
def _listen() -> None:
    # A single listener cannot be unregistered in jax 0.7, so there is one for the whole process,
    # registered at the first use and idle while no log is open.
    jax.monitoring.register_event_duration_secs_listener(_note)


def _note(event: str, seconds: float, **details: str | int) -> None:
    if event == _COMPILED:
        for log in tuple(_open_logs):
            log.append(str(details.get("fun_name", "a function without a name")))


@contextmanager
def record_compilations() -> Iterator[list[str]]:
    """List the functions that XLA compiles inside a `with` block.

    Yields:
        The names, appended as each compilation ends. Those of other threads count too.

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
    _listen()
    log: list[str] = []
    with _lock:
        _open_logs.append(log)
    try:
        yield log
    finally:
        # By identity: two open logs may hold equal lists.
        with _lock:
            _open_logs[:] = [other for other in _open_logs if other is not log]


def listed(compiled: Iterable[str]) -> str:
    """Return the names that `record_compilations` lists as text, with a count instead of repeats.

    Example:
        >>> listed(["jit(f)", "jit(g)", "jit(f)"])
        '2 times jit(f), jit(g)'
    """
    counts = Counter(compiled).items()
    return ", ".join(f"{n} times " * (n > 1) + name for name, n in counts)
