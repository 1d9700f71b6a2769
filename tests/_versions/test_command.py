import functools
import os
import signal
import subprocess
import sys

import pytest
from commands import main_with
from fakes import FAST, SLOW, run_of

from d2lpar._versions.compare import (
    Program,
)

d2lpar = functools.partial(main_with, "compare")


def test_two_files_are_compared_with_a_caution(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, times in {"before": FAST, "after": SLOW}.items():
        (tmp_path / f"{name}.json").write_text(run_of(f=times).to_json())
    with open("after.json", "r+") as file:  # What else a program has printed before.
        measured = file.read()
        file.seek(0)
        file.write(f"hello\n{measured}\n")
    assert d2lpar("before.json", "after.json") == 0
    said = capsys.readouterr().out
    assert ": seems slower" in said
    assert "Caution: these are two runs at two times." in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["one.json"], "give two files, or --before COMMIT and a script"),
        (["--after", "HEAD", "a", "b"], "--after needs --before COMMIT"),
        (["--fail-over", "5%", "f.json", "f.json"], "--fail-over needs --before COMMIT"),
        (["--before", "HEAD", "none.py"], "there is no script 'none.py'"),
        (["a.json", "b.json"], "No such file or directory: 'a.json'"),
        (["text.py", "text.py"], "text.py: This is nothing that Comparison.to_json"),
        (["f.json", "g.json"], "f.json and g.json have no function in common: f; and g."),
        (["a.json", "--before", "HEAD"], "--before has to stand before the script"),
        (["--before", "", "text.py"], "--before and --after need a commit"),
        (["--before", "HEAD", "--after", "", "text.py"], "--before and --after need a commit"),
        (["--fail-over", "5%", "--rounds", "5", "--before", "HEAD", "text.py"], "six rounds"),
        (["--before", "none", "text.py"], "git has no commit 'none' here."),
        (["--rounds", "0", "--before", "HEAD", "text.py"], "rounds must be an integer of at"),
    ],
)
def test_what_cannot_be_compared_is_said(given, words, repository, capsys):
    (repository / "text.py").write_text("no JSON")
    for name in "fg":
        (repository / f"{name}.json").write_text(run_of(**{name: SLOW}).to_json())
    assert d2lpar(*given) == 2
    assert words in capsys.readouterr().err


PRINTS = """
import pathlib, sys, times
print("hello")
for file in sys.argv[1:]:
    with open(file, "a") as log:
        log.write(times.name)
print(times.text)
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose only commit is slow, and whose files are fast; we stand in its folder."""
    folder = tmp_path / "project"
    (folder / "benchmarks").mkdir(parents=True)
    monkeypatch.chdir(folder)
    git("init", "--quiet", "--initial-branch=main")
    (folder / "benchmarks" / "bench.py").write_text(PRINTS)
    commit_times(folder, "s", SLOW)
    (folder / "times.py").write_text(times_module("f", FAST))
    return folder


def git(*arguments):
    mine = ["-c", "user.name=d2lpar", "-c", "user.email="]
    subprocess.run(["git", *mine, *arguments], check=True, capture_output=True)


def times_module(name, times):
    return f"name, text = {name!r}, {run_of(f=times).to_json()!r}"


def commit_times(folder, name, times):
    (folder / "times.py").write_text(times_module(name, times))
    git("add", "--all")
    git("commit", "--quiet", "--message", name)


def test_two_versions_of_a_program_are_measured_in_turn_and_compared(repository, tmp_path, capfd):
    program = "import jax, jax.numpy as jnp\nfrom d2lpar import measure\nfrom model import step\n"
    program += "print(measure(jax.jit(step), jnp.ones((50, 50)), repeats=6).to_json())"
    (repository / "bench.py").write_text(program)
    (repository / "model.py").write_text("def step(x):\n    return [x @ x]")
    git("add", "--all")
    git("commit", "--quiet", "--message", "One product.")
    (repository / "model.py").write_text("def step(x):\n    return [x @ x, x @ (x + 1)]")
    assert d2lpar("--before", "HEAD", "--rounds", "1", "bench.py") == 0
    out, err = capfd.readouterr()
    head, _, name, ready, returns, *_ = out.splitlines()
    assert head.startswith("HEAD (")
    assert head.endswith(") -> the files here")
    assert name == "step"
    assert ready.startswith("  result ready")
    assert returns.startswith("  call returns")
    assert err == "round 1 of 1\n"


def test_six_rounds_decide_in_reversed_order_every_other_time(repository, tmp_path, capsys):
    log = tmp_path / "log"
    assert d2lpar("--before", "main", "--fail-over", "5%", "benchmarks/bench.py", log) == 0
    assert log.read_text() == "sffssffssffs"
    said = capsys.readouterr().out
    assert "0.5 times (0.5 to 0.5): faster" in said
    assert "the 95 % interval of the ratio, of 6 rounds in turn." in said
    assert "Caution" not in said
    assert "itself differs" not in said


