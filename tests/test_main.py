import functools
import json
import os
import re
import signal
import subprocess
import sys

import jax
import pytest

from d2lpar import Watched, __version__, num_gpus, usable_cores
from d2lpar.__main__ import main
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


def test_it_says_its_version(capsys):
    assert main_with("--version") is None
    assert capsys.readouterr().out == f"d2lpar {__version__}\n"


def test_help_says_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "--help"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert "what JAX sees on this machine" in capsys.readouterr().out


# --- Scripts ------------------------------------------------------------------------------------


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


def main_with(*arguments):
    """Run the command here, and return with what it ends."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["d2lpar", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
    return stopped.value.code


@pytest.fixture
def run():
    """A function that runs `d2lpar run` here, and returns with what it ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield functools.partial(main_with, "run")
    for number, handler in before.items():
        signal.signal(number, handler)


def test_run_joins_the_processes_of_a_script_as_it_is_and_shows_what_they_print(
    script, monkeypatch, run, capfd
):
    path = script(JOINS)
    monkeypatch.chdir(path.parent)
    assert run("-m", path.stem, "--rate", "0.1") == 0
    lines = [f"[{number}] ['--rate', '0.1'] {number} of 6 float64" for number in (0, 1)]
    printed = capfd.readouterr().out
    assert sorted(printed.splitlines()) == lines, printed


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
import subprocess, time
print(subprocess.Popen(["setsid", "sleep", "600"]).pid)
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
if jax.process_index() == 0:
    multihost_utils.process_allgather(jnp.ones(3))
time.sleep(600)
"""


def test_where_a_program_hangs_is_said_when_it_stalls_on_sigusr1_and_on_ctrl_c(script, left_of):
    path = script(HANGS)
    command = [sys.executable, "-m", "d2lpar", "run", "--stalled-after", "2s", path]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    everything = ""
    with subprocess.Popen(command, **pipes) as running:
        for then in ("SIGUSR1", "SIGINT", None):
            said = []
            while not said or "has not reached" not in said[-1]:
                said.append(running.stdout.readline())
                assert said[-1], "".join(said)
            everything += (text := "".join(said))
            assert f"{path}:9  multihost_utils.process_allgather(jnp.ones(3))" in text
            assert "[1] sleeping for " in text
            assert f"at {path}:10  time.sleep(600)" in text
            assert said[-1] == "Process 1 has not reached what process 0 is waiting for.\n"
            if then:
                running.send_signal(signal.Signals[then])
        assert running.stdout.read() == ""
    assert running.returncode == 130
    daemons = {int(number) for number in re.findall(r"\] (\d+)$", everything, re.MULTILINE)}
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
    said = capfd.readouterr().err
    first, _, third = said.strip().splitlines()[:3]
    assert first.startswith("Process 1 was late: process 0 waited for it for ")
    assert third.startswith(f"At {path}:11  time.sleep(0.02)")
    assert "--- Process 0" in said
    written = sorted(tmp_path.glob("report*"))
    assert [file.name for file in written] == ["report.0.json", "report.1.json"]
    assert main_with("merge", *written) == 0
    assert capfd.readouterr().err == said


def test_merge_says_which_file_is_no_report(script):
    path = script("print()")
    assert main_with("merge", path).startswith(f"{path}: This is no report of watch")
    assert "No such file" in main_with("merge", "nothing.json")


def test_merge_loses_no_report(tmp_path):
    files = [tmp_path / name for name in ("old.1.json", "new.1.json")]
    for file in files:
        file.write_text(Watched().to_json())
    assert "another report of process 1" in main_with("merge", *files)


def test_run_writes_no_report_of_what_it_does_not_watch(run, script, capsys):
    assert run("--json", "report.json", script("")) == 2
    assert "--json needs --watch" in capsys.readouterr().err


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


def test_run_refuses_a_script_that_is_not_there(run, capsys):
    assert run("no.py") == 2
    assert "there is no script 'no.py'" in capsys.readouterr().err


# --- Watching a script ----------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    """A function that watches a script in a process of its own: status, output, report."""

    def run(program, *arguments, options=(), module=(), **environment):
        script = tmp_path / "script.py"
        script.write_text(program)
        asked = [*options, *(module or [str(script)]), *arguments]
        done = subprocess.run(
            [sys.executable, "-m", "d2lpar", "watch", *asked],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | environment,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_script_runs_as_python_would_run_it(command, tmp_path):
    (tmp_path / "beside.py").write_text("word = 'beside'")
    program = """
import os, sys, beside
print(__name__, __file__, sys.argv[1:], beside.word, 'jax' in sys.modules, 'numpy' in sys.modules)
os.chdir('/')
os.remove(__file__)
os.environ['JAX_ENABLE_X64'] = '1'
import threading, time
def late():
    time.sleep(0.2)
    print(threading.current_thread().name, file=sys.stderr)
