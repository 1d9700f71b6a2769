"""The shape of the package: its layers, its documentation, and the cost of importing it."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import d2lpar

ROOT = Path(__file__).parent.parent
NAMES = (module.name for module in pkgutil.iter_modules(d2lpar.__path__))
MODULES = sorted(name for name in NAMES if name != "__main__")  # A command, and no API.
PUBLIC = {
    name: value
    for name, value in vars(d2lpar).items()
    if not name.startswith("_") and not inspect.ismodule(value)
}


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


def test_every_module_is_on_the_api_page():
    page = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"automodule:: d2lpar\.(\w+)\n +:members:", page)) == MODULES


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_its_one_idea_in_its_first_line(name):
    first, *rest = importlib.import_module(f"d2lpar.{name}").__doc__.splitlines()
    assert first.endswith(".")
    assert not rest or not rest[0]


def test_nothing_public_has_the_name_of_a_module():
    assert not set(MODULES) & set(PUBLIC)


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
