"""Clocks as the original chapters have them: a timer, and a block that prints its seconds."""

import itertools
import time
from collections.abc import Callable

from d2lpar._jax.compilations import listed, record_compilations
from d2lpar._jax.state import require_values


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
            raise ValueError("avg() was called on a Timer without times; call stop() first.")
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
    work was done. If something was compiled inside, it says so: most of the time is then compiling.

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
