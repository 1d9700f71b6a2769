"""`make` sets up what it needs, once, and says in a sentence why it cannot.

The interpreter is a stub: a shell script that answers like Python, logs what it was asked to do,
and makes environments that hold nothing but itself. So no test installs a thing.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import build_book
import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

STUB = """#!/bin/sh
echo "$*" >>{log}
case "$1 $2" in
"-c "*) {answer} ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip") if [ -e {interrupt} ]; then kill -KILL $PPID; fi ;;
.ci/*) exec {python} "$@" ;;
esac
"""


class Tree:
    """A copy of what `make` reads, with a stub for a Python."""

    def __init__(self, path: Path, answer: str):
        for name in ("Makefile", "pyproject.toml", "requirements.txt"):
            shutil.copy(ROOT / name, path)
        shutil.copytree(ROOT / ".ci", path / ".ci")
        self.path, self.log, self.interrupt = path, path / "log", path / "interrupt"
        stub = STUB.format(
            answer=answer, log=self.log, interrupt=self.interrupt, python=sys.executable
        )
        self.python = path / "python"
        self.python.write_text(stub, encoding="utf-8")
        self.python.chmod(0o755)

    def make(
        self, target: str, python: str | Path | None = None, *, keep_log: bool = False
    ) -> subprocess.CompletedProcess:
        """Run `make target`, apart from the `make test` that this test may run in."""
        if not keep_log:
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
        """Count the installations in the last `make`: of uv, of the lock, of d2lpar."""
        return self.log.read_text(encoding="utf-8").count("pip install")


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
    assert tree.installs() == 3
    second = tree.make("bench")
    assert second.returncode == 0
    assert second.stderr == ""
    assert tree.installs() == 0
    assert tree.log.read_text(encoding="utf-8").endswith("evidence/bench.py\n")


def test_an_interrupted_set_up_is_finished_by_the_next_call(tree):
    tree.interrupt.touch()
    assert tree.make("bench").returncode != 0
    half_made = tree.path / ".venv/3.12/bin/python"
    assert half_made.exists()
    (half_made.parent / "left-over").touch()
    tree.interrupt.unlink()
    assert tree.make("bench").returncode == 0
    assert tree.installs() == 3
    assert not (half_made.parent / "left-over").exists()


@pytest.mark.parametrize(
    ("name", "text", "installs"),
    [
        ("requirements.txt", "extra==1.0\n", 3),
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


def test_two_at_a_time_set_up_once(tree):
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda _: tree.make("bench", keep_log=True), range(2)))
    assert [result.returncode for result in done] == [0, 0]
    assert tree.installs() == 3


# --- make book --------------------------------------------------------------------------------

BUILDER = """#!/bin/sh
echo built >>{log}
[ ! -e {broken} ] || exit 1
mkdir -p _build/html/book && echo a page >_build/html/book/index.html
"""


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A tree whose book is one page, made by a stub for Jupyter Book."""
    for name in build_book.SOURCES:
        (tmp_path / name).write_text("as it was", encoding="utf-8")
    (tmp_path / ".ci").mkdir()
    for name in ("build_book.py", "one_at_a_time.py"):
        shutil.copy(ROOT / ".ci" / name, tmp_path / ".ci")
    (tmp_path / "bin").mkdir()
    (tmp_path / "_build").mkdir()
    builder = tmp_path / "bin" / "jupyter-book"
    builder.write_text(BUILDER.format(log=tmp_path / "log", broken=tmp_path / "broken"))
    builder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{builder.parent}:{os.environ['PATH']}")
    return Book(tmp_path)


class Book:
    """A tree in which to run what `make book` runs."""

    def __init__(self, path):
        self.path, self.stamp = path, path / "_build" / "book.stamp"

    def build(self, *options):
        command = [".ci/one_at_a_time.py", "_build/lock", sys.executable, ".ci/build_book.py"]
        return subprocess.run(
            [sys.executable, *command, *options], cwd=self.path, capture_output=True, text=True
        )

    def builds(self):
        log = self.path / "log"
        return log.read_text().count("built") if log.exists() else 0


def test_a_book_of_which_nothing_has_changed_is_not_built_again_unless_forced(book):
    assert "Built in" in book.build().stdout
    again = book.build()
    assert "Nothing has changed" in again.stdout
    assert "_build/html/book/index.html" in again.stdout
    assert book.builds() == 1
    book.build("--force")
    assert book.builds() == 2


@pytest.mark.parametrize("name", build_book.SOURCES)
def test_a_changed_source_has_the_book_built_again(book, name):
    book.build()
    (book.path / name).write_text("changed", encoding="utf-8")
    book.build()
    assert book.builds() == 2


@pytest.mark.parametrize("stamp", ["", '{"from": "', "[]", '{"from": 3}', '{"seconds": 1}'])
def test_a_stamp_that_is_no_stamp_has_the_book_built_again(book, stamp):
    book.build()
    book.stamp.write_text(stamp, encoding="utf-8")
    assert book.build().returncode == 0
    assert book.builds() == 2
    assert "Nothing has changed" in book.build().stdout


def test_a_stamp_without_its_page_has_the_book_built_again(book):
    book.build()
    (book.path / "_build/html/book/index.html").unlink()
    book.build()
    assert book.builds() == 2


def test_a_build_that_fails_leaves_no_stamp_and_says_so(book):
    book.build()
    (book.path / "broken").touch()
    assert book.build("--force").returncode != 0
    assert not book.stamp.exists()
    assert book.build().returncode != 0
    (book.path / "broken").unlink()
    assert "Built in" in book.build().stdout


def test_of_two_builds_at_a_time_the_second_waits_and_has_nothing_to_do(book):
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda _: book.build(), range(2)))
    assert [result.returncode for result in done] == [0, 0]
    assert book.builds() == 1


# --- The targets and the lock -----------------------------------------------------------------


def test_help_lists_every_target_and_is_what_make_alone_does(tree):
    targets = re.search(r"^\.PHONY: (.*)", MAKEFILE, re.M)[1].split()
    listed = re.findall(r"^make (\w+) +\S", tree.make("help").stdout, re.M)
    assert sorted(listed) == sorted(targets)
    assert re.search(r"^(\w+):", MAKEFILE, re.M)[1] == "help"


def test_the_lock_names_every_dependency_and_no_place_to_get_it_from():
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.M))
    wanted = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["build-system"]["requires"]]
    for extra in ("plot", "processes", "book"):
        wanted += PYPROJECT["project"]["optional-dependencies"][extra]
    wanted.remove("d2lpar[plot,processes]")  # Extras of their own.
    for group in PYPROJECT["dependency-groups"].values():
        wanted += [requirement for requirement in group if isinstance(requirement, str)]
    assert {re.match(r"[\w-]+", requirement)[0] for requirement in wanted} <= locked
    assert "://" not in lock
    assert "@ " not in lock
