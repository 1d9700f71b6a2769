"""Run `python -m d2lpar` with some arguments, here or in a process of its own."""

import os
import subprocess
import sys

import pytest

from d2lpar.__main__ import main


def main_with(*arguments):
    """Run the command in this process, and return its exit status or last words."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["d2lpar", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
    return stopped.value.code


def watch_script(folder, program, *arguments, options=(), module=(), **environment):
    """Watch a script in a process of its own; return its exit status, output, and the report."""
    script = folder / "script.py"
    script.write_text(program)
    given = [*options, *(module or [str(script)]), *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "d2lpar", "watch", *given],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | environment,
    )
    return done.returncode, done.stdout, done.stderr
