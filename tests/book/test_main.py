"""Judge answers in files, right ones and all kinds of wrong ones, with the command."""

import json
import re

import pytest
from commands import python_with
from run_notebook import ROOT

from d2lpar.book.__main__ import CHECKS

RIGHT = "asynchronous-computation", "in-your-own-code"
# Each answer is wrong in its own way, and none may disturb another.
WRONG = r"""
import os, time
import not_there
def my_products(multiply, matrices):
    while True: pass
def my_many(operator): os._exit(0)
def my_exchange(make, send, n):
    if os.fork() == 0:
        os.setsid()
        os.write(os.open("forked", os.O_CREAT | os.O_WRONLY), str(os.getpid()).encode())
        time.sleep(1000)
    while not os.path.exists("forked"): time.sleep(0.01)
def my_gaps(timeline, row):
    print(os.write(1, bytes(10**6)) * " ")
    return 10**6 * "0"
def my_pipeline(first, second, batches, devices): return not_there.run(batches)
def my_loop(solve, mesh): return bytearray(3 * 10**9)
def my_seconds(step, x, clock): return step(x
def my_ratio(a, b, clock, cores_free): exit("I give up\ud800")
my_verdict = my_decision = input("yes or no?")
def my_mean(numbers): os.kill(os.getpid(), 9)
"""
SEEN = {
    "Y1": "did not return within 30 seconds",
    "Y2": "ended its process before the check did: exit status 0",
    "Y3": "function returned None",
    "Y4": "returned '0000",
    "Y5": "file raised ModuleNotFoundError: No module named 'not_there', at `import not_there`",
    "Y6": "function raised MemoryError, at `def my_loop",
    "W1": r"file raised SyntaxError: .* was never closed .*code cell \d+, line 18",
    "W2": "function raised SystemExit: I give up.*, at `def my_ratio",
    "W3": "file raised EOFError.*, at `my_verdict = ",
    "V1": "Process . has died: SIGKILL",
}


def check(file, *arguments):
    done = python_with("-m", "d2lpar.book", "check", file.name, *arguments, folder=file.parent)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.timed
def test_ten_right_and_ten_wrong_answers_are_judged_as_in_a_notebook(tmp_path, left_of):
    pages = [ROOT / "book" / "solutions" / f"{name}.ipynb" for name in RIGHT]
    cells = [cell for page in pages for cell in json.loads(page.read_text())["cells"]]
    file = tmp_path / "homework.ipynb"
    file.write_text(json.dumps({"cells": [*cells, {"cell_type": "code", "source": WRONG}]}))
    files = "--json", "found.json", "--gradescope", "results.json"
    status, printed, _ = check(file, *files, "--memory", "2")
    found = json.loads((tmp_path / "found.json").read_text())
    reports = {report["exercise"]: report for report in found["exercises"]}
    right = {name for name in CHECKS if name[0] in "XZ"}
    assert len(right) == len(SEEN) == 10
    assert {n for n, r in reports.items() if r["verdict"] == "accepted"} == right, printed
    assert {n for n, r in reports.items() if r["verdict"] == "not yet"} == {*SEEN}
    for name, saw in SEEN.items():
        assert re.search(saw, reports[name]["saw"]), reports[name]
    assert (status, printed.splitlines()[-1]) == (1, "10 of 20 accepted.")
    assert left_of([int((tmp_path / "forked").read_text())]) == []
    tests = json.loads((tmp_path / "results.json").read_text())["tests"]
    assert {test["name"] for test in tests if test["score"] == test["max_score"]} == right
    assert [test["name"] for test in tests] == [name for name in CHECKS if name in reports]


def test_an_answer_has_a_limit_of_time_and_what_is_missing_is_said(tmp_path):
    file = tmp_path / "homework.py"
    file.write_text(
        "def my_total(t1, t2, t3, n): return t1 + t2 + t3 + (n - 1) * max(t1, t2)\n"
        "def my_condition(t1, t2, n): return t1 <= t2\n"
        "my_sums = 10 ** 10**10\n"
        "def my_verdict(samples, bound, level): return 'undecided'\n"
    )
    status, printed, _ = check(file, "--only", "X1")
    assert (status, printed.splitlines()[-1]) == (0, "1 of 1 accepted.")
    status, printed, _ = check(file, "--timeout", "9s", "--only", "V2", "W3")
    missing, late = "The file has no my_decision.", "Your code had not ended after 9 s."
    assert printed.startswith(
        f"Exercise W3: not there\n  {missing}\nExercise V2: not yet\n  {late}"
    )
    assert status == 1


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("x = 3", [], "homework.py has no answer, such as a function my_epoch"),
        ("my_sums = 3", ["--only", "V6"], "invalid choice: 'V6' .choose from '?X1"),
        ("my_sums = 3", ["--json", "no/found.json"], "no/found.json cannot be written"),
    ],
)
def test_what_cannot_be_judged_is_refused(text, arguments, message, tmp_path):
    file = tmp_path / "homework.py"
    file.write_text(text)
    status, _, error = check(file, *arguments)
    assert status == 2
    assert re.search(message, error)


def test_a_check_takes_the_answers_of_its_page_and_no_other_check_takes_one_of_them():
    pages = "\n".join(path.read_text() for path in (ROOT / "book").glob("*.md"))
    calls = re.findall(r"^exercises\.check_(\w+)\((my_.*)\)$", pages, re.MULTILINE)
    assert {name.upper(): tuple(names.split(", ")) for name, names in calls} == {
        name: check.takes for name, check in CHECKS.items()
    }
    answers = [answer for check in CHECKS.values() for answer in check.takes]
    assert len(answers) == len({*answers})
