"""`make evidence REPEATS=`: what is run and kept, what is counted, and what is published."""

import json
import re
import statistics

import pytest
import repeats
import run_notebook
from pages import write_page
from repeats import append, lines_of, margin, report, report_of, shortened, with_interval

from d2lpar import Quantity, exact
from d2lpar.book.claims import MIME_TYPE, Claim


def ratio(*samples):
    return Quantity("ratio", samples)


# --- How far from failing ---------------------------------------------------------------------


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
    assert repeats.distance(predicate) == pytest.approx(distance)


def test_a_claim_is_kept_as_its_verdict_unless_it_holds_and_its_distances():
    assert same(exact("n", 5), exact("n", 0)) == [[4], ["fails", -1]]
    assert shortened(Claim("Elsewhere.", needs="a GPU")) == ["untestable"]


def test_of_several_comparisons_the_least_sure_counts_also_if_they_have_one_name():
    sure, unsure = [5.0, 5.1, 4.9], [1.1, 1.3, 1.2]
    runs = [
        shortened(Claim("Both.", (ratio(*[a] * 6) > 1, ratio(*[b] * 6) > 1)))
        for a, b in zip(sure, unsure, strict=True)
    ]
    assert margin(runs) == "2.4"


def test_a_count_that_is_always_the_same_has_an_exact_margin():
    assert margin(same(exact("n", 5), exact("n", 5))) == "exact"


def test_what_differs_only_by_rounding_has_a_margin_that_is_not_spelled_out():
    assert margin(same(ratio(*[1.02] * 6), ratio(*[1.02 + 1e-9] * 6))) == "over 1000"


def test_a_count_that_always_fails_has_no_exact_margin():
    assert margin(same(exact("n", 0), exact("n", 0))) == "-inf"


def test_what_could_not_be_tested_has_no_margin():
    assert margin([["untestable"], ["untestable"]]) == "-"


def test_a_share_has_the_exact_interval_of_the_binomial_distribution():
    # 0.025 ** (1 / 30) = 0.884: with all of 30 the lower end has a closed form.
    assert with_interval(30, 30) == "30 of 30 runs (95 % interval 88% to 100%)"


# --- The report -------------------------------------------------------------------------------

BOOK = {"one": {"a": "Claim A.", "b": "Claim B."}, "two": {"c": "Claim C."}}


def said(commit, book=BOOK, **code):
    return {"commit": commit, "sentences": book} | ({"code": code} if code else {})


def run(page, *verdicts, commit="c1", **other):
    """Return a run of a page whose claims have these verdicts."""
    made = {"holds": [], "fails": ["fails"]}
    found = zip(BOOK[page], verdicts, strict=True)
    here = {"load": 2, "cores": 2, "devices": 0, "machine": "mine", "date": "2026-11-21"}
    claims = {key: made.get(verdict, [verdict]) for key, verdict in found}
    return here | {"commit": commit, "page": page, "claims": claims} | other


def test_runs_hold_together_if_no_claim_of_any_page_fails_or_is_undecided():
    runs = [
        run("one", "holds", "untestable"),
        run("two", "holds"),
        run("one", "holds", "holds"),
        run("two", "inconclusive"),
        run("one", "fails", "holds"),
        run("two", "holds"),
        run("one", "holds", "holds"),  # Its page two has not been run yet.
    ]
    assert "| `make evidence REPEATS=3 LOAD=2 CORES=2` | 2026-11-21 | 1 of 3 runs" in report(
        [said("c1"), *runs]
    )


