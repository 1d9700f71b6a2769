"""Run a script of one version of a program, in a process of its own; started by its path.

It imports nothing of d2lpar, which may be what is compared.
"""

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run `-m module` or a script with its arguments; fail if it has run another version's code.

    The first argument is the folder of the version that runs. The second is that of the user's own
    files, none of whose modules may be imported; nothing if it is they that run.
    """
    _, own, others, is_module, program, *arguments = sys.argv
    sys.argv = [program, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if is_module else str(Path(program).resolve().parent)
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:  # Many end with sys.exit(main()).
        if ended.code:
            raise
    if others:
        look_at_what_it_imported(Path(others).resolve(), Path(own).resolve())


def look_at_what_it_imported(folder: Path, own: Path) -> None:
    """Fail if a module is of this folder; say so if one may be an installed copy of it."""
    files = {
        name: Path(file).resolve()
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
    }
    installed = {name for name, file in files.items() if "site-packages" in file.parts}
    # Python itself may lie in there, or the copy of the version that runs.
    pythons = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    right = [own, *(python for python in pythons if folder in python.parents)]
    wrong = sorted(
        name
        for name, file in files.items()
        if file.is_relative_to(folder) and not any(map(file.is_relative_to, right))
        if name not in installed
    )
    if wrong:
        sys.exit(
            f"It has imported {', '.join(wrong[:5])} from {folder}, and not from its own commit. A "
            "package is found in the folder of the repository, in its folder src, and where "
            "PYTHONPATH says."
        )
    tops = {name for name in installed if "." not in name}
    if copies := sorted(n for n in tops if any(folder.glob(f"*/{n}/__init__.py"))):
        print(
            f"Caution: {', '.join(copies)} is imported as it is installed, and lies in the "
            "repository as well: say where, PYTHONPATH=folder, if it is what you compare.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
