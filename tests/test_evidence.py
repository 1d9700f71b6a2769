"""`make evidence`: what it runs and keeps, where it goes on, and what it calls a defect.

No notebook runs here: a function takes the place of what would run it. The last part looks at the
evidence that is committed.
"""

import json
import os

import causes
import check_claims
import counterfactuals
import pytest
import run_notebook
from fingerprint import Package
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from pages import write_page
from run_notebook import BARRIERS, SYNCHRONOUS, Intervention, notebooks

from d2lpar import Quantity
from d2lpar.book import claims, exercises
from d2lpar.book.claims import Claim

ONE_CORE = "one core as eight devices"


def claim(sentence, key, over="x"):
    return f"claim({sentence!r}, {over} > 1, key={key!r})"


CAUSES = {
    "one": {
        "early": SYNCHRONOUS,
        "late": SYNCHRONOUS,
        "alone": Intervention("two", edits={"x = 2": "x = 0"}),
    },
    "solutions/one": {"x1-gpu": BARRIERS, "x2": BARRIERS},
}


class Book:
    """A book of two pages, whose claims hold with their cause and fail without."""

    def __init__(self, folder):
        self.file = folder / "causes.json"
        self.ran, self.said = [], []
        self.odd = {}  # Verdicts that are not as they should be, by side and key.
        self.refused = {}  # Exercises that are not accepted.
        self.before = lambda call: None
        self.folder = folder / "book"
        self.write()

    def write(self, bound=1, sentence="It is early."):
        early, late = claim(sentence, "early"), claim("Late.", "late")
        cells = ["x = 2", early, late, claim("Alone.", "alone")]
        cells[1] = cells[1].replace("> 1", f"> {bound}")
        write_page(self.folder / "one.md", *cells)
        gpu, cpu = claim("On a GPU.", "x1-gpu"), claim("Everywhere.", "x2")
        write_page(self.folder / "solutions" / "one.md", "x = 2", gpu, cpu)

    def run(self, page, intervention=None, *, keys=None, strict, timeout, environment=None):
        side = "with" if intervention is None else "without"
        side = side if keys else ONE_CORE
        self.before(len(self.ran))
        name = run_notebook.name_of(page)
        environment, cores = environment or {}, len(os.sched_getaffinity(0))
        self.ran.append((name, side, tuple(keys or ()), environment, cores))
        verdicts = {
            key: self.odd.get((side, key), "fails" if side == "without" else "holds")
            for key in keys or CAUSES[name]
        }
        outputs = [{claims.MIME_TYPE: made(key, v).as_dict()} for key, v in verdicts.items()]
        if name.startswith("solutions/") and not keys:
            report = {"exercise": "X1", "verdict": "accepted"} | self.refused
            outputs.append({exercises.MIME_TYPE: report})
        return outputs

    def gather(self, *, pages=None, force=False):
        def say(*words, end="\n", **_):
            self.said.append(" ".join(words) + end)

        self.ran, self.said = [], []
        book = run_notebook.notebooks()
        return causes.gather(pages or book, book, self.file, force=force, say=say)

    @property
    def runs(self):
        return [run[:3] for run in self.ran]

    @property
    def evidence(self):
        return json.loads(self.file.read_text(encoding="utf-8"))


