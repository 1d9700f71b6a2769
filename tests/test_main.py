import os
import subprocess
import sys

import jax
import pytest

from d2lpar import usable_cores
from d2lpar.__main__ import main
from d2lpar._devices import this_machine


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
def test_what_it_does_not_know_is_answered_with_how_it_is_used(argument, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", argument])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: python -m d2lpar")


def test_help_says_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "--help"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert "what JAX sees on this machine" in capsys.readouterr().out
