"""What the extension for Sphinx writes into a page, and what it leaves out."""

import json
import re
from types import SimpleNamespace
from unittest.mock import Mock

import d2lpar_book
import d2lpar_cells
import d2lpar_tables as tables
import pytest
from docutils import nodes
from docutils.utils import new_document
from pages import notebook_showing
from run_notebook import ROOT

from d2lpar import exact
from d2lpar.book.claims import MIME_TYPE, Claim

GAIN = exact("gain", 2.34)
CLAIMS = (
    Claim("It is {gain} times as fast.", (GAIN > 1,), key="mended", numbers={"gain": GAIN}),
    Claim("On a GPU, {gain} times.", (GAIN > 1,), needs="a GPU", key="gpu", numbers={"gain": GAIN}),
)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The role `measured` in a build with two claims and one file; it also counts its warnings."""
    build = SimpleNamespace(claims={"book/one": CLAIMS})
    monkeypatch.setattr(tables.runs, "this_build", lambda app: build)
    seconds = {"PyTorch": {"a": [1, 9, 2], "b, c": [2, 2, 2]}, "JAX": {"a": [1, 1, 1]}}
    (tmp_path / "evidence").mkdir()
    file = tmp_path / "evidence" / "h200.json"
    file.write_text(json.dumps({"training steps": 5, "seconds": seconds}))
    monkeypatch.setattr(tables, "logger", logger := Mock())

    def measured(argument):
        text = tables.measured(SimpleNamespace(srcdir=tmp_path), "book/index", argument)
        return "".join(text), logger.warning.call_count

    return measured


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("mended gain:.1f", "2.3"),
        ("mended gain:%", "234%"),
        ("h200 PyTorch a", "2\u00a0s"),
        ("h200 most PyTorch a / least PyTorch b, c:.1f", "4.5"),
        ("h200 (PyTorch b, c - JAX a) / steps", "200\u00a0ms"),
    ],
)
def test_a_page_says_a_number_of_a_claim_of_this_build_or_of_a_file(measured, argument, text):
    assert measured(argument) == (text, 0)


# The second of these claims cannot be tested here.
@pytest.mark.parametrize(
    "argument", ["mended loss", "gpu gain", "gone gain", "mended", "h200 JAX", "h200 JAX b"]
)
def test_a_number_that_is_nowhere_stops_a_strict_build(measured, argument):
    assert measured(argument) == ("", 1)


def test_the_first_screen_leaves_out_a_sentence_that_this_machine_cannot_test(monkeypatch):
    run = notebook_showing(*((MIME_TYPE, claim.as_dict()) for claim in CLAIMS))
    monkeypatch.setattr(d2lpar_cells, "executed", lambda app, page: run)
    document = new_document("chapter")
    app = SimpleNamespace(env=SimpleNamespace(docname="chapter"))
    app.env.app, document.settings.env = app, app.env
    hook = [nodes.paragraph(text="How long?"), nodes.paragraph(text="One is faster.")]
    cells = [
        nodes.container("", nodes.figure(), classes=["tag_first-screen"], cell_index=index)
        for index in range(len(run["cells"]))
    ]
    document += nodes.section("", *hook, *cells)
    d2lpar_cells.ShowFirst(document).apply()
    shown = [node.astext() for node in document[0] if isinstance(node, nodes.paragraph)]
    assert shown == ["How long?", "One is faster.", "It is 2.3 times as fast."]


@pytest.mark.parametrize("path", sorted(ROOT.glob("book/*.md")), ids=lambda path: path.stem)
def test_without_solutions_no_page_links_to_one_or_quotes_it_and_only_that_goes(path):
    def read(*pages):
        source = [text]
        app = SimpleNamespace(env=SimpleNamespace(found_docs={"book/index", *pages}))
        d2lpar_book.leave_out_links_to_missing_solutions(app, path.stem, source)
        return source[0]

    text = path.read_text(encoding="utf-8")
    assert read("book/solutions/asynchronous-computation") == text
    assert "](solutions/" not in read()
    assert "[Solution of" not in read()
    rest, *quotes = text.split("\n## [Solutions: ")  # At the end of the facts.
    assert len(quotes) == (4 if path.stem == "facts" else 0)
    exercises = len(re.findall(r"^\[Solution of", rest, re.MULTILINE))
    assert rest.count("\n") - read().count("\n") == exercises
