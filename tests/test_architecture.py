"""The shape of the package: its layers, its documentation, and the cost of importing it."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import d2lpar

ROOT = Path(__file__).parent.parent
NAMES = {info.name for info in pkgutil.walk_packages(d2lpar.__path__, "d2lpar.")}
FOR_ANYBODY = {
    name for name in NAMES if not name.startswith(("d2lpar.book", "d2lpar._"))
}  # Those with an underscore are plumbing, or a command.
PUBLIC = {name: getattr(d2lpar, name) for name in d2lpar.__all__}


def test_a_module_imports_only_from_the_rows_below_its_own(monkeypatch, capsys):
    cli = pytest.importorskip("importlinter.cli", reason="import-linter; `make lint` runs it")
    monkeypatch.chdir(ROOT)
    assert cli.lint_imports(no_cache=True) == 0, capsys.readouterr().out


def test_importing_the_package_imports_nothing_heavy(run_python):
    program = """
import sys, d2lpar
print(sorted({"matplotlib", "altair", "networkx", "scipy.stats", "IPython"} & set(sys.modules)))
"""
    assert run_python(program) == "[]"


def test_the_api_page_has_what_is_for_anybody_first_and_whole_and_then_what_is_for_the_book():
    page = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    first, second = (
        re.findall(r"automodule:: (d2lpar[\w.]*)\n +:members:", part)
        for part in page.split("## For the book")
    )
    assert sorted(first) == sorted(FOR_ANYBODY)
    assert set(second) < {name for name in NAMES if name.startswith("d2lpar.book.")}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_module_says_its_one_idea_in_its_first_line(name):
    first, *rest = importlib.import_module(name).__doc__.splitlines()
    assert first.endswith(".")
    assert not rest or not rest[0]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_module_has_a_test_file_in_the_same_place(name):
    *rooms, module = name.split(".")[1:]
    if not hasattr(importlib.import_module(name), "__path__"):
        assert ROOT.joinpath("tests", *rooms, f"test_{module.strip('_')}.py").exists()


def test_what_the_package_hands_on_can_be_learned_in_a_sitting_and_has_no_name_of_a_module():
    assert len(PUBLIC) <= 35
    assert not {name.rpartition(".")[2] for name in FOR_ANYBODY} & set(PUBLIC)


def test_what_draws_is_there_when_it_is_asked_for():
    assert {d2lpar.plot.__name__, d2lpar.graph.__name__} <= FOR_ANYBODY
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        d2lpar.nothing  # noqa: B018


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name):
    value = PUBLIC[name]
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        methods = inspect.getmembers(value, inspect.isfunction)
        assert [method for name, method in methods if name[0] != "_" and not method.__doc__] == []
    assert left_out(value) == []


def left_out(value):
    """List the parameters that a docstring does not describe, and "return" if it should."""
    text = inspect.getdoc(value)
    described = re.findall(r"^    \*{0,2}(\w+):", text, re.MULTILINE)
    if inspect.isclass(value):  # One without an __init__ takes what its base takes.
        return (
            [n for n in inspect.signature(value).parameters if n not in described]
            if ("__init__" in vars(value))
            else []
        )
    signature = inspect.signature(value)
    missing = [n for n in signature.parameters if n not in described]
    says_it = re.search(r"^(Returns:$|Yields:$|Return )", text, re.MULTILINE)
    return missing if signature.return_annotation is None or says_it else [*missing, "return"]
