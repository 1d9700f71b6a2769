"""`make evidence`: its runs, its file, and its defects.

No notebook runs here: a fake takes the place of `run_notebook`. The last part checks the causes and
the evidence that are committed.
"""

import os
from collections import Counter

import causes
import check_claims
import counterfactuals
import pytest
import run_notebook
from nbclient.exceptions import CellTimeoutError
from pages import notebook_showing, write_page
from run_notebook import BARRIERS, SYNCHRONOUS, Intervention, claims_of, name_of, notebooks

from d2lpar import Quantity, once
from d2lpar.book import claims, exercises
from d2lpar.book.claims import Claim

AS_IT_IS, ONE_CORE = "as it is", "one core as eight devices"
PAGES = {"one": ["early", "of-x", "of-y", "late"], "solutions/one": ["x1-gpu", "x2"]}
CAUSES = {
    "early": SYNCHRONOUS,
    "of-x": Intervention("two", {"x = 2": "x = 0"}),
    "of-y": Intervention("three", {"y = 3": "y = 0"}),
    "late": SYNCHRONOUS,
    "x1-gpu": BARRIERS,
    "x2": SYNCHRONOUS,
}
ALL_RUNS = [
    ("one", AS_IT_IS),
    ("one", "asynchronous dispatch"),
    ("one", "two"),
    ("one", "three"),
    ("one", ONE_CORE),
    ("solutions/one", AS_IT_IS),
    ("solutions/one", "going on without a barrier behind each call"),
    ("solutions/one", "asynchronous dispatch"),
    ("solutions/one", ONE_CORE),
]


class Book:
    """A book of two pages, whose claims hold with their cause and fail without."""

    def __init__(self, folder):
        self.file = folder / "causes.json"
        self.ran = []
        self.odd = {}  # Verdicts, by run and key, of one try after the other.
        self.refused = {}  # Exercises that are not accepted.
        self.errors = {}  # What a run raises, by its number.
        self.folder = folder / "book"
        for name, keys in PAGES.items():
            cells = [f"claim('A claim.', x > 1, {key=})" for key in keys]
            write_page(self.folder / f"{name}.md", "x = 2", "y = 3", *cells)

    def run(self, page, intervention=None, *, devices=0, allow_errors=False, **_):
        name = name_of(page)
        label = intervention.takes_away if intervention else ONE_CORE if devices else AS_IT_IS
        if error := self.errors.pop(len(self.ran), None):
            raise error
        self.ran.append((name, label))
        self.condition = devices, len(os.sched_getaffinity(0))
        assert allow_errors == bool(intervention)
        outputs = []
        for key in claims_of(page):
            verdicts = self.odd.get((label, key)) or ["fails" if intervention else "holds"]
            outputs.append((claims.MIME_TYPE, claim_with(key, verdicts.pop(0))))
        if name.startswith("solutions/"):
            report = {"exercise": "X1", "verdict": "accepted"} | self.refused
            outputs.append((exercises.MIME_TYPE, report))
        return notebook_showing(*outputs)

    def gather(self, *names):
        self.ran = []
        pages = [page for page in notebooks() if not names or name_of(page) in names]
        return causes.gather(pages, self.file)

    @property
    def pages(self):
        return causes.load(self.file)["pages"]


