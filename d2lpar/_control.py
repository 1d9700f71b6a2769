"""A control: it tells, without JAX, in which rounds the machine was fit for a comparison."""

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple


class Control(NamedTuple):
    """Something to measure in each round beside what is compared.

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
        A control whose probe is `crowding`. Two virtual cores may at times be one real core, whose
        threads share its arithmetic units; then the probe's number is near 1.8, as with products
        of matrices. With a core for each it is rarely above 1.2.
    """
    return Control(lambda: crowding(count), 1.3, f"{count} free CPU cores")


def crowding(threads: int) -> float:
    """Measure how crowded the cores are, by hashing.

    A thread hashes ten megabytes, first one alone, then all at once. Python lets go of its lock
    meanwhile. (It has to last for ten milliseconds or more: a system may let two new threads share
    a core for five before it gives each its own. And it must not be SHA-256: many processors have
    an instruction for that, which two threads share nearly without loss where they share a core.)

    Args:
        threads: How many.

    Returns:
        The time of all at once over the processor time of the one, about 1 with a free core for
        each, more where they share cores with each other or with other programs. The time that
        passes for the one would not do in place of its processor time, since it may have to share
        its core as well.

    Example:
        >>> crowding(2) > 0.5  # Near 1 with two cores free, near 2 with one.
        True
    """
    data = b"x" * 10_000_000  # Of zeros, the system would make the pages while the one hashes.

    def hash_it(_: object) -> float:
        start = time.thread_time()
        hashlib.sha512(data)
        return time.thread_time() - start

    with ThreadPoolExecutor(threads) as pool:
        needed = pool.submit(hash_it, None).result()
        start = time.perf_counter()
        list(pool.map(hash_it, range(threads)))
        return (time.perf_counter() - start) / needed
