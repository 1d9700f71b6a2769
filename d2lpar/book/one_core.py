"""Confine this process to one CPU core, to show the limits of a single core."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def can_confine() -> bool:
    """Return whether the system can confine the threads of a process to a core, as Linux can."""
    return hasattr(os, "sched_setaffinity") and Path("/proc/self/task").exists()


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Confine all threads of this process to one core in a block, if the system can.

    Threads that start in the block inherit the core, and may keep it after the block.
    """
    if not can_confine():
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        _confine({min(before)})
        yield
    finally:
        _confine(before)


def _confine(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # The thread has ended.
            os.sched_setaffinity(int(thread.name), cores)
