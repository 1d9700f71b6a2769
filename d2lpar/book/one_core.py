"""Confine this process to one CPU core, to see what it cannot do there."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def can_confine() -> bool:
    """Say whether the threads of this process can be confined to a core, as Linux does."""
    return hasattr(os, "sched_setaffinity") and Path("/proc/self/task").exists()


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Confine all threads of this process to one core in a block, if that is possible.

    Those that start meanwhile inherit it, and may keep it.
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
        with contextlib.suppress(ProcessLookupError):  # It has ended meanwhile.
            os.sched_setaffinity(int(thread.name), cores)
