"""Where each process of a hanging program stands, on several machines: from a file of each.

How it works. Machines share no memory, but often a folder. With `--hang-dir`, each process samples
itself as a worker does (`hang.Sampler`), and writes its state to `hang.N.json` in that folder every
two seconds. `merge` reads the files of all. Each file has the time of its writing by two clocks:
the monotonic one, which all times of the state refer to, and the wall clock, which tells how much
older the file is than the newest one. A process that is stopped or dead writes none anymore, so
its file falls behind:

    hang.0.json   written 14:05:09, monotonic 9120    the newest: now is 9120
    hang.1.json   written 14:05:08, monotonic  310    written at the same time: now is 310
    hang.2.json   written 14:03:09, monotonic  188    120 s older: now is 308, so no response
"""

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from d2lpar._jax import distributed
from d2lpar._plain.format import can_be_written, exit_status, format_seconds, write_whole
from d2lpar._processes.hang import ProcessStatus, Sampler, diagnosis
from d2lpar._watch.command import number_and_count

INTERVAL = 2.0
"""Seconds between two writes of a file."""

# A difference that the interval, a slow file server and the clocks of two machines may explain.
_SAME_TIME = 6.0


class StateFile:
    """The file in which this process leaves its state: `hang.N.json`, N being its number.

    The number is the one that JAX knows, or the launcher's until JAX has joined the processes.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._clock, self._wall_clock = folder.absolute(), clock, wall_clock
        self._due = 0.0
        self._status: int | None = None
        self._written = threading.Event()  # Set once the file says how the process has ended.

    def start(self) -> None:
        """Write the file now and then, from a thread of its own."""
        Sampler(self.write, self._clock).start()

    def write(self, state: dict[str, Any]) -> None:
        """Write the file if it is time, but nothing after the end."""
        now = self._clock()
        if now < self._due or self._written.is_set():
            return
        self._due = now + INTERVAL
        status = self._status
        number, count = distributed.number_and_count() or number_and_count() or (0, 1)
        process = {"host": socket.gethostname(), "pid": os.getpid()}
        process |= {"number": number, "count": count, "status": status, "state": state}
        times = {"written": self._wall_clock(), "monotonic": now}
        # The folder may go away, or be full; the program goes on.
        with suppress(OSError):
            write_whole(self._folder / f"hang.{number}.json", json.dumps(times | process))
        if status is not None:
            self._written.set()

    def end(self, status: int) -> None:
        """Have the thread write how the process has ended; wait for it, but not for long."""
        self._status = status
        self._due = 0.0
        self._written.wait(INTERVAL)


def state_file(options: argparse.Namespace) -> StateFile | None:
    """Return the file for `--hang-dir`, if given; refuse a folder that cannot be written."""
    folder = options.hang_dir
    if folder is None:
        return None
    if not can_be_written(folder / "hang.0.json"):
        found = "no file can be written there" if folder.is_dir() else "there is no such folder"
        options.refuse(
            f"--hang-dir {folder}: {found}. Name a folder that exists, that all processes see, and "
            "that you may write"
        )
    return StateFile(folder)


def read_states(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return what `StateFile` has written, of those files that have come from it."""
    read = []
    for file in files:
        with suppress(OSError, ValueError):
            read.append(json.loads(file.read_text(encoding="utf-8")))
    return [content for content in read if isinstance(content, dict) and "monotonic" in content]


def diagnosis_of(states: Iterable[dict[str, Any]], wall_clock: float) -> str:
    """Return where the processes of these files stood, and which one was missing."""
    by_number = {state["number"]: state for state in states}
    newest = max(state["written"] for state in by_number.values())
    hosts = {state["host"] for state in by_number.values()}
    count = max(max(by_number) + 1, *(state["count"] for state in by_number.values()))
    statuses = [
        _status(by_number[number], newest, len(hosts) > 1)
        if number in by_number
        else ProcessStatus(number, fate="has no file among these")
        for number in range(count)
    ]
    age = format_seconds(max(wall_clock - newest, 0.0))
    return f"The newest file is {age} old.\n{diagnosis(statuses, newest)}"


def _status(process: dict[str, Any], newest: float, several: bool) -> ProcessStatus:
    age, fate = newest - process["written"], ""
    if process["status"] is not None:
        fate = f"has ended {format_seconds(age)} ago: {exit_status(process['status'])}"
    elif age <= _SAME_TIME:
        age = 0.0
    where = f"pid {process['pid']}" + (f" on {process['host']}" if several else "")
    by = newest - age - process["monotonic"]  # From its monotonic clock to the wall clock.
    state = process["state"]
    state |= {key: state[key] + by for key in ("sampled", "last_dispatch")}
    for thread in state["threads"]:
        thread["since"] += by
    if state["last_in_jax"]:
        state["last_in_jax"][0] += by
    return ProcessStatus(process["number"], state, fate, where=where)