def test_where_git_is_told_of_a_repository_none_of_its_files_and_commits_change(
    repository, monkeypatch
):
    commit_times(repository, "f", FAST)
    seen = [["git", "rev-parse", "--symbolic-full-name", "HEAD"], ["git", "status", "--short"]]
    before = [subprocess.check_output(command) for command in seen]
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    assert d2lpar("--before", "HEAD~1", "--rounds", "1", "benchmarks/bench.py") == 0
    assert [subprocess.check_output(command) for command in seen] == before


def test_a_package_in_the_folder_src_is_that_of_each_version(repository, tmp_path):
    (repository / "src").mkdir()
    git("mv", "--force", "times.py", "src/times.py")
    commit_times(repository / "src", "s", SLOW)
    (repository / "src" / "times.py").write_text(times_module("f", FAST))
    log = tmp_path / "log"
    assert d2lpar("--before", "HEAD", "--rounds", "1", "benchmarks/bench.py", log) == 0
    assert log.read_text() == "sf"


def test_a_folder_src_that_is_a_package_itself_is_not_searched(repository):
    (repository / "src").mkdir()
    (repository / "src" / "__init__.py").touch()
    (repository / "src" / "types.py").write_text("1 / 0")
    git("add", "--all")
    git("commit", "--quiet", "--message", "src")
    assert d2lpar("--before", "HEAD", "--rounds", "1", "benchmarks/bench.py") == 0


def test_a_file_that_git_cannot_bring_is_named(repository, capsys):
    for kept in (repository / ".git" / "objects").glob("??/*"):
        if subprocess.check_output(["git", "cat-file", "-t", kept.parent.name + kept.name]) == (
            b"blob\n"
        ):
            kept.unlink()
    assert d2lpar("--before", "HEAD", "--rounds", "1", "benchmarks/bench.py") == 2
    assert "git does not have benchmarks/bench.py of HEAD here" in capsys.readouterr().err


def test_in_a_shallow_clone_the_way_to_an_older_commit_is_told(repository, monkeypatch, capsys):
    commit_times(repository, "f", FAST)
    git("clone", "--quiet", "--depth=1", repository.as_uri(), "../shallow")
    monkeypatch.chdir("../shallow")
    assert d2lpar("--before", "HEAD~1", "--rounds", "1", "benchmarks/bench.py") == 2
    said = capsys.readouterr().err
    assert said.startswith("git has no commit 'HEAD~1' here. This clone is shallow; git fetch")


def test_a_machine_that_lacks_something_cannot_say_whether_it_is_slower(repository):
    text = f"name, text = 'n', {run_of(f=SLOW, needs='two CPU cores').to_json()!r}"
    (repository / "times.py").write_text(text)
    asked = ["--before", "HEAD", "benchmarks/bench.py"]
    assert d2lpar("--fail-over", "5%", *asked) == 2
    assert d2lpar(*asked) == 0


def test_an_option_behind_the_script_goes_to_the_script_and_that_is_said(
    repository, tmp_path, capfd
):
    log = tmp_path / "log"
    asked = ["--before", "HEAD", "--rounds", "1", "benchmarks/bench.py", log, "--rounds"]
    assert d2lpar(*asked) == 0
    assert "--rounds stands behind the script" in capfd.readouterr().err
    assert (repository / "--rounds").exists()  # The script writes into each file that it is given.


def test_a_script_outside_of_the_repository_may_be_named_from_where_one_stands(
    repository, tmp_path
):
    (tmp_path / "outside.py").write_text(PRINTS)
    log = tmp_path / "log"
    assert d2lpar("--before", "HEAD", "--rounds", "1", "../outside.py", log) == 0
    assert log.read_text() == "sf"


def test_two_versions_without_a_common_function_end_after_the_first_round(repository, capfd):
    (repository / "times.py").write_text(f"name, text = 'n', {run_of(g=SLOW).to_json()!r}")
    assert d2lpar("--before", "HEAD", "benchmarks/bench.py") == 2
    said = capfd.readouterr().err
    assert "and the files here have no function in common: f; and g." in said
    assert "round 1" not in said


def test_what_a_program_leaves_behind_is_not_waited_for_and_ends(repository, left_of, tmp_path):
    with open("benchmarks/bench.py", "a") as script:
        script.write("\nimport subprocess\nleft = subprocess.Popen(['sleep', '600'])")
        script.write(f"\nwith open({str(tmp_path / 'pids')!r}, 'a') as file:")
        script.write("\n    print(left.pid, file=file)")
    assert d2lpar("--before", "HEAD", "--rounds", "1", "benchmarks/bench.py") == 0
    assert not left_of(map(int, (tmp_path / "pids").read_text().split()))


