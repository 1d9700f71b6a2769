"""CPU cores: how many this process may use, and a control that tells when they were free."""

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

# Microseconds of computing in so many microseconds, or "max"; of a container, with cgroup 2.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return how many CPU cores this process may use, which can be fewer than there are.

    A part of a core, which the quota of a container may add, does not count.

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
    """Something to measure in each round of `compare`, which says whether the round counts.

    It must know nothing of the result: if that decided which rounds count, one would see what one
    wishes to see.

    Attributes:
        probe: Measures it once.
        below: A round counts if the probe's number lies below this.
        needs: What is missing where too few rounds count.
    """

    probe: Callable[[], float]
    below: float
    needs: str


def free_cores(count: int) -> Control:
    """Return a control that leaves out the rounds in which fewer than `count` cores were free.

    Args:
        count: How many cores the comparison needs.

    Returns:
        A control for `compare` or `record_typical`. Its probe times the same work in one thread and
        in `count` threads at once, and has a second try: right after other work, a system may let
        two threads share a core although another is free. (Two virtual cores may at times be one
        real core, whose threads share its arithmetic units; then the ratio of the two times is near
        1.8, as with products of matrices. With a core for each it is rarely above 1.2.)
    """

    def probe() -> float:
        first = crowding(count)
        return first if first < _CROWDED else min(first, crowding(count))

    return Control(probe, _CROWDED, f"{count} free CPU cores")


def crowding(threads: int) -> float:
    """Measure how crowded the cores are, by hashing.

    A thread hashes ten megabytes, first one alone, then all at once. Python lets go of its lock
    meanwhile. (It has to last for ten milliseconds or more: a system may let two new threads share
    a core for five before it gives each its own. And it must not be SHA-256: many processors have
    an instruction for that, which two threads share nearly without loss where they share a core.)

    What comes back is the time of all at once over the processor time that one needs: about 1 with
    a free core for each, more where they share cores with each other or with other programs. The
    time that passes for one would not do, since it may have to share its core as well. What one
    needs is the least that any took, since a virtual machine may charge a thread for time in which
    it did not run. So two that share one core never come below 2.

    Example:
        >>> crowding(2) > 0.5  # Near 1 with two cores free, near 2 with one.
        True
    """
    data = b"x" * 10_000_000  # The pages of zeros would not exist before the first thread hashes.

    def hash_it(_: object) -> float:
        start = time.thread_time()
        hashlib.sha512(data)
        return time.thread_time() - start

    with ThreadPoolExecutor(threads) as pool:
        alone = pool.submit(hash_it, None).result()
        start = time.perf_counter()
        together = list(pool.map(hash_it, range(threads)))
        return (time.perf_counter() - start) / min(alone, *together)