threading.Thread(target=late, name='late').start()
"""
    status, out, said = command(program, "--json", "5")
    asked = "['--json', '5']"
    assert (status, out) == (0, f"__main__ {tmp_path / 'script.py'} {asked} beside False False\n")
    assert said.index("late") < said.index("Watched for")
    assert "What the devices did is not known: it did not use JAX." in said


def test_neither_signals_nor_forks_of_the_script_meet_the_thread_that_looks(command, run_python):
    program = """
import os, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait([signal.SIGUSR1]).name, threading.active_count())
"""
    assert command(program)[:2] == (0, "SIGUSR1 1\n")
    program = """
import os
os.register_at_fork(before=lambda: print(len(os.listdir("/proc/self/task"))))
from d2lpar import watch
with watch() as watched:
    for _ in range(30):
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        before = watched.looks
        while watched.looks < before + 3:
            pass
"""
    if sys.platform == "linux":
        assert set(run_python(program).split()) == {"1"}


def test_a_script_sets_what_jax_reads_when_it_is_imported(command):
    program = """
import os
os.environ['JAX_ENABLE_X64'] = '1'
os.environ['JAX_NUM_CPU_DEVICES'] = '4'
import jax, jax.numpy as jnp
print(jnp.ones(3).dtype, jax.device_count())
"""
    assert command(program)[1] == "float64 4\n"


def test_a_module_runs_as_python_would_run_it(command, tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("")
    (tmp_path / "trainer" / "config.py").write_text("STEPS = 3")
    (tmp_path / "trainer" / "train.py").write_text(
        "import sys\nfrom .config import STEPS\nprint(STEPS, sys.argv[1:], __package__, __name__)"
    )
    status, out, said = command("", module=["-m", "trainer.train", "--steps", "3"])
    assert (status, out) == (0, "3 ['--steps', '3'] trainer __main__\n")
    status, _, said = command("", module=["-m", "nowhere"])
    assert (status, "There is no module 'nowhere'" in said) == (1, True)


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
def test_the_status_of_the_script_is_kept_and_what_was_seen_is_reported(command, end, status, says):
    ended, out, said = command(f"print('mine')\n{end}")
    assert (ended, out) == (status, "mine\n")
    assert says in said
    assert "d2lpar/__main__.py" not in said
    assert said.count("Watched for") == 1


def test_a_child_that_the_script_forks_reports_nothing(command):
    program = "import os\nif os.fork() == 0:\n    raise SystemExit(0)\nprint(os.wait()[1])\n"
    status, out, said = command(program)
    assert (status, out, said.count("Watched for")) == (0, "0\n", 1)


HIDDEN = """
import time
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda _, x: jnp.tanh(x @ x), x).sum())
x = jnp.ones((200, 200))
for _ in range({turns}):
    loss = step(x)
    float(loss)
    time.sleep(0.02)
"""


def test_a_script_that_keeps_its_device_waiting_fails_where_it_must_not(command, tmp_path):
    report = tmp_path / "report.json"
    options = ["--fail-over", "10%", "--json", str(report)]
    status, _, said = command(HIDDEN.format(turns=150), options=options)
    assert status == 1
    assert f"More than 10%: {tmp_path / 'script.py'}:9 keeps the device idle, which costs" in said
    assert {f["place"]["line"] for f in json.loads(report.read_text())["findings"]} >= {8, 9}


def test_a_script_whose_device_is_busy_may_wait_for_it(command):
    program = HIDDEN.format(turns=400).replace("    time.sleep(0.02)\n", "")
    program = program.replace("0, 60,", "0, 120,")
    status, _, said = command(program, options=["--fail-over", "30%"])
    assert "waits for a value: float(loss)" in said
    assert "Too short" not in said
    assert (status, "More than" in said) == (0, False)


def test_a_script_that_is_over_at_once_is_not_judged(command):
    status, _, said = command(HIDDEN.format(turns=3), options=["--fail-over", "1%"])
    assert (status, "Too short to judge" in said) == (0, True)


def test_a_script_whose_devices_are_not_seen_is_not_called_good(command):
    program = "import time\ntime.sleep(2.2)"
    status, _, said = command(program, options=["--fail-over", "1%"])
    assert (status, "It cannot be judged. What the devices did is not known" in said) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--json", "nowhere/report.json", __file__], "there is no folder 'nowhere'"),
        (["--json", "/", __file__], "'/' is a folder"),
        (["--fail-over", "200%", __file__], "between 0 % and 100 %, found '200%'"),
        (["--fail-over", "much", __file__], "found 'much'"),
        (["--after", "soon", __file__], "found 'soon'"),
        ([], "script"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(options, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "watch", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err
