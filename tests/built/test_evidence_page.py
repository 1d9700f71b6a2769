"""The page with the evidence shows what has been kept of each claim, beside the claims of today."""

import importlib
import json
import re
from types import SimpleNamespace

import pytest
from repeats import COLUMNS, save
from run_notebook import ROOT

from d2lpar import Quantity, exact
from d2lpar._jax.devices import Machine
from d2lpar.book.claims import Claim

GAIN = Quantity("gain", (1.9, 2.0, 2.0, 2.0, 2.0, 2.1))
SMALL = Quantity("gain", (0.9, 1.0, 1.0, 1.0, 1.0, 1.1))
FORK = Claim("It `forks` {g} times.", (GAIN > 1.5, GAIN < 9), key="fork", numbers={"g": GAIN})
COUNT = Claim("It is two.", (exact("n", 2).between(2, 2),), key="count")
COPY = Claim("It copies.", needs="a GPU", key="copy-gpu")
NEW = Claim("It is new.", (GAIN > 1,), key="new")
RAN = dict.fromkeys(COLUMNS, "0") | {"page": "one", "machine": "mine", "cores": "2"}


def side(verdict, margin, tries=1, needs=None):
    told = dict(verdict=verdict, margin=margin, tries=tries, needs=needs, measured=["ratio: 2"])
    return told if margin is None else told | {"ends": [margin - 0.2, margin + 0.1]}


def both(with_it, without, cause):
    return {"with": with_it, "without": without, "takes_away": cause}


UNTESTABLE = side("untestable", None, needs="a GPU")
EVIDENCE = {
    "commit": "abc-dirty",
    "date": "2026-11-24",
    "machine": "mine",
    "claims": {
        "fork": both(side("holds", 0.5), side("fails", -2.0, tries=3), "the other device"),
        "count": both(side("holds", 1.0), side("fails", -1.0), "one of them"),
        "copy-gpu": both(UNTESTABLE, UNTESTABLE, "the copy"),
        "gone": both(side("holds", 1.0), side("fails", -1.0), "it"),
    },
    "conditions": {"one core": {"claims": {"fork": "holds"}, "exercises": {}}},
}


def results(name, *claims):
    return SimpleNamespace(name=name, claims={"book/one": claims})


@pytest.fixture
def page(monkeypatch, tmp_path):
    """The extension, and an app of a book of one page; two other machines have recorded claims."""
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    runs, tables = map(importlib.import_module, ("d2lpar_runs", "d2lpar_tables"))
    copied = Claim("It copies.", (GAIN > 1,), key="copy-gpu")
    known = [
        results("this build", FORK, COUNT, COPY, NEW),
        results(
            "H200, 16 cores",
            Claim("It forks.", (SMALL > 1.2,), key="fork"),
            Claim("It is one.", (exact("m", 1).between(1, 1),), key="count"),
            copied,
        ),
        results("old, 2 cores", Claim("It forks.", (GAIN > 1,))),  # Claims had no keys.
    ]
    monkeypatch.setattr(runs, "machines", lambda app: known)
    monkeypatch.setattr(runs, "IN_SHORT", {"fork": "A `fork`"})
    folder = tmp_path / "book" / "evidence"
    folder.mkdir(parents=True)
    (folder / "causes.json").write_text(json.dumps({"pages": {"one": EVIDENCE}}))
    ran = ["holds 0.3 2", "inconclusive 0.1 2", "holds 0.2 2"]
    kept = [RAN | {"claims": f"fork {said}; count holds 1"} for said in ran]
    save(kept, folder / "repeats.csv")
    env = SimpleNamespace(titles={"book/one": SimpleNamespace(astext=lambda: "Page One")})
    builder = SimpleNamespace(get_relative_uri=lambda page, to: f"{to.removeprefix('book/')}.html")
    app = SimpleNamespace(srcdir=tmp_path, env=env, builder=builder)
    return SimpleNamespace(tables=tables, runs=runs, app=app)


def cells_of(table):
    rows = table.findall(lambda node: node.tagname == "row")
    return [[cell.astext() for cell in row.children] for row in rows]


def links_in(table):
    return [link["refuri"] for link in table.findall(lambda node: node.tagname == "reference")]


