"""`python -m d2lpar compare`, with two files and with commits of a repository."""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import git, main_with
from fakes import FAST, SLOW, run_of

compare = functools.partial(main_with, "compare")
once = functools.partial(compare, "--before", "HEAD", "--rounds", "1")


def test_two_files_are_compared_with_a_caution(tmp_path, capsys):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(run_of(f=FAST).to_json())
    after.write_text(f"printed before\n{run_of(f=SLOW).to_json()}\n")
    assert compare(before, after) == 0
    out = capsys.readouterr().out
    assert "2 times (too few runs for an interval): undecided" in out
    assert "Caution: these are two runs at two times." in out


SCRIPT = "benchmarks/bench.py"
PRINTS = """
import sys, times
print("hello")
for file in sys.argv[1:]:
    with open(file, "a") as log:
        log.write(times.name)
print(times.text)
"""


def times(name, needs=None, **samples):
    return f"name, text = {name!r}, {run_of(needs=needs, **samples).to_json()!r}"


SLOWER = times("", f=tuple(1.2 * s for s in SLOW))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose only commit is slow, and whose files are fast; its folder is current."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    git("init", "--quiet", "--initial-branch=main")
    write({SCRIPT: PRINTS, "times.py": times("slow ", f=SLOW)})
    commit()
    write({"times.py": times("fast ", f=FAST)})
    return tmp_path / "project"


def commit():
    git("add", "--all")
    git("commit", "--quiet", "--message", "A version.")


