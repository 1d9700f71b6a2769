import os
import subprocess
import sys

import jax
import pytest
from commands import main_with

from d2lpar import __version__, usable_cores
from d2lpar._jax.devices import this_machine


def test_it_says_what_jax_sees_on_this_machine():
    done = subprocess.run(
        [sys.executable, "-m", "d2lpar"],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert said["Processor"] == f"{this_machine().processor}, {usable_cores()} cores"
    assert said["Packages"].startswith("Python 3.")
    assert f", jax {jax.__version__}, " in said["Packages"]
    assert "JAX devices 2 x cpu" in " ".join(done.stdout.split())


@pytest.mark.parametrize("argument", ["nonsense", "--nonsense"])
def test_what_it_does_not_know_is_answered_with_how_it_is_used(argument, capsys):
    assert main_with(argument) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: d2lpar")


def test_it_says_its_version(capsys):
    assert main_with("--version") is None
    assert capsys.readouterr().out == f"d2lpar {__version__}\n"


def test_help_says_what_it_does(capsys):
    assert main_with("--help") == 0
    assert "what JAX sees on this machine" in capsys.readouterr().out
