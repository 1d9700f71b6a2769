"""The conditions of a run: the machine, the commit, the cores, other busy processes."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from run_notebook import ROOT

from d2lpar.book import recorded

RECORDED = recorded.FOLDER.relative_to(ROOT).as_posix()
"""The folder with the results of machines, from the root."""


def this_run() -> dict:
    """Return the machine, the versions and the date, as `d2lpar.book.results` describes them.

    This runs in a process of its own: JAX takes most of a GPU's memory, which the notebooks need.
    """
    code = "import json; from d2lpar.book.results import this_run; print(json.dumps(this_run()))"
    return json.loads(subprocess.check_output([sys.executable, "-c", code]))


@functools.cache
def where() -> str:
    run = this_run()
    machine, jax = run["machine"], run["versions"]["jax"]
    return f"{machine['processor']} with {os.cpu_count()} cores, {machine['system']}, jax {jax}"


def commit(*paths: str | Path) -> str:
    """Return the last commit that changed some files, with `-dirty` appended if they differ now.

    Results of machines are left out: the book only shows them, and with the file that `make record`
    writes the commit would change in the middle of a run.
    """
    files = *paths, f":!{RECORDED}/*.json"
    last = _git("log", "-1", "--format=%h", "--abbrev=12", "--", *files) or "unknown"
    return f"{last}-dirty" if _git("status", "--porcelain", "--", *files) else last


def _git(*command: str | Path) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """Give processes that the block starts only the first `count` cores, or all of them if None."""
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
    # If this process is killed, each of them sees that its parent is gone, and ends.
    busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    processes = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
