"""Say what JAX sees on this machine, or watch a program: `python -m d2lpar [watch SCRIPT]`."""

import argparse
import os
import sys
import traceback
import types
from pathlib import Path

from d2lpar.machine import this_machine, versions
from d2lpar.watching import KINDS, watch


def main() -> None:
    """Print the machine and the versions here, or do what the command asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m d2lpar",
        description="Say what JAX sees on this machine; or watch a program.",
    )
    commands = parser.add_subparsers(dest="command", metavar="watch")
    watching = commands.add_parser(
        "watch",
        help="run a script, and say at which of its lines Python waits",
        description="Run a script as Python would, and say at which of its lines Python waits. "
        "The report goes to standard error; the exit status is the script's own.",
    )
    watching.add_argument(
        "--json", type=Path, metavar="FILE", help="write the report there as well"
    )
    watching.add_argument(
        "--fail-over",
        type=share,
        metavar="SHARE",
        help="exit with 1 if one line loses more of the time, for example 5%%",
    )
    watching.add_argument("script", type=Path)
    watching.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    asked = parser.parse_args()
    if asked.command is None:
        rows = this_machine().rows | {"Packages": ", ".join(map(" ".join, versions().items()))}
        for name, value in rows.items():
            print(f"{name:<12}{value}")
        return
    if not asked.script.is_file():
        watching.error(f"there is no script {str(asked.script)!r}")
    if asked.json and not asked.json.parent.is_dir():
        watching.error(f"there is no folder {str(asked.json.parent)!r} for the report")
    sys.exit(watch_script(asked.script, asked.arguments, asked.json, asked.fail_over))


def share(given: str) -> float:
    """Read a share between 0 and 1, or one in per cent."""
    try:
        number = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"a share lies between 0 % and 100 %, found {given!r}")
    return number


def watch_script(
    script: Path, arguments: list[str], report: Path | None = None, fail_over: float | None = None
) -> int:
    """Run a script as Python would, report what it waited for, and return its exit status.

    What was seen until then is reported also if the script raises, exits or is interrupted.

    Args:
        script: A Python file.
        arguments: What it finds behind its name in `sys.argv`.
        report: Where the report goes as JSON, if anywhere.
        fail_over: The share of the time that one line may lose; if one can have lost more, and the
            script itself ends well, the status is 1.
    """
    process = os.getpid()
    with watch() as watched:
        status = run(script, arguments)
    if os.getpid() != process:  # A child that the script has forked reports nothing.
        return status
    sys.stdout.flush()
    print(f"\n{watched}", file=sys.stderr)
    if report:
        partial = report.with_name(f"{report.name}.partial")
        partial.write_text(watched.to_json(), encoding="utf-8")
        partial.replace(report)
    too_much = [] if fail_over is None else watched.losses(fail_over)
    for found in too_much:
        print(
            f"\nMore than {fail_over:.0%}: {found.place} {KINDS[found.kind][0]}, "
            f"which can have cost {watched.loss(found):.1%} of the time.",
            file=sys.stderr,
        )
    return status or int(bool(too_much))


def run(script: Path, arguments: list[str]) -> int:
    """Run a script in this process, as its main program, and return its exit status."""
    main_module = types.ModuleType("__main__")
    main_module.__file__ = str(script)
    sys.modules["__main__"] = main_module
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        exec(compile(script.read_bytes(), script, "exec"), main_module.__dict__)
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            return exit.code or 0
        print(exit.code, file=sys.stderr)
        return 1
    except BaseException as error:
        # From the script on: how it was started is no concern of its author.
        begun = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(error.with_traceback(begun))
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    main()
