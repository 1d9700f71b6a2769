"""Probe memory: the resident set of the host and its peak, and the bytes in use on a device."""

import ctypes
import functools
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from d2lpar._jax.devices import require_device
from d2lpar._jax.state import require_values
from d2lpar._plain.errors import require_seconds


def host_memory() -> int:
    """Return the resident set of this process: the bytes it holds in physical memory.

    Asking costs microseconds, where starting `ps` costs milliseconds.

    Example:
        >>> host_memory() > 1_000_000
        True
    """
    return _process(os.getpid()).memory_info().rss


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> Any:
    import psutil  # Not above: it takes a third of the time of `import d2lpar`.

    # The cache is keyed by the pid: a forked child must not report the memory of its parent.
    return psutil.Process(pid)


def device_memory(device: jax.Device) -> int | None:
    """Return the bytes that `device` has in use, or None where it does not say.

    GPUs keep such statistics; a CPU device does not, since its arrays are host memory.

    Args:
        device: Any device of JAX.

    Raises:
        TypeError: If it is no device.

    Example:
        >>> from d2lpar import cpu
        >>> print(device_memory(cpu()))
        None
    """
    require_device(device, "device_memory()")
    statistics = device.memory_stats()
    return None if statistics is None else statistics["bytes_in_use"]


def release_freed_memory() -> bool:
    """Have the C library give freed memory back to the system.

    The library keeps some of it for later. A second run would use that, and seem to need none.

    Returns:
        Whether memory was given back. Only glibc, the C library of most Linux systems, can do it.
    """
    gc.collect(0)  # Makes JAX release buffers, as in `PeakMemory.__enter__`.
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # macOS and Windows have other allocators.
        return False


class PeakMemory:
    """Sample memory *during* a block of code, and keep its peak.

    Memory read after a block has ended, or behind a barrier, does not show the peak inside it. A
    thread therefore samples the probe while the block runs; a peak that is shorter than the
    interval may be missed. (A GPU keeps a peak of its own, for the whole process:
    `device.memory_stats()["peak_bytes_in_use"]`.)

    Before the block, memory that the C library kept from an earlier one is given back
    (`release_freed_memory`). Else the second of two blocks would seem to need less than the first.
    A probe of your own has to do that itself. Memory that is needed only once, such as for
    compiling, counts for the first block: run the work once before.

    Args:
        probe: Returns bytes; `host_memory` unless you give another one.
        interval: Seconds between two samples.

    Attributes:
        samples: Pairs of seconds since the block began and bytes.

    Raises:
        ValueError: If `interval` is no positive number of seconds, if the probe returns None, as
            `device_memory` does for a CPU device, or if the samples are asked for before the block.
        D2lparError: If JAX traces.

    Example:
        >>> import numpy as np
        >>> with PeakMemory() as memory:
        ...     ones = np.ones(40_000_000)
        >>> memory.increase > 200_000_000
        True
    """

    def __init__(
        self, probe: Callable[[], int | None] = host_memory, *, interval: float = 0.002
    ) -> None:
        require_seconds("interval", interval)
        self._probe = probe
        self._interval = float(interval)
        self._done = threading.Event()
        self.samples: list[tuple[float, int]] = []

    def __enter__(self) -> "PeakMemory":
        require_values("PeakMemory()")
        # JAX releases buffers whose last reference was dropped by one of its own threads only
        # when Python collects garbage. Without this, `before` counts the run before this one.
        # A collection of generation 1 is enough; a full one takes 0.1 s in a notebook.
        gc.collect(1)
        if self._probe is host_memory:
            release_freed_memory()
        before = self._read()
        self._failure = None
        self._start = time.perf_counter()
        self.samples = [(0.0, before)]
        self._done.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        try:
            while not self._done.wait(self._interval):
                self._sample()
        except Exception as error:  # Raised again where the reader can see it.
            self._failure = error

    def _sample(self) -> None:
        self.samples.append((time.perf_counter() - self._start, self._read()))

    def _read(self) -> int:
        count = self._probe()
        if count is None:
            raise ValueError(
                "The memory probe returned None: this device keeps no statistics. "
                "For CPU devices use the default probe, d2lpar.host_memory."
            )
        return count

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if kind is not None:
            return  # The exception of the block matters more than one of the probe.
        if self._failure is not None:
            raise self._failure
        self._sample()  # A block shorter than `interval` still ends in one sample.

    @property
    def before(self) -> int:
        """Bytes when the block began."""
        return self._counts()[0]

    @property
    def peak(self) -> int:
        """The highest number of bytes in a sample."""
        return max(self._counts())

    @property
    def increase(self) -> int:
        """How far memory rose above where it began, in bytes."""
        return self.peak - self.before

    def _counts(self) -> list[int]:
        if not self.samples:
            raise ValueError("PeakMemory has no samples yet: use it in a `with` statement.")
        return [count for _, count in self.samples]
