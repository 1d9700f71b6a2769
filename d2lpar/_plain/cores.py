"""CPU cores: how many this process may use, and a control that tells when they were free."""

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from d2lpar._plain.errors import require_count

# The quota of a container under cgroup 2: microseconds of computing per period, or "max", and the
# length of the period in microseconds.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return how many CPU cores this process may use, which can be fewer than there are.

    The quota of a container counts in whole cores, rounded down.

    Example:
        >>> usable_cores() >= 1
        True
    """
    affinity = hasattr(os, "sched_getaffinity")  # Not on macOS.
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="utf-8").split()
    except OSError:
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


_CROWDED = 1.3


class Control(NamedTuple):
    """A measurement in each round of `compare` that decides whether the round counts.

    The probe must not depend on the result: rounds chosen by their result would confirm any wish.

    Attributes:
        probe: Takes the measurement once.
        below: A round counts if the probe's number lies below this.
        needs: The words for what the machine lacks if too few rounds count.
    """

    probe: Callable[[], float]
    below: float
    needs: str


def free_cores(count: int) -> Control:
    """Return a control that drops rounds while fewer than `count` cores were free.

    Args:
        count: How many cores the comparison needs.

    Returns:
        A control for `compare` or `record_typical`. Its probe times the same work in one thread and
        in `count` threads at once. It tries twice: right after other work, a system may let two
        threads share a core although another is free. (Two virtual cores are sometimes one real
        core, whose threads share its arithmetic units; then the ratio of the two times is near 1.8,
        as with products of matrices. With a core for each thread the ratio is rarely above 1.2.)

    Raises:
        ValueError: If `count` is no integer of at least 1.
    """
    require_count("count", count, at_least=1)

    def probe() -> float:
        first = crowding(count)
        return first if first < _CROWDED else min(first, crowding(count))

    return Control(probe, _CROWDED, f"{count} free CPU cores")


def crowding(threads: int) -> float:
    """Measure how crowded the cores are, by hashing.

    Each thread hashes ten megabytes, first one thread alone, then all at once. Python releases its
    lock meanwhile. (Hashing has to last ten milliseconds or more: a system may let two new threads
    share a core for five before it gives each its own. The hash must not be SHA-256: many
    processors have an instruction for it, which two threads of one core share almost without loss.)

    Returns:
        The time of all threads at once over the processor time of one thread: about 1 with a free
        core for each, more if they share cores with each other or with other programs. The
        denominator is processor time, since even a single thread may have to share its core, and
        the least of all threads, since a virtual machine may charge a thread for time in which it
        did not run. So two threads on one core never come below 2.
    """
    data = b"x" * 10_000_000  # Not zeros: their pages would be allocated while a thread hashes.

    def hash_it(_: object) -> float:
        start = time.thread_time()
        hashlib.sha512(data)
        return time.thread_time() - start

    with ThreadPoolExecutor(threads) as pool:
        alone = pool.submit(hash_it, None).result()
        start = time.perf_counter()
        together = list(pool.map(hash_it, range(threads)))
        # A clock that moves in steps of ten milliseconds, as in gVisor, may not have moved at all.
        return (time.perf_counter() - start) / max(min(alone, *together), 1e-9)