def test_what_has_surely_become_slower_ends_with_the_status_1(repository, capsys):
    (repository / "times.py").write_text(times_module("s", tuple(1.2 * s for s in SLOW)))
    asked = ["--before", "HEAD", "benchmarks/bench.py"]
    assert d2lpar("--fail-over", "5%", *asked) == 1
    assert d2lpar("--fail-over", "25%", *asked) == 0
    assert d2lpar(*asked) == 0


def test_a_script_that_differs_itself_is_told_of(repository, capsys):
    with open("benchmarks/bench.py", "a") as script:
        script.write("# Twice the work.")
    assert d2lpar("--before", "HEAD", "--rounds", "1", "benchmarks/bench.py") == 0
    assert "benchmarks/bench.py itself differs" in capsys.readouterr().out


def test_a_hook_of_git_may_compare_and_nothing_of_the_repository_is_written(repository):
    git("add", "--all")
    git("commit", "--quiet", "--message", "Fast.")
    hook = repository / ".git" / "hooks" / "pre-commit"
    command = "compare --before HEAD~1 --rounds 1 benchmarks/bench.py"
    hook.write_text(f"#!/bin/sh\nexec {sys.executable} -m d2lpar {command}\n")
    hook.chmod(0o755)
    (repository / "new.txt").touch()
    git("add", "new.txt")
    git("commit", "--all", "--quiet", "--message", "A file.")
    changed = subprocess.check_output(["git", "show", "--name-only", "--format="], text=True)
    assert changed == "new.txt\n"
    assert subprocess.check_output(["git", "status", "--short"], text=True) == ""


def test_two_commits_are_compared_whatever_lies_here_which_stays_as_it_is(repository, capsys):
    commit_times(repository, "f", FAST)
    (repository / "times.py").write_text("1 / 0")
    before = subprocess.check_output(["git", "status", "--short", "--branch"])
    asked = ["--before", "HEAD", "--after", "HEAD~", "--rounds", "1"]
    assert d2lpar(*asked, "-m", "benchmarks.bench") == 0  # One round has no interval.
    assert "2 times (too few for an interval): undecided" in capsys.readouterr().out
    assert subprocess.check_output(["git", "status", "--short", "--branch"]) == before


def test_a_commit_that_has_no_such_script_gets_the_one_that_lies_here(repository, tmp_path):
    (repository / "new").mkdir()
    (repository / "new" / "bench.py").write_text(PRINTS)
    log = tmp_path / "log"
    path = {"PYTHONPATH": str(repository)}  # Where the script finds `times`, of its own version.
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(os.environ, *path.popitem())
        patched.chdir(repository / "new")
        assert d2lpar("--before", "main", "--rounds", "1", "bench.py", log) == 0
    assert log.read_text() == "sf"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("raise SystemExit(3)", "bench.py of HEAD ({}) has ended with the exit status 3."),
        ("print('no data'); raise SystemExit(3)", "The last that it printed:\nno data\nA commit"),
        ("import os; os.kill(os.getpid(), 11)", "bench.py of HEAD ({}) has ended by SIGSEGV."),
        ("import os; os.kill(os.getpid(), 40)", "bench.py of HEAD ({}) has ended by signal 40."),
        ("", "bench.py of HEAD ({}) has not printed what it measured: This is nothing"),
        ("print('{{}}')", "it was '{{}}'."),
        ("import sys; sys.path.insert(0, {here!r}); import times", "has ended with the exit"),
    ],
)
def test_a_version_that_fails_or_runs_the_code_of_the_other_is_refused(
    line, words, repository, capfd
):
    (repository / "bench.py").write_text(line.format(here=str(repository)))
    git("add", "bench.py")
    git("commit", "--quiet", "--message", "It fails.")
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True)[:7]
    assert d2lpar("--before", "HEAD", "bench.py") == 2
    said = capfd.readouterr().err
    assert words.format(head) in said
    assert ("It has imported times from" in said) == ("import times" in line)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_whoever_ends_it_ends_the_program_too_and_no_file_is_left(
    repository, tmp_path, left_of, sent
):
    (tmp_path / "temporary").mkdir()
    program = (
        "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, file=sys.stderr, flush=True); time.sleep(600)"
    )
    (repository / "bench.py").write_text(program)
    command = [sys.executable, "-m", "d2lpar", "compare", "--before", "HEAD", "bench.py"]
    there = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    pipe = {"stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=there, **pipe) as running:
        pids = [int(pid) for pid in running.stderr.readline().split()]
        running.send_signal(sent)
    assert running.returncode == 128 + sent
    assert not left_of(pids)
    assert [*(tmp_path / "temporary").iterdir()] == []


def test_a_script_outside_of_the_repository_is_the_same_for_both(tmp_path, repository):
    outside = tmp_path / "bench.py"
    assert Program(str(outside), False, []).within(repository) is None
    assert Program("benchmarks.bench", True, []).within(repository) is None
