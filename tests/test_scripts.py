"""A script that is run as Python would; what `watch` does with one is in test_watching."""

import sys

import pytest

from d2lpar import _scripts
from d2lpar.__main__ import main


def test_a_script_is_the_main_program_and_finds_its_arguments(script, capsys):
    path = script("import sys\nprint(__name__, __file__, sys.argv)")
    assert _scripts.run(path, ["--rate", "0.1"]) == 0
    assert capsys.readouterr().out == f"__main__ {path} {[str(path), '--rate', '0.1']}\n"


def test_a_script_that_fails_is_an_error_where_that_is_wanted(script):
    _scripts.run_or_fail(script("raise SystemExit(0)"), [])
    with pytest.raises(RuntimeError, match="exit status 3"):
        _scripts.run_or_fail(script("raise SystemExit(3)"), [])


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
