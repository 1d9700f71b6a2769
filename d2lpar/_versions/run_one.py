"""Run a script of one version of a program; `compare` starts this file by its path.

This file imports nothing of d2lpar, since d2lpar may itself be the program to compare.
"""

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Run `-m module` or a script with its arguments; fail if it has run another version's code.

    The first argument is the folder of the version that runs. The second is the user's repository,
    from which no module may be imported; it is "" if the files of that repository run.
    """
    _, version_folder, repository, is_module, program, *arguments = sys.argv
    try:
        script_class()(program, bool(is_module), arguments).execute()
    except SystemExit as exit:  # A script may end with sys.exit(main()).
        if exit.code:
            raise
    if repository:
        check_imports(Path(repository).resolve(), Path(version_folder).resolve())


def script_class() -> type:
    """Load `d2lpar._plain.script.Script` by its path, so that no module is called d2lpar."""
    file = Path(__file__).resolve().parents[1] / "_plain" / "script.py"
    spec = importlib.util.spec_from_file_location("_d2lpar_script", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Script


def check_imports(repository: Path, version_folder: Path) -> None:
    """Fail if a module comes from the repository; point out an installed copy of such a module."""
    files = {
        name: Path(file).resolve()
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
    }
    installed = {
        name
        for name, file in files.items()
        if {"site-packages", "dist-packages"} & {*file.parts}  # Debian has the second.
    }
    # The repository may contain Python itself, as .venv, and the version that runs.
    pythons = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    allowed = [version_folder, *(python for python in pythons if repository in python.parents)]
    wrong = sorted(
        name
        for name, file in files.items()
        if file.is_relative_to(repository) and not any(map(file.is_relative_to, allowed))
        if name not in installed
    )
    if wrong:
        sys.exit(
            f"It has imported {', '.join(wrong[:5])} from {repository}, not from its own commit. A "
            "package is searched for in the root of the repository, in its src folder, and along "
            "PYTHONPATH."
        )
    packages = {name for name in installed if "." not in name}
    if copies := sorted(n for n in packages if any(repository.glob(f"*/{n}/__init__.py"))):
        print(
            f"Caution: the installed {', '.join(copies)} was imported, but the repository has it "
            "too. To compare the repository's, set PYTHONPATH to its folder.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
