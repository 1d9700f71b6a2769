"""Notice when XLA compiles, from JAX's public monitoring events."""

import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import jax

from d2lpar._errors import require_values

# One event for each program that XLA compiles (or reads from the persistent cache); a call of a
# program that is already there sends none.
_COMPILED = "/jax/core/compile/backend_compile_duration"

_hearers: list[Callable[[str], None]] = []
_lock = threading.Lock()


@functools.cache
def _listen() -> None:
    # A single listener cannot be unregistered in jax 0.7, so there is one for the whole process,
    # registered at the first use and idle while nobody hears.
    jax.monitoring.register_event_duration_secs_listener(_note)


def _note(event: str, seconds: float, **details: str | int) -> None:
    if event == _COMPILED:
        for hear in tuple(_hearers):
            hear(str(details.get("fun_name", "a function without a name")))


@contextmanager
def compilations_heard(hear: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of each that XLA compiles, in the thread that compiles."""
    _listen()
    with _lock:
        _hearers.append(hear)
    try:
        yield
    finally:
        # By identity: two open logs may hold equal lists.
        with _lock:
            _hearers[:] = [other for other in _hearers if other is not hear]


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


class Timer:
    """Record the seconds between `start` and `stop`, several times over.

    It starts when it is made, as in d2l. It never waits for JAX: put a barrier before `stop` if
    the work must be finished.

    Args:
        clock: Returns seconds.

    Example:
        >>> timer = Timer()
        >>> timer.stop() >= 0
        True
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        require_values("Timer()")
        self._clock = clock
        self.times: list[float] = []
        self.start()

    def start(self) -> None:
        """Start, or start again."""
        self._started = self._clock()

    def stop(self) -> float:
        """Record the seconds since the last start, and return them."""
        self.times.append(self._clock() - self._started)
        return self.times[-1]

    def avg(self) -> float:
        """Return the mean of the recorded times in seconds.

        Raises:
            ValueError: If there is none.
        """
        if not self.times:
            raise ValueError("avg() was asked of a Timer that has no times; call stop() first.")
        return self.sum() / len(self.times)

    def sum(self) -> float:
        """Return the sum of the recorded times in seconds."""
        return sum(self.times)

    def cumsum(self) -> list[float]:
        """Return the running sums of the recorded times in seconds."""
        return list(itertools.accumulate(self.times))


class Benchmark:
    """Print how long a `with` block took, as d2l does: `label: 0.1234 sec`.

    It never waits on its own, so it shows when Python had control back, which is not when the
    work was done. If something was compiled inside, it says so: then the time is mostly that.

    Args:
        description: The label to print.
        clock: Returns seconds.

    Attributes:
        seconds: The time, once the block has ended.

    Example:
        >>> with Benchmark("nothing") as benchmark:  # doctest: +ELLIPSIS
        ...     pass
        nothing: 0.0... sec
        >>> benchmark.seconds < 1
        True
    """

    def __init__(
        self, description: str = "Done", *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.description = description
        self.seconds: float | None = None
        self._clock = clock

    def __enter__(self) -> "Benchmark":
        require_values("Benchmark()")
        self._recording = record_compilations()
        self._compiled = self._recording.__enter__()
        self._started = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._clock() - self._started
        self._recording.__exit__(None, None, None)
        note = f"; compiled meanwhile: {listed(self._compiled)}" if self._compiled else ""
        print(f"{self.description}: {self.seconds:.4f} sec{note}")
