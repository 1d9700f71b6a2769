"""The page with the evidence shows what has been kept of each claim, beside the claims of today."""

import json
from types import SimpleNamespace

import d2lpar_runs as runs
import d2lpar_tables as tables
import pytest
from docutils import nodes
from repeats import COLUMNS, save

from d2lpar import Quantity, exact
from d2lpar._jax.devices import Machine
from d2lpar.book.claims import Claim

GAIN = Quantity("gain", (1.9, 2.0, 2.0, 2.0, 2.0, 2.1))
SMALL = Quantity("gain", (0.9, 1.0, 1.0, 1.0, 1.0, 1.1))
FORK = Claim("It `forks` {g} times.", (GAIN > 1.5, GAIN < 9), key="fork", numbers={"g": GAIN})
COUNT = Claim("It is two.", (exact("n", 2).between(2, 2),), key="count")
COPY = Claim("It copies.", needs="a GPU", key="copy-gpu")
LEAD = Claim("It leads.", (Quantity("lead", (0.02,) * 6, "s") > 0,), key="lead")
NEW = Claim("It is new.", (GAIN > 1,), key="new")
ELSEWHERE = [
    Claim("It forks.", (SMALL > 1.2,), key="fork"),
    Claim("It is one.", (exact("m", 1).between(1, 1),), key="count"),
    Claim("It copies.", (GAIN > 1,), key="copy-gpu"),
    LEAD,
    NEW,
]


def side(verdict, tries=1):
    measured = ["a: holds", f"ratio: 2: {verdict}"]
    return dict(verdict=verdict, tries=tries, needs=None, measured=measured)


HELD, FAILED = side("holds"), side("fails")
UNTESTABLE = dict(verdict="untestable", tries=1, needs="a GPU", measured=[])
EVIDENCE = {
    "commit": "abc",
    "date": "2026-11-24",
    "machine": "mine",
    "claims": {
        "fork": {"with": HELD, "without": side("fails", tries=3), "takes_away": "the other device"},
        "count": {"with": HELD, "without": FAILED, "takes_away": "one of them"},
        "copy-gpu": {"with": UNTESTABLE, "without": UNTESTABLE, "takes_away": "the copy"},
        "gone": {"with": HELD, "without": FAILED, "takes_away": "it"},
    },
    "conditions": {"one core": {"claims": {"fork": "holds"}, "exercises": {}}},
}


@pytest.fixture
def page(monkeypatch, tmp_path):
    """A function that makes a table for a book of one page, with two recorded machines."""
    known = {
        "this build": (FORK, COUNT, COPY, LEAD, NEW),
        "H200, 16 cores": ELSEWHERE,
        "Xeon, 2 cores": [LEAD],
    }
    machines = [
        SimpleNamespace(name=name, claims={"book/one": made}) for name, made in known.items()
    ]
    monkeypatch.setattr(runs, "machines", lambda app: machines)
    folder = tmp_path / "book" / "evidence"
    folder.mkdir(parents=True)
    (folder / "causes.json").write_text(json.dumps({"pages": {"one": EVIDENCE}}))
    run = dict.fromkeys(COLUMNS, "0") | {"page": "one", "machine": "mine", "cores": "2"}
    forks = ["holds 0.3 2", "inconclusive 0.1 2", "holds 0.2 2"]
    rows = [run | {"claims": f"fork {fork}; count holds 1; lead holds 0.02"} for fork in forks]
    rows[0]["claims"] = rows[0]["claims"].replace("0.02", "0.01")
    save(rows, folder / "repeats.csv")
    env = SimpleNamespace(titles={"book/one": SimpleNamespace(astext=lambda: "Page One")})
    builder = SimpleNamespace(get_relative_uri=lambda page, to: f"{to.removeprefix('book/')}.html")
    app = SimpleNamespace(srcdir=tmp_path, env=env, builder=builder)
    return lambda name: getattr(tables, name)(app, "page", "")


def cells_of(table):
    return [[cell.astext() for cell in row.children] for row in table.findall(nodes.row)]


def test_each_claim_has_a_row_with_its_number_on_each_machine_that_knows_it(page):
    counts, fold = page("claims_table")
    assert counts.astext() == "Claims: 5 (holds: 4, cannot be tested: 1)."
    assert fold.astext().startswith("Page One (holds: 4, cannot be tested: 1)")
    header, fork, count, copy, lead, new = cells_of(fold)
    assert header[:2] == ["Claim", "this build"]
    # The Xeon has a verdict on less than half of the page.
    assert header[2:] == ["H200, 16 cores\n\nverdict on 3 of 5", "Held in repeated runs"]
    # The comparison that is nearest to failing. The H200 had another bound (dagger) or counted
    # something else (double dagger), and today's bound cannot judge its number.
    assert fork[:3] == ["Fork\n\ngain: >\u00a01.5", "2 \u2713", "1\u2020"]
    assert fork[3] == "2\u00a0of\u00a03, 1 undecided\n\n+10% at worst"
    assert count[1:] == ["2 \u2713", "\u2013\u2021", "3\u00a0of\u00a03\n\nexact"]
    assert copy[:3] == ["Copy GPU\n\ngain: >\u00a01", "not testable", "2 \u2713"]
    assert lead[3] == "3\u00a0of\u00a03\n\n10\u00a0ms at worst"  # No percentage of a bound of 0.
    assert new[1:] == ["2 \u2713", "2 \u2713", "not run\n\n"]
    claims = FORK, COUNT, COPY, LEAD, NEW
    links = [link["refuri"] for link in fold.findall(nodes.reference)]
    assert links == [f"one.html#claim-{claim.key}" for claim in claims]
    for claim in claims:
        assert f' id="{claim.anchor}"' in claim._repr_mimebundle_()["text/html"]


def test_each_claim_has_a_row_with_what_was_measured_without_its_cause(page):
    machine, table = page("causes_table")
    assert machine.astext() == "Tested on mine."
    header, title, fork, _, copy, _, new = cells_of(table)
    assert title == ["Page One (2026-11-24, at commit abc)"]
    assert header == ["Claim", "With its cause", "What is taken away", "Without it"]
    assert fork[:3] == ["Fork", "holds\n\nratio: 2: holds\n\na: holds", "the other device"]
    assert fork[3].startswith("does not hold (when tried 3 times)")
    assert copy[1].startswith("cannot be tested: needs a GPU")
    assert new[1:] == ["not tested yet", "", "not tested yet"]


def test_whole_pages_are_shown_with_what_they_ran_on_and_how_often_they_held(page):
    (conditions,) = page("conditions_table")
    assert cells_of(conditions)[1:] == [["Page One", "one core", "holds: 1", ""]]
    machine, repeated = page("repeats_table")
    assert machine.astext() == "On mine:"
    assert cells_of(repeated)[1][0] == "2 cores, quiet"
    assert cells_of(repeated)[1][-1] == "2 of 3; one: 2 of 3"


@pytest.mark.parametrize(
    ("processor", "devices", "name"),
    [
        ("Intel(R) Xeon(R) Processor", "1 x cpu, 1 x NVIDIA H200", "H200, 2 cores"),
        ("Intel(R) Xeon(R) Processor", "1 x cpu", "Xeon, 2 cores"),
        ("AMD EPYC", "2 x cpu", "EPYC, 2 cores"),
        ("Apple M2", "1 x cpu", "Apple M2, 2 cores"),
    ],
)
def test_a_machine_has_a_name_that_fits_the_head_of_a_column(processor, devices, name):
    machine = Machine(processor, 2, 8, "Linux", devices)
    assert runs.name_of(SimpleNamespace(machine=machine)) == name
