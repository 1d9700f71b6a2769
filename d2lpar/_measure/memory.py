"""Probe memory: the host's resident set and its peak, and what a device has in use."""

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
    import psutil  # Not above: it is a third of the time of `import d2lpar`.

    # Keyed by the process: after a fork the child must not report its parent.
    return psutil.Process(pid)


def device_memory(device: jax.Device) -> int | None:
    """Return the bytes that `device` has in use, or None where it does not say.

    GPUs keep such statistics; a CPU device does not, since its arrays are host memory.

    Args:
        device: Any device of JAX.

    Raises:
        ValueError: If it is no device.
    """
    require_device(device, "device_memory()")
    statistics = device.memory_stats()
    return None if statistics is None else statistics["bytes_in_use"]


def release_freed_memory() -> bool:
    """Have the C library give the memory that was freed back to the system.

    It keeps some for later. A second run, which finds it in the process, would seem to need none.

    Returns:
        Whether it did. The C library of most Linux systems, glibc, can be told.
    """
    gc.collect(0)  # For what JAX still holds; see `PeakMemory`.
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # macOS and Windows have other allocators.
        return False


class PeakMemory:
    """Sample memory *during* a block of code, and keep its peak.

    Memory read after a block has ended, or behind a barrier, says nothing of what piled up inside.
    A thread therefore samples the probe while the block runs; a peak that is shorter than the
    interval may be missed. (A GPU keeps its own, of the whole process:
    `device.memory_stats()["peak_bytes_in_use"]`.) What the C library keeps of an earlier block is
    given back before (`release_freed_memory`), so that the second of two blocks does not seem to
    need less than the first; a probe of your own does that itself, if it has to. What happens only
    once, such as compiling, is the first block's: let the work run once before.

    Args:
        probe: Returns bytes; `host_memory` unless you give another one.
        interval: Seconds between two samples.

    Attributes:
        samples: Pairs of seconds since the block began and bytes.

    Raises:
        ValueError: If the probe answers None, as `device_memory` does for a CPU device.

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
        if interval > threading.TIMEOUT_MAX:
            raise ValueError(f"interval must be a time that one can wait, found {interval}.")
        self._probe = probe
        self._interval = float(interval)
        self._done = threading.Event()
        self.samples: list[tuple[float, int]] = []

    def __enter__(self) -> "PeakMemory":
        require_values("PeakMemory()")
        # JAX releases buffers whose last reference was dropped by one of its own threads only
        # when Python collects garbage. Without this, `before` counts the run before this one.
        # Any collection will do, and one of everything takes a tenth of a second in a notebook.
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
                "The memory probe answered None: this device keeps no statistics. "
                "For CPU devices use the default probe, d2lpar.host_memory."
            )
        return count

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if kind is not None:
            return  # What went wrong in the block matters more.
        if self._failure is not None:
            raise self._failure
        self._sample()  # A block shorter than `interval` still ends in one sample.

    @property
    def before(self) -> int:
        """Bytes when the block began."""
        return self._seen()[0]

    @property
    def peak(self) -> int:
        """The highest number of bytes seen."""
        return max(self._seen())

    @property
    def increase(self) -> int:
        """How far memory rose above where it began, in bytes."""
        return self.peak - self.before

    def _seen(self) -> list[int]:
        if not self.samples:
            raise ValueError("PeakMemory has seen nothing yet: use it in a `with` statement.")
        return [count for _, count in self.samples]
