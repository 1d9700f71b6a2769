"""`make evidence REPEATS=`: runs, the counts of the report, and the published runs."""

import re
import statistics

import pytest
import repeats
import run_notebook
from pages import notebook_showing, write_page
from repeats import SIGMA, claims_in, in_short, load, report, save, sigmas, worst
from run_notebook import notebooks

from d2lpar import exact
from d2lpar.book.claims import MIME_TYPE, Claim

# --- How far from failing ---------------------------------------------------------------------

SPREAD = 0.55 / statistics.pstdev([0.5, 0.6, 0.9, 0.4])


@pytest.mark.parametrize(
    ("runs", "at_worst", "deviations"),
    [
        ([[0.5], [0.6], [0.9], [0.4]], "+40 % at worst", f"{SPREAD:.1f} {SIGMA}"),
        # The least sure of two comparisons.
        ([[4.0, 0.1], [4.1, 0.3], [3.9, 0.2]], "+10 % at worst", f"2.4 {SIGMA}"),
        ([[-1.0], [-0.254]], "-100 % at worst", f"-1.7 {SIGMA}"),
        ([[-1.0], [-1.0]], "exact", f"-inf {SIGMA}"),
        ([[4.0, 1.0], [4.0, 1.0]], "exact", "exact"),
        ([[120.0], [106.6]], "over +1000 %", f"16.9 {SIGMA}"),
        ([[0.02], [0.02 + 1e-9]], "+2 % at worst", f"over 100 {SIGMA}"),
        ([[-float("inf")], [1.0]], "too few samples", "too few samples"),
    ],
)
def test_how_far_a_claim_is_from_failing_at_worst_and_in_standard_deviations_between_runs(
    runs, at_worst, deviations
):
    assert (worst(runs), sigmas(runs)) == (at_worst, deviations)


def test_a_claim_is_kept_as_its_verdict_and_its_margins_in_units_of_the_bound():
    five, none = exact("n", 5), exact("n", 0)
    claims = [
        Claim("Both.", (five > 2, none < 4), key="a"),
        Claim("One.", (none > 2,), key="b"),
        Claim("Elsewhere.", needs="a GPU", key="c"),
    ]
    text = "; ".join(map(in_short, claims))
    assert text == "a holds 1.5 1; b fails -1; c untestable"
    kept = {"a": ("holds", [1.5, 1]), "b": ("fails", [-1]), "c": ("untestable", [])}
    assert claims_in({"claims": text}) == kept


# --- The report -------------------------------------------------------------------------------

BOOK = {"one": ["a", "b"], "two": ["c"]}


def run(page, *verdicts, **other):
    """Return a run of a page whose claims have these verdicts."""
    claims = "; ".join(f"{k} {v}" for k, v in zip(BOOK[page], verdicts, strict=True))
    here = {"load": "2", "cores": "2", "devices": "0", "machine": "mine", "date": "2026-11-21"}
    return here | {"commit": "c1", "page": page, "claims": claims} | other


def test_the_rates_of_pages_are_multiplied_as_they_were_never_one_build():
    runs = [
        run("one", "holds", "untestable"),
        run("two", "holds"),
        run("one", "holds", "holds"),
        run("two", "inconclusive"),
        run("one", "fails", "holds"),
        run("one", "holds", "seen", date="2026-11-23"),
    ]
    total = "2026-11-21 to 2026-11-23 | `c1` | 2 to 4 | 4 of 6; one: 3 of 4; two: 1 of 2 | 38 % |"
    assert f"| 2 cores beside 2 busy programs | {total}" in report(runs, BOOK)
    assert report(runs[::-1], BOOK) == report(runs, BOOK)
    few = "| 1 of 1 | too few runs, without 1 page that did not run |"
    assert few in report(runs[:1], BOOK)
    assert report([], BOOK) == "No page has been repeated yet.\n"


def test_each_machine_has_tables_with_a_column_for_each_condition():
    busy = [
        run("one", "holds 1", "untestable"),
        run("one", "inconclusive 1", "holds 2"),
        run("one", "fails 1", "untestable"),
    ]
    idle = [run("one", f"{v} 1", "untestable", load="0", devices="8") for v in ("holds", "seen")]
    text = report([*idle, *busy, run("one", "holds", "holds", machine="another")], ["one"])
    assert re.findall(r"^### (.*)", text, re.MULTILINE) == ["another", "mine"]
    assert "| Claim | 2 cores as 8 devices, quiet | 2 cores beside 2 busy programs |" in text
    assert "| `a` | 2 of 2, exact | 1 of 3, 1 undecided, 1 failed, exact |" in text
    assert "| `b` | not testable | 1 of 1 |" in text


def test_for_each_page_the_runs_of_the_commit_count_that_ran_last_and_the_report_names_it():
    old = [run("one", "fails", "holds"), run("two", "holds")]
    text = report([*old, run("one", "holds", "holds", commit="c2")], BOOK)
    assert "| `c1`, `c2` | 1 | 2 of 2 | too few runs |" in text
    assert "| `a` | 1 of 1 |" in text


# --- Running and keeping ----------------------------------------------------------------------


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Two pages that seem to run; returns the list of those that did."""
    for name in ("one", "two"):
        write_page(tmp_path / "book" / f"{name}.md", "claim('A claim.', x > 1, key='a')")
    ran = []

    def run(page, **_):
        ran.append(page.stem)
        claim = Claim("It is more.", (exact("n", 5) > 1,), key=page.stem)
        return notebook_showing((MIME_TYPE, claim.as_dict()))

    monkeypatch.setattr(run_notebook, "ROOT", tmp_path)
    monkeypatch.setattr(repeats, "run_notebook", run)
    monkeypatch.setattr(repeats, "where", lambda: "mine")
    monkeypatch.setattr(repeats, "commit", lambda *paths: "c1")
    return ran


CONDITION = {"load": 0, "cores": 1, "devices": 0}


def test_pages_run_until_there_are_enough_runs_of_this_commit(book, tmp_path, monkeypatch, capsys):
    file, pages = tmp_path / "evidence" / "repeats.csv", notebooks()
    repeats.main(pages[:1], CONDITION, 1, file)
    repeats.main(pages, CONDITION, 2, file)
    assert book == ["one", "two", "one", "two"]
    text = report(load(file), ["one", "two"])
    assert text in capsys.readouterr().out
    assert "| `one` | 2 of 2, exact |" in text
    repeats.main(pages, CONDITION | {"load": 1}, 1, file)
    monkeypatch.setattr(repeats, "commit", lambda *paths: "c2")
    repeats.main(pages, CONDITION, 1, file)
    assert book == ["one", "two"] * 4


def test_uncommitted_changes_are_run_and_shown_and_not_kept(book, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(repeats, "commit", lambda *paths: "c1-dirty")
    file = tmp_path / "repeats.csv"
    for _ in range(2):
        repeats.main(notebooks()[:1], CONDITION, 1, file)
    assert book == ["one", "one"]
    assert load(file) == []
    assert "| `c1-dirty` | 1 | 1 of 1 | too few runs |" in capsys.readouterr().out


def test_the_published_runs_name_their_commits_and_are_written_as_they_are_read(tmp_path):
    rows = load(repeats.FILE)
    assert all(re.fullmatch(r"[0-9a-f]{7,}", row["commit"]) for row in rows)
    save(rows, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == repeats.FILE.read_bytes()
