"""`make evidence REPEATS=`: what is run, what is counted, and how sure it is."""

import json
import math
import statistics

import pytest
import repeats
from repeats import append, lines_of, margin, report, report_of, with_interval
from run_notebook import notebooks

from d2lpar import Quantity

SENTENCES = {"one": {"a": "Claim a."}, "two": {"b": "Claim b."}}


def begun(commit="abc"):
    return {"commit": commit, "sentences": SENTENCES}


def run(page, made, commit="abc", load=2, machine="mine"):
    claims = {"one": "a", "two": "b"}[page]
    where = {"load": load, "cores": 2, "devices": 0, "machine": machine, "date": "2026-11-21"}
    return {"commit": commit, "page": page, "claims": {claims: made}, **where}


def test_the_published_table_says_what_the_published_runs_show_and_of_which_commit():
    lines = lines_of(repeats.FILE)
    published = repeats.FILE.with_suffix(".md").read_text(encoding="utf-8")
    assert published == report(lines)
    assert any(f"`{line['commit']}`" in published.partition("\n")[0] for line in lines)


def test_runs_hold_together_if_no_claim_of_any_page_fails_or_is_undecided():
    lines = [
        begun(),
        *(run("one", made) for made in ([1.0], [2.0], ["fails", -1.0], [1.0])),
        *(run("two", made) for made in (["untestable"], ["inconclusive", 0.1], [1.0])),
    ]  # The fourth run of page two is missing.
    assert "| `make evidence REPEATS=3 LOAD=2 CORES=2` | 2026-11-21 | 1 of 3 runs" in report(lines)
    assert "| Claim b. | 1 of 2, 1 undecided, margin" in report(lines)


def test_only_the_newest_commit_that_is_complete_is_told_of_in_full():
    old = [begun(), run("one", [1.0]), run("two", ["fails", -1.0])]
    new = [begun("def"), run("one", [1.0], "def")]
    assert "commit `abc`" in report([*old, *new])
    both = report([*old, *new, run("two", [1.0], "def")])
    assert both.startswith("These runs are of commit `def`.")
    assert "### Before: commit `abc`" in both
    assert report(new) == "No run is complete yet.\n"


def test_the_runs_of_a_condition_are_also_counted_over_all_machines():
    lines = [begun(), *(run(page, [1.0]) for page in SENTENCES)]
    assert "All machines" not in report_of("abc", lines)
    lines += [run("one", ["fails", -1.0], machine="other"), run("two", [1.0], machine="other")]
    assert "| LOAD=2 CORES=2 | 1 of 2 runs" in report_of("abc", lines)


def test_a_share_has_the_exact_interval_of_the_binomial_distribution():
    # 0.025 ** (1 / 30) = 0.884: with all of 30 the lower end has a closed form.
    assert with_interval(30, 30) == "30 of 30 runs (95 % interval 88% to 100%)"


def test_the_margin_is_the_distance_from_the_bound_over_its_spread_between_runs():
    distances = [0.2, 0.3, 0.4, 0.3]
    expected = statistics.median(distances) / statistics.pstdev(distances)
    assert margin([[d] for d in distances]) == f"{expected:.1f}"
    # Of several comparisons the least sure counts; what is always the same has no spread.
    assert margin([[1.0, d] for d in distances]) == f"{expected:.1f}"
    assert margin([[1.0], [1.0]]) == "exact"
    assert margin([["fails", -1.0], ["fails", -1.0]]) == f"{-math.inf}"
    assert margin([[1.0], ["untestable"]]) == "-"


@pytest.mark.parametrize(
    ("predicate", "distance"),
    [
        (Quantity("x", (3.0,)) > 2, 1),
        (Quantity("x", (3.0,)) < 2, -1),
        (Quantity("x", (3.0,)).between(2, 6), 1),
        (Quantity("x", (3.0,)).between(4, 6), -1),
    ],
)
def test_the_distance_is_positive_on_the_side_where_a_claim_holds(predicate, distance):
    assert repeats.distance(predicate) == distance


def test_a_line_that_was_cut_off_is_left_out_and_the_next_begins_a_new_one(tmp_path, capsys):
    file = tmp_path / "runs" / "file.jsonl"
    append({"run": 1}, file)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"run": 2})[:5])
    append({"run": 3}, file)
    assert lines_of(file) == [{"run": 1}, {"run": 3}]
    assert "a line was cut off" in capsys.readouterr().err


def test_what_has_been_run_is_not_run_again(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(repeats, "run_notebook", lambda page, **_: ran.append(page) or [])
    monkeypatch.setattr(repeats, "where", lambda: "a machine")
    monkeypatch.setattr(repeats, "state", lambda: "abc")
    file, condition = tmp_path / "file.jsonl", {"load": 0, "cores": None, "devices": 0}
    pages = notebooks()[:2]
    repeats.repeat(pages[:1], condition, 1, file, say=lambda *_, **__: None)
    repeats.repeat(pages, condition, 2, file, say=lambda *_, **__: None)
    assert ran == [pages[0], pages[1], pages[0], pages[1]]
