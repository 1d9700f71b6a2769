"""The Sphinx role `measured`, which prints a number of a claim."""

import importlib
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from run_notebook import ROOT

from d2lpar import exact
from d2lpar.book.claims import Claim


@pytest.fixture
def measured(monkeypatch):
    """A function that returns the text of the role, and how many warnings it has logged."""
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    runs, tables = map(importlib.import_module, ("d2lpar_runs", "d2lpar_tables"))
    gain = exact("gain", 2.34)
    claims = (
        Claim("It is {gain} times as fast.", (gain > 1,), key="mended", numbers={"gain": gain}),
        Claim("On a GPU it is {gain} times as fast.", needs="a GPU", key="gpu"),
    )
    build = SimpleNamespace(claims={"book/one": claims})
    monkeypatch.setattr(runs, "this_build", lambda app: build)
    warn = Mock()
    monkeypatch.setattr(tables, "logger", SimpleNamespace(warning=warn))

    def measured(argument):
        nodes = tables.measured(None, "book/index", argument)
        return "".join(node.astext() for node in nodes), warn.call_count

    return measured


@pytest.mark.parametrize(
    ("argument", "text"),
    [("mended gain:.1f", "2.3"), ("mended gain:%", "230\u00a0%"), ("gpu gain", "…")],
)
def test_a_page_prints_a_number_of_a_claim_or_a_gap_where_this_machine_has_none(
    measured, argument, text
):
    assert measured(argument) == (text, 0)


@pytest.mark.parametrize("argument", ["mended loss", "gone gain", "mended"])
def test_a_number_that_does_not_exist_stops_a_strict_build(measured, argument):
    assert measured(argument) == ("", 1)