def claim_with(key, verdict):
    """Return a claim with a verdict, as a notebook shows it."""
    if verdict == "untestable":
        return Claim("A claim.", needs="a GPU", key=key).as_dict()
    samples = {"holds": [2] * 9, "fails": [0] * 9, "inconclusive": [0, 2] * 5}
    ratio = once("ratio", 2) if verdict == "seen" else Quantity("ratio", samples[verdict])
    return Claim("A claim.", (ratio > 1,), key=key).as_dict()


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A book whose pages only seem to run."""
    book = Book(tmp_path)
    monkeypatch.setattr(run_notebook, "ROOT", tmp_path)
    monkeypatch.setattr(counterfactuals, "CAUSES", CAUSES)
    monkeypatch.setattr(causes, "run_notebook", book.run)
    monkeypatch.setattr(causes, "where", lambda: "this machine")
    monkeypatch.setattr(causes, "commit", lambda *paths: "c1")
    return book


def test_each_page_runs_as_it_is_and_without_its_causes_and_on_one_core(book, capsys):
    cores = len(os.sched_getaffinity(0))
    assert book.gather() == []
    assert book.ran == ALL_RUNS
    assert book.condition == (8, 1)
    assert len(os.sched_getaffinity(0)) == cores
    page = book.pages["one"]
    assert (page["commit"], page["machine"]) == ("c1", "this machine")
    early = page["claims"]["early"]
    assert early["takes_away"] == "asynchronous dispatch"
    assert [early[side]["verdict"] for side in ("with", "without")] == ["holds", "fails"]
    assert "ratio: 2" in early["with"]["measured"][0]
    assert book.pages["solutions/one"]["conditions"][ONE_CORE] == {
        "claims": {"x1-gpu": "holds", "x2": "holds"},
        "exercises": {"X1": "accepted"},
        "tries": 1,
    }
    printed = capsys.readouterr().out
    assert printed.startswith("page 1 of 2, one\n  with each cause: holds: 4 (0 s)\n")
    assert "  without asynchronous dispatch: fails: 2 (0 s)\n" in printed


def test_pages_are_kept_as_they_finish_and_an_interruption_leaves_what_was_there(
    book, monkeypatch, capsys
):
    book.gather()
    before = book.pages
    book.errors = {6: KeyboardInterrupt()}
    monkeypatch.setattr(causes, "commit", lambda *paths: "c2")
    with pytest.raises(KeyboardInterrupt):
        book.gather()
    assert book.ran == ALL_RUNS[:6]
    assert book.pages["one"]["commit"] == "c2"
    assert book.pages["solutions/one"] == before["solutions/one"]
    assert 'The rest: make evidence PAGES="solutions/one"\n' in capsys.readouterr().out


def test_only_the_pages_that_are_named_run_and_what_is_no_page_any_more_is_dropped(book):
    book.gather("one")
    assert book.ran == ALL_RUNS[:5]
    (book.folder / "one.md").unlink()
    assert book.gather() == []
    assert list(book.pages) == ["solutions/one"]


def test_a_page_whose_run_breaks_off_is_named_and_the_others_are_kept(book):
    book.errors = {1: CellTimeoutError("too\nlate")}
    assert book.gather() == ["one broke off, and its old evidence stays: too late"]
    assert book.ran == [ALL_RUNS[0], *ALL_RUNS[5:]]
    assert list(book.pages) == ["solutions/one"]


def test_a_claim_that_a_run_never_reached_is_named_with_the_error(book, monkeypatch):
    error = {"output_type": "error", "ename": "IndexError", "evalue": "out of range"}
    monkeypatch.setattr(causes, "run_notebook", lambda *_, **__: {"cells": [{"outputs": [error]}]})
    (wrong,) = book.gather("solutions/one")
    assert wrong.endswith("never reached x1-gpu, x2 (IndexError: out of range)")


@pytest.mark.parametrize("verdict", ["holds", "inconclusive", "untestable"])
def test_a_claim_that_survives_without_its_cause_is_tried_three_times_and_named(book, verdict):
    book.odd = {("asynchronous dispatch", "early"): [verdict] * 4}
    (wrong,) = book.gather("one")
    assert wrong.startswith("early, without its cause: ")
    assert ("could not be tested: needs a GPU" if verdict == "untestable" else verdict) in wrong
    assert Counter(book.ran) == Counter([*ALL_RUNS[:5], *ALL_RUNS[1:2] * 2])
    assert book.pages["one"]["claims"]["early"]["without"]["tries"] == 3
    assert book.pages["one"]["claims"]["late"]["without"]["tries"] == 1


def test_a_claim_that_is_decided_in_another_try_says_so_and_one_seen_once_needs_none(book):
    book.odd = {(AS_IT_IS, "of-x"): ["inconclusive"], ("three", "of-y"): ["inconclusive"]}
    book.odd[AS_IT_IS, "early"] = ["seen"]
    assert book.gather("one") == []
    assert Counter(book.ran) == Counter([*ALL_RUNS[:5], ("one", AS_IT_IS), ("one", "three")])
    results = book.pages["one"]["claims"]
    assert [results[key]["with"]["tries"] for key in ("of-x", "of-y", "early")] == [2, 1, 1]
    assert [results[key]["without"]["tries"] for key in ("of-x", "of-y")] == [1, 2]


def test_what_needs_a_gpu_may_be_untestable_and_is_then_not_run_without_its_cause(book):
    book.odd = {(AS_IT_IS, "x1-gpu"): ["untestable"]}
    assert book.gather("solutions/one") == []
    assert book.ran == [ALL_RUNS[5], *ALL_RUNS[7:]]
    without = book.pages["solutions/one"]["claims"]["x1-gpu"]["without"]
    assert (without["verdict"], without["needs"]) == ("untestable", "a GPU")


def test_on_one_core_no_claim_may_fail_and_no_solution_be_refused(book):
    book.odd = {(ONE_CORE, "late"): ["fails"] * 3, (ONE_CORE, "early"): ["inconclusive"] * 3}
    book.refused = {"verdict": "not yet"}
    assert book.gather() == [
        f"one, on {ONE_CORE}: does not hold: late",
        f"solutions/one, on {ONE_CORE}: not every solution is accepted: {{'X1': 'not yet'}}",
    ]
    assert book.pages["one"]["conditions"][ONE_CORE]["tries"] == 3


def test_a_claim_without_a_result_a_result_without_its_claim_and_another_cause_are_named(
    book, monkeypatch
):
    book.gather()
    evidence = causes.load(book.file)
    tested = evidence["pages"]["solutions/one"]["claims"]
    tested["gone"] = tested.pop("x1-gpu")
    monkeypatch.setattr(counterfactuals, "CAUSES", CAUSES | {"x2": BARRIERS})
    barrier = "going on without a barrier behind each call"
    assert list(causes.complaints(evidence, book.folder / "solutions" / "one.md")) == [
        "x1-gpu has not been tested",
        f"x2 has been tested without asynchronous dispatch, and not without {barrier}",
        "gone has been tested, but solutions/one has no such claim",
    ]


@pytest.mark.parametrize(
    ("condition", "verdicts", "wrong"),
    [
        ("one CPU device", "uhh", "less than half"),
        ("one CPU device", "uuf", "does not hold: c-gpu"),
        ("CPU devices in place of GPUs", "uhf", ""),
        ("CPU devices in place of GPUs", "hhu", "did not run: c-gpu"),
    ],
)
def test_without_devices_claims_say_so_and_with_others_in_their_place_they_run(
    condition, verdicts, wrong
):
    words = {"u": "untestable", "h": "holds", "f": "fails"}
    record = {"claims": {k: words[v] for k, v in zip(["a", "b", "c-gpu"], verdicts, strict=False)}}
    by_name = {condition.name: condition for condition in causes.CONDITIONS}
    defect = by_name[condition].wrong("automatic-parallelism", record)
    assert defect.startswith(wrong) if wrong else not defect


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (None, r"has claims without a cause in CAUSES of .*: x2"),
        (Intervention("", {"z": ""}), r"one\.md, x2: 'z' does not stand in the notebook"),
    ],
)
def test_causes_that_do_not_fit_their_page_are_refused_before_a_run(
    book, monkeypatch, cause, words
):
    monkeypatch.setattr(counterfactuals, "CAUSES", CAUSES | {"x2": cause})
    with pytest.raises(ValueError, match=words):
        book.gather()
    assert book.ran == []


def test_a_page_is_named_as_the_book_names_it_or_by_its_path():
    page = run_notebook.ROOT / "book" / "solutions" / "automatic-parallelism.md"
    names = ["solutions/automatic-parallelism", "book/solutions/automatic-parallelism.md"]
    assert check_claims.arguments(names).pages == [page, page]


def test_a_load_without_repeats_is_refused_because_it_would_have_no_effect(capsys):
    with pytest.raises(SystemExit):
        check_claims.arguments(["--load", "2"])
    assert "--load, --cores and --devices need --repeats" in capsys.readouterr().err


def test_a_defect_ends_the_command_with_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["check_claims.py"])
    monkeypatch.setattr(causes, "gather", lambda pages: ["early, without its cause: holds"])
    with pytest.raises(SystemExit, match="has defects:\nearly, without its cause: holds"):
        check_claims.main()


def test_every_claim_of_the_book_has_a_cause_and_a_key_of_its_own_and_no_other_has():
    keys = [key for page in notebooks() for key in claims_of(page)]
    assert len(set(keys)) == len(keys)
    assert set(counterfactuals.CAUSES) == set(keys)


def test_every_claim_has_a_result_that_shows_no_defect_and_no_page_is_left_over():
    evidence, pages = causes.load(causes.FILE), set(map(name_of, notebooks()))
    wrong = [each for page in notebooks() for each in causes.complaints(evidence, page)]
    wrong += sorted(evidence["pages"].keys() - pages)
    first = "\n".join(wrong[:12])
    assert not wrong, f"{len(wrong)} times evidence is missing: run `make evidence`\n{first}"
