"""Run `python -m d2lpar` with some arguments, here or in a process of its own."""

import subprocess
import sys

import pytest

from d2lpar.__main__ import main


def main_with(*arguments):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["d2lpar", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
    return stopped.value.code


def watch_script(folder, program, *arguments, options=(), module=()):
    """Watch a script in a process of its own; return its exit status, output, and the report."""
    (folder / "script.py").write_text(program)
    script = module or [str(folder / "script.py")]
    command = [sys.executable, "-m", "d2lpar", "watch", *options, *script, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
