"""What runs of a notebook, and by what names its claims are known."""

import subprocess
import sys
from contextlib import nullcontext

import nbformat
import pytest
import run_notebook
from pages import write_page
from run_notebook import (
    FEW_ROUNDS,
    ROOT,
    Intervention,
    claimed_by,
    claims_of,
    keep_what_is_needed,
    name_of,
    notebooks,
    pages_by_key,
)

import d2lpar
from d2lpar.book import exercises


def notebook(*sources):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])


def sources(made):
    return [cell.source for cell in made.cells]


# --- The cells of a claim ---------------------------------------------------------------------

CELLS = [
    "import numpy as np",
    "%pip install nothing",
    "a, unused = np.ones(2), 1",
    "table = {}",
    "table['row'] = a",
    "def scaled(x):\n    return factor * x",
    "factor = 3",
    "print(unused)",
    "claim('Mine.', scaled(table) > 2, key='mine')",
    "claim('Another.', unused > 2, key='another')",
]


def test_only_the_cells_run_that_a_claim_needs_and_those_that_they_need():
    made = notebook(*CELLS)
    keep_what_is_needed(made, keys=["mine"])
    assert sources(made) == [CELLS[i] for i in (0, 2, 3, 4, 5, 6, 8)]


def test_what_is_bound_anew_before_it_is_used_is_not_needed_from_before():
    cells = ["x = 1", "for x in [2]:\n    y = x", "claim('Mine.', y > x, key='mine')"]
    made = notebook(*cells)
    keep_what_is_needed(made, keys=["mine"])
    assert sources(made) == cells[1:]


@pytest.mark.parametrize("made_of", ["[x for x in [1]]", "{x for x in [1]}", "{x: x for x in [1]}"])
def test_the_name_inside_a_comprehension_is_not_needed_from_elsewhere(made_of):
    cells = ["x = 1", f"y = {made_of}", "claim('Mine.', y > 1, key='mine')"]
    made = notebook(*cells)
    keep_what_is_needed(made, keys=["mine"])
    assert sources(made) == cells[1:]


@pytest.mark.parametrize("source", ["x = 2", "x = 1\ny = 1"])
def test_an_edit_of_what_does_not_stand_there_exactly_once_is_refused(source):
    edit = Intervention("one", edits={" = 1": " = 3"})
    with pytest.raises(ValueError, match="' = 1' does not stand in the notebook exactly once"):
        edit.apply_to(notebook(source))


# --- The names of claims ----------------------------------------------------------------------


def test_claims_are_known_by_their_keys_in_the_order_of_the_page(tmp_path):
    page = write_page(
        tmp_path / "page.md",
        "claim('One.', a > 1, key='b')\nclaim(sentence='Two.', key='a', needs='a GPU')",
        "claim('Three.', a < 1, key='c')",
    )
    assert list(claims_of(page)) == ["b", "a", "c"]
    assert list(claimed_by(page)) == ["One.", "Two.", "Three."]


@pytest.mark.parametrize("key", ["", ", key=''", ", key=name"])
def test_a_claim_without_a_key_that_can_be_read_is_refused(tmp_path, key):
    page = write_page(tmp_path / "page.md", f"claim('One.', a > 1{key})")
    with pytest.raises(ValueError, match=r"page\.md: 'One\.' has no key\. Give it one: claim\("):
        claims_of(page)


def test_a_key_that_two_claims_have_is_refused_on_one_page_and_on_two(tmp_path):
    claim = "claim('{}', a > 1, key='same')"
    one = write_page(tmp_path / "one.md", claim.format("One."))
    other = write_page(tmp_path / "other.md", claim.format("Two."))
    both = write_page(tmp_path / "both.md", claim.format("One."), claim.format("Two."))
    with pytest.raises(ValueError, match=r"'Two\.' has a key that another claim has.*'same'"):
        claims_of(both)
    with pytest.raises(ValueError, match=r"one\.md and .*other\.md both have .* key 'same'"):
        pages_by_key([one, other])


def test_every_claim_of_the_book_has_a_key_of_its_own():
    pages = pages_by_key(notebooks())
    assert len(pages) == sum(len(claimed_by(page)) for page in notebooks())
    assert {name_of(page) for page in pages.values()} == {name_of(page) for page in notebooks()}


# --- Running ----------------------------------------------------------------------------------


def test_with_few_rounds_a_comparison_ends_at_its_first_look(monkeypatch):
    for name in ("compare", "measure"):
        monkeypatch.setattr(d2lpar, name, getattr(d2lpar, name))  # Put back what is replaced.
    exec(FEW_ROUNDS, {})
    ways = {"a": lambda: 1.0, "b": lambda: 2.0}
    undecided = {"until": lambda times: times.ratio("a", "b").between(0, 0), "limit": 60}
    for options in ({}, {"repeats": 40}, undecided):
        assert len(d2lpar.compare(ways, **options)["a"].total.samples) == 9
    assert len(d2lpar.compare(ways, repeats=6)["a"].total.samples) == 6
    assert len(d2lpar.measure(float, 1, repeats=40).total.samples) == 9


@pytest.mark.parametrize(
    ("page", "verdict", "ends"),
    [
        ("solutions/page.ipynb", "not yet", "not every solution is accepted: X1"),
        ("solutions/page.ipynb", "untestable", None),
        ("solutions/page.ipynb", "accepted", None),
        ("page.ipynb", "not yet", None),  # What is left to the reader.
    ],
)
def test_a_solution_that_is_not_accepted_ends_it_with_an_error(page, verdict, ends, monkeypatch):
    outputs = [{exercises.MIME_TYPE: {"exercise": "X1", "verdict": verdict, "saw": ""}}]
    monkeypatch.setattr(run_notebook, "run_notebook", lambda path: outputs)
    monkeypatch.setattr(sys, "argv", ["run_notebook.py", page])
    with pytest.raises(SystemExit, match=ends) if ends else nullcontext():
        run_notebook.main()


INTERRUPTED = """
import sys
from pathlib import Path
from run_notebook import run_notebook
try:
    run_notebook(Path(sys.argv[1]))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_whoever_interrupts_a_run_interrupts_it_and_not_only_its_notebook(tmp_path):
    page = write_page(
        tmp_path / "page.md",
        "import os, signal, threading\nos.kill(os.getppid(), signal.SIGINT)",
        "threading.Event().wait()",
    )
    # In a process of its own, which may be interrupted.
    command = [sys.executable, "-c", INTERRUPTED, str(page)]
    done = subprocess.run(command, cwd=ROOT / "evidence", capture_output=True, text=True)
    assert done.stdout == "interrupted\n", done.stderr[-2000:]
