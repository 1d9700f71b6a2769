import os
import signal
import subprocess
import sys

import jax
import pytest

from d2lpar import __version__, num_gpus, usable_cores
from d2lpar.__main__ import Script, main
from d2lpar._devices import this_machine
from d2lpar._format import plural


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
    with pytest.raises(SystemExit, match="3"):
        Script(str(script("raise SystemExit(3)")), False, []).run_or_fail()


JOINS = """
import os, sys
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
import jax
jax.distributed.initialize(process_id=int(os.environ["RANK"]))
print(sys.argv[1:], jax.process_index(), "of", jax.device_count(), jax.numpy.ones(()).dtype)
if jax.process_index() == 1 and "fail" in sys.argv:
    raise ValueError("no disk")
"""


@pytest.fixture
def run(monkeypatch):
    """A function that runs `d2lpar run` here, and returns with what it ends."""
    signal_before = signal.getsignal(signal.SIGUSR1)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["d2lpar", "run", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code

    yield run
    signal.signal(signal.SIGUSR1, signal_before)


def test_run_joins_the_processes_of_a_script_as_it_is_and_shows_what_they_print(
    script, monkeypatch, run, capfd
):
    path = script(JOINS)
    monkeypatch.chdir(path.parent)
    assert run("-m", path.stem, "--rate", "0.1") == 0
    lines = [f"[{number}] ['--rate', '0.1'] {number} of 6 float64" for number in (0, 1)]
    assert sorted(capfd.readouterr().out.splitlines()) == lines


def test_run_tells_an_exception_once_with_its_process_and_without_frames_of_ours(
    script, run, capfd
):
    path = script(JOINS)
    assert run("-n", 2, path, "fail") == "Process 1 ended with the exit status 1."
    said = [line for line in capfd.readouterr().out.splitlines() if "of 6" not in line]
    assert said[0] == "[1] Traceback (most recent call last):"
    assert said[1] == f'[1]   File "{path}", line 9, in <module>'
    assert said[-1] == "[1] ValueError: no disk"
    assert not [line for line in said if "d2lpar" in line]


def test_run_gives_each_process_a_gpu_only_where_there_are_enough(script, run):
    said = run("--gpus", "-n", 1 + num_gpus(), script(""))
    assert f"JAX finds {plural(num_gpus(), 'GPU')} here" in said


HANGS = """
import time
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
if jax.process_index() == 0:
    multihost_utils.process_allgather(jnp.ones(3))
time.sleep(600)
"""


def test_where_a_program_hangs_is_said_when_it_stalls_on_sigusr1_and_on_ctrl_c(script):
    path = script(HANGS)
    command = [sys.executable, "-m", "d2lpar", "run", "--stalled-after", "2s", path]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes) as running:
        for then in ("SIGUSR1", "SIGINT", None):
            said = []
            while not said or "has not come" not in said[-1]:
                said.append(running.stdout.readline())
                assert said[-1], "".join(said)
            text = "".join(said)
            assert f"{path}:8  multihost_utils.process_allgather(jnp.ones(3))" in text
            assert "[1] sleeps for " in text
            assert f"at {path}:9  time.sleep(600)" in text
            assert said[-1] == "Process 1 has not come to what process 0 waits for.\n"
            if then:
                running.send_signal(signal.Signals[then])
        assert running.stdout.read() == ""
    assert running.returncode == 130


def test_run_refuses_a_script_that_is_not_there(run, capsys):
    assert run("no.py") == 2
    assert "there is no script 'no.py'" in capsys.readouterr().err
