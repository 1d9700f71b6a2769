"""The cells that readers begin with."""

import ast

import jax
import jax.numpy as jnp
import jupytext
import pytest
from attempts import require_not_yet
from run_notebook import ROOT

from d2lpar.book import exercises

CHAPTERS = {"X": "asynchronous-computation.md", "Y": "automatic-parallelism.md"}
NAMES = [chapter + number for chapter in CHAPTERS for number in "12345"]


@pytest.mark.parametrize("exercise", NAMES)
def test_the_cell_of_the_book_runs_and_is_not_right_yet(exercise):
    call = f"exercises.check_{exercise.lower()}("
    cells = jupytext.read(ROOT / "book" / CHAPTERS[exercise[0]]).cells
    (source,) = [c.source for c in cells if call in c.source and not c.source.startswith("#")]
    *definitions, last = ast.parse(source).body
    names = {"jax": jax, "jnp": jnp, "block": jax.block_until_ready, "exercises": exercises}
    exec(compile(ast.Module(definitions, []), "<cell>", "exec"), names)
    report = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    require_not_yet(report)
    assert report.exercise == exercise
    assert "raised" not in report.saw
