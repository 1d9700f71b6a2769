"""The wheel, and the package that README's `pip install` installs: without any of its extras."""

import email
import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, requires

import pytest
from packaging.requirements import Requirement
from run_notebook import ROOT

import d2lpar
from d2lpar.book.recorded import FOLDER

pytestmark = pytest.mark.xdist_group("plain install")  # The tests share one environment.

NEEDED = {
    "plot_graph({})": ("networkx", "plot"),
    "use_style()": ("matplotlib", "plot"),
    "import d2lpar.book": ("altair", "book"),
    "Workers(1).run(abs, 1)": ("cloudpickle", "processes"),
}


def needed_by(name):
    """Return the names of all distributions that a distribution needs without extras."""
    names = set()
    for requirement in map(Requirement, requires(name) or ()):
        if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
            names |= {requirement.name, *needed_by(requirement.name)}
    return names


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def python(wheel):
    """A function that runs a program with the wheel installed, and returns its output."""
    site = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in needed_by("d2lpar"):
        # Instead of a download, a link to the package and the metadata of this environment.
        for entry in {file.parts[0] for file in distribution(name).files} - {"..", "__pycache__"}:
            (site / entry).symlink_to(distribution(name).locate_file(entry))

    def python(program, status=0):
        program = f"import sys; sys.path.append({str(site)!r})\n{program}"
        command = [sys.executable, "-I", "-S", "-c", program]  # -S: without this environment.
        done = subprocess.run(command, cwd=wheel.parent, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return python


def test_without_the_extras_the_package_measures_records_and_watches(python):
    program = """
import d2lpar, jax.numpy as jnp

x = jnp.ones((100, 100))
assert len(d2lpar.measure(jnp.dot, x, x, repeats=6).total.samples) == 6
times = d2lpar.compare({"a": lambda: x + 1, "b": lambda: x @ x}, repeats=6)
assert "interval" in repr(times.ratio("a", "b"))
with d2lpar.watch() as found, d2lpar.PeakMemory(), d2lpar.InFlight(2):
    float(x.sum())
_, timeline = d2lpar.record_trace(lambda: x @ x)
print(len(timeline.rows) > 0, found.seconds > 0)
"""
    assert python(program) == "True True\n"


@pytest.mark.parametrize("call", NEEDED)
def test_whoever_calls_what_needs_an_extra_is_told_what_to_install(python, call):
    module, extra = NEEDED[call]
    told = python(f"from d2lpar import *\nif __name__ == '__main__': {call}", status=1)
    assert f'ImportError: {module} is not installed: pip install "d2lpar[{extra}] @ ' in told


def test_the_example_of_the_readme_runs(python):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert re.match(r"product, \d+ repeats\n  dispatch  .*\n  total  ", python(program))


def test_the_wheel_has_the_package_with_types_and_results_and_few_requirements(wheel, python):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = (name for name in names if name.endswith("METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "d2lpar").rglob("*.py")}
    stubs = {str(path.relative_to(ROOT)) for path in (ROOT / "d2lpar").rglob("*.pyi")}
    recorded = {str(path.relative_to(ROOT)) for path in FOLDER.glob("*.json")}
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == modules | stubs | recorded | {"d2lpar/py.typed"}
    needed = metadata.get_all("Requires-Dist")
    always = {re.match(r"[\w-]+", need)[0] for need in needed if "extra ==" not in need}
    assert always == {"jax", "jaxlib", "lazy-loader", "numpy", "psutil"}
    extras = metadata.get_all("Provides-Extra")
    assert {"plot", "processes", "book", "cuda12", "cuda13"} == set(extras)
    assert metadata["License-Expression"] == "MIT"
    assert "# Asynchronous and Parallel Computation in JAX" in metadata.get_payload()
    version = python("import d2lpar; print(d2lpar.__version__)").strip()
    assert version == metadata["Version"] == d2lpar.__version__
