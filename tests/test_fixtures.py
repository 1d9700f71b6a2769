import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

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


def run_pytest(folder, test):
    path = folder / "test_loop.py"
    path.write_text(test, encoding="utf-8")
    # Else it is there twice where d2lpar is installed.
    plugins = ["-p", "d2lpar._fixtures", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, path],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_loop_in_which_nothing_waits_passes(tmp_path):
    run = run_pytest(tmp_path, LOOP.format(log="pass"))
    assert run.returncode == 0, run.stdout


def test_a_loop_that_reads_its_loss_fails_with_the_line_and_shows_nothing_of_ours(tmp_path):
    run = run_pytest(tmp_path, LOOP.format(log="print(float(loss))"))
    assert run.returncode == 1
    assert "test_loop.py:11  print(float(loss))" in run.stdout
    assert "waits for a value, float32[], 5 times: float(loss)" in run.stdout
    assert "_no_waits.py" not in run.stdout


def test_pytest_finds_the_fixtures_where_d2lpar_is_installed():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
    (name,) = project["project"]["entry-points"]["pytest11"].values()
    assert hasattr(importlib.import_module(name), "no_waits")


def test_a_test_without_them_does_not_import_jax(tmp_path):
    run = run_pytest(tmp_path, "import sys\n\ndef test(): assert 'jax' not in sys.modules\n")
    assert run.returncode == 0, run.stdout
