"""What the Sphinx extension of the book puts into its pages."""

import importlib
from types import SimpleNamespace

import pytest
from run_notebook import ROOT

from d2lpar import exact
from d2lpar.book.claims import Claim


@pytest.fixture
def measured(monkeypatch):
    """The role for a number of a claim, in a build with two claims, and what it has warned of."""
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    runs, tables = map(importlib.import_module, ("d2lpar_runs", "d2lpar_tables"))
    gain = exact("gain", 2.34)
    claims = (
        Claim("It is {gain} times as fast.", (gain > 1,), key="mended", numbers={"gain": gain}),
        Claim("On a GPU it is {gain} times as fast.", needs="a GPU", key="gpu"),
    )
    build = SimpleNamespace(claims={"book/one": claims})
    monkeypatch.setattr(runs, "this_build", lambda app: build)
    warnings = []

    def warn(*words, **_):
        warnings.append(words)

    monkeypatch.setattr(tables, "logger", SimpleNamespace(warning=warn))

    def measured(argument):
        made = tables.measured(SimpleNamespace(srcdir=ROOT), "book/index", argument)
        return "".join(node.astext() for node in made), len(warnings)

    return measured


def test_a_page_says_a_number_of_a_claim_as_this_build_has_measured_it(measured):
    assert measured("mended gain:.1f") == ("2.3", 0)
    assert measured("mended gain:%") == ("230\u00a0%", 0)


def test_a_number_that_this_machine_cannot_measure_is_left_open(measured):
    assert measured("gpu gain") == ("…", 0)


@pytest.mark.parametrize("argument", ["mended loss", "gone gain", "mended", "h200 JAX"])
def test_a_number_that_is_nowhere_stops_a_strict_build(measured, argument):
    assert measured(argument) == ("", 1)
