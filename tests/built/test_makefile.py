"""`make` explains a set-up that fails, and rebuilds the book only after a change.

`.ci/run` tests that the set-up succeeds, with empty caches.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request

import pytest
from pages import write_page
from run_notebook import ROOT

BUILD = [sys.executable, ".ci/build_book.py"]
LOCKED = [sys.executable, ".ci/one_at_a_time.py", "_build/lock"]
SERVE = [sys.executable, ".ci/serve.py"]
# The module that names the machine; a stub of it is all that the builds here have of d2lpar.
MODULE = re.search(r"\"from (\S+) import", (ROOT / ".ci/build_book.py").read_text())[1]
MACHINE = f"lib/{MODULE.replace('.', '/')}.py"
# A stub of Jupyter Book: builds one page, after running a file of the test.
JUPYTER_BOOK = """
from pathlib import Path

def main(arguments, standalone_mode):
    exec(Path("during.py").read_text())
    new = Path(arguments[arguments.index("--path-output") + 1], "_build")
    for folder in ("html/book", "jupyter_execute"):
        (new / folder).mkdir(parents=True)
    (new / "html/book/index.html").touch()
"""


class Tree:
    """A copy of the files that `make` needs."""

    def __init__(self, path):
        self.path, self.page = path, path / "_build/html/book/index.html"
        shutil.copytree(ROOT / ".ci", path / ".ci")
        for name in ("Makefile", "pyproject.toml", "requirements.txt"):
            shutil.copy(ROOT / name, path)
        for name in ("d2lpar/__init__", "jupyter_book/__init__", "jupyter_book/cli/__init__"):
            self.write(f"lib/{name}.py")
        self.write(MACHINE, "def this_machine(): return 'a CPU'")
        self.write("lib/jupyter_book/cli/main.py", JUPYTER_BOOK)
        for name in ("_build/lock", "during.py", "book/page.md"):
            self.write(name)

    def write(self, name, text=""):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def start(self, *command, **environment):
        """Start a command, and kill its process group at the end of the block."""
        # The flags of the `make` that runs this test do not apply to the tree.
        kept = {name: value for name, value in os.environ.items() if "MAKE" not in name}
        kept |= {"PYTHONPATH": str(self.path / "lib")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        options = {"cwd": self.path, "env": kept | environment, "encoding": "utf-8"}
        with subprocess.Popen(command, start_new_session=True, **pipes, **options) as running:
            try:
                yield running
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)

    def run(self, *command, **environment):
        with self.start(*command, **environment) as running:
            output, _ = running.communicate()
        return running.returncode, output


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


# --- Setting up -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "reason"), [(sys.executable, "Python 3.10 at .*"), ("python3.99", ".*not found.*")]
)
def test_a_python_that_is_too_old_or_missing_is_refused_in_a_sentence(tree, python, reason):
    tree.write("lib/sitecustomize.py", "import sys; sys.version_info = (3, 10)")
    status, output = tree.run("make", "sync", f"PYTHON={python}")
    refused = f'd2lpar needs Python 3.11 or newer, but {python} is "{reason}"; name another'
    assert (status, bool(re.search(refused, output))) == (2, True), output
    assert not (tree.path / ".venv").exists()


def test_without_a_network_a_sentence_says_that_the_set_up_needs_one(tree):
    tree.write("requirements.txt", "uv==0")  # There is no such version, with a network or without.
    status, output = tree.run("make", "sync", f"PYTHON={sys.executable}", PIP_RETRIES="0")
    sentence = "could not be set up: the first time this needs a network (see .venv/log)."
    assert (status, sentence in output) == (2, True), output


def test_a_second_run_under_one_lock_waits_for_the_first(tree):
    with tree.start(*LOCKED, "sh", "-c", "echo begun; cat") as first:
        assert first.stdout.readline() == "begun\n"
        with tree.start(*LOCKED, "echo", "done") as second:
            assert second.stdout.readline().startswith("Another make is doing the same")
            first.stdin.close()
            assert second.stdout.read() == "done\n"


def test_make_alone_lists_every_target_that_installs_nothing_in_the_system(tree):
    listed = re.findall(r"^make (\w+) +\S", tree.run("make")[1], re.M)
    targets = re.search(r"^targets := (.*)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert sorted([*listed, "cluster", "libraries"]) == sorted(targets.split())


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


# --- Building ---------------------------------------------------------------------------------


def test_the_book_is_built_again_after_a_change_and_only_then(tree):
    def is_built(*options, **environment):
        output = tree.run(*BUILD, *options, **environment)[1]
        assert ("Built in" in output) != ("Nothing has changed" in output), output
        return "Built in" in output

    assert (is_built(), is_built(), is_built("--force")) == (True, False, True)
    for name in ("book/page.md", "evidence/measured.json", MACHINE, "_build/book.stamp"):
        tree.write(name, "def this_machine(): return 'a GPU'")
        assert is_built(), name
    for name in ("README.md", "tests/test_page.py", "book/__pycache__/page.pyc"):
        tree.write(name)
        assert not is_built(), name
    tree.page.unlink()
    assert is_built()
    assert is_built(NPROC="1")
    assert not is_built(NPROC="1", OTHER="1")


def test_an_edit_during_a_build_causes_another_build(tree):
    tree.write("during.py", "Path('book/page.md').unlink(missing_ok=True)")
    for answer in ("Built in", "Built in", "Nothing has changed"):
        assert answer in tree.run(*BUILD)[1]


FALSE_CLAIM = """
try:
    1 / 0
