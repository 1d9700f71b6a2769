"""The Sphinx role `measured`, which prints a number of a claim."""

import importlib
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from run_notebook import ROOT

from d2lpar import exact
from d2lpar.book.claims import Claim


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("mended gain:.1f", "2.3"),
        ("mended gain:%", "230\u00a0%"),
        ("gpu gain", "…"),  # This machine has no such number.
        *dict.fromkeys(["mended loss", "gone gain", "mended"], "").items(),
    ],
)
def test_a_page_prints_a_number_of_a_claim_and_warns_if_there_is_none(argument, text, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    runs, tables = map(importlib.import_module, ("d2lpar_runs", "d2lpar_tables"))
    gain = exact("gain", 2.34)
    claims = (
        Claim("It is {gain} times as fast.", (gain > 1,), key="mended", numbers={"gain": gain}),
        Claim("On a GPU it is {gain} times as fast.", needs="a GPU", key="gpu"),
    )
    build = SimpleNamespace(claims={"book/one": claims})
    monkeypatch.setattr(runs, "this_build", lambda app: build)
    warn = Mock()  # A warning stops a strict build.
    monkeypatch.setattr(tables, "logger", SimpleNamespace(warning=warn))
    nodes = tables.measured(None, "book/index", argument)
    assert ("".join(node.astext() for node in nodes), warn.call_count) == (text, not text)
