"""`make` sets up what it needs, once, and says in a sentence why it cannot.

The interpreter is a stub: a shell script that answers like Python, logs what it was asked to do,
and makes environments that hold nothing but itself. So no test installs a thing.
"""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

STUB = """#!/bin/sh
echo "$*" >>{log}
case "$1 $2" in
"-c "*) {answer} ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip") if [ -e {interrupt} ]; then kill -KILL $PPID; fi ;;
esac
"""


class Tree:
    """A copy of what `make` reads, with a stub for a Python."""

    def __init__(self, path: Path, answer: str):
        for name in ("Makefile", "pyproject.toml", "requirements.txt"):
            shutil.copy(ROOT / name, path)
        shutil.copytree(ROOT / ".ci", path / ".ci")
        self.path, self.log, self.interrupt = path, path / "log", path / "interrupt"
        stub = STUB.format(answer=answer, log=self.log, interrupt=self.interrupt)
        self.python = path / "python"
        self.python.write_text(stub, encoding="utf-8")
        self.python.chmod(0o755)

    def make(self, target: str, python: str | Path | None = None) -> subprocess.CompletedProcess:
        """Run `make target`, apart from the `make test` that this test may run in."""
        self.log.write_text("", encoding="utf-8")
        return subprocess.run(
            ["make", target, f"PYTHON={python or self.python}"],
            cwd=self.path,
            env={name: value for name, value in os.environ.items() if "MAKE" not in name},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def installs(self) -> int:
        """Count the calls of pip in the last `make`."""
        return self.log.read_text(encoding="utf-8").count("-m pip install")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path, answer="echo 3.12")


def test_an_old_python_is_refused_with_what_was_asked_what_was_found_and_the_way_out(tmp_path):
    tree = Tree(tmp_path, answer="echo 3.10")
    result = tree.make("test")
    assert result.returncode != 0
    assert result.stderr.startswith(
        f"d2lpar needs Python 3.11 or newer, but {tree.python} is Python 3.10; "
        "name another, for example: make test PYTHON=python3.12\n"
    )
    assert not (tmp_path / ".venv").exists()


def test_a_missing_interpreter_is_refused_by_its_name(tree):
    result = tree.make("book", python="python3.99")
    assert result.returncode != 0
    assert "but python3.99 was not found; name another" in result.stderr


def test_an_interpreter_that_does_not_start_is_refused(tmp_path):
    result = Tree(tmp_path, answer="exit 127").make("bench")
    assert result.returncode != 0
    assert "does not start; name another" in result.stderr


def test_the_first_call_sets_up_and_the_second_does_not(tree):
    first = tree.make("bench")
    assert first.returncode == 0, first.stderr
    assert "Setting up .venv/3.12" in first.stderr
    assert tree.installs() == 2
    second = tree.make("bench")
    assert second.returncode == 0
    assert second.stderr == ""
    assert tree.installs() == 0
    assert tree.log.read_text(encoding="utf-8").endswith("tests/bench.py\n")


def test_an_interrupted_set_up_is_finished_by_the_next_call(tree):
    tree.interrupt.touch()
    assert tree.make("bench").returncode != 0
    half_made = tree.path / ".venv/3.12/bin/python"
    assert half_made.exists()
    (half_made.parent / "left-over").touch()
    tree.interrupt.unlink()
    assert tree.make("bench").returncode == 0
    assert tree.installs() == 2
    assert not (half_made.parent / "left-over").exists()


@pytest.mark.parametrize(
    ("name", "text", "installs"),
    [
        ("requirements.txt", "extra==1.0\n", 2),
        ("pyproject.toml", "[tool.other]\n", 0),
    ],
)
def test_set_up_is_repeated_for_another_lock_but_not_for_settings_of_tools(
    tree, name, text, installs
):
    tree.make("bench")
    with (tree.path / name).open("a", encoding="utf-8") as file:
        file.write(text)
    assert tree.make("bench").returncode == 0
    assert tree.installs() == installs


@pytest.mark.parametrize("folder", ["", "relative"])
def test_an_environment_is_not_taken_away_from_the_python_that_runs_in_it(tree, folder):
    tree.make("bench")
    inside = tree.path / ".venv/3.12/bin/python"
    with (tree.path / "requirements.txt").open("a", encoding="utf-8") as file:
        file.write("extra==1.0\n")
    refused = tree.make("bench", python=inside.relative_to(tree.path) if folder else inside)
    assert refused.returncode != 0
    assert "has changed: run make with another Python" in refused.stderr
    assert inside.exists()
    assert tree.installs() == 0


def test_each_python_keeps_its_own_environment(tree, tmp_path):
    tree.make("bench")
    (tmp_path / "other").mkdir()
    other = Tree(tmp_path / "other", answer="echo 3.13").python
    assert "Setting up .venv/3.13" in tree.make("bench", python=other).stderr
    assert tree.make("bench").stderr == ""


def test_a_closed_standard_input_is_replaced_by_an_empty_one(tree):
    command = f"sh .ci/in-venv {tree.python} test -e /dev/fd/0 <&-"
    assert subprocess.run(["sh", "-c", command], cwd=tree.path).returncode == 0


def test_help_lists_every_target_and_is_what_make_alone_does(tree):
    targets = re.search(r"^\.PHONY: (.*)", MAKEFILE, re.M)[1].split()
    listed = re.findall(r"^make (\w+) +\S", tree.make("help").stdout, re.M)
    assert sorted(listed) == sorted(targets)
    assert re.search(r"^(\w+):", MAKEFILE, re.M)[1] == "help"


def test_the_repository_has_one_url():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert config["repository"]["url"] == PYPROJECT["project"]["urls"]["Repository"]


def test_the_lock_names_every_dependency_and_no_place_to_get_it_from():
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.M))
    wanted = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["build-system"]["requires"]]
    for group in PYPROJECT["dependency-groups"].values():
        wanted += [requirement for requirement in group if isinstance(requirement, str)]
    assert {re.match(r"[\w-]+", requirement)[0] for requirement in wanted} <= locked
    assert "://" not in lock
    assert "@ " not in lock