def made(key, verdict):
    """Return a claim with a verdict."""
    if verdict == "untestable":
        return Claim("A claim.", needs="a GPU", key=key)
    samples = {"holds": [2] * 9, "fails": [0] * 9, "inconclusive": [0, 2] * 5}[verdict]
    return Claim("A claim.", (Quantity("ratio", samples) > 1,), key=key)


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A book in whose place nothing runs."""
    made = Book(tmp_path)
    monkeypatch.setattr(run_notebook, "ROOT", tmp_path)
    monkeypatch.setattr(counterfactuals, "CAUSES", CAUSES)
    monkeypatch.setattr(causes, "run_notebook", made.run)
    monkeypatch.setattr(causes, "where", lambda: "this machine")
    package = Package(tmp_path / "d2lpar")  # Nothing of it is used, so none of it is read.
    monkeypatch.setattr(causes, "Package", lambda folder: package)
    return made


ALL_RUNS = [
    ("one", "with", ("early", "late", "alone")),
    ("one", "without", ("early", "late")),
    ("one", "without", ("alone",)),
    ("one", ONE_CORE, ()),
    ("solutions/one", "with", ("x1-gpu", "x2")),
    ("solutions/one", "without", ("x1-gpu", "x2")),
    ("solutions/one", ONE_CORE, ()),
]

# --- What runs and is kept --------------------------------------------------------------------


def test_each_claim_runs_with_its_cause_and_without_and_each_page_on_one_core(book):
    assert book.gather() == []
    assert book.runs == ALL_RUNS
    assert [run[3:] for run in book.ran if run[1] == ONE_CORE] == [
        ({"JAX_NUM_CPU_DEVICES": "8"}, 1),
        ({"JAX_NUM_CPU_DEVICES": "8"}, 1),
    ]
    assert len(os.sched_getaffinity(0)) == book.ran[0][4]  # As before.
    early = book.evidence["claims"]["early"]
    assert early["page"] == "one"
    assert early["takes_away"] == "asynchronous dispatch"
    assert [early[side]["verdict"] for side in ("with", "without")] == ["holds", "fails"]
    assert [early[side]["clearance"] for side in ("with", "without")] == [1, -1]
    assert early["with"]["machine"] == "this machine"
    assert "ratio: 2" in early["with"]["measured"][0]
    solutions = book.evidence["pages"]["solutions/one"][ONE_CORE]
    assert solutions["exercises"] == {"X1": "accepted"}
    assert solutions["claims"] == {"x1-gpu": "holds", "x2": "holds"}


def test_what_is_not_too_old_is_not_run_again_unless_that_is_asked_for(book):
    book.gather()
    before = book.file.read_bytes()
    assert book.gather() == []
    assert book.runs == []
    assert book.file.read_bytes() == before
    book.gather(force=True)
    assert book.runs == ALL_RUNS


def test_a_claim_in_other_words_is_not_tested_again_and_one_with_another_bound_is(book):
    book.gather()
    book.write(sentence="Early it is.")
    book.gather()
    assert book.runs == []
    book.write(bound=1.5)
    assert "early, with its cause: has been tested with other code" in causes.complaints(
        book.evidence, run_notebook.notebooks()
    )
    assert book.gather() == []
    assert book.runs == [
        ("one", "with", ("early",)),
        ("one", "without", ("early",)),
        ("one", ONE_CORE, ()),
    ]


def test_evidence_for_what_the_book_has_no_longer_is_dropped(book, monkeypatch):
    book.gather()
    monkeypatch.setattr(counterfactuals, "CAUSES", {"one": CAUSES["one"]})
    (book.folder / "solutions" / "one.md").unlink()
    left = causes.left_over(book.evidence, run_notebook.notebooks())
    assert left == ["x1-gpu", "x2", "solutions/one"]
    assert book.gather() == []
    assert book.runs == []
    assert set(book.evidence["claims"]) == {"early", "late", "alone"}
    assert set(book.evidence["pages"]) == {"one"}


def test_only_the_pages_that_are_named_are_run(book):
    (page,) = (p for p in run_notebook.notebooks() if p.parent.name == "solutions")
    assert book.gather(pages=[page]) == []
    assert book.runs == ALL_RUNS[4:]
    assert book.gather() == []
    assert book.runs == ALL_RUNS[:4]


def test_it_says_what_it_is_at_and_how_far(book):
    book.gather()
    text = "".join(book.said)
    assert "page 1 of 2, one: 3 claims with their cause ... holds: 3 (0 s; so far 0 of 5" in text
    assert "page 1 of 2, one: 1 claim without its cause ... fails: 1 (0 s; so far 3 of 5" in text
    assert f"page 2 of 2, solutions/one: the page on {ONE_CORE} ... holds: 2" in text
    assert text.count("\n") == len(ALL_RUNS)


# --- Where it goes on -------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(ALL_RUNS)))
def test_interrupted_in_any_run_it_goes_on_with_that_one(book, number):
    def interrupt(call):
        if call == number:
            raise KeyboardInterrupt

    book.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        book.gather()
    assert book.runs == ALL_RUNS[:number]
    book.before = lambda call: None
    assert book.gather() == []
    assert book.runs == ALL_RUNS[number:]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 0, "claims": {}, "pages": {}}'])
def test_a_file_that_is_no_whole_evidence_is_made_anew_and_that_is_said(book, text):
    book.file.write_text(text, encoding="utf-8")
    assert book.gather() == []
    assert book.runs == ALL_RUNS
    assert "holds no evidence that can be read" in book.said[0]
    assert book.said[0].endswith("It is made anew.\n")


def test_a_page_that_is_changed_while_it_runs_shows_nothing(book):
    book.before = lambda call: book.write(bound=1.5) if call == 0 else None
    troubles = book.gather()
    assert "changed meanwhile" in troubles[0]
    assert "early, with its cause: has not been tested" in troubles
    book.before = lambda call: None
    assert book.gather() == []


@pytest.mark.parametrize(
    ("error", "words"),
    [(DeadKernelError("Kernel died"), "Kernel died"), (CellTimeoutError("too\nlate"), "too late")],
)
def test_a_run_that_breaks_off_is_told_of_and_the_others_are_run(book, error, words):
    def break_off(call):
        if call == 1:
            book.before = lambda call: None
            raise error

    book.before = break_off
    troubles = book.gather()
    assert troubles[0] == f"one, 2 claims without their cause: {words}"
    assert troubles[1:] == [
        f"{key}, without its cause: has not been tested" for key in ("early", "late")
    ]
    assert book.runs == [run for run in ALL_RUNS if run != ALL_RUNS[1]]


# --- What is a defect -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "verdict"),
    [
        ("with", "fails"),
        ("with", "inconclusive"),
        ("with", "untestable"),
        ("without", "holds"),
        ("without", "inconclusive"),
        ("without", "untestable"),
    ],
)
def test_a_verdict_that_is_not_as_it_should_be_is_a_defect_and_is_tried_again(book, side, verdict):
    book.odd = {(side, "early"): verdict}
    complaint = book.gather()[0]
    assert complaint.startswith(f"early, {side} its cause: ")
    assert ("could not be tested: needs a GPU" if verdict == "untestable" else verdict) in complaint
    book.odd = {}
    assert book.gather() == []
    assert ("one", side, ("early",)) in book.runs
    assert book.evidence["claims"]["early"][side]["tries"] == 2
    assert book.evidence["claims"]["late"][side]["tries"] == 1


def test_what_needs_a_gpu_may_be_untestable_and_is_then_not_run_without_its_cause(book):
    book.odd = {("with", "x1-gpu"): "untestable"}
    assert book.gather() == []
    assert ("solutions/one", "without", ("x2",)) in book.runs
    without = book.evidence["claims"]["x1-gpu"]["without"]
    assert (without["verdict"], without["needs"]) == ("untestable", "a GPU")


def test_on_one_core_no_claim_may_fail_and_no_solution_be_refused(book):
    book.odd = {(ONE_CORE, "late"): "fails", (ONE_CORE, "early"): "inconclusive"}
    book.refused = {"verdict": "not yet"}
    assert book.gather() == [
        f"one, on {ONE_CORE}: does not hold: late",
        f"solutions/one, on {ONE_CORE}: not every solution is accepted: {{'X1': 'not yet'}}",
    ]


@pytest.mark.parametrize(
    ("condition", "verdicts", "wrong"),
    [
        ("one CPU device", "uuh", ""),
        ("one CPU device", "uhh", "less than half"),
        ("one CPU device", "uuf", "does not hold: c-gpu"),
        ("CPU devices in place of GPUs", "uhf", ""),
        ("CPU devices in place of GPUs", "hhu", "did not run: c-gpu"),
        ("CPU devices in place of GPUs", "hh", "did not run: any claim about GPUs"),
    ],
)
def test_without_devices_claims_say_so_and_with_others_in_their_place_they_run(
    condition, verdicts, wrong
):
    words = {"u": "untestable", "h": "holds", "f": "fails"}
    record = {"claims": {k: words[v] for k, v in zip(["a", "b", "c-gpu"], verdicts, strict=False)}}
    found = causes.CONDITIONS[condition].wrong("automatic-parallelism", record)
    assert found.startswith(wrong) if wrong else not found


def test_a_claim_without_a_cause_and_a_cause_without_a_claim_are_refused_before_a_run(
    book, monkeypatch
):
    one = dict(CAUSES["one"])
    del one["late"]
    monkeypatch.setattr(counterfactuals, "CAUSES", CAUSES | {"one": one})
    with pytest.raises(ValueError, match=r"claims what has no cause in CAUSES of .*: late"):
        book.gather()
    monkeypatch.setattr(
        counterfactuals, "CAUSES", CAUSES | {"one": CAUSES["one"] | {"never": SYNCHRONOUS}}
    )
    with pytest.raises(ValueError, match=r"names what .* does not claim: never"):
        book.gather()
    assert book.runs == []


def test_an_intervention_that_does_not_fit_is_refused_before_a_run_and_named(book, monkeypatch):
    cause = Intervention("two", edits={"x = 3": "x = 0"})
    monkeypatch.setattr(
        counterfactuals, "CAUSES", CAUSES | {"one": CAUSES["one"] | {"alone": cause}}
    )
    with pytest.raises(ValueError, match="one, alone: 'x = 3' does not stand in the notebook"):
        book.gather()
    assert book.runs == []


# --- Runs that take several causes away -------------------------------------------------------


def test_two_edits_share_a_run_unless_one_changes_what_the_other_claim_needs(book, monkeypatch):
    page = write_page(
        book.folder / "one.md",
        "x = 2",
        "y = 3",
        claim("X.", "of-x"),
        claim("Y.", "of-y", over="y"),
        claim("Both.", "of-both", over="(x + y)"),
        claim("X, too.", "of-x-too"),
    )
    no_x, no_y = (Intervention(f"no {n}", edits={f"{n} = ": f"{n} = 0 * "}) for n in "xy")
    causes_here = {"of-x": no_x, "of-y": no_y, "of-both": no_y, "of-x-too": no_x}
    monkeypatch.setattr(counterfactuals, "CAUSES", {"one": causes_here})
    runs = counterfactuals.runs_without(page)
    assert [keys for _, keys in runs] == [["of-x", "of-y", "of-x-too"], ["of-both"]]
    assert [run.edits for run, _ in runs] == [dict(no_x.edits) | dict(no_y.edits), dict(no_y.edits)]
    assert [keys for _, keys in counterfactuals.runs_without(page, ["of-both"])] == [["of-both"]]


# --- The command line -------------------------------------------------------------------------


def test_a_page_is_named_as_the_book_names_it_or_by_its_path():
    page = run_notebook.ROOT / "book" / "solutions" / "automatic-parallelism.md"
    names = ["solutions/automatic-parallelism", "book/solutions/automatic-parallelism.md"]
    assert check_claims.arguments(names).pages == [page, page]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["nowhere"], "there is no page 'nowhere'; there are asynchronous-computation, "),
        (["--load", "2"], "load, cores and devices are for repeats"),
        (["--repeats", "0"], "it must be at least 1, found 0"),
        (["--repeats", "many"], "invalid whole_number value: 'many'"),
        (["--repeats", "2", "--cores", "0"], "it must be at least 1, found 0"),
        (["--repeats", "2", "--force"], "repeats are never made anew"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(given, words, capsys):
    with pytest.raises(SystemExit):
        check_claims.arguments(given)
    assert words in capsys.readouterr().err


# --- The evidence that is committed -----------------------------------------------------------


def test_the_evidence_is_as_new_as_what_it_vouches_for_and_shows_no_defect():
    evidence = causes.load(causes.FILE)
    wrong = causes.complaints(evidence, notebooks())
    gone = causes.left_over(evidence, notebooks())
    wrong += [f"{name}: the book has no such claim or page" for name in gone]
    first = "\n".join(wrong[:12])
    assert not wrong, f"{len(wrong)} times evidence is missing: run `make evidence`\n{first}"


def test_a_change_of_its_bound_or_its_cause_is_seen_for_every_claim_of_the_book():
    for page in notebooks():
        with_it, without = (causes.hashes(page, side) for side in causes.SIDES)
        assert [key for key in with_it if with_it[key] == without[key]] == []
