"""Run a script of one version of a program, in a process of its own; started by its path.

It imports nothing of d2lpar, which may be what is compared.
"""

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run `-m module` or a script with its arguments; say if it has run another version's code.

    The first argument is the folder of the user's own files, none of whose modules may be imported;
    nothing if it is they that run.
    """
    _, others, is_module, program, *arguments = sys.argv
    sys.argv = [program, *arguments]
    sys.path[0] = os.getcwd() if is_module else str(Path(program).resolve().parent)
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
    wrong = sorted(name for name in list(sys.modules) if others and _is_of(name, Path(others)))
    if wrong:
        sys.exit(
            f"It has imported {', '.join(wrong[:5])} from {others}, and not from its own commit. A "
            "package is found in the folder of the repository, in its folder src, and where "
            "PYTHONPATH says."
        )


def _is_of(name: str, folder: Path) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    return bool(
        file and Path(file).is_relative_to(folder) and "site-packages" not in Path(file).parts
    )


if __name__ == "__main__":
    main()
