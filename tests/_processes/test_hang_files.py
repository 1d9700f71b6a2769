"""Where processes stand that share only a folder, and which one is missing."""

import functools
import os
import shutil
import socket
import subprocess
import sys
import time

from commands import main_with
from fakes import FakeClock

from d2lpar import Watched
from d2lpar._processes.hang_files import INTERVAL, StateFile, diagnosis_of
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
    path, port = script(HANGS), _reserved(0)
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


class Machine:
    """Leaves files as a machine whose clocks do not agree with those of others would."""

    def __init__(self, folder, monkeypatch, host, boot, count=4):
        self.clock, self._boot, self._host = FakeClock(), boot, host
        self._folder, self._patch, self._count = folder, monkeypatch, count

    def leaves(self, number, activity, *, waited, status=None):
        """Leave the file of a process that has stood at a line for so long."""
        for name, value in {"RANK": number, "WORLD_SIZE": self._count}.items():
            self._patch.setenv(name, str(value))
        self._patch.setattr(socket, "gethostname", lambda: self._host)
        now = self.clock() - self._boot
        thread = {"name": "MainThread", "dispatches": True, "callers": [], "activity": activity}
        thread |= {"since": now - waited, "line": ["train.py", 1 + number, "f(x)"]}
        state = {"sampled": now, "threads": [thread], "last_dispatch": now, "step": None}
        state |= {"last_in_jax": [now - 60, ["train.py", 9, "g(x)"]], "cores": 0.0}
        file = StateFile(self._folder, lambda: now, self.clock)
        file._status = status
        file.write(state)


def test_files_that_are_older_are_of_processes_that_do_not_respond_or_have_ended(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "getpid", lambda: 7)
    a, b = (Machine(tmp_path, monkeypatch, name, boot) for name, boot in [("a", -50), ("b", 900)])
    b.clock.now = 1000
    b.leaves(1, "value", waited=0)
    b.clock.advance(27)
    b.leaves(3, "sleeps", waited=5, status=1)
    a.clock.now = 1030
    a.leaves(0, "value", waited=9)
    assert diagnosis_of([*tmp_path.iterdir()], lambda: 1031).splitlines() == [
        "The newest file is 1 s old.",
        "[0, pid 7 on a] waiting for a value for 9 s at train.py:1  f(x)",
        "    last seen in JAX 60 s ago at train.py:9  g(x)",
        "[1, pid 7 on b] does not respond: it has run no Python for 30 s; C++ code holds the GIL, "
        "or the process is dead, stopped or gets no core",
        "    last seen at train.py:2  f(x)",
        "    last seen in JAX 90 s ago at train.py:9  g(x)",
        "[2] has no file among these",
        "[3, pid 7 on b] has ended 3 s ago: exit status 1",
        "    last seen at train.py:4  f(x)",
        "    last seen in JAX 63 s ago at train.py:9  g(x)",
        "Processes 1, 2 and 3 have not reached what process 0 is waiting for.",
    ]


def test_clocks_that_differ_a_little_and_the_interval_make_no_process_unresponsive(
    tmp_path, monkeypatch
):
    machine = Machine(tmp_path, monkeypatch, "a", 0, count=2)
    machine.leaves(0, "value", waited=0)
    machine.clock.advance(2 * INTERVAL)
    machine.leaves(1, "call", waited=0)
    report = diagnosis_of([*tmp_path.iterdir()], machine.clock)
    assert "in a call at train.py:2" in report
    assert report.endswith("Process 1 has not reached what process 0 is waiting for.")


def test_a_file_is_written_now_and_then_says_how_it_ended_and_a_lost_folder_is_no_error(tmp_path):
    clock, folder = FakeClock(), tmp_path / "states"
    folder.mkdir()
    file, written = StateFile(folder, clock, clock), folder / "hang.0.json"

    def writes(status=None):
        written.unlink(missing_ok=True)
        file.write({"status": status})
        return written.exists()

    clock.advance(1)
    assert [writes(), writes()] == [True, False]
    clock.advance(INTERVAL)
    shutil.rmtree(folder)
    assert not writes()
    folder.mkdir()
    file._written.wait = lambda seconds: None  # Of the thread that would write the file.
    file.end(3)
    assert writes()
    assert '"status": 3' in written.read_text()
    clock.advance(INTERVAL)
    assert not writes()


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path, monkeypatch, script, capsys):
    path = script("print('has run')")
    for command in "watch", "run":
        assert main_with(command, "--hang-dir", tmp_path / "none", path) == 2
        assert "/none: there is no such folder. Name a folder that" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main_with("watch", "--hang-dir", tmp_path, path) == 2
    output, message = capsys.readouterr()
    assert "no file can be written there" in message
    assert output == ""

    Machine(tmp_path, monkeypatch, "a", 0).leaves(0, "value", waited=0)
    state, report, copy = (tmp_path / name for name in ("hang.0.json", "report.json", "copy"))
    report.write_text(Watched().to_json())
    merge = functools.partial(main_with, "merge", state)
    assert "report.json is none: merge only files of --hang-dir, or only" in merge(report)
    copy.write_text(state.read_text())
    assert "copy: there is another file of process 0. Remove" in merge(copy)
    copy.write_text(state.read_text().replace('"hang": 1', '"hang": 2'))
    assert "copy: another version of d2lpar has written it" in merge(copy)


def test_run_leaves_a_file_of_each_process(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main_with("run", "--hang-dir", ".", script("import os; os.chdir('/')")) == 0
    report = diagnosis_of([*tmp_path.glob("hang.*.json")])
    assert report.count(": exit status 0\n") == 2
