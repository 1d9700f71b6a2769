"""Running notebooks, and the keys of their claims."""

import pytest
import run_notebook
from pages import write_page
from run_notebook import ROOT, claims_of


def test_claims_are_known_by_their_keys_in_the_order_of_the_page(tmp_path):
    page = write_page(
        tmp_path / "page.md",
        "%pip install nothing\nx = (5\n % 3)",
        "claim('One.', a > 1, key='b')\nclaim(sentence='Two.', key='a', needs='a GPU')",
        "claim('Three.', a < 1, key='c')",
    )
    assert claims_of(page) == {"b": "One.", "a": "Two.", "c": "Three."}


@pytest.mark.parametrize(
    ("keys", "words"), [(["name"], "'One.' has no key. Give it one"), (["'same'"] * 2, "'same'")]
)
def test_a_claim_without_a_key_of_its_own_that_can_be_read_is_refused(tmp_path, keys, words):
    page = write_page(tmp_path / "page.md", *(f"claim('One.', a > 1, key={key})" for key in keys))
    with pytest.raises(ValueError, match=words):
        claims_of(page)


def test_where_errors_are_allowed_the_cells_after_one_run_with_as_many_devices_as_asked(tmp_path):
    devices = "import os\nprint(os.environ['JAX_NUM_CPU_DEVICES'])"
    page = write_page(tmp_path / "page.md", "[][0]", devices)
    failing, after = run_notebook.run_notebook(page, allow_errors=True, devices=8).cells
    assert failing.outputs[0].ename == "IndexError"
    assert after.outputs[0].text == "8\n"


def test_an_interrupt_ends_the_run_and_not_only_its_notebook(tmp_path, run_python):
    page = write_page(
        tmp_path / "page.md",
        "import os, signal, threading\nos.kill(os.getppid(), signal.SIGINT)",
        "threading.Event().wait()",
    )
    # A process of its own may be interrupted.
    program = f"""
import sys
from pathlib import Path
sys.path.append({str(ROOT / "evidence")!r})
from run_notebook import run_notebook
try:
    run_notebook(Path({str(page)!r}))
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run_python(program) == "interrupted"
