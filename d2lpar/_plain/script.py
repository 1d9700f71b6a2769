"""Run a script or a module as the main program, as Python would run it.

This file imports the standard library alone: `_versions/run_one.py` loads it by its path, beside
another version of d2lpar.
"""

import ast
import builtins
import importlib.util
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Collection
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path

PYTHON = [sys.executable, *["-P"] * sys.flags.safe_path]
"""The interpreter for a further process, with this one's option -P."""


class Script:
    """A script, by its path, or a module, by its name; and the rest of `sys.argv`."""

    def __init__(self, name: str, is_module: bool, arguments: list[str]) -> None:
        self.name, self.is_module, self.arguments = name, is_module, arguments
        self.exited_at = traceback.StackSummary()  # Of a call of `sys.exit`.

    def installed_package(self) -> str:
        """Return the installed package that the program belongs to, or "" for a script."""
        if self.is_module:
            return self.name.split(".")[0]
        if Path(self.name).absolute().parent != Path(sysconfig.get_path("scripts")):
            return ""
        with suppress(SyntaxError, UnicodeDecodeError):
            # A console script imports the function that it calls; its other imports are Python's.
            for node in ast.walk(ast.parse(Path(self.name).read_bytes())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    return node.module.split(".")[0]
        return ""

    def run(self) -> int:
        """Run the program, print its error as Python would, and return its exit status."""
        try:
            self.execute()
        except SystemExit as exit:
            self.exited_at = traceback.extract_tb(exit.__traceback__)
            if exit.code is None or isinstance(exit.code, int):
                return exit.code or 0
            print(exit.code, file=sys.stderr)
            return 1
        except BaseException as error:
            # The traceback begins in the script: its author did not write the frames of this file.
            trace = without_frames_of([__file__], error.__traceback__)
            with suppress(SystemExit):
                sys.excepthook(type(error), error.with_traceback(trace), trace)
            return 130 if isinstance(error, KeyboardInterrupt) else 1
        return 0

    def execute(self) -> None:
        """Run the program in this process; an error or `sys.exit` of it is raised."""
        main_module = types.ModuleType("__main__")
        vars(main_module).update(__builtins__=builtins, __annotations__={}, __cached__=None)
        sys.modules["__main__"] = main_module
        folder = os.getcwd() if self.is_module else str(Path(self.name).resolve().parent)
        if not sys.flags.safe_path:  # With -P, sys.path[0] is Python's own library.
            sys.path[0] = folder
        if self.is_module:
            spec = importlib.util.find_spec(self.name)
            if spec and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{self.name}.__main__")
            if spec is None or spec.loader is None:
                sys.exit(f"There is no module {self.name!r} to run.")
            code, file = spec.loader.get_code(spec.name), spec.origin
            main_module.__spec__, main_module.__package__ = spec, spec.parent
            main_module.__loader__ = spec.loader
        else:
            file = os.path.abspath(self.name)
            code = compile(Path(file).read_bytes(), file, "exec")
            main_module.__loader__ = SourceFileLoader("__main__", file)
        main_module.__file__ = file
        sys.argv = [file if self.is_module else self.name, *self.arguments]
        exec(code, main_module.__dict__)


def without_frames_of(
    files: Collection[str], trace: types.TracebackType | None
) -> types.TracebackType | None:
    """Return a traceback without its first frames, as far as they belong to these files."""
    while trace and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    return trace
