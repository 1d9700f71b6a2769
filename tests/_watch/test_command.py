import json
import re
import signal

import pytest
from commands import watch_script

from d2lpar._watch.command import Report, number_and_count


def test_signals_of_the_script_do_not_meet_the_thread_that_looks(tmp_path):
    program = """
import os, signal, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(0.1)  # Another thread would take the signal meanwhile, and end the process.
print(signal.sigwait([signal.SIGUSR1]).name, threading.active_count())
"""
    assert watch_script(tmp_path, program)[:2] == (0, "SIGUSR1 1\n")


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, sys; sys.stdout.flush(); os._exit(4)", 4, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
        ("import os, sys; sys.stderr.close(); os.close(2)", 0, ""),
    ],
)
def test_the_status_of_the_script_is_kept_and_what_was_seen_is_reported(
    tmp_path, end, status, says
):
    ended, out, said = watch_script(tmp_path, f"print('mine')\n{end}")
    assert (ended, out) == (status, "mine\n")
    assert says in said
    assert not re.search(r"d2lpar/\w+\.py|d2lpar/_", said)
    assert said.count("Watched for") == 1


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "os.execl(me, me, '-m', 'keyword')"])
def test_a_child_that_the_script_forks_reports_nothing(tmp_path, end):
    program = (
        f"import os, sys\nme = sys.executable\nif os.fork() == 0:\n    {end}\nprint(os.wait()[1])\n"
    )
    status, out, said = watch_script(tmp_path, program)
    assert (status, out, said.count("Watched for")) == (0, "0\n", 1)


@pytest.mark.parametrize(
    ("replacement", "options", "status", "starts"),
    [
        ("os.execv(me, [me, script, 'again'])", [], 0, True),
        ("os.execlp('sh', 'sh', '-c', 'echo again; exit 3')", [], 3, True),
        ("os.execve(me, [me, script, b'\\xe4'], env={})", ["--fail-over", "5%"], 1, False),
    ],
)
def test_a_program_that_replaces_the_script_is_named_not_watched_and_never_passes(
    tmp_path, replacement, options, status, starts
):
    program = f"""
import os, sys
me, script = sys.executable, os.path.abspath(__file__)
if sys.argv[1:]:
    print("again")
    raise SystemExit
try:
    os.execlp("nowhere", "nowhere")
except OSError:
    {replacement}
"""
    options = [*options, "--json", "report.json", "--hang-dir", "."]
    ended, out, said = watch_script(tmp_path, program, options=options)
    assert (ended, out, said.count("Watched for")) == (status, "again\n" * starts, 1)
    assert json.loads((tmp_path / "hang.0.json").read_text())["status"] == int(not starts)
    assert "The report ends where the script replaces its process by `" in said
    assert ("so it has not been started" in said) != starts
    assert "That is not watched." in (tmp_path / "report.json").read_text()


def test_an_interim_report_is_written_also_while_the_main_thread_ends_the_watch(tmp_path):
    report = Report(tmp_path / "report.json")
    watcher, report._due = report._watcher, 0.0
    watcher.report = lambda: setattr(report, "_watcher", None)  # As `Report.end` does first.
    report._write_now_and_then()
    assert json.loads((tmp_path / "report.json").read_text())["seconds"] == 0.0


LOOP = """
import time
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jax.lax.fori_loop(0, {length}, lambda _, x: jnp.tanh(x @ x), x).sum())
x = jnp.ones((200, 200))
for _ in range({turns}):
    loss = step(x)
    float(loss)
    time.sleep({pause})
"""


@pytest.mark.parametrize(
    ("program", "limit", "status", "says"),
    [
        (LOOP.format(length=60, turns=150, pause=0.02), "10%", 1, "(keeps the device idle)."),
        (LOOP.format(length=120, turns=400, pause=0), "30%", 0, "waits for a value: float(loss)"),
        (LOOP.format(length=60, turns=3, pause=0.02), "1%", 0, "Too short to judge"),
        ("import time; time.sleep(2.2)", "1%", 1, "devices did: the program did not use JAX."),
    ],
    ids=["idle", "busy", "short", "not seen"],
)
def test_a_script_fails_if_its_device_is_idle_or_not_seen(tmp_path, program, limit, status, says):
    ended, _, said = watch_script(tmp_path, program, options=["--fail-over", limit])
    assert (ended, says in said) == (status, True)
    assert ("More than" in said, "Too short" in said) == ("idle" in says, "Too short" in says)


@pytest.mark.parametrize(
    ("given", "launched"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None),  # A batch script, in no step.
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "0", "WORLD_SIZE": "2"}, (0, 2)),
    ],
)
def test_the_launcher_says_which_process_this_is_of_how_many(given, launched, monkeypatch):
    monkeypatch.setattr("os.environ", given)
    assert number_and_count() == launched
