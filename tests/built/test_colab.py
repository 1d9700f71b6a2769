"""The chapters as Colab runs them: alone in a folder, in an environment that has no d2lpar yet.

With the JAX of Colab and, where it is here, with its Python, but with few rounds, and beside other
tests: that a claim holds is the book build's to say, and what `make evidence` is for. The
solutions run with that JAX each week (`make matrix`).
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from run_notebook import FEW_ROUNDS, ROOT, notebooks

from d2lpar.book import claims, exercises, explore

NOTEBOOKS = [path.with_suffix(".ipynb") for path in notebooks() if path.parent.name == "book"]
IDS = [str(path.relative_to(ROOT / "book")) for path in NOTEBOOKS]
PYTHON = "3.13"  # Colab's, as is this JAX.
PREINSTALLED = "jax==0.7.2", "jaxlib==0.7.2", "numpy", "matplotlib", "ipykernel"
FIRST_CELL = 1  # Of code, in each of them.
ADDRESS = "https://github.com/d2lpar/d2lpar"


def commit_tree(path):
    """Make a repository whose branch `main` is the tree as it stands here."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path / name)
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["-c", "user.name=d2lpar", "-c", "user.email=", "commit", "--quiet", "--message=tree"],
    ):
        subprocess.run(["git", *command], cwd=path, check=True)


def interpreter_of_colab():
    """Return Colab's Python, or this one where it is not here.

    pyenv answers to names of more than it has.
    """
    try:
        there = subprocess.run([f"python{PYTHON}", "-c", ""], capture_output=True).returncode == 0
    except FileNotFoundError:
        there = False
    return PYTHON if there else sys.executable


class Colab(NamedTuple):
    """A folder with a repository, an environment, and a kernel for it."""

    folder: Path

    @property
    def python(self):
        return self.folder / "venv" / "bin" / "python"

    def run(self, tool, *arguments):
        """Run a tool of the environment that runs the tests; return what it prints."""
        mine = ("D2LPAR", "JAX", "JUPYTER", "PYTHON", "UV_", "VIRTUAL_ENV")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(mine)},
            # What the first cell asks of the repository's address, this one answers.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{(self.folder / 'checkout').as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": ADDRESS,
            "JUPYTER_PATH": str(self.folder),
        }
        command = [Path(sys.executable).with_name(tool), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def execute(self, name, notebook):
        """Run a notebook to its end, alone in a folder, and return it."""
        path = self.folder / name
        path.parent.mkdir(parents=True)
        nbformat.write(notebook, path)
        self.run("jupyter-execute", path, "--inplace", "--kernel_name=colab", "--timeout=900")
        return nbformat.read(path, as_version=4)

    def installed(self):
        """Return what is installed, a line each."""
        return self.run("uv", "pip", "freeze", "--python", self.python).splitlines()

    def set_up(self):
        """Make it, and let the first cell of a notebook install what is not there yet."""
        self.folder.mkdir()
        commit_tree(self.folder / "checkout")
        venv = self.python.parent.parent
        self.run("uv", "venv", "--quiet", "--seed", "--python", interpreter_of_colab(), venv)
        install = "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", self.python
        self.run(*install, *PREINSTALLED)
        kernel = self.folder / "kernels" / "colab"
        kernel.mkdir(parents=True)
        launch = [str(self.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": launch, "display_name": "Colab", "language": "python"}
        (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        before = self.installed()
        first = nbformat.read(NOTEBOOKS[0], as_version=4)
        del first.cells[FIRST_CELL + 1 :]
        self.execute("first/first.ipynb", first)
        return before, self.installed()


@pytest.fixture(scope="session")
def colab(tmp_path_factory):
    """A Colab, made once, and what was installed before and after the first cell had run."""
    here = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        here = here.parent  # All of them share it.
    colab, known = Colab(here / "colab"), here / "colab.json"
    with open(here / "colab.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            known.write_text(json.dumps(colab.set_up()), encoding="utf-8")
    return colab, json.loads(known.read_text(encoding="utf-8"))


QUICK = f"""{FEW_ROUNDS}
import functools
import d2lpar.book.automatic_parallelism as of_chapter_2
import d2lpar.book.workloads

d2lpar.record_typical = functools.partial(d2lpar.record_typical, times=1)
of_chapter_2.record_copies = functools.partial(of_chapter_2.record_copies, times=2)
d2lpar.book.workloads.training_size = lambda hidden: ((512, 64, 64, 1), 64)
"""


def measuring_little(path):
    """Return a notebook that measures as little as it can once its first cell has run."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(FIRST_CELL + 1, nbformat.v4.new_code_cell(QUICK))
    return notebook


def test_the_first_cell_installs_the_package_and_touches_neither_jax_nor_numpy(colab):
    _, (before, after) = colab
    assert not any(line.startswith("d2lpar") for line in before)
    assert any(line.startswith("d2lpar @ git+") for line in after)
    assert set(before) <= set(after)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=IDS)
def test_a_notebook_runs_to_its_end_and_shows_what_the_page_shows(html, colab, notebook):
    name = notebook.relative_to(ROOT / "book")
    executed = colab[0].execute(name.with_suffix("") / name.name, measuring_little(notebook))
    page = html.parent / "jupyter_execute" / notebook.relative_to(ROOT)
    assert objects_in(executed) == objects_in(nbformat.read(page, as_version=4)) != []
    # Of what the book makes for its own pages, Colab shows the HTML.
    assert all("text/html" in data for data in shown_by(executed) if explore.MIME_TYPE in data)


def shown_by(notebook):
    """Return the data of the outputs of an executed notebook, by MIME type."""
    return [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", [])]


def objects_in(notebook):
    """Return which figures, explorables, exercises and claims there are, in their order."""
    return [
        (kind, data[kind]["sentence"] if kind == claims.MIME_TYPE else "")
        for data in shown_by(notebook)
        for kind in (claims.MIME_TYPE, exercises.MIME_TYPE, explore.MIME_TYPE, "image/svg+xml")
        if kind in data
    ]
