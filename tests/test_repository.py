"""What is said of the project in several places, and what its pages promise, are true."""

import email
import importlib
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import zipfile

import jax
import pytest
import yaml
from run_notebook import ROOT

import d2lpar
from d2lpar.__main__ import main
from d2lpar.book.recorded import FOLDER

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_wherever_it_stands():
    latest, *_ = re.findall(r"^## (\d\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    citation = yaml.safe_load(read("CITATION.cff"))
    assert latest == citation["version"] == PROJECT["version"]


def test_the_citation_names_this_book_and_the_one_it_accompanies():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["title"] == yaml.safe_load(read("_config.yml"))["title"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    assert [work["title"] for work in citation["references"]] == ["Dive into Deep Learning"]
    assert citation["title"].replace("JAX", "{JAX}") in read("book/index.md")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_nothing_but_targets_of_the_makefile(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands
    targets = re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE)
    for command in commands:
        make, target, *variables = re.sub(r"\$\{\{.*?\}\}", "...", command).split()
        assert (make, target in targets) == ("make", True)
        assert all(re.match(r"[A-Z]+=", variable) for variable in variables)


def commands_of(program):
    """Return the words of every command that a page names, in a block or a span of code."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "book").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = re.findall(r"^ *```.*\n((?:.*\n)*?) *```", text, re.MULTILINE)
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    lines = [line.strip() for block in blocks for line in block.splitlines()] + spans
    found = {" ".join(line.split()) for line in lines if line.startswith(f"{program} ")}
    return sorted(shlex.split(line, comments=True) for line in found)


def test_every_make_that_a_page_names_is_one_of_the_makefile():
    targets = re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE)
    variables = re.findall(r"\$\(([A-Z]+)\)", read("Makefile"))
    commands = commands_of("make")
    assert len(commands) > 12
    for _, target, *options in commands:
        assert target in targets
        assert {option.partition("=")[0] for option in options if "=" in option} <= set(variables)


@pytest.mark.parametrize("command", commands_of("python -m d2lpar"), ids=" ".join)
def test_every_command_of_d2lpar_that_a_page_names_is_understood(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    if not any(word.endswith((".py", ".json")) for word in command):
        command = [*command, *(["a.json", "b.json"] if "compare" in command else ["train.py"])]
    monkeypatch.setattr(sys, "argv", command[2:])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = f"{capsys.readouterr().err}{stopped.value}"
    assert "there is no script " in said or "No such file" in said


def test_the_license_names_each_folder_with_files_in_it():
    text = read("LICENSE")
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    folders = [path.split("/")[:-1] for path in tracked]
    # Of the book, each room; elsewhere, what is inside is like the rest.
    named = {"/".join(rooms[: 2 if rooms[0] == "book" else 1]) for rooms in folders if rooms}
    assert [name for name in sorted(named) if not re.search(rf"(?<![\w/]){name}/", text)] == []


def test_every_supported_python_is_in_the_weekly_workflow():
    weekly = read(".github/workflows/weekly.yml")
    supported = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert re.findall(r"^ +(3\.\d+)$", weekly, re.MULTILINE) == supported


def names_in(text, package):
    """Return the dotted names of a package in the code of a text."""
    code = " ".join(re.findall(r"`([^`]*)`", text))
    return sorted(set(re.findall(rf"\b{package}((?:\.\w+)+)", code)))


@pytest.mark.parametrize("package", [jax, d2lpar], ids=lambda package: package.__name__)
def test_whatever_the_tables_for_newcomers_name_exists(package):
    text = read("book/from-other-frameworks.md")
    names = names_in(text, package.__name__)
    assert len(names) > 10
    for name in names:
        value = package
        for part in name.split(".")[1:]:
            if not hasattr(value, part):  # Some modules are imported on their own.
                importlib.import_module(f"{value.__name__}.{part}")
            value = getattr(value, part)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the tree as it stands, open for reading."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_says_what_the_package_needs_and_no_more(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    needed = metadata.get_all("Requires-Dist")
    always = {re.match(r"[\w-]+", need)[0] for need in needed if "extra ==" not in need}
    assert always == {"jax", "jaxlib", "lazy-loader", "numpy", "psutil"}
    assert {"plot", "processes", "book", "cuda12", "cuda13"} == set(
        metadata.get_all("Provides-Extra")
    )
    assert (metadata["Name"], metadata["Version"]) == ("d2lpar", PROJECT["version"])
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "# Asynchronous and Parallel Computation in JAX" in metadata.get_payload()


def test_the_wheel_has_the_whole_package_with_types_and_recorded_results_and_nothing_else(wheel):
    modules = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "d2lpar").rglob("*.py*")
        if path.suffix != ".pyc"
    }
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    recorded = {str(path.relative_to(ROOT)) for path in FOLDER.glob("*.json")}
    assert inside == modules | recorded | {"d2lpar/py.typed"}
    assert recorded


EXAMPLE = r"^`(\w+)`\n.*?  ```python\n(.*?)  ```\n\n  ```text\n(.*?)  ```"


def test_every_example_for_users_of_the_package_prints_what_stands_below_it(tmp_path):
    _, ten, _ = re.split(
        r"^## (?:Ten names|How to read a table)\n", read("book/use-it.md"), flags=re.M
    )
    examples = re.findall(EXAMPLE, ten, re.M | re.S)
    names = [name for name, *_ in examples]
    assert len(names) == 10
    assert set(names) <= set(d2lpar.__all__)
    beginning = re.search(r"^```python\n(.*?)^```", ten, re.M | re.S)[1]
    *programs, alone = [textwrap.dedent(code) for _, code, _ in examples]
    together = "".join([beginning, *(f"print('---')\n{program}" for program in programs)])
    printed = [
        output
        for program in (together, f"print('---')\n{alone}")
        for output in output_of(program, tmp_path).split("---\n")[1:]
    ]
    for name, said, (*_, shown) in zip(names, printed, examples, strict=True):
        assert without_numbers(said) == without_numbers(shown), name


def output_of(program, folder):
    """Return what a program prints that is run as a script."""
    (folder / "train.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_numbers(text):
    """Return what an example prints, without what differs from run to run, or on a busy machine."""
    text = text.replace("inconclusive", "holds")
    text = re.sub(r"^ *caution: .*\n", "", textwrap.dedent(text), flags=re.M)
    text = re.sub(r"[\d.]+( [nµm]?s\b| [kMG]?B\b)?", "1", text)
    return re.sub(r" +", " ", text)
