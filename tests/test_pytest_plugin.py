import sys
import tomllib
from pathlib import Path

import pytest
from commands import python_with

import d2lpar

LOOP = """
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    return x * 0.9, x.sum()

def train(x, steps):
    for _ in range(steps):
        x, loss = step(x)
        {log}
    return x

def test_no_line_of_the_loop_waits(no_waits):
    x = train(jnp.ones(3), steps=1)
    with no_waits(no_compilations=True):
        train(x, steps=5)
"""

COMPARES = """
import jax.numpy as jnp
import pytest
from d2lpar import Control

@pytest.mark.parametrize("size", [10, 20])
def test_speed(compare, size):
    x = jnp.ones((size, size))
    times = compare({"sum": lambda: x.sum(), "product": lambda: x @ x}, repeats=6)
    assert (times.ratio("sum", "product") > 0).holds
    compare({"sum": lambda: x.sum()}, repeats=6)
    assert (times["sum"].total > 10).holds

def test_on_a_busy_machine(compare):
    never = Control(lambda: 2.0, 1.0, "no other program")
    assert compare({"sum": lambda: jnp.ones(3).sum()}, control=never).needs
"""


def run_pytest(folder, test, *options):
    path = folder / "test_loop.py"
    path.write_text(test, encoding="utf-8")
    # Else it is there twice where d2lpar is installed.
    plugins = ["-p", "d2lpar.pytest_plugin", "-p", "no:cacheprovider"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return python_with("-m", "pytest", "-q", *plugins, *options, path, folder=folder, **environment)


def test_a_loop_in_which_nothing_waits_passes(tmp_path):
    run = run_pytest(tmp_path, LOOP.format(log="pass"))
    assert run.returncode == 0, run.stdout
    hides = "no_waits: Python 3.11 hides some reads"
    assert (hides in run.stdout) == (sys.version_info < (3, 12))


def test_a_loop_that_reads_its_loss_fails_with_the_line_and_shows_nothing_of_ours(tmp_path):
    run = run_pytest(tmp_path, LOOP.format(log="print(float(loss))"))
    assert run.returncode == 1
    assert "test_loop.py:11  print(float(loss))" in run.stdout
    assert "waits for a value, float32[], 5 times: float(loss)" in run.stdout
    assert "no_waits.py:" not in run.stdout


def test_a_test_compares_and_shows_its_times_also_from_another_process(tmp_path):
    run = run_pytest(tmp_path, COMPARES, "-p", "xdist.plugin", "--numprocesses", "2")
    assert run.returncode == 1, run.stdout
    assert "2 failed, 1 passed" in run.stdout
    assert "where False = sum, total: " in run.stdout  # With what was measured behind it.
    shown = run.stdout.partition("d2lpar: when calls return, and when results are ready")[2]
    for test in ("[10]", "[20]", "[10] (2)", "[20] (2)"):
        assert f"test_loop.py::test_speed{test}\nsum, 6 repeats\n  dispatch" in shown
    assert shown.count("\nproduct, 6 repeats\n") == 2
    assert "Too few rounds count: this needs no other program." in shown
    assert "Caution: with -n of pytest-xdist, these ran beside other tests." in shown


def test_without_our_fixtures_jax_is_not_imported_and_nothing_is_shown(tmp_path):
    own = "import pytest\n\n@pytest.fixture\ndef compare(): return 'own'\n"
    (tmp_path / "conftest.py").write_text(own)
    test = "import sys\n\ndef test(compare): assert compare == 'own' and 'jax' not in sys.modules"
    run = run_pytest(tmp_path, test)
    assert run.returncode == 0, run.stdout
    assert "when calls return" not in run.stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_pytest_runs_under_watch_also_where_warnings_are_errors(tmp_path, processes):
    # An installed copy: an editable one has no files of its own that pytest would rewrite.
    package = Path(d2lpar.__file__).parent
    (tmp_path / "d2lpar").symlink_to(package)
    (metadata := tmp_path / "d2lpar-0.dist-info").mkdir()
    (metadata / "METADATA").write_text("Name: d2lpar\nVersion: 0\n")
    (metadata / "RECORD").write_text("d2lpar/__init__.py,,\nd2lpar/pytest_plugin.py,,\n")
    project = tomllib.loads((package.parent / "pyproject.toml").read_text("utf-8"))["project"]
    (plugin,) = project["entry-points"]["pytest11"].values()
    (metadata / "entry_points.txt").write_text(f"[pytest11]\nd2lpar = {plugin}\n")
    (tmp_path / "test_loop.py").write_text("def test(no_waits): pass")
    command = "-m", "d2lpar", "watch", "-m", "pytest", "-W", "error", "-n", processes
    run = python_with(*command, folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert (run.returncode, "1 passed" in run.stdout) == (0, True), run.stdout + run.stderr
    assert "Watched for" in run.stderr