def test_each_condition_has_a_column_that_says_how_often_a_claim_held_where_it_was_tested():
    busy = [
        run("one", "holds", "untestable"),
        run("one", "inconclusive", "holds"),
        run("one", "fails", "untestable"),
    ]
    idle = [run("one", "holds", "untestable", load=0, devices=8) for _ in range(2)]
    text = report([said("c1", {"one": BOOK["one"]}), *busy, *idle])
    assert "| Claim | LOAD=0 CORES=2 DEVICES=8 | LOAD=2 CORES=2 |" in text
    # Nothing was measured for these, so that no margin is finite.
    both = "2 of 2, margin exact | 1 of 3, 1 undecided, 1 failed, margin exact |"
    assert f"| Claim A. | {both}" in text
    assert "| Claim B. | not testable | 1 of 1, margin - |" in text


def test_each_machine_has_a_table_if_it_has_run_all_pages():
    here = [run("one", "holds", "holds"), run("two", "holds")]
    elsewhere = [each | {"machine": "another"} for each in (run("one", "fails", "holds"), here[1])]
    begun = run("one", "holds", "holds", machine="a third")
    text = report([said("c1"), *elsewhere, *here, begun])
    found = re.findall(r"^### (.*)|^\| `make.*\| (. of . runs)", text, re.MULTILINE)
    machines = [("another", ""), ("", "0 of 1 runs"), ("mine", ""), ("", "1 of 1 runs")]
    assert found == [("All machines", ""), *machines]
    assert re.search(r"\| LOAD=2 CORES=2 \| 1 of 2 runs [^|]* \| 2 \|", text)
    assert report([said("c1"), begun]) == "No run is complete yet.\n"


def test_the_newest_commit_that_has_runs_of_all_pages_has_the_tables():
    old = [said("c1"), run("one", "fails", "holds"), run("two", "holds")]
    new = [said("c2"), run("one", "holds", "holds", commit="c2"), run("two", "holds", commit="c2")]
    begun = [said("c3"), run("one", "holds", "fails", commit="c3")]
    text = report([*old, *new, *begun])
    assert text.startswith("These runs are of what the pages ran at commit `c2`. If the book")
    tables, before = text.split("### Before: commit `c1`")
    assert "1 of 1 runs" in tables
    assert "0 of 1 runs" in before
    assert "Claim A." not in before
    assert "c3" not in text
    assert "Claim B. | 0 of 1, 1 failed" in report_of("c3", [*old, *new, *begun], ["one"])


def test_a_run_counts_for_a_later_commit_if_what_its_page_runs_is_the_same():
    old = [said("c1", one="h1", two="h2"), run("one", "holds", "holds"), run("two", "fails")]
    new = [said("c2", one="h1", two="h3"), run("two", "holds", commit="c2")]
    tables, before = report([*old, *new]).split("### Before: commit `c1`")
    assert "1 of 1 runs" in tables
    assert "Claim A. | 1 of 1" in tables
    assert "0 of 1 runs" in before


def test_commits_at_which_all_pages_ran_the_same_are_told_of_once():
    old = [said("c1", one="h1", two="h2"), run("one", "holds", "holds"), run("two", "holds")]
    text = report([*old, said("c2", one="h1", two="h2")])
    assert "at commit `c2`" in text
    assert "Before" not in text


# --- The file ---------------------------------------------------------------------------------


