import subprocess
import sys
from types import SimpleNamespace

import pytest

from d2lpar._versions import run_one


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a program in `mine`, whose `model` the one in `others` must not be."""
    for folder in ("mine", "others"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(f"name = {folder!r}\n")

    folders = tmp_path / "mine", tmp_path / "others"

    def run(program, *command, path=""):
        (tmp_path / "mine" / "bench.py").write_text(program)
        return subprocess.run(
            [sys.executable, run_one.__file__, *map(str, folders), *command],
            cwd=tmp_path / "mine",
            env={"PYTHONPATH": str(tmp_path / path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize("command", [("", "bench.py"), ("-m", "bench")])
def test_a_program_runs_as_under_python_with_what_lies_beside_it(run, command):
    done = run("import sys, model\nprint(__name__, model.name, sys.argv[1:])", *command, "--fast")
    assert done.stdout == "__main__ mine ['--fast']\n"
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ends", ["", "; sys.exit()"])
@pytest.mark.parametrize("link", [False, True])
def test_a_module_of_the_other_version_is_named_however_the_script_ends(run, tmp_path, ends, link):
    (tmp_path / "link").symlink_to(tmp_path / "others")
    program = f"import sys; sys.path.remove(sys.path[0]); import model{ends}"
    done = run(program, "", "bench.py", path="link" if link else "others")
    assert done.returncode == 1
    assert done.stderr.startswith("It has imported model from /")


def test_what_is_installed_there_is_the_same_for_both(run, tmp_path):
    installed = tmp_path / "others" / ".venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "library.py").touch()
    done = run("import library", "", "bench.py", path="others/.venv/site-packages")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("which", ["mine", "a Python"])
def test_what_lies_in_there_but_is_the_version_itself_or_python_is_right(
    tmp_path, monkeypatch, which
):
    others = tmp_path / "others"
    own, prefix = (others / "tmp", tmp_path) if which == "mine" else (tmp_path, others / "env")
    file = others / "tmp" / "model.py" if which == "mine" else others / "env" / "lib" / "model.py"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "modules", {"model": SimpleNamespace(__file__=str(file))})
    run_one.look_at_what_it_imported(others, own)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # All of the repository lies in that.
    with pytest.raises(SystemExit, match="It has imported model from"):
        run_one.look_at_what_it_imported(others, others / "elsewhere")


def test_an_installed_copy_of_what_lies_in_the_repository_is_told_of(run, tmp_path):
    for folder in ("others/python/library", "site-packages/library"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    done = run("import library", "", "bench.py", path="site-packages")
    assert done.returncode == 0, done.stderr
    assert "library is imported as it is installed, and lies in the repository" in done.stderr


def test_the_status_of_a_program_is_handed_on(run):
    assert run("raise SystemExit(3)", "", "bench.py").returncode == 3
