"""The process that runs one version of a program: whose modules it may import."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from d2lpar._versions import run_one


@pytest.fixture
def run(tmp_path):
    """A function that runs a program in `own`, whose `model` the one in `others` must not be."""
    folders = tmp_path / "own", tmp_path / "others"
    for folder in folders:
        folder.mkdir()
        (folder / "model.py").write_text(f"name = {folder.name!r}\n")

    def run(program, *command, path=""):
        (tmp_path / "own" / "bench.py").write_text(program)
        return subprocess.run(
            [sys.executable, run_one.__file__, *map(str, folders), *command],
            cwd=tmp_path / "own",
            env={"PYTHONPATH": str(tmp_path / path)},
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize("command", [("", "bench.py"), ("-m", "bench")])
def test_a_program_runs_as_under_python_with_its_own_modules_and_status(run, command):
    program = "import sys, model\nprint(__name__, model.name, sys.argv[1:])\nsys.exit(3)"
    done = run(program, *command, "--fast")
    assert (done.returncode, done.stdout) == (3, "__main__ own ['--fast']\n")


@pytest.mark.parametrize(("path", "end"), [("others", ""), ("link", "; sys.exit()")])
def test_a_module_of_the_other_version_is_named_however_the_script_ends(run, tmp_path, path, end):
    (tmp_path / "link").symlink_to(tmp_path / "others")
    program = f"import sys; sys.path.remove(sys.path[0]); import model{end}"
    done = run(program, "", "bench.py", path=path)
    assert done.returncode == 1
    assert done.stderr.startswith("It has imported model from /")


@pytest.mark.parametrize(
    ("package", "caution"),
    [
        ("others/.venv/site-packages/library", ""),
        ("site-packages/library", "library is imported as it is installed, and lies in the repo"),
    ],
)
def test_an_installed_package_is_right_and_a_copy_of_one_here_is_pointed_out(
    run, tmp_path, package, caution
):
    for folder in ("others/python/library" if caution else package, package):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "__init__.py").touch()
    done = run("import library", "", "bench.py", path=(tmp_path / package).parent)
    assert done.returncode == 0, done.stderr
    assert caution in done.stderr if caution else done.stderr == ""


@pytest.mark.parametrize("right", ["the version itself", "a Python"])
def test_the_version_itself_and_a_python_may_lie_in_the_folder_of_the_other(
    tmp_path, monkeypatch, right
):
    others = tmp_path / "others"
    inner = others / "inner"
    monkeypatch.setattr(sys, "modules", {"model": SimpleNamespace(__file__=inner / "model.py")})
    monkeypatch.setattr(sys, "prefix", str(inner if right == "a Python" else tmp_path))
    run_one.look_at_what_it_imported(others, inner if right == "the version itself" else tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # A Python around the folder is no excuse.
    with pytest.raises(SystemExit, match="It has imported model from"):
        run_one.look_at_what_it_imported(others, others / "elsewhere")
