"""`python -m d2lpar compare`, with two files and with commits of a repository."""

import functools
import os
import signal
import subprocess
import sys

import pytest
from commands import main_with
from fakes import FAST, SLOW, run_of

compare = functools.partial(main_with, "compare")


def test_two_files_are_compared_with_a_caution(tmp_path, capsys):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(run_of(f=FAST).to_json())
    after.write_text(f"printed before\n{run_of(f=SLOW).to_json()}\n")
    assert compare(before, after) == 0
    out = capsys.readouterr().out
    assert ": seems slower" in out
    assert "Caution: these are two runs at two times." in out


PRINTS = """
import pathlib, sys, times
print("hello")
for file in sys.argv[1:]:
    with open(file, "a") as log:
        log.write(times.name)
print(times.text)
"""
SCRIPT = "benchmarks/bench.py"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose only commit is slow, and whose files are fast; we stand in its folder."""
    folder = tmp_path / "project"
    (folder / "benchmarks").mkdir(parents=True)
    monkeypatch.chdir(folder)
    git("init", "--quiet", "--initial-branch=main")
    (folder / SCRIPT).write_text(PRINTS)
    write_times("slow ", SLOW)
    commit()
    write_times("fast ", FAST)
    return folder


def git(*arguments):
    user = ["-c", "user.name=d2lpar", "-c", "user.email="]
    return subprocess.check_output(["git", *user, *arguments], stderr=subprocess.PIPE, text=True)


def commit():
    git("add", "--all")
    git("commit", "--quiet", "--message", "A version.")


def write_times(name, samples, path="times.py", **options):
    with open(path, "w") as module:
        module.write(f"name, text = {name!r}, {run_of(f=samples, **options).to_json()!r}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one.json"], "give two files, or --before COMMIT and a script"),
        (["--after", "HEAD", "a", "b"], "--after needs --before COMMIT"),
        (["--before", "HEAD", "none.py"], "there is no script 'none.py'"),
        (["a.json", "b.json"], "No such file or directory: 'a.json'"),
        (["text.py", "text.py"], "text.py: This is nothing that Comparison.to_json"),
        (["f.json", "g.json"], "f.json and g.json have no function in common: f; and g."),
        (["a.json", "--before", "HEAD"], "--before has to stand before the script"),
        (["--before", "", "text.py"], "--before and --after need a commit"),
        (["--fail-over", "5%", "--rounds", "5", "--before", "HEAD", "text.py"], "six rounds"),
        (["--before", "none", "text.py"], "git has no commit 'none' here."),
        (["--rounds", "0", "--before", "HEAD", "text.py"], "rounds must be an integer of at"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(arguments, message, repository, capsys):
    (repository / "text.py").write_text("no JSON")
    for name in "fg":
        (repository / f"{name}.json").write_text(run_of(**{name: SLOW}).to_json())
    assert compare(*arguments) == 2
    assert message in capsys.readouterr().err


# --- Which version runs -----------------------------------------------------------------------


def test_six_rounds_run_the_versions_in_turn_and_decide(repository, tmp_path, capfd):
    log = tmp_path / "log"
    assert compare("--before", "main", SCRIPT, log) == 0
    assert log.read_text() == "slow fast fast slow " * 3
    out, err = capfd.readouterr()
    assert out.startswith("main (")
    assert ") -> the files here\n\nf\n  result ready" in out
    assert "0.5 times (0.5 to 0.5): faster" in out
    assert "the 95 % interval of the ratio, of 6 rounds in turn." in out
    assert "Caution" not in out
    assert "itself differs" not in out
    assert err.splitlines()[-1] == "round 6 of 6"


def test_two_commits_are_compared_whatever_the_files_here_are(repository, tmp_path, capsys):
    commit()
    (repository / "times.py").write_text("1 / 0")
    commits = ["--before", "HEAD", "--after", "HEAD~", "--rounds", "1"]
    assert compare(*commits, "-m", "benchmarks.bench") == 0
    assert "2 times (too few for an interval): undecided" in capsys.readouterr().out


@pytest.mark.parametrize(("folder", "script"), [("new", "bench.py"), (".", "../outside.py")])
def test_a_script_that_the_commit_lacks_runs_with_the_modules_of_each_version(
    folder, script, repository, tmp_path, monkeypatch
):
    (repository / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(repository / folder)
    with open(script, "w") as file:
        file.write(PRINTS)
    log = tmp_path / "log"
    assert compare("--before", "HEAD", "--rounds", "1", script, log) == 0
    assert log.read_text() == "slow fast "


@pytest.mark.parametrize(("folder", "path"), [("src", ""), ("lib", "lib")])
def test_each_version_has_its_modules_of_src_and_pythonpath(
    folder, path, repository, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", path)
    (repository / folder).mkdir()
    (repository / "times.py").unlink()
    write_times("slow ", SLOW, f"{folder}/times.py")
    commit()
    write_times("fast ", FAST, f"{folder}/times.py")
    log = tmp_path / "log"
    assert compare("--before", "HEAD", "--rounds", "1", SCRIPT, log) == 0
    assert log.read_text() == "slow fast "


def test_a_folder_src_that_is_a_package_itself_is_not_searched(repository):
    (repository / "src").mkdir()
    (repository / "src" / "__init__.py").touch()
    (repository / "src" / "types.py").write_text("1 / 0")
    commit()
    assert compare("--before", "HEAD", "--rounds", "1", SCRIPT) == 0


def test_a_script_that_differs_itself_and_an_option_behind_it_are_pointed_out(repository, capfd):
    with open(SCRIPT, "a") as script:
        script.write("# Twice the work.")
    assert compare("--before", "HEAD", "--rounds", "1", SCRIPT, "--rounds") == 0
    out, err = capfd.readouterr()
    assert f"{SCRIPT} itself differs" in out
    assert "--rounds stands behind the script" in err
    assert (repository / "--rounds").exists()  # The script writes into each file that it is given.


@pytest.mark.parametrize(
    ("samples", "needs", "share", "status"),
    [
        (tuple(1.2 * s for s in SLOW), None, "5%", 1),
        (tuple(1.2 * s for s in SLOW), None, "25%", 0),
        (SLOW, "two CPU cores", "5%", 2),
    ],
)
def test_the_status_says_whether_it_has_surely_become_slower_by_more_than_a_share(
    samples, needs, share, status, repository
):
    write_times("new ", samples, needs=needs)
    assert compare("--before", "HEAD", "--fail-over", share, SCRIPT) == status


# --- What goes wrong --------------------------------------------------------------------------


def test_a_file_that_git_cannot_bring_is_named(repository, capsys):
    for path in (repository / ".git" / "objects").glob("??/*"):
        if git("cat-file", "-t", path.parent.name + path.name) == "blob\n":
            path.unlink()
    assert compare("--before", "HEAD", "--rounds", "1", SCRIPT) == 2
    assert f"git does not have {SCRIPT} of HEAD here" in capsys.readouterr().err


def test_in_a_shallow_clone_the_way_to_an_older_commit_is_named(repository, monkeypatch, capsys):
    commit()
    git("clone", "--quiet", "--depth=1", repository.as_uri(), "../shallow")
    monkeypatch.chdir("../shallow")
    assert compare("--before", "HEAD~1", "--rounds", "1", SCRIPT) == 2
    message = capsys.readouterr().err
    assert message.startswith("git has no commit 'HEAD~1' here. This clone is shallow; git fetch")


def test_two_versions_without_a_common_function_end_after_the_first_round(repository, capfd):
    (repository / "times.py").write_text(f"name, text = 'n', {run_of(g=SLOW).to_json()!r}")
    assert compare("--before", "HEAD", SCRIPT) == 2
    message = capfd.readouterr().err
    assert "and the files here have no function in common: f; and g." in message
    assert "round 1" not in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("print('no data'); raise SystemExit(3)", "has ended with the exit status 3."),
        ("print('no data'); raise SystemExit(3)", "The last that it printed:\nno data\nA commit"),
        ("import os; os.kill(os.getpid(), 11)", "has ended by SIGSEGV."),
        ("print('{{}}')", "has not printed what it measured: This is nothing"),
        ("import sys; sys.path.insert(0, {here!r}); import times", "It has imported times from"),
    ],
)
def test_a_version_that_fails_or_runs_the_code_of_the_other_is_refused(
    line, words, repository, capfd
):
    (repository / "bench.py").write_text(line.format(here=str(repository)))
    commit()
    assert compare("--before", "HEAD", "bench.py") == 2
    message = capfd.readouterr().err
    assert f"bench.py of HEAD ({git('rev-parse', 'HEAD')[:7]}) has " in message
    assert words in message


# --- Nothing is written or left ---------------------------------------------------------------


def test_a_hook_of_git_may_compare_and_nothing_in_the_repository_is_written(repository):
    commit()
    hook = repository / ".git" / "hooks" / "pre-commit"
    command = f"{sys.executable} -m d2lpar compare --before HEAD~1 --rounds 1 {SCRIPT}"
    hook.write_text(f"#!/bin/sh\nexport GIT_DIR={repository / '.git'}\nexec {command}\n")
    hook.chmod(0o755)
    (repository / "new.txt").touch()
    git("add", "new.txt")
    git("commit", "--all", "--quiet", "--message", "A file.")
    assert git("show", "--name-only", "--format=") == "new.txt\n"
    assert git("status", "--short", "--branch") == "## main\n"


def test_a_process_that_a_program_leaves_behind_is_not_waited_for_and_ends(
    repository, left_of, tmp_path
):
    with open(SCRIPT, "a") as script:
        script.write("\nimport subprocess\nleft = subprocess.Popen(['sleep', '600'])")
        script.write(f"\nprint(left.pid, file=open({str(tmp_path / 'pids')!r}, 'a'))")
    assert compare("--before", "HEAD", "--rounds", "1", SCRIPT) == 0
    assert not left_of(map(int, (tmp_path / "pids").read_text().split()))


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_program_too_and_no_file_is_left(repository, tmp_path, left_of, sent):
    (tmp_path / "temporary").mkdir()
    (repository / "bench.py").write_text(
        "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, file=sys.stderr, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-m", "d2lpar", "compare", "--before", "HEAD", "bench.py"]
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    pipe = {"stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipe) as running:
        pids = [int(pid) for pid in running.stderr.readline().split()]
        running.send_signal(sent)
    assert running.returncode == 128 + sent
    assert not left_of(pids)
    assert [*(tmp_path / "temporary").iterdir()] == []
