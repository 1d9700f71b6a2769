"""What of a notebook is run for a claim, and how its cells are changed."""

import nbformat
import pytest
from run_notebook import Intervention, keep_what_is_needed


def notebook(*sources):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])


def sources(made):
    return [cell.source for cell in made.cells]


def test_only_the_cells_run_that_a_claim_needs_and_those_that_they_need():
    cells = [
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
    made = notebook(*cells)
    keep_what_is_needed(made, keys=["mine"])
    assert sources(made) == [cells[i] for i in (0, 2, 3, 4, 5, 6, 8)]


def test_what_is_bound_anew_before_it_is_used_is_not_needed_from_before():
    cells = ["x = 1", "for x in [2]:\n    y = x", "claim('Mine.', y > x, key='mine')"]
    made = notebook(*cells)
    keep_what_is_needed(made, keys=["mine"])
    assert sources(made) == cells[1:]


@pytest.mark.parametrize("source", ["x = 2", "x = 1\ny = 1"])
def test_an_edit_of_what_does_not_stand_there_exactly_once_is_refused(source):
    edit = Intervention("one", edits={" = 1": " = 3"})
    with pytest.raises(ValueError, match="' = 1' does not stand in the notebook exactly once"):
        edit.apply_to(notebook(source))
