"""The command `python -m d2lpar.book check`: judge the answers in a reader's file.

Each check runs in a process of its own, one after the other, since checks take times. A process
that takes too long, or too much memory, is killed with all that it has started. No sandbox: code
can still delete files, or write a report.
"""

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import psutil

from d2lpar.__main__ import limit
from d2lpar._jax.devices import use_cpu_devices, versions
from d2lpar._plain.errors import D2lparError, DeviceError, require_posix
from d2lpar._plain.format import can_be_written, exit_status, format_seconds, write_whole
from d2lpar._plain.script import PYTHON
from d2lpar._processes.workers import COOKIE, kill_all
from d2lpar.book import exercises
from d2lpar.book.exercises.checking import Rejection, Report, exercise, rejection_of
from d2lpar.book.homework import needed_for, statements_of


def main() -> None:
    """Run the command that is in `sys.argv`; exit with 0 if all answers are accepted."""
    parser = argparse.ArgumentParser(prog="python -m d2lpar.book")
    command = parser.add_subparsers(metavar="check", required=True).add_parser(
        "check", description="Judge the answers in a file; the exit status is 0 if all are right."
    )
    command.add_argument("file", type=Path, help="such as homework.py or homework.ipynb")
    command.add_argument("exercises", nargs="*", help="such as X2 (default: those it answers)")
    command.add_argument("--timeout", type=limit, default=120.0, metavar="TIME", help="of each")
    command.add_argument("--memory", type=float, default=4.0, metavar="GB", help="of each")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the reports there")
    command.add_argument("--gradescope", type=Path, metavar="FILE", help="such as results.json")
    command.add_argument("--report", type=Path, help=argparse.SUPPRESS)  # Of a process for one.
    options = parser.parse_args()
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        sys.exit(not check(options))
    except D2lparError as error:
        command.error(str(error))


def check(options: argparse.Namespace) -> bool:
    """Judge the answers of a file, print and write reports; return whether all are accepted."""
    require_posix("d2lpar.book check")
    if options.report:
        judge_here(options.file, options.exercises[0], options.report)
    if refused := [f for f in (options.json, options.gradescope) if f and not can_be_written(f)]:
        raise D2lparError(f"{refused[0]} cannot be written.")
    bound = set().union(*(each.binds for each in statements_of(options.file)))
    rows = []
    for name in exercises_of(options.exercises, bound, options.file):
        began = time.monotonic()
        report = judge(options, name, bound)
        print(report, flush=True)
        rows.append(asdict(report) | {"seconds": time.monotonic() - began})
    if options.json:
        found = {"file": options.file.name, "versions": versions(), "exercises": rows}
        write_whole(options.json, json.dumps(found, indent=1))
    accepted = [row["verdict"] == "accepted" for row in rows]
    if options.gradescope:
        # See https://gradescope-autograders.readthedocs.io/en/latest/specs/.
        tests = [
            {"name": row["exercise"], "score": int(right), "max_score": 1}
            | {"status": "passed" if right else "failed"}
            | {"output": f"{row['verdict']}\n{row['saw']}\n{row['look']}"}
            for row, right in zip(rows, accepted, strict=True)
        ]
        seconds = sum(row["seconds"] for row in rows)
        found = {"execution_time": seconds, "tests": tests}
        write_whole(options.gradescope, json.dumps(found, indent=1))
    print(f"{sum(accepted)} of {len(rows)} accepted.")
    return all(accepted)


def takes(name: str) -> Sequence[str]:
    """Return the names of the answers that the check of an exercise takes."""
    return getattr(exercises, f"check_{name.lower()}").takes


def exercises_of(asked: Sequence[str], bound: set[str], file: Path) -> list[str]:
    """Return the exercises that are asked for, or those that a file answers, as in the book."""
    checks = [name for name in exercises.__all__ if name.startswith("check_")]
    known = [name[6:].upper() for name in checks if getattr(exercises, name).takes]
    known.sort(key=lambda name: ("XYWZV".index(name[0]), name))
    if unknown := {*asked}.difference(known):
        raise D2lparError(f"There is no exercise {min(unknown)}; there are {', '.join(known)}.")
    found = [name for name in known if name in asked or (not asked and bound & {*takes(name)})]
    if not found:
        raise D2lparError(f"{file} has no answer, such as a function {takes('X2')[0]}.")
    return found


def judge(options: argparse.Namespace, name: str, bound: set[str]) -> Report:
    """Run a check in a process of its own, within its time and memory."""
    if missing := [answer for answer in takes(name) if answer not in bound]:
        return Report(name, "not there", f"The file has no {' and no '.join(missing)}.")
    cookie, end = secrets.token_hex(), time.monotonic() + options.timeout
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        process = subprocess.Popen(
            [*PYTHON, "-m", "d2lpar.book", "check", options.file, name, "--report", file],
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
            start_new_session=True,  # Makes a group to kill.
            env=os.environ | {COOKIE: cookie},
        )
        saw = ""
        try:
            while process.poll() is None and not saw:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(min(1.0, options.timeout))
                saw = _beyond(options, process.pid, end)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            kill_all(cookie, [process.pid])
        status = exit_status(process.wait())
        if file.exists():
            return Report(**json.loads(file.read_text()))
    saw = saw or f"Your code ended its process before the check did: {status}."
    return Report(name, "not yet", saw, "Which line of your code does that?")


def _beyond(options: argparse.Namespace, pid: int, end: float) -> str:
    used = 0
    with suppress(psutil.Error):  # It has just ended.
        for each in (process := psutil.Process(pid)), *process.children(recursive=True):
            used += each.memory_info().rss
    if used > 1e9 * options.memory:
        return f"Your code took more than {options.memory:g} GB of memory."
    late = time.monotonic() > end
    return f"Your code had not ended after {format_seconds(options.timeout)}." if late else ""


def judge_here(homework: Path, name: str, file: Path) -> None:
    """Run a check in this process, write its report, and end the process."""
    owner, folder = os.getpid(), str(homework.resolve().parent)
    with suppress(DeviceError):  # The check says what it lacks.
        use_cpu_devices(3)
    sys.modules["__main__"] = module = ModuleType("__main__")
    sys.path[0] = folder

    @exercise(name)
    def judged() -> str:
        try:
            for each in needed_for(takes(name), statements_of(homework)):
                if isinstance(each.code, Exception):
                    raise each.code
                exec(each.code, vars(module))
            answers = [eval(answer, vars(module)) for answer in takes(name)]
        except BaseException as error:  # SystemExit as well.
            look = "Do the lines that this exercise needs run by themselves, in a new Python?"
            raise Rejection(str(rejection_of(error, "file")), look) from None
        return getattr(exercises, f"check_{name.lower()}").__wrapped__(*answers)

    report = judged()
    if os.getpid() == owner:  # And not a child that the answer has forked.
        write_whole(file, json.dumps(asdict(report)))
    os._exit(0)  # A thread of the answer may still run.


if __name__ == "__main__":
    main()
