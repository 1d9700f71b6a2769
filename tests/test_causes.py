"""`make evidence`: what it runs, what it keeps, and what it calls wrong."""

import causes
import pytest
from counterfactuals import about_gpus, cause_of
from run_notebook import claims_of, notebooks

from d2lpar import counted
from d2lpar.book import claims, exercises
from d2lpar.book.claims import Claim

PAGE = next(page for page in notebooks() if page.stem == "measuring-asynchronous-code")
SOLUTIONS = next(page for page in notebooks() if page.parent.name == "solutions")
HOLDS, FAILS = counted("count", 1) > 0, counted("count", 0) > 0


class Machine:
    """Stands in for a machine that runs notebooks: says what each claim comes out as."""

    def __init__(self):
        self.runs, self.stop_after = [], None
        self.with_it, self.without = lambda key: HOLDS, lambda key: FAILS
        self.accepted = "accepted"

    def run_notebook(self, page, intervention=None, *, keys=None, environment=None, **options):
        if self.stop_after == len(self.runs):
            raise KeyboardInterrupt
        self.runs.append((page, intervention, keys))
        verdict_of = self.without if intervention else self.with_it
        made = [Claim(f"{key}.", (verdict_of(key),), key=key) for key in keys or claims_of(page)]
        report = {"exercise": "X1", "verdict": self.accepted}
        return [{claims.MIME_TYPE: claim.as_dict()} for claim in made] + [
            {exercises.MIME_TYPE: report}
        ]


@pytest.fixture
def machine(monkeypatch):
    stand_in = Machine()
    monkeypatch.setattr(causes, "run_notebook", stand_in.run_notebook)
    monkeypatch.setattr(causes, "where", lambda: "a machine")
    return stand_in


@pytest.fixture
def gather(tmp_path):
    """A function that gathers evidence for a page and returns what is wrong with it."""

    def gather(page=PAGE, **options):
        file = tmp_path / "causes.json"
        return causes.gather([page], [page], file, say=lambda *_, **__: None, **options)

    gather.file = tmp_path / "causes.json"
    return gather


def test_the_evidence_of_the_book_is_there_and_not_older_than_what_it_vouches_for():
    evidence, book = causes.load(causes.FILE), notebooks()
    wrong = causes.complaints(evidence, book) + causes.left_over(evidence, book)
    assert wrong == [], "run `make evidence`"


@pytest.mark.parametrize("page", notebooks(), ids=lambda page: page.parent.name + "/" + page.stem)
def test_every_claim_has_a_cause_and_its_intervention_fits_the_page(page):
    for side in causes.parts_of(page):
        assert causes.hashes(page, side)


def test_claims_that_hold_with_their_cause_and_fail_without_are_as_they_should_be(machine, gather):
    assert gather() == []
    kept = causes.load(gather.file)
    assert kept["claims"].keys() == cause_of(PAGE).keys()
    assert all(sides["without"]["verdict"] == "fails" for sides in kept["claims"].values())


@pytest.mark.parametrize("side", ["with", "without"])
def test_a_claim_that_survives_or_does_not_hold_is_wrong(machine, gather, side):
    odd = list(cause_of(PAGE))[3]
    machine.with_it = lambda key: FAILS if (key, side) == (odd, "with") else HOLDS
    machine.without = lambda key: HOLDS if (key, side) == (odd, "without") else FAILS
    found = gather()
    assert any(complaint.startswith(f"{odd}, {causes.SIDES[side]}: ") for complaint in found)
    assert all(odd in complaint for complaint in found)


def test_a_solution_that_is_not_accepted_on_one_core_is_wrong(machine, gather):
    machine.accepted = "not yet"
    (found,) = gather(SOLUTIONS)
    assert "not every solution is accepted" in found


def test_what_is_not_too_old_is_not_run_again_unless_forced(machine, gather):
    gather()
    once = len(machine.runs)
    gather()
    assert len(machine.runs) == once
    gather(force=True)
    assert len(machine.runs) == 2 * once


def test_interrupted_it_keeps_what_was_finished_and_goes_on_from_there(machine, gather):
    gather()
    all_of_it = list(machine.runs)
    gather.file.unlink()
    machine.runs.clear()
    machine.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        gather()
    machine.stop_after = None
    assert gather() == []
    assert machine.runs == all_of_it


def test_only_claims_whose_code_has_changed_are_tested_again(machine, gather, monkeypatch):
    gather()
    machine.runs.clear()
    odd = list(cause_of(PAGE))[1]
    hashes = causes.hashes
    monkeypatch.setattr(
        causes,
        "hashes",
        lambda page, side, package=None: (
            hashes(page, side, package) | ({odd: "new"} if side in causes.SIDES else {})
        ),
    )
    assert gather() == []
    assert [list(keys) for _, _, keys in machine.runs] == [[odd], [odd]]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99, "claims": {}, "pages": {}}'])
def test_a_file_that_holds_no_evidence_is_an_error_and_is_made_anew(machine, gather, text):
    gather.file.write_text(text, encoding="utf-8")
    with pytest.raises(causes.EvidenceError, match="holds no evidence that can be read"):
        causes.load(gather.file)
    assert gather() == []


def test_what_was_tried_again_until_it_came_out_right_says_so(machine, gather):
    odd = next(iter(cause_of(PAGE)))
    machine.with_it = lambda key: FAILS if key == odd else HOLDS
    gather()
    machine.with_it = lambda key: HOLDS
    gather()
    kept = causes.load(gather.file)["claims"]
    assert (kept[odd]["with"]["tries"], kept[odd]["without"]["tries"]) == (2, 1)


def test_claims_about_gpus_are_those_whose_key_says_so():
    found = [key for page in notebooks() for key in claims_of(page) if about_gpus(key)]
    assert 0 < len(found) < 6


@pytest.mark.parametrize(
    ("predicate", "clearance"),
    [
        (counted("x", 4) > 2, 1),
        (counted("x", 1) > 2, -0.5),
        (counted("x", 1) < 2, 0.5),
        (counted("x", 3).between(2, 6), 0.5),
        (counted("x", 7).between(2, 6), -0.5),
        (counted("x", 3).between(3, 3), 1),
    ],
)
def test_the_clearance_is_the_distance_from_the_bound_in_its_own_units(predicate, clearance):
    assert causes.clearance(predicate) == clearance
