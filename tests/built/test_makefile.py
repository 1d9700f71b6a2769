"""`make` says what it needs, and rebuilds the book only after a change.

`.ci/run` tests that the set-up succeeds, with empty caches.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from pages import write_page
from run_notebook import ROOT

# The module that names the machine; a stub of it is all that the builds here have of d2lpar.
MODULE = re.search(r"\"from (\S+) import", (ROOT / ".ci/build_book.py").read_text())[1]
MACHINE = f"lib/{MODULE.replace('.', '/')}.py"
# A stub of Jupyter Book, which builds one page.
JUPYTER_BOOK = """
from pathlib import Path

def main(arguments, standalone_mode):
    new = Path(arguments[arguments.index("--path-output") + 1], "_build")
    for folder in ("html/book", "jupyter_execute"):
        (new / folder).mkdir(parents=True)
    if "--toc" in arguments:
        Path(arguments[arguments.index("--toc") + 1]).replace(new / "html/toc.yml")
    (new / "html/book/index.html").touch()
"""


def run(*command, folder=ROOT, **environment):
    """Return the status and the output of a command."""
    # The flags of the `make` that runs this test do not apply to another one.
    kept = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=folder, env=kept | environment, **pipes)
    return done.returncode, done.stdout


class Tree:
    """A folder with the files that a build needs."""

    def __init__(self, path):
        self.path, self.page = path, path / "_build/html/book/index.html"
        shutil.copytree(ROOT / ".ci", path / ".ci")
        for name in ("d2lpar/__init__", "jupyter_book/__init__", "jupyter_book/cli/__init__"):
            self.write(f"lib/{name}.py")
        self.write(MACHINE, "def this_machine(): return 'a CPU'")
        self.write("lib/jupyter_book/cli/main.py", JUPYTER_BOOK)
        self.write("book/page.md")

    def write(self, name, text=""):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def build(self, *options, **environment):
        """Return what a build prints."""
        environment["PYTHONPATH"] = str(self.path / "lib")
        command = (sys.executable, ".ci/build_book.py", *options)
        return run(*command, folder=self.path, **environment)[1]


def test_make_alone_lists_every_target_that_installs_nothing_in_the_system():
    listed = re.findall(r"^make (\w+) +\S", run("make")[1], re.M)
    targets = re.search(r"^targets := (.*)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert sorted([*listed, "cluster", "libraries"]) == sorted(targets.split())


def test_a_python_that_is_missing_is_refused_in_a_sentence():
    status, output = run("make", "sync", "PYTHON=python3.99")
    refused = 'd2lpar needs Python 3.11 or newer, but python3.99 is ".*not found.*"; name another'
    assert (status, bool(re.search(refused, output))) == (2, True), output


def test_the_lock_names_every_dependency_and_no_index():
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = declared["project"]
    groups = [
        project["dependencies"],
        declared["build-system"]["requires"],  # The Makefile builds without isolation.
        *project["optional-dependencies"].values(),
        *declared["dependency-groups"].values(),
    ]
    needs = {re.match(r"[\w-]+", n)[0] for group in groups for n in group if isinstance(n, str)}
    assert needs - {"d2lpar"} <= set(re.findall(r"^([a-z0-9-]+)==", lock, re.M))
    assert not re.search("://|@ ", lock)


def test_the_book_is_built_again_after_a_change_and_only_then(tmp_path):
    tree = Tree(tmp_path)

    def is_built(*options, **environment):
        output = tree.build(*options, **environment)
        assert ("Built in" in output) != ("Nothing has changed" in output), output
        return "Built in" in output

    assert (is_built(), is_built(), is_built("--force")) == (True, False, True)
    for name in ("book/page.md", "evidence/measured.json", MACHINE, "_build/book.stamp"):
        # Of another length than before: Python keeps bytecode for a file of equal size and second.
        tree.write(name, "def this_machine(): return 'a first GPU'")
        assert is_built(), name
    for name in ("README.md", "tests/test_page.py", "book/__pycache__/page.pyc"):
        tree.write(name)
        assert not is_built(), name
    tree.page.unlink()
    assert is_built()
    assert is_built(NPROC="1")


def test_a_book_without_solutions_is_another_book_with_all_other_pages(tmp_path):
    tree = Tree(tmp_path)
    tree.build()
    tree.write("_toc.yml", contents := (ROOT / "_toc.yml").read_text(encoding="utf-8"))
    assert "Built in" in tree.build("--without-solutions")
    assert "Nothing has changed" in tree.build("--without-solutions")
    shorter = (tree.path / "_build/html/toc.yml").read_text(encoding="utf-8")
    every, kept = (set(re.findall(r"file: (\S+)", text)) for text in (contents, shorter))
    assert every - kept == {page for page in every if "/solutions/" in page} != set()
    assert "Built in" in tree.build()


FALSE_CLAIM = r"raise AssertionError('Claim: It is so.\n\n  does not hold here')"


@pytest.mark.parametrize(
    ("cell", "prose", "reason"),
    [
        (FALSE_CLAIM, "", "page.md\nAssertionError: Claim: It is so.\n\n  does not hold here"),
        ("", "```{odd}\n```", "page.md:13: WARNING: Unknown directive type: 'odd'"),
    ],
    ids=["a claim that fails", "a warning"],
)
def test_a_build_that_fails_ends_with_its_reason_and_leaves_the_last_book(
    tmp_path, cell, prose, reason
):
    tree = Tree(tmp_path)
    tree.build()
    shutil.rmtree(tree.path / "lib/jupyter_book")  # From here on, the real one.
    tree.write("_config.yml", "execute: {execute_notebooks: force, raise_on_error: true}")
    tree.write("_toc.yml", "format: jb-book\nroot: book/page")
    write_page(tree.path / "book/page.md", cell, prose=prose)
    *_, end = tree.build().partition("\nThe book could not be built.\n")
    assert re.fullmatch(f"(.*/)?{reason}.*\n", end), end
    assert tree.page.exists()
