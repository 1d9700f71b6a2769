"""`make evidence REPEATS=`: its runs, and the counts of its report."""

import pytest
import repeats
import run_notebook
from pages import notebook_showing, write_page
from repeats import claims_in, in_short, load, report, worst
from run_notebook import notebooks

from d2lpar import exact
from d2lpar.book.claims import MIME_TYPE, Claim


@pytest.mark.parametrize(
    ("runs", "at_worst"),
    [
        ([[0.5], [0.6], [0.9], [0.4]], "+40% at worst"),
        ([[4.0, 0.1], [4.1, 0.3], [3.9, 0.2]], "+10% at worst"),  # The worst of two comparisons.
        ([[4.0, 1.0], [4.0, 1.0]], "exact"),
        ([[120.0], [106.6]], "over +1000%"),
        ([[0.02], [0.02 + 1e-9]], "+2% at worst"),
        ([[-float("inf")], [1.0]], "too few samples"),
    ],
)
def test_how_far_a_claim_is_from_failing_at_worst(runs, at_worst):
    assert worst(runs) == at_worst


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


BOOK = {"one": ["a", "b"], "two": ["c"]}


def run(page, *verdicts, **other):
    """Return a run of a page whose claims have these verdicts."""
    claims = "; ".join(f"{k} {v}" for k, v in zip(BOOK[page], verdicts, strict=True))
    here = {"load": "2", "cores": "2", "devices": "0", "machine": "mine", "date": "2026-11-21"}
    return here | {"commit": "c1", "page": page, "claims": claims} | other


def test_the_rates_of_pages_are_multiplied_where_each_has_run_five_times(monkeypatch):
    runs = [
        run("one", "holds", "untestable"),
        run("two", "holds"),
        run("one", "holds", "holds"),
        run("two", "inconclusive"),
        run("one", "fails", "holds"),
        run("one", "holds", "seen", date="2026-11-23"),
    ]
    in_all = "  Runs in which all held: 4 of 6; one: 3 of 4; two: 1 of 2"
    assert report(runs, BOOK).splitlines()[:5] == [
        "mine, 2 cores beside 2 busy programs",
        "  Days: 2026-11-21 to 2026-11-23",
        "  Commits: `c1`",
        "  Runs of a page: 2 to 4",
        in_all,
    ]
    assert "1 of 1; without 1 page that did not run" in report(runs[:1], BOOK)
    monkeypatch.setattr(repeats, "ENOUGH", 2)
    assert f"{in_all}; all pages together: 38%\n" in report(runs, BOOK)


def test_each_claim_has_a_line_for_each_condition_with_the_runs_of_the_last_commit():
    idle = [run("one", f"{v} 1", "untestable", load="0", devices="8") for v in ("holds", "seen")]
    busy = [run("one", f"{v} 1", "holds 2") for v in ("holds", "inconclusive", "fails")]
    earlier = run("one", "fails 1", "fails 1", commit="c0")
    lines = report([earlier, *idle, *busy], ["one"]).splitlines()
    assert [line for line in lines if line.startswith(("mine", "  a", "  b"))] == [
        "mine, 2 cores beside 2 busy programs",
        "  a: 1 of 3, 1 undecided, 1 failed, exact",
        "  b: 3 of 3, exact",
        "mine, 2 cores as 8 devices, quiet",
        "  a: 2 of 2, exact",
        "  b: not testable",
    ]


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
    assert "  one: 2 of 2, exact" in text
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
    assert "  one: 1 of 1" in capsys.readouterr().out
