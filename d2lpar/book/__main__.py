"""The command `python -m d2lpar.book check`: judge the answers in a reader's file.

Each check runs in a process of its own, one after the other, since checks take times. When it ends
or its time is up, all that it has started is killed. No sandbox: code can delete files, or cheat.
"""

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from d2lpar.__main__ import limit
from d2lpar._jax.devices import use_cpu_devices, versions
from d2lpar._plain.errors import D2lparError, DeviceError, require_posix
from d2lpar._plain.format import can_be_written, exit_status, format_seconds, write_whole
from d2lpar._plain.script import PYTHON
from d2lpar._processes.workers import COOKIE, kill_all
from d2lpar.book import exercises
from d2lpar.book.exercises.checking import Rejection, Report, exercise, rejection_of
from d2lpar.book.homework import needed_for, statements_of

_NAMES = re.findall(r"\bcheck_(\w\d)\b", " ".join(exercises.__all__))
CHECKS = {
    name.upper(): getattr(exercises, f"check_{name}")
    for name in sorted(_NAMES, key=lambda name: ("xywzv".index(name[0]), name))
}
"""The check of each exercise, in the order of the book."""


def main() -> None:
    """Run the command that is in `sys.argv`; exit with 0 if all answers are accepted."""
    parser = argparse.ArgumentParser(prog="python -m d2lpar.book")
    command = parser.add_subparsers(metavar="check", required=True).add_parser(
        "check",
        usage="%(prog)s FILE [--only X1 X2 ...] [--timeout TIME] [--memory GB] [--json FILE] "
        "[--gradescope FILE]",
        description="Judge the answers in a file. The exit status is 0 if all are right.",
        epilog="Answers: " + "; ".join(f"{n}: {', '.join(c.takes)}" for n, c in CHECKS.items()),
    )
    command.add_argument("file", type=Path, help="such as homework.py or homework.ipynb")
    command.add_argument("--only", nargs="+", choices=CHECKS, metavar="X2", help="these exercises")
    command.add_argument("--timeout", type=limit, default=120.0, metavar="TIME", help="of each")
    command.add_argument("--memory", type=float, default=8.0, metavar="GB", help="of each (Linux)")
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
        judge_here(options)
    if refused := [f for f in (options.json, options.gradescope) if f and not can_be_written(f)]:
        raise D2lparError(f"{refused[0]} cannot be written.")
    bound = set().union(*(each.binds for each in statements_of(options.file)))
    asked = options.only or [name for name in CHECKS if bound & {*CHECKS[name].takes}]
    if not asked:
        raise D2lparError(f"{options.file} has no answer, such as a function my_epoch.")
    sys.stdout.reconfigure(errors="backslashreplace")  # An error's text may be no Unicode.
    rows = []
    for name in filter(asked.__contains__, CHECKS):
        began = time.monotonic()
        if missing := [answer for answer in CHECKS[name].takes if answer not in bound]:
            report = Report(name, "not there", f"The file has no {' and no '.join(missing)}.")
        else:
            report = judge(options, name)
        print(report, flush=True)
        rows.append(asdict(report) | {"seconds": time.monotonic() - began})
    right = [row["verdict"] == "accepted" for row in rows]
    print(f"{sum(right)} of {len(rows)} accepted.")
    found = {"file": options.file.name, "versions": versions(), "exercises": rows}
    # See https://gradescope-autograders.readthedocs.io/en/latest/specs/.
    tests = [
        {"name": row["exercise"], "score": int(accepted), "max_score": 1}
        | {"output": f"{row['verdict']}\n{row['saw']}\n{row['look']}"}
        for row, accepted in zip(rows, right, strict=True)
    ]
    results = {"execution_time": sum(row["seconds"] for row in rows), "tests": tests}
    for file, content in (options.json, found), (options.gradescope, results):
        if file:
            write_whole(file, json.dumps(content, indent=1))
    return all(right)


def judge(options: argparse.Namespace, name: str) -> Report:
    """Run a check in a process of its own, within a limit of time and memory."""
    cookie = secrets.token_hex()
    one = options.file.resolve(), "--only", name, f"--memory={options.memory}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        process = subprocess.Popen(
            [*PYTHON, "-m", "d2lpar.book", "check", *one, "--report", file],
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
            start_new_session=True,  # Makes a group to kill.
            env=os.environ | {COOKIE: cookie},
        )
        try:
            how = exit_status(process.wait(options.timeout))
            saw = f"Your code ended its process before the check did: {how}."
        except subprocess.TimeoutExpired:
            saw = f"Your code had not ended after {format_seconds(options.timeout)}."
        finally:
            kill_all(cookie, [process.pid])
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if file.exists():
            return Report(**json.loads(file.read_text()))
    return Report(name, "not yet", saw, "Which line of your code does that?")


def judge_here(options: argparse.Namespace) -> None:
    """Run a check in this process, write its report, and end the process."""
    import resource

    owner, check = os.getpid(), CHECKS[options.only[0]]
    resource.setrlimit(resource.RLIMIT_DATA, 2 * (int(1e9 * options.memory),))
    with suppress(DeviceError):  # The check says what it lacks.
        use_cpu_devices(3)
    sys.modules["__main__"] = module = ModuleType("__main__")
    sys.path.insert(0, str(options.file.parent))

    @exercise(options.only[0])
    def judged() -> str:
        try:
            for each in needed_for(check.takes, statements_of(options.file)):
                if isinstance(each.code, Exception):
                    raise each.code
                exec(each.code, vars(module))
            answers = [eval(answer, vars(module)) for answer in check.takes]
        except BaseException as error:  # SystemExit as well.
            look = "Do the lines that this exercise needs run by themselves, in a new Python?"
            raise Rejection(str(rejection_of(error, "file")), look) from None
        return check.__wrapped__(*answers)

    report = judged()
    if os.getpid() == owner:  # And not a child that the answer has forked.
        write_whole(options.report, json.dumps(asdict(report)))
    os._exit(0)  # A thread of the answer may still run.


if __name__ == "__main__":
    main()
