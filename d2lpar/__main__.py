"""Say what JAX sees here, watch a script, or run it in several processes: `python -m d2lpar`.

Nothing is imported before it is needed: `--help` takes no time, and what `run` starts the script in
imports JAX by itself.
"""

import argparse
import os
import sys
import traceback
import types
from pathlib import Path

from d2lpar._errors import D2lparError
from d2lpar._format import write_whole


def main() -> None:
    """Print the machine and the versions here, or do what the command asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m d2lpar",
        description="Say what JAX sees on this machine; or watch a script, or run it in several "
        "processes.",
    )
    commands = parser.add_subparsers(dest="command", metavar="watch | run")
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
    running = commands.add_parser(
        "run",
        help="run a script in several processes of this machine",
        description="Run a script in several processes of this machine, as mpirun or Slurm would: "
        "jax.distributed.initialize(), called without arguments, joins them. If one fails, all "
        "are ended, and the exit status is 1.",
    )
    running.add_argument("-n", "--processes", type=int, default=2, help="how many (2)")
    running.add_argument(
        "--pin", action="store_true", help="give each a CPU core of its own (Linux)"
    )
    running.add_argument("--gpus", action="store_true", help="give each a GPU of its own")
    running.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end them if they take longer"
    )
    for command in (watching, running):
        command.add_argument("script", type=Path)
        command.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    asked = parser.parse_args()
    if asked.command is None:
        from d2lpar._devices import this_machine, versions

        rows = this_machine().rows | {"Packages": ", ".join(map(" ".join, versions().items()))}
        for name, value in rows.items():
            print(f"{name:<12}{value}")
        return
    if not asked.script.is_file():
        commands.choices[asked.command].error(f"there is no script {str(asked.script)!r}")
    if asked.command == "run":
        from d2lpar._workers import Workers

        options = {"pin": asked.pin, "gpus": asked.gpus, "initialize": False}
        try:
            with Workers(asked.processes, **options) as workers:
                workers.run(run_or_fail, asked.script, asked.arguments, timeout=asked.timeout)
        except (D2lparError, ImportError, ValueError) as error:
            sys.exit(str(error))
        return
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

    What was seen until then is reported also if the script raises, exits or is interrupted. If one
    line can have lost a larger share of the time, and the script ends well, the status is 1.
    """
    from d2lpar._watch import KINDS, watch

    process = os.getpid()
    with watch() as watched:
        status = run(script, arguments)
    if os.getpid() != process:  # A child that the script has forked reports nothing.
        return status
    sys.stdout.flush()
    print(f"\n{watched}", file=sys.stderr)
    if report:
        write_whole(report, watched.to_json())
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


def run_or_fail(script: Path, arguments: list[str]) -> None:
    """Run a script as `run` does, and raise an error if its exit status is not 0."""
    if status := run(script, arguments):
        raise RuntimeError(f"{script} ended with the exit status {status}.")


if __name__ == "__main__":
    main()
