import os
import subprocess
import sys

import jax
import pytest
from commands import main_with

from d2lpar import __version__, usable_cores
from d2lpar._jax.devices import this_machine


def test_without_a_command_it_says_what_jax_sees_on_this_machine():
    output = subprocess.check_output(
        [sys.executable, "-m", "d2lpar"],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
        encoding="utf-8",
    )
    rows = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert rows["Processor"] == f"{this_machine().processor}, {usable_cores()} cores"
    assert rows["Packages"].startswith("Python 3.")
    assert f", jax {jax.__version__}, " in rows["Packages"]
    assert "JAX devices 2 x cpu" in " ".join(output.split())


@pytest.mark.parametrize(
    ("argument", "status", "printed"),
    [
        ("--version", 0, f"d2lpar {__version__}\n"),
        ("--help", 0, "what JAX sees on this machine"),
        ("nonsense", 2, "usage: d2lpar"),
        ("--nonsense", 2, "usage: d2lpar"),
    ],
)
def test_it_says_its_version_and_how_it_is_used(argument, status, printed, capsys):
    assert main_with(argument) == status
    out, err = capsys.readouterr()
    assert printed in (err if status else out)
