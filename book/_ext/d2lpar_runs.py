"""What this build and other machines have measured, for Sphinx: where the numbers come from."""

import functools
import json
import os
from pathlib import Path

from d2lpar.book.originals import EXPERIMENTS
from d2lpar.book.recorded import FOLDER
from d2lpar.book.results import Results, load, page_of, this_run

LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # Before anything runs.


def executed(app, page):
    """Return an executed page as its notebook, or a notebook without cells if it is none."""
    # This is where myst-nb leaves the notebooks.
    notebook = Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"
    return json.loads(notebook.read_text(encoding="utf-8")) if notebook.exists() else {"cells": []}


@functools.cache  # Asked for only when all pages have been read.
def machines(app):
    """Return the results of all machines: the recorded ones, and this build's."""
    recorded = sorted(FOLDER.glob("*.json"))
    pages = {page: page_of(executed(app, page)) for page in sorted(app.env.found_docs)}
    here = {"name": "this build", "commit": "", "load": LOAD, "pages": pages}
    return [*map(load, recorded), Results.of(this_run() | here)]


def this_build(app):
    """Return the results of the machine that builds the book."""
    return machines(app)[-1]


def tested_pages(app):
    """Return what `make evidence` has kept of each page; nothing before it has run."""
    file = Path(app.srcdir, "book", "evidence", "causes.json")
    return json.loads(file.read_text(encoding="utf-8"))["pages"] if file.exists() else {}


def causes(app):
    """Return what it has kept of each claim, by its key."""
    return {
        key: found for page in tested_pages(app).values() for key, found in page["claims"].items()
    }


def sources(app, name):
    """Return the rows of an experiment by where they come from: editions, then machines."""
    found = dict(EXPERIMENTS[name].editions)
    for results in machines(app):
        for kept in results.experiments:
            if kept.experiment == name:
                found[", ".join(filter(None, [results.name, kept.variant]))] = kept.rows
    return found