except ZeroDivisionError as error:
    raise AssertionError('Claim: It is so.\\n\\n  does not hold here') from error"""


@pytest.mark.parametrize(
    ("cell", "prose", "reason"),
    [
        (FALSE_CLAIM, "", "page.md\nAssertionError: Claim: It is so.\n\n  does not hold here"),
        ("", "```{odd}\n```", "page.md:13: WARNING: Unknown directive type: 'odd'"),
    ],
    ids=["a claim that fails", "a warning"],
)
def test_a_build_that_fails_ends_with_its_reason_and_leaves_the_last_book(
    tree, cell, prose, reason
):
    tree.run(*BUILD)
    shutil.rmtree(tree.path / "lib/jupyter_book")  # From here on, the real one.
    tree.write("_config.yml", "execute: {execute_notebooks: force, raise_on_error: true}")
    tree.write("_toc.yml", "format: jb-book\nroot: book/page")
    write_page(tree.path / "book/page.md", cell, prose=prose)
    *_, end = tree.run(*BUILD)[1].partition("\nThe book could not be built.\n")
    assert re.fullmatch(f"(.*/)?{reason}.*\n", end), end
    assert tree.page.exists()


def test_ctrl_c_ends_a_build_without_a_traceback_and_leaves_the_last_book(tree):
    tree.run(*BUILD)
    tree.write("during.py", "import signal; print('begun', flush=True); signal.pause()")
    with tree.start(*LOCKED, *BUILD, "--force") as building:
        assert building.stdout.readline() == "begun\n"
        os.killpg(building.pid, signal.SIGINT)
        output = building.stdout.read()
    assert output == "\nStopped. The last book, if there was one, is still there.\n"
    assert building.returncode == 130
    assert tree.page.exists()


# --- Reading ----------------------------------------------------------------------------------


def test_the_book_is_served_at_a_free_port_until_ctrl_c(tree):
    tree.run(*BUILD)
    with tree.start(*SERVE, "0") as serving:
        address, port = re.search(r"(http://.*:(\d+)\S+)", serving.stdout.readline()).groups()
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address) as page:
            assert page.status == 200
        _, output = tree.run(*SERVE, port)
        assert output.endswith(f"Choose another: make serve PORT={int(port) + 1}\n")
        serving.send_signal(signal.SIGINT)
        assert (serving.wait(), "Traceback" in serving.stdout.read()) == (130, False)
