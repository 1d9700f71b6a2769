"""`python -m d2lpar run` and `merge`: run a script in several processes, and find the late one.

Exit statuses of `run`:

    0    Every process has succeeded.
    1    The time was up, or a process could not start.
    2    Wrong usage, such as a script that does not exist.
    130  Ended by Ctrl-C.
    141  Nobody reads the output anymore, as after `| head -2`.
    143  Ended by SIGTERM, when the processes had not ended in the time of `--grace`.
    n    The exit status of the first process that failed: 1 after an exception, what it gave to
         `sys.exit` or `os._exit`, 128 + the number of the signal that ended it.
"""

import argparse
import atexit
import gc
import itertools
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from d2lpar._jax.distributed import leave_without_waiting
from d2lpar._jax.stack import owner_of
from d2lpar._plain.errors import D2lparError, WorkerError
from d2lpar._plain.format import format_seconds
from d2lpar._plain.script import Script
from d2lpar._processes.hang import with_code
from d2lpar._processes.hang_files import StateFile, diagnosis_of, read_states, state_file
from d2lpar._processes.lateness import compared
from d2lpar._processes.workers import Ended, Workers
from d2lpar._watch.command import Report, path_for_process, run_and_report, script_to_run
from d2lpar._watch.report import Watched


def run(options: argparse.Namespace) -> int | str:
    """Run a script in several processes; return the exit status, or the message for status 1."""
    script = script_to_run(options)
    if options.json and not options.watch:
        options.refuse("--json needs --watch, whose reports it writes")
    state_file(options)  # Refuses a folder that cannot be written.
    settings = {"pin": options.pin, "gpus": options.gpus, "initialize": False, "devices": None}
    limits = {"timeout": options.timeout, "stalled_after": options.stalled_after}
    status: int | str = 0
    workers = None
    terminated = math.inf  # When SIGTERM came.
    with tempfile.TemporaryDirectory() as folder:
        json = (options.json or Path(folder, "report.json")).absolute() if options.watch else None
        reports = [path_for_process(json, n) for n in range(options.processes)] if json else []
        for file in reports:
            file.unlink(missing_ok=True)  # An earlier run may have left it.

        def say(text: str) -> None:
            # print() is not reentrant: it raises if the signal has come in the middle of one.
            os.write(sys.stderr.fileno(), f"{text}\n".encode(errors="backslashreplace"))

        def diagnose(*_: object) -> None:
            say(workers.diagnose() if workers else "The processes are being started.")

        def hand_on_or_end(*_: object) -> None:
            nonlocal terminated
            if workers and math.isinf(terminated):
                terminated = time.monotonic()
                diagnose()
                say(f"SIGTERM: the processes have {format_seconds(options.grace)} to end.")
                workers._terminate(options.grace)
            # `timeout` sends the signal twice, at once.
            elif not workers or time.monotonic() > terminated + 1.0:
                diagnose()
                sys.exit(128 + signal.SIGTERM)

        signal.signal(signal.SIGUSR1, diagnose)
        signal.signal(signal.SIGTERM, hand_on_or_end)
        try:
            with Workers(options.processes, **settings) as workers:
                for worker in workers._workers:
                    worker.may_exit = True
                workers.run(run_in_worker, script, json, options.hang_dir, **limits)
        except WorkerError as error:
            print(error, file=sys.stderr)
            status = error.status
        except (D2lparError, ImportError, ValueError) as error:
            status = str(error)
        except KeyboardInterrupt:
            status = 128 + signal.SIGINT
        except BrokenPipeError:
            # Python would raise the error again when it flushes this file at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 128 + signal.SIGPIPE
        if written := [file for file in reports if file.exists()]:
            merge(written)
    return status


def run_in_worker(script: Script, json: Path | None, hang_dir: Path | None) -> Ended:
    """Run a script in one of several processes, watched if there is a file; exit as it does."""
    number = int(os.environ["RANK"])
    report = Report(path_for_process(json, number), prints=False) if json else None
    state = StateFile(hang_dir) if hang_dir else None
    if state:
        state.start()
    status = run_and_report(script, report)
    ended = Ended(time.monotonic())  # The others fail once JAX closes its connections below.
    if state:
        state.end(status)
    # A worker is killed when all are done, so do here what Python does when a program ends. Not
    # after a failure: JAX's exit function would wait for processes that wait for this one.
    if not status:
        leave_without_waiting()
        atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()  # Closes open files, which flushes them.
    gc.collect()
    if status:
        error = SystemExit(status)
        lines = [
            [frame.filename, frame.lineno, frame.line]
            for frame in script.exited_at
            if owner_of(frame.filename) == "user" and frame.line
        ]
        if lines:
            error.add_note(f"It exited at {with_code(lines[-1])}")
        raise error
    return ended


def merge(files: Sequence[Path]) -> int | str:
    """Print on standard error which process was late, and more; or which is missing in a hang."""
    if states := read_states(files):
        if len({state["number"] for state in states}) < len(files):
            return (
                f"{len(states)} of {len(files)} files are of --hang-dir, or some of the same "
                "process. Merge one file of each process; reports of --json by themselves."
            )
        print(diagnosis_of(states, time.time()), file=sys.stderr)
        return 0
    reports: dict[int, Watched] = {}
    errors: dict[str, list[str]] = defaultdict(list)
    matches = [re.search(r"\.(\d+)\.[^.]*$", file.name) for file in files]
    numbers = [int(match[1]) if match else None for match in matches]
    free = (number for number in itertools.count() if number not in numbers)
    for file, given in zip(files, numbers, strict=True):
        number = next(free) if given is None else given
        if number in reports:
            return f"{file}: there is another report of process {number}."
        try:
            reports[number] = Watched.from_json(file.read_text())
        except (OSError, ValueError) as error:
            errors[str(error)].append(str(file))
    if errors:
        return "\n".join(f"{', '.join(named)}: {error}" for error, named in errors.items())
    print(f"\n{compared(reports)}", file=sys.stderr)
    return 0
