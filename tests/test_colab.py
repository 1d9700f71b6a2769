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
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from run_notebook import ROOT, claimed_by, notebooks, of_type

from d2lpar import claims, exercises, explore

pytestmark = pytest.mark.skipif(
    not shutil.which("taskset"), reason="taskset, to leave one core, is not here"
)
NOTEBOOKS = [path.with_suffix(".ipynb") for path in notebooks()]
IDS = [str(path.relative_to(ROOT / "book")) for path in NOTEBOOKS]
PREINSTALLED = "jax==0.7.2", "jaxlib==0.7.2", "numpy", "matplotlib", "ipykernel"
ADDRESS = "https://github.com/d2lpar/d2lpar"
ONE_CORE, ALL_CORES = "3.11", "3.13"
each_python = pytest.mark.parametrize("python", [ONE_CORE, ALL_CORES])


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


@pytest.fixture(scope="session")
def colabs(checkout, tmp_path_factory):
    """For each Python what becomes of all notebooks; they are under way from the first test on."""
    with ThreadPoolExecutor() as threads:
        yield {
            python: threads.submit(run_all, python, tmp_path_factory.mktemp("colab"), checkout)
            for python in (ONE_CORE, ALL_CORES)
        }


def run_all(python: str, folder: Path, checkout: Path) -> dict:
    """Run all notebooks with one Python; return their outputs, or the error, and versions."""
    venv = folder / "venv"
    interpreter = venv / "bin" / "python"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("D2LPAR", "JAX", "PYTHON", "UV", "VIRTUAL_ENV"))
    } | {
        # What the first cell asks of the repository's address, this one answers.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{checkout.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    if python == ONE_CORE:
        environment["JAX_NUM_CPU_DEVICES"] = "8"

    def run(*command):
        return subprocess.check_output(list(map(str, command)), env=environment, text=True)

    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--quiet", "--seed", "--python", python, venv)
    run(uv, "pip", "install", "--quiet", "--python", interpreter, *PREINSTALLED)
    freeze = uv, "pip", "freeze", "--python", interpreter
    found = {"before": run(*freeze).splitlines()}
    prefix = ["taskset", "-c", "0"] if python == ONE_CORE else []
    kernel = folder / "kernels" / "colab"
    kernel.mkdir(parents=True)
    launch = [*prefix, str(interpreter), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": launch, "display_name": "Colab", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    kernels = KernelSpecManager(kernel_dirs=[str(kernel.parent)], ensure_native_kernel=False)
    for notebook in NOTEBOOKS:
        alone = folder / notebook.relative_to(ROOT / "book").with_suffix("")
        alone.mkdir(parents=True)
        shutil.copy(notebook, alone)
        try:
            found[notebook] = execute(alone / notebook.name, kernels, environment)
        except Exception as error:
            found[notebook] = error
    return found | {"after": run(*freeze).splitlines()}


def execute(notebook: Path, kernels: KernelSpecManager, environment: dict) -> list[dict]:
    """Run a notebook in its folder and return the data of its outputs."""
    content = nbformat.read(notebook, as_version=4)
    manager = AsyncKernelManager(kernel_name="colab", kernel_spec_manager=kernels)
    place = {"metadata": {"path": str(notebook.parent)}}
    NotebookClient(content, manager, timeout=900, resources=place).execute(env=environment)
    return [out.get("data", {}) for cell in content.cells for out in cell.get("outputs", [])]


@pytest.fixture
def colab(colabs, python):
    """What became of the notebooks with one Python."""
    if not any(shutil.which(name) for name in (f"python{python}", "pyenv")):
        pytest.skip(f"Python {python} is not here")
    return colabs[python].result()


@each_python
def test_the_first_cell_installs_the_package_and_touches_neither_jax_nor_numpy(colab):
    before, after = set(colab["before"]), set(colab["after"])
    assert not any(line.startswith("d2lpar") for line in before)
    assert any(line.startswith("d2lpar @ git+") for line in after)
    assert before <= after


@each_python
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=IDS)
def test_a_notebook_runs_to_its_end_and_shows_what_the_page_shows(colab, notebook):
    outputs = colab[notebook]
    if isinstance(outputs, Exception):
        raise outputs
    made = of_type(outputs, claims.MIME_TYPE)
    assert [claim["sentence"] for claim in made] == list(claimed_by(notebook.with_suffix(".md")))
    source = notebook.read_text(encoding="utf-8")
    assert len(of_type(outputs, exercises.MIME_TYPE)) == source.count("exercises.check_")
    shown = [data for data in outputs if explore.MIME_TYPE in data]
    assert len(shown) == source.count('"explore.')
    assert all("text/html" in data for data in shown)


@pytest.mark.parametrize("python", [ONE_CORE])
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=IDS)
def test_on_one_core_with_eight_devices_no_claim_fails_and_each_solution_is_accepted(
    colab, notebook
):
    outputs = colab[notebook]
    failed = [c for c in of_type(outputs, claims.MIME_TYPE) if c["verdict"] == "fails"]
    assert failed == []
    if notebook.parent.name == "solutions":
        verdicts = {report["verdict"] for report in of_type(outputs, exercises.MIME_TYPE)}
        assert verdicts == {"accepted"}
