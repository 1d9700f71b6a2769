"""Say what JAX sees on this machine, and compare results: `python -m d2lpar`."""

import argparse
import sys
from collections.abc import Sequence

from d2lpar.errors import ResultsError
from d2lpar.machine import this_machine, versions
from d2lpar.results import compare_results, load
from d2lpar.units import format_bytes


def main(arguments: Sequence[str] | None = None) -> str:
    """Do what the command line asks for.

    Args:
        arguments: What stands behind the name of the program; that of this process if None.

    Returns:
        What to print.
    """
    parser = argparse.ArgumentParser(prog="python -m d2lpar", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    results = commands.add_parser("results", help="compare two files of results")
    results.add_argument("first", metavar="A.json")
    results.add_argument("second", metavar="B.json")
    asked = parser.parse_args(arguments)
    if asked.command == "results":
        return compare_results(load(asked.first), load(asked.second))
    return _describe()


def _describe() -> str:
    machine = this_machine()
    driver = f", driver {machine.driver}" if machine.driver else ""
    return "\n".join(
        [
            f"{machine.processor}, {machine.cores} cores, {format_bytes(machine.memory)}",
            machine.system,
            f"Devices of JAX: {machine.devices}{driver}",
            ", ".join(f"{name} {version}" for name, version in versions().items()),
        ]
    )


if __name__ == "__main__":
    try:
        print(main())
    except (ResultsError, OSError) as error:
        sys.exit(f"python -m d2lpar: {error}")
