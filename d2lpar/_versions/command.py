"""`python -m d2lpar compare`: which of two versions of a program is faster, and by how much."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from d2lpar._plain.errors import D2lparError
from d2lpar._versions.compare import (
    TWO_RUNS,
    Program,
    changes,
    changes_in_turn,
    in_turn,
    read,
    report,
    require_common,
)

_OF_TWO_COMMITS = {"--before", "--after", "--rounds", "--fail-over"}


def compare(asked: argparse.Namespace) -> int:
    """Say which of two versions is faster; 1 if one is too slow, and 2 if that cannot be said."""
    if "" in (asked.before, asked.after):
        asked.refuse("--before and --after need a commit, found ''")
    behind = [one for one in asked.arguments if one.split("=")[0] in _OF_TWO_COMMITS]
    if asked.before and not asked.module and not Path(asked.script).is_file():
        asked.refuse(f"there is no script {asked.script!r}")
    if asked.before and behind:
        print(f"{behind[0]} stands behind the script, so it goes to the script.", file=sys.stderr)
    if asked.fail_over is not None and asked.rounds is not None and asked.rounds < 6:
        asked.refuse("--fail-over needs six rounds: fewer have no interval, and nothing would fail")
    if not asked.before:
        if behind:
            asked.refuse(f"{behind[0]} has to stand before the script")
        only = {"--after": asked.after, "--rounds": asked.rounds, "--fail-over": asked.fail_over}
        only["-m"] = asked.module or None
        if given := [name for name, value in only.items() if value is not None]:
            asked.refuse(
                f"{given[0]} needs --before COMMIT: of two files it would say nothing sure"
            )
        if len(asked.arguments) != 1:
            asked.refuse("give two files, or --before COMMIT and a script")
    with _ended_by_signals():
        return _compare(asked)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let each signal that ends a program end it after cleaning up, which no other one disturbs."""
    here = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heard = [one for one, handler in here.items() if handler != signal.SIG_IGN]

    def end(number: int, _: object) -> None:
        for one in heard:
            signal.signal(one, signal.SIG_IGN)
        sys.exit(128 + number)

    for one in heard:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in heard:
            signal.signal(one, here[one])


def _compare(asked: argparse.Namespace) -> int:
    try:
        if asked.before:
            program = Program(asked.script, asked.module, asked.arguments)
            rounds = 6 if asked.rounds is None else asked.rounds
            names, runs, notes = in_turn(program, asked.before, asked.after, rounds)
            found = changes_in_turn(runs)
        else:
            names = asked.script, asked.arguments[0]
            runs = [(read(Path(names[0])), read(Path(names[1])))]
            require_common(names, *runs[0])
            found, notes = changes(*runs[0]), [TWO_RUNS]
    except (D2lparError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report(names, runs, found, notes))
    if asked.fail_over is None:
        return 0
    if any(change.needs for change in found):
        return 2
    return int(any(change.is_surely_later(1 + asked.fail_over) for change in found))
