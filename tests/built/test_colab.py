"""The chapters as Colab runs them: alone in a folder, in an environment without d2lpar.

The environment has Colab's JAX, and in one of the jobs of CI also Colab's Python. The notebooks run
few rounds, next to other tests, so no claim is tested here: the build of the book and
`make evidence` test them. `make matrix` runs the solutions with this JAX each week.
"""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from commands import git
from pages import BRANCH
from run_notebook import FEW_ROUNDS, ROOT, notebooks

from d2lpar.book import claims, exercises, explore

NOTEBOOKS = [path.with_suffix(".ipynb") for path in notebooks() if path.parent.name == "book"]
PREINSTALLED = "jax==0.7.2", "jaxlib==0.7.2", "numpy", "matplotlib", "ipykernel"
FIRST_CELL = 1  # The index of the first cell of code in each notebook.
ADDRESS = "https://github.com/d2lpar/d2lpar"


def commit_tree(repository):
    """Make a bare repository whose branch, the one that notebooks install, has this tree."""
    git("init", "--quiet", "--bare", f"--initial-branch={BRANCH}", repository)
    tree = f"--git-dir={repository}", f"--work-tree={ROOT}"
    git(*tree, "add", "--all", cwd=ROOT)
    git(*tree, "commit", "--quiet", "--message=tree", cwd=ROOT)


class Colab(NamedTuple):
    """A folder with a repository, an environment, and a kernel for it."""

    folder: Path

    @property
    def python(self):
        return self.folder / "venv" / "bin" / "python"

    def run(self, tool, *arguments):
        """Run a tool of the environment that runs the tests; return its output."""
        ours = ("D2LPAR", "JAX", "JUPYTER", "PYTHON", "UV_", "VIRTUAL_ENV")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
            # Git gets the repository's address from the checkout instead.
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
        """Run all cells of a notebook, alone in a folder, and return the notebook."""
        path = self.folder / name
        path.parent.mkdir(parents=True)
        nbformat.write(notebook, path)
        self.run("jupyter-execute", path, "--inplace", "--kernel_name=colab", "--timeout=900")
        return nbformat.read(path, as_version=4)

    def installed(self):
        """Return the installed distributions, one per line."""
        return self.run("uv", "pip", "freeze", "--python", self.python).splitlines()

    def set_up(self):
        """Make the environment, and run the first cell of a notebook, which installs d2lpar."""
        self.folder.mkdir()
        commit_tree(self.folder / "checkout")
        venv = self.python.parent.parent
        self.run("uv", "venv", "--quiet", "--seed", "--python", sys.executable, venv)
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
    """A Colab, made once, and the distributions installed before and after the first cell."""
    here = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        here = here.parent  # The folder that all worker processes share.
    colab, known = Colab(here / "colab"), here / "colab.json"
    with open(here / "colab.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            known.write_text(json.dumps(colab.set_up()), encoding="utf-8")
    return colab, json.loads(known.read_text(encoding="utf-8"))


QUICK = f"""{FEW_ROUNDS}
import functools
import d2lpar.book.automatic_parallelism as chapter_2
import d2lpar.book.workloads

d2lpar.record_typical = functools.partial(d2lpar.record_typical, times=1)
chapter_2.record_copies = functools.partial(chapter_2.record_copies, times=2)
d2lpar.book.workloads.training_size = lambda hidden: ((512, 64, 64, 1), 64)
"""


def test_the_first_cell_installs_the_package_and_touches_neither_jax_nor_numpy(colab):
    _, (before, after) = colab
    assert not any(line.startswith("d2lpar") for line in before)
    assert any(line.startswith("d2lpar @ git+") for line in after)
    assert set(before) <= set(after)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end_and_shows_what_the_page_shows(html, colab, path):
    notebook, name = nbformat.read(path, as_version=4), path.relative_to(ROOT / "book")
    notebook.cells.insert(FIRST_CELL + 1, nbformat.v4.new_code_cell(QUICK))
    executed = colab[0].execute(name.with_suffix("") / name.name, notebook)
    page = html.parent / "jupyter_execute" / path.relative_to(ROOT)
    assert objects_in(executed) == objects_in(nbformat.read(page, as_version=4)) != []
    # Colab cannot show the book's own MIME types, and shows the HTML beside them.
    assert all("text/html" in data for data in shown_by(executed) if explore.MIME_TYPE in data)


def shown_by(notebook):
    """Return the data of each output of an executed notebook, by MIME type."""
    return [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", [])]


def objects_in(notebook):
    """Return the figures, explorables, exercises and claims of a notebook, in order."""
    return [
        (kind, data[kind]["sentence"] if kind == claims.MIME_TYPE else "")
        for data in shown_by(notebook)
        for kind in (claims.MIME_TYPE, exercises.MIME_TYPE, explore.MIME_TYPE, "image/svg+xml")
        if kind in data
    ]
