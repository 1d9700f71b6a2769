"""Say what JAX sees on this machine: `python -m d2lpar`."""

import argparse

from d2lpar.machine import this_machine, versions


def main() -> None:
    """Print the machine and the versions that a measurement here would be made with."""
    argparse.ArgumentParser(prog="python -m d2lpar", description=__doc__).parse_args()
    rows = this_machine().rows | {"Packages": ", ".join(map(" ".join, versions().items()))}
    for name, value in rows.items():
        print(f"{name:<12}{value}")


if __name__ == "__main__":
    main()
