"""Two versions of a program: two files, and two commits in turn."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from d2lpar import Comparison, Measurement, Quantity
from d2lpar.__main__ import main
from d2lpar._versions import (
    Program,
    _rank_of_the_end,
    changes,
    changes_in_turn,
    in_common,
    rank_sums,
    report,
)


def run_of(machine="mine", needs=None, level=0.95, warnings=(), **times):
    """Return a run in which functions took so many seconds; `(times, bytes)` observes memory."""
    measured = []
    for name, given in times.items():
        samples, memory = given if isinstance(given[0], tuple) else (given, None)
        total, dispatch = (
            Quantity(name, tuple(share * s for s in samples), "s", level=level)
            for share in (1.0, 0.1)
        )
        observed = {"memory": Quantity("memory", memory, "B")} if memory else {}
        devices = frozenset({"CPU 0"})
        measured.append(Measurement(name, dispatch, total, warnings, devices, observed))
    return Comparison(measured, level, 0, needs, machine)


SLOW = 2.0, 2.1, 2.2, 1.9, 2.3, 1.8, 2.4, 1.7, 9.0
FAST = tuple(s / 2 for s in SLOW)


def spaced(text):
    """Return a text without what lines its columns up."""
    return re.sub(r"(?<=\S) +", " ", text)


def verdicts(found):
    return {(change.function, change.what): change.verdict for change in found}


# --- Two files --------------------------------------------------------------------------------


def test_a_rank_sum_is_as_probable_as_the_share_of_orders_that_have_it():
    m, n = 3, 4
    sums = Counter(
        sum(place - rank for rank, place in enumerate(places))
        for places in itertools.combinations(range(m + n), m)
    )
    expected = [sums[u] / sum(sums.values()) for u in range(m * n + 1)]
    np.testing.assert_allclose(rank_sums(m, n), expected)


def test_the_interval_of_a_ratio_has_the_ranks_that_the_tables_of_mann_and_whitney_give():
    # Nine against nine samples, 5 % on both sides: 17 is the largest sum that is significant.
    assert rank_sums(9, 9)[:18].sum() <= 0.025 < rank_sums(9, 9)[:19].sum()
    (change, _) = changes(run_of(f=SLOW), run_of(f=FAST))
    ratios = sorted(a / b for a in FAST for b in SLOW)
    assert change.interval == pytest.approx((ratios[17], ratios[-18]))
    assert change.ratio == pytest.approx(np.median(ratios))


def test_the_interval_covers_the_true_ratio_at_least_as_often_as_it_says():
    rng, covered = np.random.default_rng(0), []
    for _ in range(400):
        old, new = rng.lognormal(sigma=0.4, size=(2, 9))
        found = changes(run_of(f=tuple(old)), run_of(f=tuple(0.7 * new)))
        low, high = found[0].interval
        covered.append(low <= 0.7 <= high)
    assert 0.93 < np.mean(covered) < 0.98


def test_a_version_is_faster_or_slower_only_if_the_whole_interval_says_so():
    before = run_of(mended=SLOW, worse=FAST, same=SLOW)
    after = run_of(mended=FAST, worse=SLOW, same=SLOW[::-1])
    assert verdicts(changes(before, after)) == {
        (name, what): verdict
        for name, verdict in {
            "mended": "seems faster",
            "worse": "seems slower",
            "same": "undecided",
        }.items()
        for what in ("total", "dispatch")
    }


def test_what_was_observed_is_compared_as_well_and_is_less_or_more():
    before, after = run_of(f=(SLOW, SLOW)), run_of(f=(SLOW, FAST))
    assert verdicts(changes(before, after))["f", "memory"] == "seems less"


@pytest.mark.parametrize("samples", [SLOW[:3], (0.0,) * 9])
def test_of_few_samples_and_of_times_that_are_zero_nothing_is_said(samples):
    (change, _) = changes(run_of(f=samples), run_of(f=FAST[:3]))
    assert change.verdict == "undecided"
    assert "too few for an interval" in str(change) or "no ratio, since" in str(change)
    assert not change.is_surely_later(1.0)


def test_where_too_few_rounds_counted_nothing_is_claimed():
    (change, _) = changes(run_of(f=SLOW), run_of(f=FAST, needs="2 free cores"))
    assert change.verdict == "needs 2 free cores"
    assert not change.is_surely_later(0.0)


def test_of_very_many_samples_the_interval_comes_at_once_and_is_nearly_the_exact_one():
    exact, nearly = (_rank_of_the_end(50, n, 0.025) for n in (50, 51))
    assert nearly == pytest.approx(exact * 51 / 50, rel=0.01)
    assert _rank_of_the_end(5000, 5000, 0.025) > 0


def test_the_report_says_what_not_every_run_has_and_that_two_machines_are_no_fair_match():
    before, after = run_of(f=SLOW, old=SLOW), run_of("another", f=FAST, new=SLOW)
    before["f"].observed["size"] = Quantity("size", (1.0,), "B")
    after["f"].observed["size"] = Quantity("size", (1.0,), "s")
    assert in_common(before, after) == [("f", "total"), ("f", "dispatch")]
    said = report(("a.json", "b.json"), [(before, after)], changes(before, after), ["Noted."])
    assert said.startswith("a.json -> b.json\n\nf\n  result ready")
    assert "  result ready 2.1 s -> 1.05 s 0.5 times (0.417 to 0.6): seems faster" in spaced(said)
    assert "\n\nNoted.\n" in said
    assert "since not every run has it in the same unit: f, new, old." in said
    assert "different machines or versions of JAX, which may be the difference: mine; and a" in said
    assert "machines" not in report(("a", "b"), [(before, before)], changes(before, before), [])


def test_what_a_reader_should_know_of_a_run_is_said_once():
    run = run_of(f=SLOW, warnings=("returned no JAX array",))
    said = report(("a", "b"), [(run, run)] * 6, changes_in_turn([(run, run)] * 6), [])
    assert said.count("Caution: f returned no JAX array.") == 1


def test_a_comparison_and_a_measurement_come_back_from_json_as_they_were():
    before = run_of(f=(SLOW, SLOW), g=FAST, needs="2 free cores", level=0.99)
    after = Comparison.from_json(before.to_json())
    assert "\n" not in before.to_json()
    assert vars(after) == vars(before)
    assert repr(after) == repr(before)
    assert after["f"].devices == {"CPU 0"}
    assert after["f"]["memory"].samples == before["f"]["memory"].samples
    assert repr(Measurement.from_json(before["g"].to_json())) == repr(before["g"])
    with pytest.raises(ValueError, match="comparison of 2 functions"):
        Measurement.from_json(before.to_json())


WRONG_LEVEL = run_of(f=SLOW, level=0.99).to_json().replace("0.99", '"x"')


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"measurements": [1]}', "null", "{} {}", WRONG_LEVEL]
)
def test_what_is_no_measurement_is_refused(text):
    with pytest.raises(ValueError, match="nothing that Comparison"):
        Comparison.from_json(text)


# --- The command ------------------------------------------------------------------------------


def d2lpar(*arguments):
    """Run the command here, and return with what it ends."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["d2lpar", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
    return stopped.value.code


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


# --- Two commits, in turn ---------------------------------------------------------------------

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
    assert " s 2 times (too few for an interval): undecided" in spaced(capsys.readouterr().out)
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


def test_of_rounds_with_a_zero_on_either_side_there_is_no_ratio():
    pair = run_of(f=(SLOW, SLOW)), run_of(f=(SLOW, (0.0,) * 9))
    for rounds in ([pair] * 6, [pair[::-1]] * 6):
        assert verdicts(changes_in_turn(rounds))["f", "memory"] == "undecided"


def test_of_several_rounds_what_all_have_is_compared():
    rounds = [(run_of(f=SLOW, g=SLOW), run_of(f=FAST))] * 6
    assert verdicts(changes_in_turn(rounds)) == {
        ("f", "total"): "faster",
        ("f", "dispatch"): "faster",
    }


def test_a_script_outside_of_the_repository_is_the_same_for_both(tmp_path, repository):
    outside = tmp_path / "bench.py"
    assert Program(str(outside), False, []).within(repository) is None
    assert Program("benchmarks.bench", True, []).within(repository) is None


def test_what_a_file_holds_is_plain_json():
    assert json.loads(run_of(f=SLOW).to_json())["measurements"][0]["total"]["samples"] == [*SLOW]
