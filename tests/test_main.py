import os
import subprocess
import sys

import jax
import pytest

from d2lpar import __version__, usable_cores
from d2lpar.__main__ import Script, main
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
    assert err.startswith("usage: d2lpar")


def test_it_says_its_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "--version"])
    main()
    assert capsys.readouterr().out == f"d2lpar {__version__}\n"


def test_help_says_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "--help"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert "what JAX sees on this machine" in capsys.readouterr().out


# --- Scripts ------------------------------------------------------------------------------------


def test_a_script_that_fails_is_an_error_where_that_is_wanted(script):
    Script(str(script("raise SystemExit(0)")), False, []).run_or_fail()
    with pytest.raises(RuntimeError, match="exit status 3"):
        Script(str(script("raise SystemExit(3)")), False, []).run_or_fail()


JOINS = """
import sys, jax
jax.distributed.initialize()
print(sys.argv[1:], jax.process_index(), "of", jax.device_count())
if jax.process_index() == 1 and "fail" in sys.argv:
    raise SystemExit("no disk")
"""


def test_run_joins_the_processes_of_a_script_and_shows_what_they_print(script, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "run", str(script(JOINS)), "--rate", "0.1"])
    main()
    lines = [f"[{number}] ['--rate', '0.1'] {number} of 2" for number in (0, 1)]
    assert sorted(capfd.readouterr().out.splitlines()) == lines


def test_run_ends_with_an_error_if_one_process_does(script, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "run", "-n", "2", str(script(JOINS)), "fail"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code.startswith("Process 1 failed:")
    assert "[1] no disk" in capfd.readouterr().out


def test_run_refuses_a_script_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "run", "no.py"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no script 'no.py'" in capsys.readouterr().err
