"""`make` says in a sentence why it cannot set up, and rebuilds the book only if it has changed.

That it can set up is what `.ci/run` shows, with empty caches. A stand-in for Jupyter Book writes
its page.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

JUPYTER_BOOK = """
import signal, sys
from pathlib import Path

def main(arguments, standalone_mode):
    print("reading", Path("evidence/measured.json").read_text(), flush=True)
    if Path("wait").exists():
        signal.pause()
    if Path("edited").exists():
        Path("book/page.md").write_text("edited")
    if Path("removed").exists():
        Path("book/page.md").unlink()
    new = Path(arguments[arguments.index("--path-output") + 1], "_build")
    for folder in ("html/book", "jupyter_execute"):
        (new / folder).mkdir(parents=True)
    (new / "html/book/index.html").touch()
"""
NOTEBOOK = """\
---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
# A page

```{code-cell} ipython3
SOURCE
```
"""
EXTENSION = """
def fail(app):
    raise KeyError("two-cores.json")

def setup(app):
    app.connect("builder-inited", fail)
"""


class Tree:
    """A folder in which to run what `make` runs."""

    def __init__(self, path):
        self.path = path
        shutil.copytree(ROOT / ".ci", path / ".ci")
        for name in ("Makefile", "pyproject.toml", "requirements.txt", ".gitignore"):
            shutil.copy(ROOT / name, path)
        self.write("_build/lock", "")
        self.write("evidence/measured.json", "2")
        self.write("lib/d2lpar/__init__.py", "")
        self.write("lib/d2lpar/_jax/__init__.py", "")
        self.write("lib/d2lpar/_jax/devices.py", "def this_machine(): return 'a CPU'")
        self.write("lib/jupyter_book/__init__.py", "")
        self.write("lib/jupyter_book/cli/__init__.py", "")
        self.write("lib/jupyter_book/cli/main.py", JUPYTER_BOOK)

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    @contextlib.contextmanager
    def start(self, *command, **environment):
        """Start a command, all of whose processes end with the block."""
        # The flags of the `make` that runs this test are not those of the tree.
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
            told, _ = running.communicate()
        return running.returncode, told

    def build(self, *options, **environment):
        return self.run(sys.executable, ".ci/build_book.py", *options, **environment)[1]

    @property
    def page(self):
        return self.path / "_build/html/book/index.html"


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


# --- Setting up -------------------------------------------------------------------------------


def test_a_python_that_is_too_old_or_none_is_refused_in_a_sentence(tree):
    old = tree.write("python", f"#!/bin/sh\nexec {sys.executable} -c 'OLD; '\"$2\"\n")
    version = "import sys; sys.version_info = (3, 10)"
    old.write_text(old.read_text(encoding="utf-8").replace("OLD", version), encoding="utf-8")
    old.chmod(0o755)
    for python, why in [(old, "Python 3.10 at "), ("python3.99", ".*not found")]:
        status, told = tree.run("make", "sync", f"PYTHON={python}")
        sentence = f'd2lpar needs Python 3.11 or newer, but {python} is "{why}.*"; name another'
        assert (status, bool(re.search(sentence, told))) == (2, True), told
    assert not (tree.path / ".venv").exists()


def test_without_a_network_a_sentence_says_that_setting_up_needs_one(tree, monkeypatch):
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    closed = {"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_CONFIG_FILE": os.devnull}
    empty = {"XDG_CACHE_HOME": str(tree.path / "cache"), "PIP_RETRIES": "0"}
    status, told = tree.run("make", "sync", f"PYTHON={sys.executable}", **closed, **empty)
    first, second, *after = told.splitlines()
    assert (status, first.startswith("Setting up .venv/3.")) == (2, True), told
    assert re.match(r".venv/3.\d+ could not be set up: the first time this needs a network", second)
    assert [line for line in after if not line.startswith("make")] == []


def test_of_another_fault_of_the_set_up_the_end_of_the_log_is_shown(tree):
    version = re.search("^uv==(.*)", (ROOT / "requirements.txt").read_text(), re.M)[1]
    uv = tree.write(f".venv/uv-{version}/bin/uv", "#!/bin/sh\necho error: odd\necho why\nexit 1")
    uv.chmod(0o755)
    status, told = tree.run("make", "sync", f"PYTHON={sys.executable}")
    assert status == 2
    assert re.search(r"could not be set up; .venv/log ends with:\nerror: odd\nwhy\n", told), told


@pytest.mark.parametrize(
    ("stamp", "begins"),
    [(None, "--clear"), ("from-1", "--allow-existing")],
    ids=["was interrupted", "is of another lock"],
)
def test_what_an_interrupted_set_up_left_is_removed_and_an_older_environment_is_kept(
    tree, stamp, begins
):
    tree.write(f".venv/3.{sys.version_info[1]}/{stamp or 'bin/python'}", "")
    status, told = tree.run("make", "--dry-run", "install", f"PYTHON={sys.executable}")
    assert (status, f" {begins}\n" in told) == (0, True), told


def test_of_two_with_one_lock_the_second_says_that_it_waits_until_the_first_has_ended(tree):
    command = [sys.executable, ".ci/one_at_a_time.py", "_build/lock"]
    with tree.start(*command, "sh", "-c", "echo begun; cat") as first:
        assert first.stdout.readline() == "begun\n"
        with tree.start(*command, "echo", "done") as second:
            assert second.stdout.readline().startswith("Another make is doing the same")
            first.stdin.close()
            assert second.stdout.read() == "done\n"


def test_help_is_what_make_alone_does_and_lists_all_that_installs_nothing_in_the_system(tree):
    listed = re.findall(r"^make (\w+) +\S", tree.run("make")[1], re.M)
    targets = re.search(r"^targets := (.*)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert sorted([*listed, "cluster", "libraries"]) == sorted(targets.split())


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


# --- Building ---------------------------------------------------------------------------------


def test_the_book_is_built_again_if_something_has_changed_and_only_then(tree):
    assert "Built in" in tree.build()
    assert "Nothing has changed" in tree.build()
    for name, text in [
        ("book/page.md", ""),
        ("d2lpar/module.py", ""),
        ("evidence/measured.json", "3"),  # Which Sphinx has read.
        ("lib/d2lpar/_jax/devices.py", "def this_machine(): return 'a GPU'"),
        ("_build/book.stamp", "half of one"),
    ]:
        tree.write(name, text)
        assert "Built in" in tree.build(), name
    for name in ("README.md", "tests/test_page.py", "evidence/other.json", ".venv/x"):
        tree.write(name, "")
        assert "Nothing has changed" in tree.build(), name
    tree.page.unlink()
    assert "Built in" in tree.build()
    for name in ("JAX_PLATFORMS", "XLA_FLAGS", "NPROC"):
        assert "Built in" in tree.build(**{name: "1"})
        assert "Nothing has changed" in tree.build(**{name: "1", "OTHER": "1"})
        assert "Built in" in tree.build()
    assert "Built in" in tree.build("--force")


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_what_is_changed_during_a_build_is_changed_in_the_next_one(tree, change):
    tree.write("book/page.md", "")
    told_to = tree.write(change, "")
    assert "Built in" in tree.build()
    told_to.unlink()
    assert "Built in" in tree.build()
    assert "Nothing has changed" in tree.build()


@pytest.mark.parametrize(
    ("source", "extension", "reason"),
    [
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
            "    raise AssertionError('Claim: It is so.\\n\\n  does not hold here') from error",
            "",
            "page.md\nAssertionError: Claim: It is so.\n\n  does not hold here",
        ),
        (
            "import time; time.sleep(60)",
            "",
            "page.md\nA cell timed out while it was being executed, after 5 seconds.",
        ),
        ("```\n\n```{odd}", "", "page.md:10: WARNING: Unknown directive type: 'odd'"),
        ("", EXTENSION, "ExtensionError: .*: 'two-cores.json'"),
    ],
    ids=["a claim that fails", "a cell that hangs", "a warning", "an extension"],
)
def test_a_build_that_fails_ends_with_its_reason_and_leaves_the_last_book(
    tree, source, extension, reason
):
    tree.build()
    shutil.rmtree(tree.path / "lib/jupyter_book")  # The real one, from here on.
    execute = "execute: {execute_notebooks: force, raise_on_error: true, timeout: 5}\n"
    tree.write("_config.yml", f"{execute}sphinx: {{local_extensions: {{extension: lib}}}}")
    tree.write("lib/extension.py", extension or "def setup(app): pass")
    tree.write("_toc.yml", "format: jb-book\nroot: book/page")
    tree.write("book/page.md", NOTEBOOK.replace("SOURCE", source))
    *_, told = tree.build().partition("\nThe book could not be built.\n")
    assert re.fullmatch(f"(.*/)?{reason}.*\n", told), told
    assert tree.page.exists()


def test_where_jax_does_not_start_a_sentence_says_so(tree):
    tree.write("lib/d2lpar/_jax/devices.py", "raise RuntimeError('Unknown backend')")
    assert tree.build() == "JAX does not start.\nRuntimeError: Unknown backend\n"


def test_ctrl_c_ends_a_build_without_a_traceback_and_leaves_the_last_book(tree):
    tree.build()
    tree.write("wait", "")
    command = [sys.executable, ".ci/one_at_a_time.py", "_build/lock"]
    with tree.start(*command, sys.executable, ".ci/build_book.py", "--force") as building:
        assert building.stdout.readline() == "reading 2\n"
        os.killpg(building.pid, signal.SIGINT)
        told = building.stdout.read()
    assert told == "\nStopped. The last book, if there was one, is still there.\n"
    assert building.returncode == 130
    assert tree.page.exists()


# --- Reading ----------------------------------------------------------------------------------


def test_the_book_is_served_until_ctrl_c(tree):
    tree.build()
    with tree.start(sys.executable, ".ci/serve.py", "0") as serving:
        address = re.search(r"http://\S+", serving.stdout.readline())[0]
        no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with no_proxy.open(address) as page:
            assert page.status == 200
        serving.send_signal(signal.SIGINT)
        assert (serving.wait(), "Traceback" in serving.stdout.read()) == (130, False)


def test_whoever_serves_no_book_or_at_no_port_or_a_taken_one_is_told_what_to_do(tree):
    serve = [sys.executable, ".ci/serve.py"]
    assert tree.run(*serve, "0") == (1, "There is no book yet: make book\n")
    tree.build()
    for port in ("x", "70000"):
        told = f"PORT is a number up to 65535, found {port}: make serve PORT=8000\n"
        assert tree.run(*serve, port) == (1, told)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, told = tree.run(*serve, str(port))
    assert (status, told.endswith(f"Choose another: make serve PORT={port + 1}\n")) == (1, True)
