"""The page on soundness shows what evidence has been kept, beside the claims as they stand."""

import importlib
import json
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
from drawings import style_of_the_book
from run_notebook import ROOT

from d2lpar.book.claims import Claim


@pytest.fixture
def page(monkeypatch, tmp_path):
    """The extension, and an app whose book claims three sentences and has evidence for two."""
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    runs, tables, charts = map(
        importlib.import_module, ("d2lpar_runs", "d2lpar_tables", "d2lpar_charts")
    )

    def side(verdict, margin, tries=1, needs=None):
        measured = ["ratio: 2"]
        return dict(verdict=verdict, margin=margin, tries=tries, needs=needs, measured=measured)

    untestable = side("untestable", None, needs="a GPU")
    one = {
        "commit": "abc-dirty",
        "date": "2026-11-24",
        "machine": "mine",
        "claims": {
            "fork": {
                "with": side("holds", 0.5),
                "without": side("fails", -2.0, tries=3),
                "takes_away": "the other device",
            },
            "copy-gpu": {"with": untestable, "without": untestable, "takes_away": "the copy"},
            "gone": {"with": side("holds", 1.0), "without": side("fails", -1.0)},
        },
        "conditions": {"one core": {"claims": {"fork": "holds"}, "exercises": {}}},
    }
    evidence = {"pages": {"one": one}}
    sentences = {"fork": "It `forks`, in new words.", "copy-gpu": "It copies.", "new": "It is new."}
    claims = tuple(Claim(text, needs="a look", key=key) for key, text in sentences.items())
    monkeypatch.setattr(
        runs, "this_build", lambda app: SimpleNamespace(claims={"book/one": claims})
    )
    titles = {"book/one": SimpleNamespace(astext=lambda: "Page One")}
    app = SimpleNamespace(srcdir=tmp_path, env=SimpleNamespace(titles=titles))
    file = tmp_path / "book" / "evidence" / "causes.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(evidence), encoding="utf-8")
    return SimpleNamespace(tables=tables, charts=charts, app=app)


def cells_of(table):
    rows = table.findall(lambda node: node.tagname == "row")
    return [[cell.astext() for cell in row.children] for row in rows]


def test_each_claim_of_the_book_has_a_row_with_its_present_sentence_and_its_evidence(page):
    where, table = page.tables.causes_table(page.app, "page", "")
    assert where.astext() == (
        "Tested on mine: 2026-11-24 at commit abc with changes that are not committed."
    )
    header, fork, copy, new = cells_of(table)
    assert header == ["Claim", "With its cause", "What is taken away", "Without it"]
    assert fork[0] == "It forks, in new words.\n\nfork"
    assert fork[1:3] == ["holds\n\nratio: 2", "the other device"]
    assert fork[3].startswith("does not hold (when tried 3 times)")
    assert copy[1].startswith("cannot be tested: needs a GPU")
    assert new[1:] == ["not tested yet", "", "not tested yet"]


def test_whole_pages_are_shown_with_what_they_ran_on(page):
    (table,) = page.tables.conditions_table(page.app, "page", "")
    assert cells_of(table)[1:] == [["Page One", "one core", "holds: 1", ""]]


def test_what_was_tested_with_a_cause_and_without_is_drawn(page, monkeypatch):
    monkeypatch.setattr(page.charts, "figure", lambda *_: None)
    with style_of_the_book():
        page.charts.causes_chart(page.app, "page", "")
        axes = plt.gca()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fork"]
    points = {line.get_marker(): line.get_xdata() for line in axes.lines}
    assert (points["o"], points["D"]) == ([0.5], [-2])  # Filled with its cause, hollow without.
