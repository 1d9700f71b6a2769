"""The command `python -m d2lpar`: its options, and the function that each subcommand calls."""

import argparse
import re
import sys
from importlib.metadata import version
from pathlib import Path

from d2lpar._plain.errors import D2lparError, require_posix


def main() -> None:
    """Run the command that is in `sys.argv`."""
    options = _parser().parse_args()
    sys.exit(_run(options))


def _run(options: argparse.Namespace) -> int | str | None:
    """Run a subcommand, and return its status; without one, print the machine and versions here.

    The module of a subcommand is imported here and not above: `--help` then takes no time, and a
    script can set the variables that JAX reads at import.
    """
    if options.command:
        try:
            require_posix(f"d2lpar {options.command}")
        except D2lparError as error:
            return str(error)
    match options.command:
        case "watch":
            from d2lpar._processes.hang_files import state_file
            from d2lpar._watch.command import watch

            return watch(options, state_file(options))
        case "run":
            from d2lpar._processes.launch import run

            return run(options)
        case "merge":
            from d2lpar._processes.launch import merge

            return merge(options.files)
        case "compare":
            from d2lpar._versions.command import compare

            return compare(options)
    from d2lpar._jax.devices import this_machine, versions

    rows = this_machine().rows | {"Packages": ", ".join(map(" ".join, versions().items()))}
    for name, value in rows.items():
        print(f"{name:<12}{value}")
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="d2lpar",
        description="Show what JAX sees on this machine; or watch a script, run it in several "
        "processes, or compare two versions of it.",
    )
    parser.add_argument("--version", action="version", version=f"d2lpar {version('d2lpar')}")
    commands = parser.add_subparsers(dest="command", metavar="watch | run | merge | compare")
    watching = commands.add_parser(
        "watch",
        help="run a script, and show which of its lines keep the device waiting",
        description="Run a script as Python would, and show which of its lines keep the device "
        "waiting. The report goes to standard error; the exit status is the script's own.",
    )
    watching.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    watching.add_argument(
        "--fail-over",
        type=share,
        metavar="SHARE",
        help="exit with 1 if one line clearly loses more than this share of the time after the "
        "start, such as 5%%, or if the devices were not seen; a short run is not judged",
    )
    watching.add_argument(
        "--after",
        type=seconds,
        metavar="TIME",
        help="count all before this time as the start, such as 30s",
    )
    watching.add_argument(
        "--all", action="store_true", help="show also the lines that lost less than half a percent"
    )
    running = commands.add_parser(
        "run",
        help="run a script in several processes of this machine",
        description="Run a script in several processes of this machine, as mpirun or Slurm would: "
        "jax.distributed.initialize(), called without arguments, joins them. If one fails, all "
        "are stopped, and the exit status is that of the first: 1 after an exception, 128 + n "
        "after a signal n. SIGTERM is handed on to them.",
    )
    running.add_argument("-n", "--processes", type=count, default=2, help="how many (2)")
    running.add_argument("--pin", action="store_true", help="give each its own CPU core (Linux)")
    running.add_argument("--gpus", action="store_true", help="give each a GPU of its own")
    running.add_argument("--timeout", type=limit, metavar="TIME", help="stop them after that long")
    running.add_argument(
        "--stalled-after",
        type=limit,
        metavar="TIME",
        help="show the line of each process if one waits in JAX and none is seen dispatching "
        "for this long, for example 60s; so do Ctrl-C, the signal SIGUSR1, and --timeout",
    )
    running.add_argument(
        "--grace",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="how long they have to save and end after SIGTERM (30s); a second SIGTERM ends them",
    )
    running.add_argument(
        "--watch",
        action="store_true",
        help="watch each, and show which was late and at which lines",
    )
    running.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="with --watch, write each report to FILE, with its number before the suffix",
    )
    for command in watching, running:
        command.add_argument(
            "--hang-dir",
            type=Path,
            metavar="DIR",
            help="have each process leave there, every two seconds, where it stands, for `merge`",
        )
    merging = commands.add_parser(
        "merge",
        help="show which process was late, or is missing in a hang, from the files of all",
        description="Show which of several processes was late and at which lines, from the files "
        "that `watch --json` wrote for each, for example under mpirun or srun. Or show which one "
        "is missing where the others wait, from the files that `--hang-dir` writes.",
    )
    merging.add_argument("files", nargs="+", type=Path, help="such as report.*.json or hang.*.json")
    comparing = commands.add_parser(
        "compare",
        help="show which of two versions of a program is faster",
        description="Show which of two versions of a program is faster, and by how much: two "
        "commits or two environments, which run a script in turn that prints the JSON of "
        "Comparison.to_json as its last line. Or show the ratio of two files of such JSON.",
        usage="d2lpar compare [-h] [--dispatch] before.json after.json\n"
        "       d2lpar compare [-h] [--dispatch] [--before COMMIT] [--after COMMIT] "
        "[--before-python PATH] [--after-python PATH] [--rounds N] [--fail-over SHARE] [-m] script "
        "[arguments]",
    )
    comparing.add_argument("--before", metavar="COMMIT", help="run the script of this commit")
    comparing.add_argument(
        "--after", metavar="COMMIT", help="and of this one (default: the files as they are)"
    )
    for when in "before", "after":
        comparing.add_argument(
            f"--{when}-python",
            metavar="PATH",
            help=f"run the version {when} with this Python, such as .venv-{when}/bin/python",
        )
    comparing.add_argument(
        "--rounds", type=int, metavar="N", help="runs of each (default 6; fewer give no interval)"
    )
    comparing.add_argument("--dispatch", action="store_true", help="show when the calls returned")
    comparing.add_argument(
        "--fail-over",
        type=share,
        metavar="SHARE",
        help="exit with 1 if a result is clearly later by more than this, for example 5%%, and "
        "with 2 if it cannot be judged",
    )
    script = "a file; with -m, a module such as package.train"
    arguments = "the script's arguments"
    for command, first, others in (
        (watching, script, arguments),
        (running, script, arguments),
        (comparing, "the first file; with --before, a script", f"the second file; or {arguments}"),
    ):
        command.add_argument("script", help=first)
        rest = command.add_argument("arguments", nargs=argparse.REMAINDER, help=others)
        rest.required = False  # In the error that names what is missing.
        command.add_argument(
            "-m", dest="module", action="store_true", help="run a module, as python -m does"
        )
        command.set_defaults(refuse=command.error)
    return parser


def share(text: str) -> float:
    """Read a share between 0 and 1, or one in percent."""
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"a share lies between 0% and 100%, found {text!r}")
    return number


def seconds(text: str) -> float:
    """Read a time in seconds, or with `ms`, `m` or `h` behind it."""
    matched = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s|m|h|)", text, re.ASCII)
    if not matched:
        raise argparse.ArgumentTypeError(
            f"a time is a number, such as 500ms, 30s, 5m or 2h, found {text!r}"
        )
    return float(matched[1]) * {"ms": 1e-3, "m": 60.0, "h": 3600.0}.get(matched[2], 1.0)


def limit(text: str) -> float:
    """Read a time that is longer than nothing."""
    if not (number := seconds(text)):
        raise argparse.ArgumentTypeError(f"a limit is longer than 0 s, found {text!r}")
    return number


def count(text: str) -> int:
    """Read an integer of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"a count is an integer of at least 1, found {text!r}")
    return int(text)


if __name__ == "__main__":
    main()
