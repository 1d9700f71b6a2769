"""`python -m d2lpar compare`: which of two versions of a program is faster, and by how much."""

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from d2lpar._plain.errors import D2lparError
from d2lpar._versions.compare import (
    TWO_RUNS,
    Program,
    changes_of,
    in_turn,
    read,
    report,
    require_common,
)

_OF_TWO_VERSIONS = {
    f"--{name}"
    for name in ("before", "after", "before-python", "after-python", "rounds", "fail-over")
}
_ENDING_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def compare(options: argparse.Namespace) -> int:
    """Compare two versions; return 1 if one is too slow, and 2 if that cannot be said."""
    if "" in (options.before, options.after):
        options.refuse("--before and --after need a commit, found ''")
    if "" in (options.before_python, options.after_python):
        options.refuse("--before-python and --after-python need the path of a Python, found ''")
    of_versions = bool(options.before or options.before_python or options.after_python)
    behind = [word for word in options.arguments if word.split("=")[0] in _OF_TWO_VERSIONS]
    if of_versions and not options.module and not Path(options.script).is_file():
        options.refuse(f"there is no script {options.script!r}")
    if of_versions and behind:
        print(f"{behind[0]} comes after the script, so the script gets it.", file=sys.stderr)
    if options.fail_over is not None and options.rounds is not None and options.rounds < 6:
        options.refuse("--fail-over needs six rounds: fewer have no interval to judge by")
    if options.after and not options.before:
        options.refuse("--after needs --before COMMIT")
    if not of_versions:
        if behind:
            options.refuse(f"{behind[0]} must come before the script")
        values = options.rounds, options.fail_over, options.module or None
        for name, value in zip(("--rounds", "--fail-over", "-m"), values, strict=True):
            if value is not None:
                options.refuse(
                    f"{name} needs --before or --before-python: two files allow no verdict"
                )
        if len(options.arguments) != 1:
            options.refuse("give two files, or --before COMMIT and a script")
    with ExitStack() as restoring:
        for number in _ENDING_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # As it is under nohup.
                restoring.callback(signal.signal, number, signal.signal(number, _end))
        return _compare(options, of_versions)


def _end(number: int, _: object) -> None:
    """Exit so that clones and processes are removed; further signals must not disturb that."""
    for other in _ENDING_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def _compare(options: argparse.Namespace, of_versions: bool) -> int:
    try:
        if of_versions:
            program = Program(options.script, options.module, options.arguments)
            rounds = 6 if options.rounds is None else options.rounds
            commits = options.before, options.after
            pythons = options.before_python, options.after_python
            names, runs, notes = in_turn(program, commits, pythons, rounds)
        else:
            names = options.script, options.arguments[0]
            runs = [(read(Path(names[0])), read(Path(names[1])))]
            require_common(names, *runs[0])
            notes = [TWO_RUNS]
        result = changes_of(runs)
    except (D2lparError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report(names, runs, result, notes, options.dispatch))
    if options.fail_over is None:
        return 0
    if any(change.needs for change in result):
        return 2
    return int(any(change.is_surely_later(1 + options.fail_over) for change in result))
