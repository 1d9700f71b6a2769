"""`make claims`: what it runs, what it counts, and what it calls a defect."""

import json
import re
import statistics

import check_claims
import jupytext
import nbformat
import pytest
from check_claims import append, check_causes, margin, report, runs_in, shortened, with_interval
from counterfactuals import cause_of, runs_without
from run_notebook import Intervention, keep_what_is_needed, notebooks

from d2lpar import Quantity, counted
from d2lpar.book.claims import MIME_TYPE, Claim

PAGE = next(page for page in notebooks() if page.stem == "measuring-asynchronous-code")


def ratio(*samples):
    return Quantity("ratio", samples)


def notebook(*sources):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])


def sources(made):
    return [cell.source for cell in made.cells]


# --- What runs --------------------------------------------------------------------------------


def test_only_the_cells_run_that_a_claim_needs_and_those_that_they_need():
    cells = [
        "import numpy as np",
        "%pip install nothing",
        "a, unused = np.ones(2), 1",
        "table = {}",
        "table['row'] = a",
        "def scaled(x):\n    return factor * x",
        "factor = 3",
        "print(unused)",
        "claim('Mine.', scaled(table) > 2)",
        "claim('Another.', unused > 2)",
    ]
    made = notebook(*cells)
    keep_what_is_needed(made, ["Mine."])
    assert sources(made) == [cells[i] for i in (0, 2, 3, 4, 5, 6, 8)]


def test_what_is_bound_anew_before_it_is_used_is_not_needed_from_before():
    cells = ["x = 1", "for x in [2]:\n    y = x", "claim('Mine.', y > x)"]
    made = notebook(*cells)
    keep_what_is_needed(made, ["Mine."])
    assert sources(made) == cells[1:]


@pytest.mark.parametrize("source", ["x = 2", "x = 1\ny = 1"])
def test_an_edit_of_what_does_not_stand_there_exactly_once_is_refused(source):
    edit = Intervention("one", edits={" = 1": " = 3"})
    with pytest.raises(ValueError, match="' = 1' does not stand in the notebook exactly once"):
        edit.apply_to(notebook(source))


@pytest.mark.parametrize("page", notebooks(), ids=lambda page: page.parent.name + "/" + page.stem)
def test_every_claim_has_a_cause_and_its_intervention_fits_the_notebook(page):
    taken_away = []
    for intervention, sentences in runs_without(page):
        made = jupytext.read(page)
        keep_what_is_needed(made, sentences)
        before = sources(made)
        intervention.apply_to(made)
        assert sources(made) != before
        taken_away += sentences
    assert sorted(taken_away) == sorted(cause_of(page))


# --- With the cause and without ---------------------------------------------------------------


def outputs(verdict_of):
    """Return the outputs of a notebook with a claim of each sentence of the page."""
    holds, fails = counted("count", 1) > 0, counted("count", 0) > 0
    made = [Claim(s, (holds if verdict_of(s) else fails,)) for s in cause_of(PAGE)]
    return [{MIME_TYPE: claim.as_dict()} for claim in made]


def run_with(monkeypatch, with_it, without):
    def run_notebook(page, intervention=None, **options):
        return outputs(without if intervention else with_it)

    monkeypatch.setattr(check_claims, "run_notebook", run_notebook)
    return check_causes([PAGE])


def test_claims_that_hold_with_their_cause_and_fail_without_are_as_they_should_be(monkeypatch):
    table, defects = run_with(monkeypatch, lambda s: True, lambda s: False)
    assert defects == []
    rows = table.splitlines()[2:]
    assert len(rows) == len(cause_of(PAGE))
    assert all("**holds here**" in row and "**does not hold here**" in row for row in rows)


@pytest.mark.parametrize("with_it", [True, False])
def test_a_claim_that_survives_or_does_not_hold_is_a_defect(monkeypatch, with_it):
    odd = list(cause_of(PAGE))[3]
    _, (defect,) = run_with(
        monkeypatch,
        lambda s: with_it or s != odd,
        lambda s: with_it and s == odd,
    )
    assert odd in defect
    assert defect.startswith("Without asynchronous dispatch: " if with_it else "Claim: ")


# --- Again and again --------------------------------------------------------------------------


def same(*quantities, bound=1.0):
    """Return the records of one claim, that a quantity is above the bound, run by run."""
    return [shortened(Claim("It is more.", (q > bound,))) for q in quantities]


