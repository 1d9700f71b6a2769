"""Facts that several files of the repository state agree, and commands on its pages work."""

import importlib
import re
import shlex
import shutil
import sys
import textwrap
import tomllib

import jax
import pytest
import yaml
from commands import git, python_with
from pages import BRANCH
from run_notebook import ROOT, notebooks

import d2lpar
from d2lpar.__main__ import main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_and_the_changelog_agree_with_the_project():
    latest, *_ = re.findall(r"^## (\d\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    citation = yaml.safe_load(read("CITATION.cff"))
    assert latest == citation["version"] == PROJECT["version"]
    assert citation["title"] == yaml.safe_load(read("_config.yml"))["title"]
    assert citation["title"].replace("JAX", "{JAX}") in read("book/index.md")
    assert f"note   = {{Version {latest}}}" in read("book/index.md")
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]


# An address of this repository that names a branch or a tag.
ADDRESS = r"github\.com/d2lpar/d2lpar(?:@|/blob/|/tree/)([\w.]+\w)|^  branch: (\S+)$"


def branches_of(tree):
    """Return the branches and tags to which the pages, the notebooks and the package lead."""
    pages = [
        path
        for kind in ("book/**/*.md", "book/**/*.ipynb", "d2lpar/**/*.py")
        for path in tree.glob(kind)
    ]
    texts = [path.read_text(encoding="utf-8") for path in [tree / "_config.yml", *pages]]
    return {"".join(pair) for text in texts for pair in re.findall(ADDRESS, text, re.MULTILINE)}


def test_main_leads_to_main_and_a_release_to_its_tag(tmp_path):
    for name in git("ls-files", cwd=ROOT).splitlines():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    git("init", "--quiet", cwd=tmp_path)
    git("add", "--all", cwd=tmp_path)

    def release(version):
        pages = [path.relative_to(ROOT) for path in notebooks()]
        return python_with(".ci/release.py", version, *pages, folder=tmp_path).stderr

    latest = PROJECT["version"]
    assert BRANCH in ("main", f"v{latest}")
    assert branches_of(ROOT) == branches_of(tmp_path) == {BRANCH}
    assert f'CHANGELOG.md begins with {latest}, found VERSION="9.9.9"' in release("9.9.9")
    assert branches_of(tmp_path) == {BRANCH}
    pages = [tmp_path / "book/index.md", tmp_path / "book/teach.md"]
    pages[1].write_text(pages[1].read_text("utf-8").replace("--branch v", "--branch v0."), "utf-8")
    assert release(latest) == ""
    assert branches_of(tmp_path) == {f"v{latest}"}
    assert all(f"clone --branch v{latest} https:" in page.read_text("utf-8") for page in pages)
    for path in notebooks():
        notebook = (tmp_path / path.relative_to(ROOT)).with_suffix(".ipynb")
        assert f"the first time: release {latest}." in notebook.read_text(encoding="utf-8")


def commands_of(program):
    """Return the words of every command that a page names, in a block or a span of code."""
    outer = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "RELEASING")]
    pages = [*outer, *(ROOT / "book").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = re.findall(r"^ *```.*\n((?:.*\n)*?) *```", text, re.MULTILINE)
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    lines = [line for code in blocks for line in code.splitlines()] + spans
    commands = {" ".join(line.split()) for line in lines}
    commands = sorted(line for line in commands if line.startswith(f"{program} "))
    return [shlex.split(command, comments=True) for command in commands]


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


@pytest.mark.parametrize("package", [jax, d2lpar], ids=lambda package: package.__name__)
def test_every_name_in_the_tables_for_newcomers_exists(package):
    code = " ".join(re.findall(r"`([^`]*)`", read("book/from-other-frameworks.md")))
    names = set(re.findall(rf"\b{package.__name__}((?:\.\w+)+)", code))
    assert len(names) > 10
    for name in names:
        value = package
        for part in name.split(".")[1:]:
            if not hasattr(value, part):  # Some modules have to be imported by name.
                importlib.import_module(f"{value.__name__}.{part}")
            value = getattr(value, part)


EXAMPLE = r"^`(\w+)`\n.*?  ```python\n(.*?)  ```\n\n  ```text\n(.*?)  ```"


def test_every_example_for_users_of_the_package_prints_its_output(tmp_path):
    _, ten, _ = re.split(
        r"^## (?:Ten names|How to read a table)\n", read("book/use-it.md"), flags=re.M
    )
    examples = re.findall(EXAMPLE, ten, re.M | re.S)
    names = [name for name, *_ in examples]
    assert len(names) == 10
    assert set(names) <= set(d2lpar.__all__)
    beginning = re.search(r"^```python\n(.*?)^```", ten, re.M | re.S)[1]
    *programs, alone = [f"print('---')\n{textwrap.dedent(code)}" for _, code, _ in examples]
    outputs = []
    for program in (beginning + "".join(programs), alone):
        (tmp_path / "train.py").write_text(program, encoding="utf-8")
        done = python_with("train.py", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        outputs += done.stdout.split("---\n")[1:]
    for name, output, (*_, shown) in zip(names, outputs, examples, strict=True):
        assert without_numbers(output) == without_numbers(shown), name


def without_numbers(text):
    """Return the output of an example without the parts that change from run to run."""
    text = text.replace("inconclusive", "holds")
    text = re.sub(r"^ *caution: .*\n", "", textwrap.dedent(text), flags=re.M)
    text = re.sub(r"[\d.]+( [nµm]?s\b| [kMG]?B\b)?", "1", text)
    return re.sub(r" +", " ", text)
