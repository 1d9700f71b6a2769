"""`make` sets up once, says in a sentence why it cannot, and builds the book only from what is new.

A stub answers in place of Python, pip and uv: it logs what it was asked to do, and makes
environments that hold nothing but itself. So no test installs a thing.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

STUB = f"""#!/bin/sh
echo "$*" >>log
case "$1 $2" in
"-c "*) {sys.executable} -c "import sys; sys.version_info = VERSION; sys.executable = '$0'; $2" ;;
"-m venv") mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
"-m pip") cp "$0" "${{0%/*}}/uv" ;;
"venv "*) [ "$7" != --clear ] || rm -rf "$6"; mkdir -p "$6/bin" && cp "$0" "$6/bin/python" ;;
"pip sync") [ ! -e interrupt ] || kill -KILL $PPID; cp "$0" "$VIRTUAL_ENV/bin/uv" ;;
.ci/*) exec {sys.executable} "$@" ;;
esac
"""
JUPYTER_BOOK = """#!/bin/sh
[ ! -e broken ] && mkdir -p _build/html/book && touch _build/html/book/index.html
"""


class Tree:
    """A folder in which to run `make` or what it runs, with stubs for all that takes long."""

    def __init__(self, path):
        self.path = path
        shutil.copytree(ROOT / ".ci", path / ".ci")
        for name in ("Makefile", "pyproject.toml", "requirements.txt"):
            shutil.copy(ROOT / name, path)
        for name in ("log", "_config.yml", "_toc.yml", "CHANGELOG.md", "_build/lock"):
            self.write(name, "")
        self.write("jax.py", "def devices(): return []")
        self.write("bin/jupyter-book", JUPYTER_BOOK)
        self.write("bin/pyenv", "echo 3.11.7")

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def python(self, *version, first=""):
        text = STUB.replace("VERSION", str(version)).replace("#!/bin/sh", f"#!/bin/sh\n{first}")
        return self.write(f"python-{version[1]}", text)

    def run(self, *command, **environment):
        # The flags of the `make` that runs this test are not those of the tree.
        kept = {name: value for name, value in os.environ.items() if "MAKE" not in name}
        kept |= {"PATH": f"{self.path}/bin:{kept['PATH']}", "PYTHONPATH": str(self.path)}
        return subprocess.run(
            command, cwd=self.path, env=kept | environment, capture_output=True, text=True
        )

    def make(self, python):
        return self.run("make", "sync", f"PYTHON={python}")

    def build(self, *options, **environment):
        return self.run(sys.executable, ".ci/build_book.py", *options, **environment).stdout

    def count(self, word):
        return (self.path / "log").read_text(encoding="utf-8").count(word)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_python_that_is_too_old_or_none_is_refused_in_a_sentence(tree):
    for python, why in [
        (tree.python(3, 10), "Python 3.10 at "),
        ("python3.99", ".*not found"),
        (tree.python(3, 12, first="echo no >&2; exit 127"), "no"),
    ]:
        result = tree.make(python)
        sentence = f'd2lpar needs Python 3.11 or newer, but {python} is "{why}.*"; name another'
        assert (result.returncode, bool(re.search(sentence, result.stderr))) == (2, True)
    assert not (tree.path / ".venv").exists()


def test_each_python_is_set_up_once_although_two_ask_at_a_time(tree):
    python = tree.python(3, 12)
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(tree.make, [python, python]))
    assert [result.returncode for result in done] == [0, 0]
    assert "Setting up .venv/3.13" in tree.make(tree.python(3, 13)).stderr
    assert tree.make(python).stderr == ""
    assert [tree.count(what) for what in ("-m pip", "pip sync", "run --no-sync")] == [1, 2, 4]


def test_an_interrupted_set_up_is_begun_anew(tree):
    interrupt, half = tree.write("interrupt", ""), tree.path / ".venv/3.12/bin/half"
    assert tree.make(tree.python(3, 12)).returncode != 0
    half.touch()
    interrupt.unlink()
    assert tree.make(tree.python(3, 12)).returncode == 0
    assert not half.exists()


def test_set_up_is_repeated_in_place_for_another_lock_but_not_for_settings_of_tools(tree):
    tree.make(tree.python(3, 12))
    used = tree.write(".venv/3.12/used", "")
    for name, change, set_ups in [
        ("pyproject.toml", ("[tool.ruff]", "[tool.ruff]\n"), 1),
        ("pyproject.toml", ("psutil", "psutil>=7"), 2),
        ("requirements.txt", ("psutil==", "psutil==1"), 3),
    ]:
        tree.write(name, (tree.path / name).read_text(encoding="utf-8").replace(*change))
        assert tree.make(used.with_name("bin") / "python").returncode == 0
        assert tree.count("pip sync") == set_ups
    assert used.exists()


def test_a_python_of_pyenv_need_not_be_selected(tree):
    tree.write("bin/pyenv", '[ "$1" = version-name ] && echo 3.11.7 || printf "3.11.7\\n3.12.1\\n"')
    hidden = tree.python(3, 12, first='[ "${PYENV_VERSION##*:}" = 3.12.1 ] || exit 127')
    assert tree.make(hidden).returncode == 0


def test_the_book_is_built_again_if_something_has_changed_and_only_then(tree):
    assert "Built in" in tree.build()
    assert "Nothing has changed" in tree.build()
    for name, text in [
        ("CHANGELOG.md", "more"),
        ("book/page.md", ""),
        ("d2lpar/module.py", ""),
        ("jax.py", "class D: platform, device_kind = 'gpu', 'H'\ndef devices(): return [D]"),
        ("_build/book.stamp", "half of one"),
    ]:
        tree.write(name, text)
        assert "Built in" in tree.build(), name
    (tree.path / "_build/html/book/index.html").unlink()
    assert "Built in" in tree.build()
    for name in ("JAX_PLATFORMS", "XLA_FLAGS", "NPROC"):
        assert "Built in" in tree.build(**{name: "1"})
    assert "Nothing has changed" in tree.build(NPROC="1", OTHER="1")
    assert "Built in" in tree.build("--force", NPROC="1")


def test_a_build_that_fails_leaves_no_stamp(tree):
    tree.build()
    broken = tree.write("broken", "")
    assert tree.build("--force") == tree.build() == ""
    broken.unlink()
    assert "Built in" in tree.build()


def test_help_is_what_make_alone_does_and_lists_all_that_installs_nothing_in_the_system(tree):
    listed = re.findall(r"^make (\w+) +\S", tree.run("make").stdout, re.M)
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
