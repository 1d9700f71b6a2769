import os
import platform
import subprocess
import sys

import jax
import psutil
from commands import main_with

from d2lpar import __version__, format_bytes, usable_cores
from d2lpar._jax.devices import this_machine


def test_without_a_command_it_says_what_jax_sees_on_this_machine():
    output = subprocess.check_output(
        [sys.executable, "-m", "d2lpar"],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
        encoding="utf-8",
    )
    rows = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert rows["Memory"] == format_bytes(psutil.virtual_memory().total)
    assert rows["System"].startswith(platform.system())
    assert rows["Processor"] == f"{this_machine().processor}, {usable_cores()} cores"
    assert rows["Packages"].startswith("Python 3.")
    assert f", jax {jax.__version__}, " in rows["Packages"]
    assert "JAX devices 2 x cpu" in " ".join(output.split())


def test_it_says_its_version(capsys):
    assert main_with("--version") == 0
    assert capsys.readouterr().out == f"d2lpar {__version__}\n"


WINDOWS = """
import contextlib, os, runpy, signal, sys
for name in ("fork", "register_at_fork"):
    delattr(os, name)
for name in ("pthread_sigmask", "SIGHUP", "SIGUSR1"):
    delattr(signal, name)
sys.modules["fcntl"] = None
for arguments in ([], ["--help"], ["watch", "x"], ["run", "x"], ["merge", "x"], ["compare", "x"]):
    sys.argv = ["d2lpar", *arguments]
    try:
        with contextlib.redirect_stdout(None):
            runpy.run_module("d2lpar", run_name="__main__")
    except SystemExit as exit:
        print(arguments, exit.code)
import d2lpar
try:
    with d2lpar.watch():
        pass
except d2lpar.D2lparError as error:
    print(error)
"""


def test_on_windows_each_command_and_watch_says_which_system_it_needs(run_python):
    needs = "needs Linux or macOS; on Windows, use its Subsystem for Linux (WSL)."
    assert run_python(WINDOWS).splitlines() == [
        "[] None",
        "['--help'] 0",
        *(
            f"['{name}', 'x'] d2lpar {name} {needs}"
            for name in ("watch", "run", "merge", "compare")
        ),
        f"watch() {needs}",
    ]
