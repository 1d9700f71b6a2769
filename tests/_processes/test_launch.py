import functools
import re
import signal
import subprocess
import sys

import pytest
from commands import main_with

from d2lpar import Watched, num_gpus
from d2lpar._plain.format import plural
from d2lpar._processes import workers

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
def run():
    """A function that runs `d2lpar run` here, and returns its status or last words."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield functools.partial(main_with, "run")
    for number, handler in before.items():
        signal.signal(number, handler)


def test_run_joins_the_processes_of_a_script_and_tells_an_exception_once_without_frames_of_ours(
    script, monkeypatch, run, capfd
):
    path = script(JOINS)
    monkeypatch.chdir(path.parent)
    assert run("-m", path.stem, "--rate", "fail") == 1
    output, message = capfd.readouterr()
    last = "It last printed: ValueError: no disk"
    assert message.startswith(f"Process 1 ended with the exit status 1. {last}\n")
    printed = output.splitlines()
    joined = [f"[{number}] ['--rate', 'fail'] {number} of 6 float64" for number in (0, 1)]
    assert sorted(line for line in printed if "of 6" in line) == joined, printed
    title, frame, *_, error = (line for line in printed if "of 6" not in line)
    assert (title, error) == ("[1] Traceback (most recent call last):", "[1] ValueError: no disk")
    assert frame == f'[1]   File "{path}", line 9, in <module>'


def test_run_gives_each_process_a_gpu_only_where_there_are_enough(script, run):
    message = run("--gpus", "-n", 1 + num_gpus(), script(""))
    assert f"JAX finds {plural(num_gpus(), 'GPU')} here" in message


ENDS = """
import os, signal, sys
import jax
from jax.experimental.multihost_utils import process_allgather

jax.distributed.initialize()
process_allgather(jax.numpy.ones(3))
if jax.process_index() == 1:
    exec(sys.argv[1])
else:
    process_allgather(jax.numpy.ones(3))
"""
AFTER_THE_OTHER = (
    r"Process 0 ended with the exit status 1\..*\nProcess 1 had ended \d.*s before\."
    r"\nIt was last seen in JAX at \S*script\.py:[3467]  .+\n"
    # Here JAX 0.7 leaves the connections open.
    r"|Process 0 has not ended after 30 s\.(?s:.)*\[1\] has finished \d\d.* s ago\n(?s:.)*"
)
EXITED = r"\nIt exited at \S*script\.py:9  exec\(sys\.argv\[1\]\)\n"
SEEN = r"\.\nIt was last seen at \S*script\.py:\d+  .+\n"


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("sys.exit()", 1, AFTER_THE_OTHER),
        ("sys.exit(200)", 200, r"Process 1 ended with the exit status 200\." + EXITED),
        ("os._exit(0)", 1, AFTER_THE_OTHER),
        ("os._exit(7)", 7, "Process 1 has died: exit status 7" + SEEN),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "Process 1 has died: SIGKILL" + SEEN),
    ],
)
def test_the_process_that_ended_first_is_named_with_its_line_and_gives_the_status(
    code, status, message, script, run, monkeypatch, capfd
):
    monkeypatch.setattr(workers, "GRACE", 0.5)  # The other one may wait for it.
    assert run("--timeout", "30s", script(ENDS), code) == status
    assert re.fullmatch(message, capfd.readouterr().err)


SAVES = """
import os, signal, sys, time

def save(*_):
    print("saved")
    sys.exit(200)

handlers = {"save": save, "ignore": signal.SIG_IGN, "die": signal.SIG_DFL}
signal.signal(signal.SIGTERM, handlers[sys.argv[1]])
while True:
    os.kill(os.getppid(), signal.SIGTERM)
    # Many short sleeps: Python runs no handler during a sleep that begins just after the signal.
    again_at = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < again_at:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("grace", "does", "again_after", "status", "last"),
    [
        ("10m", "save", 600, 200, "Process 0 ended with the exit status 200."),
        ("10m", "die", 600, 143, "Process 0 has died: SIGTERM."),
        ("0s", "ignore", 600, 143, "Process 0 has not ended after SIGTERM."),
        ("10m", "ignore", 0.3, 143, "SIGTERM: the processes have 600 s to end."),
    ],
)
def test_sigterm_is_handed_on_and_after_the_grace_or_another_one_all_are_ended(
    grace, does, again_after, status, last, script, run, capfd
):
    assert run("-n", 1, "--grace", grace, script(SAVES), does, again_after) == status
    output, report = capfd.readouterr()
    assert output == "[0] saved\n" * (does == "save")
    assert report.startswith("[0] ")  # Where it stood when the signal came.
    assert last in report


