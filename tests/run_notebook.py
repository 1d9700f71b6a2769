"""Execute notebooks from top to bottom and print their claims, one JSON object a line.

Usage: python tests/run_notebook.py [--synchronous] NOTEBOOK...

A failing cell ends it with an error. A claim that does not hold does so too, unless
--synchronous switches asynchronous dispatch off, to see which claims fail without it.
"""

import json
import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from d2lpar.claims import MIME_TYPE

# The environment variable of that name does nothing, and it must be the first thing JAX hears.
SYNCHRONOUS = "import jax; jax.config.update('jax_cpu_enable_async_dispatch', False)"


def run_notebook(path: Path, *, synchronous: bool, timeout: int = 300) -> list[dict]:
    """Return the claims of a notebook in their order."""
    notebook = jupytext.read(path)
    if synchronous:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(SYNCHRONOUS))
    os.environ["D2LPAR_STRICT"] = "0" if synchronous else "1"
    NotebookClient(notebook, timeout=timeout).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.data[MIME_TYPE] for output in outputs if MIME_TYPE in output.get("data", {})]


def claims_of(printed: str) -> list[dict]:
    """Return the claims that this script has printed."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--synchronous"]
    for name in arguments:
        for claim in run_notebook(Path(name), synchronous="--synchronous" in sys.argv):
            print(json.dumps(claim))
