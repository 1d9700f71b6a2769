"""The notebooks as Colab runs them: alone in a folder, in an environment that has no d2lpar yet.

One Python runs them on a single core that counts as eight devices, where no claim may fail either.
The two work side by side, since each needs minutes.
"""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from run_notebook import ROOT, notebooks, of_type, outputs_of

from d2lpar.book import claims, exercises, explore

pytestmark = pytest.mark.skipif(
    not shutil.which("taskset"), reason="taskset, to leave one core, is not here"
)
NOTEBOOKS = [path.with_suffix(".ipynb") for path in notebooks()]
IDS = [str(path.relative_to(ROOT / "book")) for path in NOTEBOOKS]
PREINSTALLED = "jax==0.7.2", "jaxlib==0.7.2", "numpy", "matplotlib", "ipykernel"
ADDRESS = "https://github.com/d2lpar/d2lpar"
ONE_CORE, ALL_CORES = "3.11", "3.13"
each_python = pytest.mark.parametrize("python", [ONE_CORE, ALL_CORES])
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


def there(python):
    """Say whether a Python is on this machine; pyenv answers to names of more than it has."""
    try:
        return subprocess.run([f"python{python}", "-c", ""], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(scope="session")
def colabs(checkout, tmp_path_factory):
    """What becomes of the notebooks with each Python; all are under way from the first test on."""
    with ThreadPoolExecutor() as threads:
        yield {
            python: threads.submit(run_all, python, tmp_path_factory.mktemp("colab"), checkout)
            for python in (ONE_CORE, ALL_CORES)
            if there(python)
        }


@pytest.fixture
def colab(colabs, python):
    """What became of the notebooks with one Python."""
    if python not in colabs:
        pytest.skip(f"Python {python} is not here")
    return colabs[python].result()


def run_all(python, folder, checkout):
    """Run each notebook in a folder of its own; return their processes, and what was installed."""
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
    prefix = []
    if python == ONE_CORE:
        environment["JAX_NUM_CPU_DEVICES"] = "8"
        prefix = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]

    def run(tool, *arguments):
        command = [Path(sys.executable).with_name(tool), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    for command in (
        ("venv", "--quiet", "--seed", "--python", python, venv),
        ("pip", "install", "--quiet", "--python", interpreter, *PREINSTALLED),
    ):
        done = run("uv", *command)
        assert done.returncode == 0, done.stderr[-4000:]
    kernel = folder / "kernels" / "colab"
    kernel.mkdir(parents=True)
    launch = [*prefix, str(interpreter), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": launch, "display_name": "Colab", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    found = {"before": run("uv", "pip", "freeze", "--python", interpreter).stdout.splitlines()}
    for notebook in NOTEBOOKS:
        alone = folder / notebook.relative_to(ROOT / "book").with_suffix("") / notebook.name
        alone.parent.mkdir(parents=True)
        shutil.copy(notebook, alone)
        options = "--inplace", "--kernel_name=colab", "--timeout=900"
        found[notebook] = alone, run("jupyter-execute", alone, *options)
    found["after"] = run("uv", "pip", "freeze", "--python", interpreter).stdout.splitlines()
    return found


def shown_in(colab, notebook):
    """Return the data of the outputs of a notebook that has run to its end."""
    path, process = colab[notebook]
    assert process.returncode == 0, process.stderr[-4000:]
    return outputs_of(nbformat.read(path, as_version=4))


@each_python
def test_the_first_cell_installs_the_package_and_touches_neither_jax_nor_numpy(colab):
    before, after = set(colab["before"]), set(colab["after"])
    assert not any(line.startswith("d2lpar") for line in before)
    assert any(line.startswith("d2lpar @ git+") for line in after)
    assert before <= after


@each_python
@each_notebook
def test_a_notebook_runs_to_its_end_and_shows_what_the_page_shows(html, colab, notebook):
    outputs = shown_in(colab, notebook)
    page = html.parent / "jupyter_execute" / notebook.relative_to(ROOT)
    on_the_page = outputs_of(nbformat.read(page, as_version=4))
    assert objects_in(outputs) == objects_in(on_the_page) != []
    # Of what the book makes for its own pages, Colab shows the HTML.
    assert all("text/html" in data for data in outputs if explore.MIME_TYPE in data)


def objects_in(outputs):
    """Return which figures, explorables, exercises and claims there are, in their order."""
    return [
        (kind, data[kind]["sentence"] if kind == claims.MIME_TYPE else "")
        for data in outputs
        for kind in (claims.MIME_TYPE, exercises.MIME_TYPE, explore.MIME_TYPE, "image/svg+xml")
        if kind in data
    ]


@pytest.mark.parametrize("python", [ONE_CORE])
@each_notebook
def test_on_one_core_with_eight_devices_no_claim_fails_and_each_solution_is_accepted(
    colab, notebook
):
    outputs = shown_in(colab, notebook)
    made = map(claims.Claim.from_dict, of_type(outputs, claims.MIME_TYPE))
    assert [str(claim) for claim in made if claim.verdict == "fails"] == []
    if notebook.parent.name == "solutions":
        reports = {report["verdict"] for report in of_type(outputs, exercises.MIME_TYPE)}
        assert reports == {"accepted"}
