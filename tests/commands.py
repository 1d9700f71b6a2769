"""Run `python -m d2lpar` with some arguments, here or in a process of its own, and git."""

import os
import subprocess
import sys

import pytest

from d2lpar.__main__ import main


def git(*arguments, cwd=None):
    """Run git as a user who is no person, and return its output."""
    user = ["-c", "user.name=d2lpar", "-c", "user.email="]
    command = ["git", *user, *arguments]
    return subprocess.check_output(command, cwd=cwd, stderr=subprocess.PIPE, text=True)


def main_with(*arguments):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["d2lpar", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
    return stopped.value.code


def python_with(*arguments, folder=None, **environment):
    """Run Python in a process of its own, and return that process when it has ended."""
    command, environment = [sys.executable, *arguments], os.environ | environment
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def watch_script(folder, program, *arguments, options=(), module=()):
    """Watch a script in a process of its own; return its exit status, output, and the report."""
    (folder / "script.py").write_text(program)
    script = module or [str(folder / "script.py")]
    command = "-m", "d2lpar", "watch", *options, *script, *arguments
    done = python_with(*command, folder=folder)
    return done.returncode, done.stdout, done.stderr
