import pytest

from d2lpar.book.claims import Claim
from d2lpar.book.notebook import with_code


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
    forms = " ".join(sorted(Claim("On a GPU.", needs="a GPU")._repr_mimebundle_()))
    assert run_python(program) == f"True '' {forms}"


def test_text_in_backticks_is_code_and_a_number_stays_with_its_unit_and_a_bound_with_its_sign():
    html = with_code("`x < 5` in 5 ms <b>: 95% of 7 s, 3 steps > -3")
    assert html == (
        "<code>x &lt; 5</code> in 5\u00a0ms &lt;b&gt;: 95% of 7\u00a0s, 3 steps &gt;\u00a0-3"
    )
