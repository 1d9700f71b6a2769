"""The measurements of this build and of other machines, for Sphinx: sources of all numbers."""

import functools
import importlib
import itertools
import json
import os
import re
import statistics
import sys
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

from d2lpar import exact
from d2lpar._plain.format import plural
from d2lpar.book.recorded import FOLDER, has_gpu, machine_in_words
from d2lpar.book.results import Results, load, page_of, this_run

sys.path.append(str(FOLDER.parents[2] / "evidence"))
repeats = importlib.import_module("repeats")

LOAD = os.getloadavg()[0]  # Before anything runs.


def executed(app, page):
    """Return the executed notebook of a page; one without cells for a page that is no notebook."""
    # myst-nb leaves the notebooks in this folder.
    notebook = Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"
    return json.loads(notebook.read_text(encoding="utf-8")) if notebook.exists() else {"cells": []}


@functools.cache  # All pages have been read before the first call.
def machines(app):
    """Return the results of all machines: this build's, then those that are recorded."""
    recorded = list(map(load, sorted(FOLDER.glob("*.json"))))
    names = list(map(name_of, recorded))
    for i, name in enumerate(names):
        if Counter(names)[name] == 1:  # Otherwise the name of the file tells them apart.
            recorded[i] = replace(recorded[i], name=name)
    pages = {page: page_of(executed(app, page)) for page in sorted(app.env.found_docs)}
    here = {"name": "this build", "commit": "", "load": LOAD, "pages": pages}
    return [Results.of(this_run() | here), *recorded]


def name_of(results):
    """Return a short name for the head of a column, such as "H200, 16 cores"."""
    machine = results.machine
    kind = re.sub(r"\(R\)|\(TM\)|Intel|AMD|Processor|CPU|@.*", "", machine.processor)
    if has_gpu(machine.devices):
        kind = re.sub("^an? ", "", machine_in_words(machine.devices, machine.cores))
    return f"{' '.join(kind.split())}, {plural(machine.cores, 'core')}"


def this_build(app):
    return machines(app)[0]


def numbers_of(app, key):
    """Return the numbers of a claim that this build has tested; raise StopIteration if none is."""
    claims = itertools.chain(*this_build(app).claims.values())
    return next(claim.numbers for claim in claims if claim.key == key and not claim.needs)


def tested_pages(app):
    """Return the results of `make evidence` for each page; none before its first run."""
    file = Path(app.srcdir, "book", "evidence", "causes.json")
    return json.loads(file.read_text(encoding="utf-8"))["pages"] if file.exists() else {}


def causes(app):
    """Return these results for each claim, by its key."""
    return dict(chain(*(page["claims"].items() for page in tested_pages(app).values())))


def by_version(app):
    file = Path(app.srcdir, "book", "evidence", "versions.json")
    return json.loads(file.read_text(encoding="utf-8"))


def beside_pytorch(app, stem):
    """Return the measurements of `evidence/beside_pytorch.py` on one machine."""
    return json.loads(Path(app.srcdir, "evidence", f"{stem}.json").read_text(encoding="utf-8"))


def peers_number(app, stem, formula):
    """Return a quantity computed from the medians in a file of `beside_pytorch`.

    A formula takes the work by its names, as in "JAX training / steps" or "JAX fifty products -
    most PyTorch fifty products"; "least" and "most" take the shortest and the longest run.
    """
    data, operands = beside_pytorch(app, stem), {}

    def operand(match):
        pick, framework, work = match.groups()
        times = data["seconds"][framework][work.strip()]
        seconds = {"least ": min, "most ": max, None: statistics.median}[pick](times)
        operands[name := f"operand_{len(operands)}"] = exact(work, seconds, "s")
        return name

    python = re.sub(r"(least |most )?(PyTorch|JAX) ([^-/()]+)", operand, formula)
    return eval(python, {"steps": data["training steps"]}, operands)


def repeated(app):
    """Return the runs of pages on the machine that ran last, by machine, condition and page."""
    rows = repeats.load(Path(app.srcdir, "book", "evidence", "repeats.csv"))
    rows = [row for row in rows if row["machine"] == rows[-1]["machine"]]
    claims = this_build(app).claims
    pages = [page.removeprefix("book/") for page in claims if claims[page]]
    return repeats.latest(rows, pages)
