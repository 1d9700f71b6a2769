"""What README's `pip install` gives: the package in an environment without any of its extras."""

import re
import subprocess
import sys
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from run_notebook import ROOT

import d2lpar

pytestmark = pytest.mark.xdist_group("plain install")  # One environment for all.

NEEDED = {
    "plot_graph({})": ("networkx", "plot"),
    "width({})": ("networkx", "plot"),
    "use_style()": ("matplotlib", "plot"),
    "Workers(1).run(abs, 1)": ("cloudpickle", "processes"),
}


def needed_by(name):
    """Return the names of all distributions that this one needs without extras."""
    names = set()
    for requirement in map(Requirement, requires(name) or ()):
        if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
            names |= {requirement.name, *needed_by(requirement.name)}
    return names


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A function that runs a program there, and returns what it prints."""
    folder = tmp_path_factory.mktemp("plain")
    uv = Path(sys.executable).with_name("uv")
    build = f"from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    for command in [
        ["venv", "--python", sys.executable, "venv"],
        ["pip", "install", "--offline", "--no-deps", "--python", "venv", wheel],
    ]:
        subprocess.run([uv, "--quiet", *command], cwd=folder, check=True)
    (site_packages,) = folder.glob("venv/lib/*/site-packages")
    for name in needed_by("d2lpar"):
        # What an index would give is here already: the package and its metadata, linked.
        for entry in {file.parts[0] for file in distribution(name).files} - {"..", "__pycache__"}:
            (site_packages / entry).symlink_to(distribution(name).locate_file(entry))

    def python(program, status=0):
        command = [folder / "venv" / "bin" / "python", "-I", "-c", program]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return python


def test_every_name_is_there_for_the_star_for_inspect_and_for_completion(python):
    program = """
from d2lpar import *
import d2lpar, inspect, rlcompleter
print(*d2lpar.__all__)
print(*(name for name in d2lpar.__all__ if name in globals()))
print(*(name for name, _ in inspect.getmembers(d2lpar)))
print(*rlcompleter.Completer({"d2lpar": d2lpar}).attr_matches("d2lpar."))
"""
    public, *seen = [set(re.findall(r"\w+", line)) for line in python(program).splitlines()]
    assert len(public) > 50
    assert [public - names for names in seen] == [set()] * 3


def test_help_tells_of_every_name_also_of_those_that_cannot_be_called_here(python):
    public, told = python("import d2lpar; print(*d2lpar.__all__); help(d2lpar)").split("\n", 1)
    assert set(public.split()) - set(re.findall(r"\w+", told)) == set()
    assert "Draw a computational graph in layers" in told


@pytest.mark.parametrize("call", NEEDED)
def test_whoever_calls_what_needs_an_extra_is_told_what_to_install(python, call):
    module, extra = NEEDED[call]
    told = python(f"from d2lpar import *\nif __name__ == '__main__': {call}", status=1)
    assert f'ImportError: {module} is not installed: pip install "d2lpar[{extra}] @ ' in told


def test_the_example_of_the_readme_runs(python):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert re.match(r"product, \d+ repeats\n  dispatch  .*\n  total  ", python(program))


def test_the_version_is_that_of_the_package(python):
    assert python("import d2lpar; print(d2lpar.__version__)").strip() == d2lpar.__version__
