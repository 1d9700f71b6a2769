import platform

import jax
import psutil
import pytest
from commands import main_with

from d2lpar import __version__, format_bytes, usable_cores
from d2lpar.__main__ import seconds
from d2lpar._jax.devices import this_machine
from d2lpar._plain.format import plural


def test_without_a_command_it_says_what_jax_sees_on_this_machine(run_python):
    output = run_python("from d2lpar.__main__ import main; main()", JAX_NUM_CPU_DEVICES="2")
    rows = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert rows["Memory"] == format_bytes(psutil.virtual_memory().total)
    assert rows["System"].startswith(platform.system())
    assert rows["Processor"] == f"{this_machine().processor}, {plural(usable_cores(), 'core')}"
    assert rows["Packages"].startswith("Python 3.")
    assert f", jax {jax.__version__}, " in rows["Packages"]
    assert "JAX devices 2 x cpu" in " ".join(output.split())


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        ("--version", 0, f"d2lpar {__version__}\n"),
        ("watch nowhere.py", 2, "there is no script 'nowhere.py'"),
        ("watch --json nowhere/file", 2, "the report cannot be written to 'nowhere/file'"),
        ("watch --fail-over 200%", 2, "a share lies between 0% and 100%, found '200%'"),
        ("watch --after 1mm", 2, "a time is a number, such as 500ms, 30s, 5m or 2h, found '1mm'"),
        ("run --json report.json", 2, "--json needs --watch"),
        ("run -n 0", 2, "argument -n/--processes: a count is an integer of at least 1, found '0'"),
        ("run --hang-dir", 2, "the following arguments are required: script\n"),
        ("run --timeout 0s", 2, "a limit is longer than 0 s, found '0s'"),
        ("run --timeout inf", 2, "such as 500ms, 30s, 5m or 2h, found 'inf'"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(options, status, says, capsys):
    assert main_with(*options.split(), __file__) == status
    assert says in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 0.5), ("1.5", 1.5), ("30s", 30), ("5m", 300), ("2h", 7200)]
)
def test_a_time_has_a_unit_or_is_in_seconds(text, expected):
    assert seconds(text) == expected


WINDOWS = """
import contextlib, os, psutil, runpy, signal, sys
for name in ("fork", "register_at_fork"):
    delattr(os, name)
for name in ("pthread_sigmask", "SIGHUP", "SIGUSR1"):
    delattr(signal, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
for arguments in [], ["--help"], ["merge", "x"]:
    sys.argv = ["d2lpar", *arguments]
    try:
        with contextlib.redirect_stdout(None):
            runpy.run_module("d2lpar", run_name="__main__")
    except SystemExit as exit:
        print(arguments, exit.code)
import d2lpar
try:
    with d2lpar.watch():
        pass
except d2lpar.D2lparError as error:
    print(error)
"""


def test_on_windows_a_command_and_watch_say_which_system_they_need(run_python):
    needs = "needs Linux or macOS; on Windows, use its Subsystem for Linux (WSL)."
    lines = "[] None", "['--help'] 0", f"['merge', 'x'] d2lpar merge {needs}", f"watch() {needs}"
    assert tuple(run_python(WINDOWS).splitlines()) == lines