def test_a_reader_that_has_read_enough_ends_the_run_without_a_traceback(script):
    command = [sys.executable, "-m", "d2lpar", "run", script("while True: print('x' * 99)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 128 + signal.SIGPIPE


HANGS = """
import subprocess, time
print(subprocess.Popen(["setsid", "sleep", "600"]).pid)
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
if jax.process_index() == 0:
    multihost_utils.process_allgather(jnp.ones(3))
time.sleep(600)
"""


def test_a_stall_and_sigusr1_and_ctrl_c_show_where_a_program_hangs(script, left_of):
    path = script(HANGS)
    command = [sys.executable, "-m", "d2lpar", "run", "--stalled-after", "2s", path]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    output = ""
    with subprocess.Popen(command, **pipes) as running:
        for next_signal in ("SIGUSR1", "SIGINT", None):
            report = ""
            while "has not reached" not in report:
                report += (line := running.stdout.readline())
                assert line, report
            assert f"{path}:9  multihost_utils.process_allgather(jnp.ones(3))" in report
            assert "[1] sleeping for " in report
            assert f"at {path}:10  time.sleep(600)" in report
            assert line == "Process 1 has not reached what process 0 is waiting for.\n"
            output += report
            if next_signal:
                running.send_signal(signal.Signals[next_signal])
        assert running.stdout.read() == ""
    assert running.returncode == 130
    assert output.count("For 2 s, no process was seen dispatching.\n") == 1
    daemons = {int(number) for number in re.findall(r"\] (\d+)$", output, re.MULTILINE)}
    assert len(daemons) == 2
    assert not left_of(daemons)


LATE = """
import time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()
cut = NamedSharding(Mesh(np.array(jax.devices()), "data"), PartitionSpec("data"))
total = jax.jit(lambda x: x.sum())
for _ in range(150):
    if jax.process_index() == 1:
        time.sleep(0.02)  # Its disk is slow.
    float(total(jax.make_array_from_process_local_data(cut, np.ones(10, np.float32))))
"""


def test_run_watches_each_process_and_says_which_was_late_and_where(script, run, tmp_path, capfd):
    path, report = script(LATE), tmp_path / "report.json"
    assert run("--watch", "--json", report, path) == 0
    comparison = capfd.readouterr().err
    first, second, third = comparison.strip().splitlines()[:3]
    assert first.startswith("Process 1 was late: process 0 waited for it for ")
    assert (second, third) == (
        "Its device was idle at:",
        f"    {path}:11  time.sleep(0.02)  # Its disk is slow.",
    )
    written = sorted(tmp_path.glob("report*"))
    assert [file.name for file in written] == ["report.0.json", "report.1.json"]
    assert main_with("merge", *written) == 0
    assert capfd.readouterr().err == comparison


def test_merge_numbers_its_files_and_names_those_that_do_not_fit(tmp_path, capsys):
    files = [tmp_path / f"{name}.json" for name in ("b", "a.0", "c", "a.1")]
    for file in files:
        file.write_text(Watched().to_json())
    assert main_with("merge", *files) == 0
    assert re.findall(r"--- Process (\d)", capsys.readouterr().err) == ["0", "1", "2", "3"]
    assert "another report of process 1" in main_with("merge", *files, files[-1])
    for file in files[2:]:
        file.write_text(file.read_text().replace('"version": 2', '"version": 1'))
    assert main_with("merge", *files).startswith(f"{files[2]}, {files[3]}: This report has version")


def test_run_goes_on_to_the_end_of_threads_and_of_what_a_script_does_at_exit(
    script, run, monkeypatch, capfd
):
    path = script("""
import atexit, threading, time
atexit.register(print, "at exit")
threading.Thread(target=lambda: time.sleep(0.3) or print("a thread")).start()
log = open("log", "w")
log.write("not flushed")
""")
    monkeypatch.chdir(path.parent)
    assert run("-n", 1, path) == 0
    assert capfd.readouterr().out.splitlines() == ["[0] a thread", "[0] at exit"]
    assert (path.parent / "log").read_text() == "not flushed"