def test_the_margin_is_the_distance_from_the_bound_over_its_spread_between_runs():
    medians = 1.5, 1.6, 1.9, 1.4
    runs = same(*(ratio(*[m] * 6) for m in medians))
    distances = [m - 1 for m in medians]
    expected = statistics.median(distances) / statistics.pstdev(distances)
    assert margin(runs) == f"{expected:.1f}"


@pytest.mark.parametrize(
    ("predicate", "distance"),
    [
        (ratio(*[3.0] * 6) > 1, 2),
        (ratio(*[0.5] * 6) > 1, -0.5),
        (ratio(*[0.25] * 6) < 1, 0.75),
        (ratio(*[3.0] * 6) < 1, -2),
        (ratio(*[3.0] * 6).between(1, 10), 2),
        (ratio(*[9.0] * 6).between(1, 10), 1),
        (ratio(*[12.0] * 6).between(1, 10), -2),
        (ratio(*[3.0] * 6) > ratio(*[1.0] * 5, 2.0), 1),
    ],
)
def test_the_distance_is_positive_on_the_side_where_a_claim_holds(predicate, distance):
    (found,) = shortened(Claim("It is so.", (predicate,)))["predicates"].values()
    assert found[1] == pytest.approx(distance)


def test_of_several_comparisons_the_least_sure_counts():
    sure, unsure = [5.0, 5.1, 4.9], [1.1, 1.3, 1.2]
    runs = [
        shortened(
            Claim("Both.", (ratio(*[a] * 6).renamed("a") > 1, ratio(*[b] * 6).renamed("b") > 1))
        )
        for a, b in zip(sure, unsure, strict=True)
    ]
    assert margin(runs) == "2.4"


def test_a_count_that_is_always_the_same_has_an_exact_margin():
    assert margin(same(counted("n", 5), counted("n", 5))) == "exact"


def test_what_differs_only_by_rounding_has_a_margin_that_is_not_spelled_out():
    assert margin(same(ratio(*[2.0] * 6), ratio(*[2.0 + 1e-9] * 6))) == "over 1000"


def test_a_count_that_always_fails_has_no_exact_margin():
    assert margin(same(counted("n", 0), counted("n", 0))) == "-inf"


def test_what_could_not_be_tested_has_no_margin():
    untestable = shortened(Claim("Elsewhere.", needs="a GPU"))
    assert margin([untestable, untestable]) == "-"


def test_a_share_has_the_exact_interval_of_the_binomial_distribution():
    # 0.025 ** (1 / 30) = 0.884: with all of 30 the lower end has a closed form.
    assert with_interval(30, 30) == "30 of 30 runs (95 % interval 88% to 100%)"


def run(page, verdicts, load=2, **other):
    claims = [
        {"sentence": f"Claim {n}.", "verdict": verdict, "predicates": {}}
        for n, verdict in enumerate(verdicts)
    ]
    here = {"load": load, "cores": 2, "devices": 0, "machine": "mine", "date": "2026-11-21T12:00"}
    return check_claims.identity(page) | here | {"claims": claims} | other


def test_runs_hold_together_if_no_claim_of_any_page_fails_or_is_undecided():
    one, two = notebooks()[:2]
    runs = [
        run(one, ["holds", "untestable"]),
        run(two, ["holds"]),
        run(one, ["holds", "holds"]),
        run(two, ["inconclusive"]),
        run(one, ["fails", "holds"]),
        run(two, ["holds"]),
        run(one, ["holds", "holds"]),  # Its page two has not been run yet.
    ]
    assert "| `make claims REPEATS=3 LOAD=2 CORES=2` | 2026-11-21 | 1 of 3 runs" in report(
        [one, two], runs
    )


def test_each_condition_has_a_column_that_says_how_often_a_claim_held_where_it_was_tested():
    (page,) = notebooks()[:1]
    busy = [
        run(page, ["holds", "untestable"]),
        run(page, ["inconclusive", "holds"]),
        run(page, ["fails", "untestable"]),
    ]
    idle = [run(page, ["holds", "untestable"], load=0) for _ in range(2)]
    text = report([page], busy + idle)
    assert "| Claim | LOAD=0 CORES=2 | LOAD=2 CORES=2 |" in text
    # Nothing was measured for these, so that no margin is finite.
    both = "2 of 2, margin exact | 1 of 3, 1 undecided, 1 failed, margin exact |"
    assert f"| Claim 0. | {both}" in text
    assert "| Claim 1. | not testable | 1 of 1, margin - |" in text