def write(files):
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one.json"], "give two files, or --before COMMIT and a script"),
        (["--after", "HEAD", "a", "b"], "--after needs --before COMMIT"),
        (["--before", "HEAD", "none.py"], "there is no script 'none.py'"),
        (["text.py", "text.py"], "text.py: This text was not written by Comparison"),
        (["f.json", "g.json"], "f.json and g.json have no function in common: f; and g."),
        (["a.json", "--before", "HEAD"], "--before must come before the script"),
        (["--fail-over", "5%", "--rounds", "5", "--before", "HEAD", "text.py"], "six rounds"),
        (["--before", "none", "text.py"], "git has no commit 'none' here. A shallow clone"),
        (["--before-python", "", "a", "b"], "need the path of a Python, found ''"),
        (["--before-python", "none", "text.py"], "There is no Python at 'none' that can be run."),
        (["--after-python", sys.executable, "text.py"], "There are no two versions: both would be"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(arguments, message, repository, capsys):
    write({"text.py": "no JSON", **{f"{f}.json": run_of(**{f: SLOW}).to_json() for f in "fg"}})
    assert compare(*arguments) == 2
    assert message in capsys.readouterr().err


def test_six_rounds_run_the_versions_in_turn_and_decide(repository, tmp_path, capfd):
    assert compare("--before", "main", SCRIPT, tmp_path / "log") == 0
    assert (tmp_path / "log").read_text() == "slow fast fast slow " * 3
    out, err = capfd.readouterr()
    assert out.startswith("main (")
    assert ") -> the files here\n\nf\n  result ready" in out
    assert "0.5 times (0.5 to 0.5): faster" in out
    assert "the 95% interval of the ratio, of 6 rounds in turn." in out
    assert "Caution" not in out
    assert "itself differs" not in out
    assert err.splitlines()[-1] == "round 6 of 6"


def test_two_commits_are_compared_whatever_the_files_here_are(repository, capsys):
    commit()
    write({"times.py": "1 / 0"})
    assert once("--after", "HEAD~", "-m", "benchmarks.bench") == 0
    assert "2 times (too few runs for an interval): undecided" in capsys.readouterr().out


def test_two_environments_run_the_files_here_also_outside_a_repository(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    old = f"if 'OLD' in os.environ:\n    {times('old ', f=SLOW)}"
    write({"bench.py": PRINTS, "times.py": f"import os\n{times('new ', f=FAST)}\n{old}"})
    write({"old/python": f'#!/bin/sh\nOLD=yes exec {sys.executable} "$@"\n'})
    Path("old/python").chmod(0o755)
    assert compare("--before-python", "old/python", "bench.py", "log") == 0
    assert Path("log").read_text() == "old new new old " * 3
    out = capfd.readouterr().out
    assert out.startswith(f"the files here with old/python -> the files here with {sys.executable}")
    assert "0.5 times (0.5 to 0.5): faster" in out


@pytest.mark.parametrize("script", ["bench.py", "../../outside.py"])
def test_a_script_that_the_commit_lacks_runs_with_the_modules_of_each_version(
    script, repository, tmp_path, monkeypatch
):
    (repository / "new").mkdir()
    monkeypatch.chdir("new")
    write({script: PRINTS})
    assert once(script, tmp_path / "log") == 0
    assert (tmp_path / "log").read_text() == "slow fast "


@pytest.mark.parametrize(("folder", "path"), [("src", ""), ("lib", "lib")])
def test_each_version_has_its_modules_of_src_and_pythonpath(
    folder, path, repository, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", path)
    Path("times.py").unlink()
    write({f"{folder}/times.py": times("slow ", f=SLOW)})
    commit()
    write({f"{folder}/times.py": times("fast ", f=FAST)})
    assert once(SCRIPT, tmp_path / "log") == 0
    assert (tmp_path / "log").read_text() == "slow fast "


@pytest.mark.parametrize(
    ("files", "options", "status", "message"),
    [
        ({SCRIPT: f"{PRINTS}# More work."}, ["--rounds", "1"], 0, f"{SCRIPT} itself differs"),
        ({"times.py": SLOWER}, ["--fail-over", "5%"], 1, "1.2 times (1.2 to 1.2): slower"),
        ({"times.py": SLOWER}, ["--fail-over", "25%"], 0, "1.2 times (1.2 to 1.2): slower"),
        ({"times.py": times("", "a GPU", f=SLOW)}, ["--fail-over", "5%"], 2, "needs a GPU"),
        ({"times.py": times("", g=SLOW)}, [], 2, "files here have no function in common: f; and g"),
        # A folder src that is a package itself is not searched.
        ({"src/__init__.py": "", "src/types.py": "1 / 0"}, ["--rounds", "1"], 0, "undecided"),
    ],
)
def test_the_status_and_the_report_say_how_the_files_here_differ(
    files, options, status, message, repository, capfd
):
    write(files)
    assert compare("--before", "HEAD", *options, SCRIPT) == status
    out, err = capfd.readouterr()
    assert message in out + err
    assert ("round 1" in err) == ("no function" not in err)  # Then the first round is the last.


def test_without_git_the_report_says_that_it_is_missing(repository, monkeypatch, capfd):
    monkeypatch.setenv("PATH", "")
    assert once(SCRIPT) == 2
    assert "git, which holds the two versions, was not found." in capfd.readouterr().err


def test_an_option_behind_the_script_goes_to_the_script_with_a_note(repository, capfd):
    assert once(SCRIPT, "--rounds") == 0
    assert "--rounds comes after the script" in capfd.readouterr().err
    assert Path("--rounds").exists()  # The script writes into each file that it is given.


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("print('no data'); raise SystemExit(3)", "3.\nThe last lines it printed:\nno data\n"),
        ("import os; os.kill(os.getpid(), 11)", "has ended by SIGSEGV."),
        ("print('{{}}')", "has not printed its measurements: This text was not written by"),
        (
            "import sys; sys.path.insert(0, {here!r}); import times; sys.exit()",
            "It has imported times from",
        ),
    ],
)
def test_a_version_that_fails_or_runs_the_code_of_the_other_is_refused(
    line, words, repository, capfd
):
    write({"bench.py": line.format(here=str(repository))})
    commit()
    assert once("bench.py") == 2
    message = capfd.readouterr().err
    assert f"bench.py of HEAD ({git('rev-parse', 'HEAD')[:7]}) has " in message
    assert words in message


def test_a_hook_of_git_may_compare_and_nothing_in_the_repository_is_written(repository):
    commit()
    hook, file = Path(".git", "hooks", "pre-commit"), Path("new.txt")
    command = f"{sys.executable} -m d2lpar compare --before HEAD~1 --rounds 1 {SCRIPT}"
    hook.write_text(f"#!/bin/sh\nexport GIT_DIR={repository / '.git'}\nexec {command}\n")
    hook.chmod(0o755)
    file.touch()
    git("add", file)
    git("commit", "--all", "--quiet", "--message", "A file.")
    assert git("show", "--name-only", "--format=") == "new.txt\n"
    assert git("status", "--short", "--branch") == "## main\n"


def test_a_process_that_a_program_leaves_behind_is_not_waited_for_and_ends(repository, left_of):
    starts = "import subprocess, sys; left = subprocess.Popen(['sleep', '600'])"
    write({SCRIPT: f"{starts}\nsys.argv.append(str(left.pid)){PRINTS}"})
    assert once(SCRIPT) == 0
    (file,) = repository.glob("[0-9]*")
    assert not left_of([int(file.name)])


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_program_too_and_no_file_is_left(repository, tmp_path, left_of, sent):
    (tmp_path / "temporary").mkdir()
    program = (
        "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, file=sys.stderr, flush=True); time.sleep(600)"
    )
    write({"bench.py": program})
    command = [sys.executable, "-m", "d2lpar", "compare", "--before", "HEAD", "bench.py"]
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    pipe = {"stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipe) as running:
        pids = [int(pid) for pid in running.stderr.readline().split()]
        running.send_signal(sent)
    assert running.returncode == 128 + sent
    assert not left_of(pids)
    assert [*(tmp_path / "temporary").iterdir()] == []