def test_each_claim_has_a_row_with_its_number_on_each_machine_that_knows_it(page):
    counts, fold = page.tables.claims_table(page.app, "page", "")
    assert counts.astext() == "Claims: 4 (holds: 3, cannot be tested: 1)."
    assert fold.astext().startswith("Page One (holds: 3, cannot be tested: 1)")
    header, fork, count, copy, new = cells_of(fold)
    assert header == ["Claim", "this build", "H200, 16 cores", "Held in repeated runs"]
    # Of two comparisons, the one that is nearest to failing. On the H200 the bound was another, by
    # which nobody may judge the claim of today.
    assert fork[:3] == ["A fork\n\ngain: >\u00a01.5", "2 \u2713", "1\u2020"]
    assert fork[3] == "2\u00a0of\u00a03, 1 undecided\n\n+10\u00a0% at worst"
    # What was counted on the H200 is not what is counted here: its number would mislead.
    assert count == [
        "It is two.\n\nn: exactly 2",
        "2 \u2713",
        "\u2013\u2021",
        "3\u00a0of\u00a03\n\nexact",
    ]
    assert copy[1:3] == ["not testable", "2 \u2713"]
    assert copy[0] == "It copies.\n\ngain: >\u00a01"
    assert new[1:] == ["2 \u2713", "\u2013", "not run\n\n"]


def test_a_row_leads_to_the_sentence_of_its_claim(page):
    _, table = page.tables.claims_table(page.app, "page", "")
    keys = ("fork", "count", "copy-gpu", "new")
    assert links_in(table) == [f"one.html#claim-{key}" for key in keys]
    for claim in (FORK, COUNT, COPY, NEW):
        assert f' id="{claim.anchor}"' in claim._repr_mimebundle_()["text/html"]


def test_what_was_tested_with_a_cause_and_without_is_drawn_on_a_scale_and_counts_apart(page):
    _, chart, counted = page.tables.causes_chart(page.app, "page", "")
    assert links_in(chart) == ["one.html#claim-fork"]
    drawn = chart.findall(lambda node: node.tagname == "raw")
    (track,) = (node for node in drawn if "d2lpar-track" in node.astext())
    assert 'aria-label="+50 % with its cause, -200 % without it"' in track.astext()
    # Half a bound beyond it, and at the end of the scale.
    assert re.findall(r'sign (\w+)" style="left:([\d.]+)%', track.astext()) == [
        ("fails", "0.0"),
        ("holds", "75.0"),
    ]
    assert re.findall(r'ends (\w+)" style="left:([\d.]+)%;width:([\d.]+)%', track.astext()) == [
        ("fails", "0.0", "0.0"),
        ("holds", "65.0", "15.0"),
    ]
    assert counted.astext().startswith("1 claims are about a count")
    assert links_in(counted) == ["one.html#claim-count"]


def test_each_claim_has_a_row_with_what_was_measured_without_its_cause(page):
    where, table = page.tables.causes_table(page.app, "page", "")
    assert where.astext() == "Tested on mine."
    header, title, fork, _, copy, new = cells_of(table)
    assert title == ["Page One (2026-11-24, at commit abc with changes that are not committed)"]
    assert header == ["Claim", "With its cause", "What is taken away", "Without it"]
    assert fork[:3] == ["A fork", "holds\n\nratio: 2", "the other device"]
    assert fork[3].startswith("does not hold (when tried 3 times)")
    assert copy[1].startswith("cannot be tested: needs a GPU")
    assert new[1:] == ["not tested yet", "", "not tested yet"]


def test_whole_pages_are_shown_with_what_they_ran_on(page):
    (table,) = page.tables.conditions_table(page.app, "page", "")
    assert cells_of(table)[1:] == [["Page One", "one core", "holds: 1", ""]]


def test_repeated_pages_are_counted_for_each_machine_and_condition(page):
    machine, table = page.tables.repeats_table(page.app, "page", "")
    assert machine.astext() == "On mine:"
    assert cells_of(table)[1][0] == "2 cores, quiet"
    assert cells_of(table)[1][-2:] == ["2 of 3; one: 2 of 3", "67\u00a0%"]


@pytest.mark.parametrize(
    ("processor", "devices", "name"),
    [
        ("Intel(R) Xeon(R) Processor", "1 x cpu, 1 x NVIDIA H200", "H200, 2 cores"),
        ("Intel(R) Xeon(R) Processor", "1 x cpu", "Xeon, 2 cores"),
        ("AMD EPYC", "2 x cpu", "EPYC, 2 cores"),
        ("Apple M2", "1 x cpu", "Apple M2, 2 cores"),
    ],
)
def test_a_machine_has_a_name_that_fits_the_head_of_a_column(page, processor, devices, name):
    machine = Machine(processor, 2, 8, "Linux", devices)
    assert page.runs.name_of(SimpleNamespace(machine=machine)) == name
