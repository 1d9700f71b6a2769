"""The notebooks as Colab runs them: alone in a folder, in an environment that has no d2lpar yet.

With the JAX of Colab and, where it is here, with its Python, but with few rounds: that a claim
holds is the book build's to say, and what `make evidence` and `make matrix` are for.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from run_notebook import FEW_ROUNDS, ROOT, notebooks, of_type, outputs_of

from d2lpar.book import claims, exercises, explore

pytestmark = pytest.mark.timed
NOTEBOOKS = [path.with_suffix(".ipynb") for path in notebooks()]
IDS = [str(path.relative_to(ROOT / "book")) for path in NOTEBOOKS]
PYTHON = "3.13"  # Colab's, as is this JAX.
PREINSTALLED = "jax==0.7.2", "jaxlib==0.7.2", "numpy", "matplotlib", "ipykernel"
ADDRESS = "https://github.com/d2lpar/d2lpar"
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=IDS)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A repository whose branch `main` is the tree as it stands here."""
    path = tmp_path_factory.mktemp("checkout")
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
    return path


def interpreter_of_colab():
    """Return Colab's Python, or this one where it is not here.

    pyenv answers to names of more than it has.
    """
    try:
        there = subprocess.run([f"python{PYTHON}", "-c", ""], capture_output=True).returncode == 0
    except FileNotFoundError:
        there = False
    return PYTHON if there else sys.executable


@pytest.fixture(scope="session")
def colab(checkout, tmp_path_factory):
    """What became of the notebooks: their processes, by notebook, and what was installed."""
    folder = tmp_path_factory.mktemp("colab")
    venv = folder / "venv"
    interpreter = venv / "bin" / "python"
    mine = ("D2LPAR", "JAX", "JUPYTER", "PYTHON", "UV_", "VIRTUAL_ENV")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(mine)},
        # What the first cell asks of the repository's address, this one answers.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{checkout.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
        "JUPYTER_PATH": str(folder),
    }

    def run(tool, *arguments):
        command = [Path(sys.executable).with_name(tool), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    for command in (
        ("venv", "--quiet", "--seed", "--python", interpreter_of_colab(), venv),
        ("pip", "install", "--quiet", "--python", interpreter, *PREINSTALLED),
    ):
        done = run("uv", *command)
        assert done.returncode == 0, done.stderr[-4000:]
    kernel = folder / "kernels" / "colab"
    kernel.mkdir(parents=True)
    launch = [str(interpreter), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": launch, "display_name": "Colab", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    found = {"before": run("uv", "pip", "freeze", "--python", interpreter).stdout.splitlines()}
    for notebook in NOTEBOOKS:
        alone = folder / notebook.relative_to(ROOT / "book").with_suffix("") / notebook.name
        alone.parent.mkdir(parents=True)
        nbformat.write(with_few_rounds(notebook), alone)
        options = "--inplace", "--kernel_name=colab", "--timeout=900"
        found[notebook] = alone, run("jupyter-execute", alone, *options)
    found["after"] = run("uv", "pip", "freeze", "--python", interpreter).stdout.splitlines()
    return found


def with_few_rounds(path):
    """Return a notebook that measures as little as it can once its first cell has run."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(2, nbformat.v4.new_code_cell(FEW_ROUNDS))
    return notebook


def shown_in(colab, notebook):
    """Return the data of the outputs of a notebook that has run to its end."""
    path, process = colab[notebook]
    assert process.returncode == 0, process.stderr[-4000:]
    return outputs_of(nbformat.read(path, as_version=4))


def test_the_first_cell_installs_the_package_and_touches_neither_jax_nor_numpy(colab):
    before, after = set(colab["before"]), set(colab["after"])
    assert not any(line.startswith("d2lpar") for line in before)
    assert any(line.startswith("d2lpar @ git+") for line in after)
    assert before <= after


@each_notebook
def test_a_notebook_runs_to_its_end_and_shows_what_the_page_shows(html, colab, notebook):
    outputs = shown_in(colab, notebook)
    page = html.parent / "jupyter_execute" / notebook.relative_to(ROOT)
    on_the_page = outputs_of(nbformat.read(page, as_version=4))
    assert objects_in(outputs) == objects_in(on_the_page) != []
    # Of what the book makes for its own pages, Colab shows the HTML.
    assert all("text/html" in data for data in outputs if explore.MIME_TYPE in data)
    made = map(claims.Claim.from_dict, of_type(outputs, claims.MIME_TYPE))
    failing = {claim.key for claim in made if claim.verdict == "fails"}
    # JAX 0.7 gives a product one core, so that two devices overlap; the page says so.
    assert failing <= {"large-products-do-not-overlap"}
    verdicts = {report["verdict"] for report in of_type(outputs, exercises.MIME_TYPE)}
    assert verdicts <= ({"accepted"} if notebook.parent.name == "solutions" else {"not yet"})


def objects_in(outputs):
    """Return which figures, explorables, exercises and claims there are, in their order."""
    return [
        (kind, data[kind]["sentence"] if kind == claims.MIME_TYPE else "")
        for data in outputs
        for kind in (claims.MIME_TYPE, exercises.MIME_TYPE, explore.MIME_TYPE, "image/svg+xml")
        if kind in data
    ]
