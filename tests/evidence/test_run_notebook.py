"""Running notebooks, and the keys of their claims."""

import subprocess
import sys
from contextlib import nullcontext

import nbformat
import pytest
import run_notebook
from pages import notebook_showing, write_page
from run_notebook import FEW_ROUNDS, ROOT, Intervention, claims_of

import d2lpar
from d2lpar.book import exercises


@pytest.mark.parametrize("source", ["x = 2", "x = 1\ny = 1"])
def test_an_edit_of_what_does_not_stand_there_exactly_once_is_refused(source):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    with pytest.raises(ValueError, match="' = 1' does not stand in the notebook exactly once"):
        Intervention("one", {" = 1": " = 3"}).apply_to(notebook)


# --- The names of claims ----------------------------------------------------------------------


def test_claims_are_known_by_their_keys_in_the_order_of_the_page(tmp_path):
    page = write_page(
        tmp_path / "page.md",
        "%pip install nothing\nx = (5\n % 3)",
        "claim('One.', a > 1, key='b')\nclaim(sentence='Two.', key='a', needs='a GPU')",
        "claim('Three.', a < 1, key='c')",
    )
    assert claims_of(page) == {"b": "One.", "a": "Two.", "c": "Three."}


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([""], r"the claim 'One\.' has no key\. Give it one"),
        ([", key=''"], r"the claim 'One\.' has no key\. Give it one"),
        ([", key=name"], r"the claim 'One\.' has no key\. Give it one"),
        ([", key='same'"] * 2, r"two claims have the key 'same'"),
    ],
)
def test_a_claim_without_a_key_of_its_own_that_can_be_read_is_refused(tmp_path, calls, words):
    page = write_page(tmp_path / "page.md", *(f"claim('One.', a > 1{key})" for key in calls))
    with pytest.raises(ValueError, match=rf"page\.md: {words}"):
        claims_of(page)


# --- Running ----------------------------------------------------------------------------------


def test_with_few_rounds_a_comparison_ends_at_its_first_look(monkeypatch):
    for name in ("compare", "measure"):
        monkeypatch.setattr(d2lpar, name, getattr(d2lpar, name))  # Restores the original.
    exec(FEW_ROUNDS, {})
    ways = {"a": lambda: 1.0, "b": lambda: 2.0}
    undecided = {"until": lambda times: times.ratio("a", "b").between(0, 0), "max_seconds": 60}
    for options in ({}, {"repeats": 40}, undecided):
        assert len(d2lpar.compare(ways, **options)["a"].total.samples) == 3
    assert len(d2lpar.compare(ways, repeats=2)["a"].total.samples) == 2
    assert len(d2lpar.measure(float, 1, repeats=40).total.samples) == 3


def test_where_errors_are_allowed_the_cells_after_one_run_with_as_many_devices_as_asked(tmp_path):
    devices = "import os\nprint(os.environ['JAX_NUM_CPU_DEVICES'])"
    page = write_page(tmp_path / "page.md", "[][0]", devices)
    failing, after = run_notebook.run_notebook(page, allow_errors=True, devices=8).cells
    assert failing.outputs[0].ename == "IndexError"
    assert after.outputs[0].text == "8\n"


@pytest.mark.parametrize(
    ("page", "verdict", "ends"),
    [
        ("solutions/page.ipynb", "not yet", "not every solution is accepted: X1"),
        ("solutions/page.ipynb", "untestable", None),
        ("solutions/page.ipynb", "accepted", None),
        ("page.ipynb", "not yet", None),  # It is the reader's to solve.
    ],
)
def test_a_solution_that_is_not_accepted_ends_it_with_an_error(page, verdict, ends, monkeypatch):
    report = {"exercise": "X1", "verdict": verdict, "saw": ""}
    executed = notebook_showing((exercises.MIME_TYPE, report))
    monkeypatch.setattr(run_notebook, "run_notebook", lambda path, strict: executed)
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


def test_an_interrupt_ends_the_run_and_not_only_its_notebook(tmp_path):
    page = write_page(
        tmp_path / "page.md",
        "import os, signal, threading\nos.kill(os.getppid(), signal.SIGINT)",
        "threading.Event().wait()",
    )
    # A process of its own may be interrupted.
    command = [sys.executable, "-c", INTERRUPTED, str(page)]
    done = subprocess.run(command, cwd=ROOT / "evidence", capture_output=True, text=True)
    assert done.stdout == "interrupted\n", done.stderr[-2000:]
