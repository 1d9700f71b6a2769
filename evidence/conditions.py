"""What is run on, and beside what: the machine, the commit, the cores, other busy processes."""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from run_notebook import ROOT

_WHERE = """
import os
from d2lpar._devices import this_machine, versions
machine = this_machine()
print(machine.processor, "with", os.cpu_count(), "cores,", machine.system + ", jax", end=" ")
print(versions()["jax"])
"""


@functools.cache
def where() -> str:
    """Return what notebooks run on here.

    In a process of its own: JAX would take most of a GPU's memory, and keep it from the notebooks.
    """
    command = [sys.executable, "-c", _WHERE]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(*paths: str | Path) -> str:
    """Return the last commit that changed some files, with `-dirty` behind if they differ now."""
    last = _git("log", "-1", "--format=%h", "--abbrev=12", "--", *paths) or "unknown"
    return f"{last}-dirty" if _git("status", "--porcelain", "--", *paths) else last


def _git(*command: str | Path) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """Let what is started in the block have the first so many cores only; all of them if None."""
    if count is None:
        yield
        return
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("Cores can be chosen only on Linux: os.sched_setaffinity is not here.")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many processes busy beside what is done in the block."""
    # Killed, this one cannot end them: each looks whether it has been left behind.
    busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    processes = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
