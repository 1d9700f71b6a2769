"""`python -m d2lpar run` and `merge`: a script in several processes, and which of them was late.

The exit status of `run` is 0 if all processes have succeeded, 1 if one has failed, 130 after
Ctrl-C, and 143 after SIGTERM.
"""

import argparse
import atexit
import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from d2lpar._jax.distributed import leave_without_waiting
from d2lpar._plain.errors import D2lparError
from d2lpar._plain.script import Script
from d2lpar._processes.lateness import compared
from d2lpar._processes.workers import Workers
from d2lpar._watch.command import Report, path_for_process, run_and_report, script_to_run
from d2lpar._watch.report import Watched


def run(asked: argparse.Namespace) -> int | str:
    """Run a script in several processes, and return the exit status, or what went wrong."""
    script = script_to_run(asked)
    if asked.json and not asked.watch:
        asked.refuse("--json needs --watch: it writes what that has seen")
    options = {"pin": asked.pin, "gpus": asked.gpus, "initialize": False, "devices": None}
    limits = {"timeout": asked.timeout, "stalled_after": asked.stalled_after}
    with tempfile.TemporaryDirectory() as folder:
        json = (asked.json or Path(folder, "report.json")).absolute() if asked.watch else None
        files = [path_for_process(json, n) for n in range(asked.processes)] if json else []
        for file in files:
            file.unlink(missing_ok=True)  # Of an earlier run.
        ended: int | str = 0
        workers = None

        def say_where(*_: object) -> None:
            said = workers.diagnose() if workers else "The processes are being started."
            # No print: the signal may have come during one, which Python then refuses.
            os.write(sys.stderr.fileno(), f"{said}\n".encode(errors="backslashreplace"))

        def say_where_and_end(*_: object) -> None:
            say_where()
            sys.exit(128 + signal.SIGTERM)

        signal.signal(signal.SIGUSR1, say_where)
        signal.signal(signal.SIGTERM, say_where_and_end)
        try:
            with Workers(asked.processes, **options) as workers:
                workers.run(run_in_worker, script, json, **limits)
        except (D2lparError, ImportError, ValueError) as error:
            ended = str(error)
        except KeyboardInterrupt:
            ended = 128 + signal.SIGINT
        if written := [file for file in files if file.exists()]:
            merge(written)
    return ended


def run_in_worker(script: Script, json: Path | None) -> None:
    """Run a script in one of several processes, watched if there is a file; exit as it does."""
    number = int(os.environ["RANK"])
    report = Report(path_for_process(json, number), prints=False) if json else None
    status = run_and_report(script, report)
    # A worker never ends by itself. After a failure, JAX would wait for what can never be done.
    if not status:
        leave_without_waiting()
        atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()  # Which closes the files that are open.
    gc.collect()
    if status:
        sys.exit(status)


def merge(files: Sequence[Path]) -> int | str:
    """Say on standard error which process was late, and what was seen of each."""
    reports = {}
    for place, file in enumerate(files):
        found = re.search(r"\.(\d+)\.[^.]*$", file.name)
        number = int(found[1]) if found else place
        if number in reports:
            return f"{file}: there is another report of process {number}."
        try:
            reports[number] = Watched.from_json(file.read_text())
        except (OSError, ValueError) as error:
            return f"{file}: {error}"
    print(f"\n{compared(reports)}", file=sys.stderr)
    return 0
