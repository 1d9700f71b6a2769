import pytest

from d2lpar.book.claims import Claim
from d2lpar.book.notebook import unbroken, with_code

ELSEWHERE = Claim("On a GPU.", needs="a GPU")


def test_in_a_notebook_an_object_is_displayed_once_in_all_its_forms_and_not_printed(run_python):
    program = """
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from d2lpar.book.claims import Claim
from d2lpar.book.notebook import show_in_notebook
InteractiveShell.instance()
with capture_output() as captured:
    shown = show_in_notebook(Claim("On a GPU.", needs="a GPU"))
(output,) = captured.outputs
print(shown, repr(captured.stdout + captured.stderr), *sorted(output.data))
"""
    pytest.importorskip("IPython")
    forms = " ".join(sorted(ELSEWHERE._repr_mimebundle_()))
    assert run_python(program) == f"True '' {forms}"


def test_text_in_backticks_is_code_with_its_spaces_and_all_is_escaped():
    assert with_code("`x < 5` in 5 ms <b>") == "<code>x &lt; 5</code> in 5\u00a0ms &lt;b&gt;"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("95 % of 20 ms", ["95\u00a0%", "of", "20\u00a0ms"]),
        ("5 MB and 7 s", ["5\u00a0MB", "and", "7\u00a0s"]),
        ("share < 0.5", ["share", "<\u00a00.5"]),
        ("of > -3", ["of", ">\u00a0-3"]),
        ("3 steps, 5 million", ["3", "steps,", "5", "million"]),
    ],
)
def test_a_number_stays_with_its_unit_and_a_bound_with_its_sign(text, parts):
    assert unbroken(text).split(" ") == parts