def test_runs_of_other_code_are_not_counted_and_each_machine_has_a_table():
    one, two = notebooks()[:2]
    here = [run(one, ["fails"], code="other"), run(one, ["holds"]), run(two, ["holds"])]
    elsewhere = [run(page, ["fails"], machine="another") for page in (one, two)]
    begun = run(one, ["holds"], machine="a third")  # Its page two has not been run yet.
    text = report([one, two], [*elsewhere, *here, begun])
    found = re.findall(r"^### (.*)|^\| `make.*\| (. of . runs)", text, re.MULTILINE)
    machines = [("another", ""), ("", "0 of 1 runs"), ("mine", ""), ("", "1 of 1 runs")]
    assert found == [("All machines", ""), *machines]
    assert report([one, two], [begun]) == "No run is complete yet.\n"


def test_the_runs_of_a_condition_are_also_counted_over_all_machines():
    (page,) = notebooks()[:1]
    idle = [run(page, ["holds"], load=0)]
    busy = [run(page, [verdict], machine=name) for name in "ab" for verdict in ("holds", "fails")]
    assert "All machines" not in report([page], idle)
    text = report([page], [run(page, ["holds"], machine="b", load=0), *busy])
    assert re.search(r"\| LOAD=0 CORES=2 \| 1 of 1 runs [^|]* \| 1 \|", text)
    assert re.search(r"\| LOAD=2 CORES=2 \| 2 of 4 runs [^|]* \| 2 \|", text)


def test_the_published_table_of_repeats_says_what_the_published_runs_show(monkeypatch):
    file = check_claims.RESULTS / "repeats.jsonl"
    runs = runs_in(file)
    ran = {run["page"]: {key: run[key] for key in ("page", "code")} for run in runs}
    # The code that ran, and not the hash of today: Python 3.12 writes an f-string otherwise.
    identity = check_claims.identity
    monkeypatch.setattr(check_claims, "identity", lambda page: ran[identity(page)["page"]])
    assert file.with_suffix(".md").read_text() == report(notebooks(), runs)


@pytest.mark.parametrize("name", ["causes.md", "repeats.md"])
def test_the_published_tables_have_each_claim_as_it_is_worded(name):
    text = (check_claims.RESULTS / name).read_text()
    bodies = re.findall(r"^\| Claim \|.*\n\| -.*\n((?:\| .*\n)+)", text, re.MULTILINE)
    assert bodies
    for body in bodies:
        sentences = [row.removeprefix("| ").split(" | ")[0] for row in body.splitlines()]
        assert sentences == [claim for page in notebooks() for claim in cause_of(page)]


def test_a_comment_makes_no_other_code_and_a_number_does(monkeypatch):
    monkeypatch.setattr(check_claims, "claimed_by", lambda page: ["Mine."])

    def code_of(source):
        made = notebook(source, "claim('Mine.', x > 2)")
        monkeypatch.setattr(check_claims.jupytext, "read", lambda page: made)
        return check_claims.identity(PAGE)["code"]

    plain = code_of("x = 1 + 2")
    assert code_of("x = 1 + (\n    2  # Two.\n)") == plain
    assert code_of("x = 1 + 3") != plain


def test_a_line_that_was_cut_off_is_left_out_and_the_next_begins_a_new_one(tmp_path, capsys):
    file = tmp_path / "runs" / "file.jsonl"
    append({"run": 1}, file)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"run": 2})[:5])
    append({"run": 3}, file)
    assert runs_in(file) == [{"run": 1}, {"run": 3}]
    assert "a line was cut off" in capsys.readouterr().err


def test_what_has_been_run_is_not_run_again(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(check_claims, "run_notebook", lambda page, **_: ran.append(page) or [])
    file, condition = tmp_path / "file.jsonl", {"load": 0, "cores": 1, "devices": 0}
    monkeypatch.setattr(check_claims.os, "sched_setaffinity", lambda *_: None)
    pages = notebooks()[:2]
    check_claims.repeat(pages[:1], condition, 1, file)
    check_claims.repeat(pages, condition, 2, file)
    assert ran == [pages[0], pages[1], pages[0], pages[1]]
    text = report(pages, runs_in(file))
    assert "REPEATS=2" in text
    assert check_claims.where() in text
