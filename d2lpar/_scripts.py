"""Run a script in this process as Python would."""

import sys
import traceback
import types
from pathlib import Path


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
    """Run a script as `run` does.

    Raises:
        RuntimeError: If its exit status is not 0.
    """
    if status := run(script, arguments):
        raise RuntimeError(f"{script} ended with the exit status {status}.")
