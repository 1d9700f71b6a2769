"""Write the .ipynb beside each given .md: what Colab opens, without outputs (`make sync`)."""

import sys
from pathlib import Path

import jupytext

for source in map(Path, sys.argv[1:]):
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # jupytext draws new ones each time: a change without a change
    jupytext.write(notebook, source.with_suffix(".ipynb"))
