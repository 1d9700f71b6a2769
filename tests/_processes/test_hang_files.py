"""Where processes stand that share only a folder, and which one is missing."""

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from commands import main_with

from d2lpar import Watched
from d2lpar._processes.hang_files import INTERVAL, StateFile, diagnosis_of, read_states
from d2lpar._processes.workers import _reserved

HANGS = """
import os, sys
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

number, address = int(os.environ["NUMBER"]), sys.argv[1]
jax.distributed.initialize(address, 2, number, coordinator_bind_address=address)
multihost_utils.process_allgather(jnp.ones(3))
if number == 0:
    multihost_utils.process_allgather(jnp.ones(3))
sys.stdin.read()
"""


def test_two_launchers_leave_files_of_which_merge_says_who_is_missing(script, tmp_path, capsys):
    path, port = script(HANGS), _reserved()
    command = [sys.executable, "-m", "d2lpar", "watch", "--hang-dir", tmp_path]
    command += [path, "127.0.0.1:{}".format(*port.getsockname()[1:])]
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"JAX_PLATFORMS": "cpu"}
    running = []
    try:
        for number in "01":
            pipe = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
            own = {"NUMBER": number}  # Only JAX knows the meaning.
            running.append(subprocess.Popen(command, env=environment | own, **pipe))
        report, end = "", time.monotonic() + 100
        shown = [
            f"at {path}:10  multihost_utils.process_allgather(jnp.ones(3))\n",
            f"[1, pid {running[1].pid}] waiting for input for ",
            f"at {path}:11  sys.stdin.read()\n",
            "\nProcess 1 has not reached what process 0 is waiting for.\n",
        ]
        while not all(line in report for line in shown):
            time.sleep(0.1)
            assert time.monotonic() < end, report
            assert [process.poll() for process in running] == [None, None]
            if len(files := [*tmp_path.glob("hang.*.json")]) == 2:
                assert main_with("merge", *files) == 0
                report = capsys.readouterr().err
    finally:
        for process in running:
            process.kill()
            process.communicate()
        port.close()


@pytest.fixture
def leave(tmp_path, monkeypatch):
    """A function that leaves the file of a process at a wall time, and reads the files of all."""

    def leave(number, activity, wall_time, *, boot=0, since=0, status=None):
        monkeypatch.setattr("os.environ", {"RANK": str(number), "WORLD_SIZE": "4"})
        monkeypatch.setattr(socket, "gethostname", lambda: f"booted at {boot}")
        monkeypatch.setattr(os, "getpid", lambda: 7)
        thread = {"name": "MainThread", "callers": [], "activity": activity}
        thread |= {"since": since - boot, "line": ["train.py", 1 + number, "f(x)"]}
        state = {"sampled": wall_time - boot, "threads": [thread], "step": None, "cores": 0.0}
        state |= {"last_in_jax": [970 - boot, ["train.py", 9, "g(x)"]], "last_dispatch": 0.0}
        file = StateFile(tmp_path, lambda: wall_time - boot, lambda: wall_time)
        file._status = status
        file.write(state)
        return read_states(tmp_path.iterdir())

    return leave


def test_files_that_are_older_are_of_processes_that_do_not_respond_or_have_ended(leave):
    leave(1, "value", 1000, boot=900, since=1000)
    leave(3, "sleeps", 1027, boot=900, since=1022, status=1)
    states = leave(0, "value", 1030, boot=-50, since=1021)
    assert diagnosis_of(states, 1031).splitlines() == [
        "The newest file is 1 s old.",
        "[0, pid 7 on booted at -50] waiting for a value for 9 s at train.py:1  f(x)",
        "    last seen in JAX 60 s ago at train.py:9  g(x)",
        "[1, pid 7 on booted at 900] does not respond: it has run no Python for 30 s; C++ code "
        "holds the GIL, or the process is dead, stopped or gets no core",
        "    last seen at train.py:2  f(x)",
        "    last seen in JAX 60 s ago at train.py:9  g(x)",
        "[2] has no file among these",
        "[3, pid 7 on booted at 900] has ended 3 s ago: exit status 1",
        "    last seen at train.py:4  f(x)",
        "    last seen in JAX 60 s ago at train.py:9  g(x)",
        "Processes 1, 2 and 3 have not reached what process 0 is waiting for.",
    ]


def test_clocks_that_differ_a_little_and_the_interval_make_no_process_unresponsive(leave):
    leave(0, "value", 1000, since=999)
    states = leave(1, "call", 1000 + 2 * INTERVAL, since=1000)
    report = diagnosis_of(states, 1001)
    assert "[0, pid 7] waiting for a value for 1 s at train.py:1" in report
    assert "have not reached what process 0 is waiting for." in report


def test_a_file_is_written_now_and_then_says_how_it_ended_and_a_lost_folder_is_no_error(
    tmp_path, clock
):
    folder = tmp_path / "states"
    folder.mkdir()
    file, written = StateFile(folder, clock), folder / "hang.0.json"
    file._written.wait = lambda seconds: None  # Of the thread that would write the file.

    def writes_after(seconds):
        written.unlink(missing_ok=True)
        clock.advance(seconds)
        file.write({})
        return written.exists()

    assert [writes_after(1), writes_after(1)] == [True, False]
    shutil.rmtree(folder)
    assert not writes_after(INTERVAL)
    folder.mkdir()
    file.end(3)
    assert writes_after(0)
    assert read_states([written])[0]["status"] == 3
    assert not writes_after(INTERVAL)


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path, script, leave, capsys, monkeypatch):
    path, report, copy = script("print('has run')"), tmp_path / "report.json", tmp_path / "copy"
    for command in "watch", "run":
        assert main_with(command, "--hang-dir", tmp_path / "none", path) == 2
        assert "/none: there is no such folder. Name a folder that" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)
        assert main_with("watch", "--hang-dir", tmp_path, path) == 2
    output, message = capsys.readouterr()
    assert ("no file can be written there" in message, output) == (True, "")

    leave(0, "value", 1000)
    state = tmp_path / "hang.0.json"
    report.write_text(Watched().to_json())
    assert main_with("merge", state, report).startswith("1 of 2 files are of --hang-dir, or")
    shutil.copy(state, copy)
    assert main_with("merge", state, copy).startswith("2 of 2 files are of --hang-dir, or some of")


def test_run_leaves_a_file_of_each_process(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main_with("run", "--hang-dir", ".", script("import os; os.chdir('/')")) == 0
    assert [state["status"] for state in read_states(tmp_path.glob("hang.*.json"))] == [0, 0]