def test_a_line_that_was_cut_off_is_left_out_and_the_next_begins_a_new_one(tmp_path, capsys):
    file = tmp_path / "runs" / "file.jsonl"
    append({"run": 1}, file)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"run": 2})[:5])
    append({"run": 3}, file)
    assert lines_of(file) == [{"run": 1}, {"run": 3}]
    assert "a line was cut off" in capsys.readouterr().err


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Two pages that seem to run; returns the list of those that did."""
    for name, key in (("one", "a"), ("two", "b")):
        cell = f"claim('Claim {key.upper()}.', x > 1, key={key!r})"
        write_page(tmp_path / "book" / f"{name}.md", "x = 2", cell)
    ran = []

    def run(page, *, keys, **_):
        ran.append(page.stem)
        made = [Claim("It is more.", (exact("n", 5) > 1,), key=key) for key in keys]
        return [{MIME_TYPE: claim.as_dict()} for claim in made]

    monkeypatch.setattr(run_notebook, "ROOT", tmp_path)
    monkeypatch.setattr(repeats, "run_notebook", run)
    monkeypatch.setattr(repeats, "where", lambda: "mine")
    monkeypatch.setattr(repeats, "last_change", lambda paths: ("c1", False))
    return ran


CONDITION = {"load": 0, "cores": 1, "devices": 0}


def test_what_has_been_run_is_not_run_again(book, tmp_path):
    file, pages = tmp_path / "file.jsonl", run_notebook.notebooks()
    repeats.main(pages[:1], CONDITION, 1, file)
    assert file.with_suffix(".md").read_text() == "No run is complete yet.\n"
    repeats.main(pages, CONDITION, 2, file)
    assert book == ["one", "two", "one", "two"]
    text = file.with_suffix(".md").read_text()
    assert text == report(lines_of(file))
    assert "| `make evidence REPEATS=2 LOAD=0 CORES=1` |" in text
    assert "| Claim A. | 2 of 2, margin exact |" in text
    repeats.main(pages, CONDITION | {"load": 1}, 1, file)
    assert book == ["one", "two"] * 3


def test_a_run_is_of_the_commit_or_if_that_was_changed_since_of_what_it_is_now(
    book, tmp_path, monkeypatch
):
    assert repeats.state() == "c1"
    monkeypatch.setattr(repeats, "last_change", lambda paths: ("c1", True))
    changed = repeats.state()
    assert re.fullmatch(r"c1\+[0-9a-f]{16}", changed)
    page = tmp_path / "book" / "one.md"
    page.write_text(page.read_text().replace("Some prose", "Other prose"))
    assert repeats.state() == changed
    page.write_text(page.read_text().replace("x = 2", "x = 3"))
    assert repeats.state() != changed


def test_only_the_pages_that_run_something_else_are_run_again(book, tmp_path, monkeypatch):
    file, pages = tmp_path / "file.jsonl", run_notebook.notebooks()
    repeats.repeat(pages, CONDITION, 1, file)
    pages[0].write_text(pages[0].read_text().replace("Some prose", "Other prose"))
    pages[1].write_text(pages[1].read_text().replace("x = 2", "x = 3"))
    monkeypatch.setattr(repeats, "last_change", lambda paths: ("c2", False))
    assert repeats.repeat(pages, CONDITION, 1, file) == "c2"
    assert book == ["one", "two", "two"]


def test_what_is_changed_while_it_runs_is_not_counted(book, tmp_path, monkeypatch):
    file, pages = tmp_path / "file.jsonl", run_notebook.notebooks()
    run, change = repeats.run_notebook, ("Some prose", "Other prose")

    def while_it_is_changed(page, **options):
        page.write_text(page.read_text().replace(*change))
        monkeypatch.setattr(repeats, "last_change", lambda paths: ("c1", True))
        return run(page, **options)

    monkeypatch.setattr(repeats, "run_notebook", while_it_is_changed)
    repeats.repeat(pages[:1], CONDITION, 1, file)
    kept = [line for line in lines_of(file) if "page" in line]
    assert len(kept) == 1
    change = ("x = 2", "x = 3")
    with pytest.raises(ValueError, match="changed meanwhile: start again"):
        repeats.repeat(pages[1:], CONDITION, 1, file)
    assert [line for line in lines_of(file) if "page" in line] == kept


# --- What is published ------------------------------------------------------------------------


def test_the_published_table_says_what_the_published_runs_of_a_commit_show():
    lines = lines_of(repeats.FILE)
    text = repeats.FILE.with_suffix(".md").read_text(encoding="utf-8")
    assert text == report(lines)
    assert re.match(r"These runs are of what the pages ran at commit `[0-9a-f]{7,}`\.", text)
    assert all(re.fullmatch(r"[0-9a-f]{7,}", line["commit"]) for line in lines)
