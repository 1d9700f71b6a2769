"""The shape of the package: private parts, tests, entries of the API, the cost of an import."""

import importlib
import inspect
import pkgutil
import re

import pytest
from run_notebook import ROOT

import d2lpar

NAMES = {info.name for info in pkgutil.walk_packages(d2lpar.__path__, "d2lpar.")}


def test_importing_the_package_imports_nothing_until_it_is_asked_for(run_python):
    program = "import d2lpar; d2lpar.D2lparError, d2lpar.__version__"
    heavy = {"jax", "numpy", "psutil", "matplotlib", "altair", "networkx", "scipy", "cloudpickle"}
    assert run_python(f"{program}\nimport sys; print({heavy} & set(sys.modules))") == "set()"


def test_every_module_but_the_face_and_the_plugin_of_pytest_is_private():
    open_part = {name for name in NAMES if not name.startswith("d2lpar.book")}
    public = {name for name in open_part if not name.startswith("d2lpar._")}
    assert public == {"d2lpar.pytest_plugin"}


def test_what_is_private_in_jax_is_named_in_one_folder():
    named = {
        file.relative_to(ROOT / "d2lpar").parts[0]
        for file in (ROOT / "d2lpar").rglob("*.py")
        if "jax._src" in file.read_text(encoding="utf-8")
    }
    assert named == {"_jax"}


def test_every_public_name_has_one_entry_on_the_pages_of_the_api_and_a_link_to_it():
    pages = (ROOT / "book" / "api").glob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    listed = re.findall(r"auto(?:function|class|exception|data):: (d2lpar[\w.]*)\n", text)
    entries = [name.rpartition(".")[2] for name in listed if ".book." not in name]
    assert sorted(entries) == sorted([*d2lpar.__all__, "Finding"])  # What a `Watched` holds.
    overview = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    linked = re.findall(r"\{py:obj\}`(?:[^`<]*<|~)?d2lpar\.(?:_timeline\.plot\.)?(\w+)", overview)
    assert {*linked} == {*d2lpar.__all__}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_module_has_a_test_file_in_the_same_place(name):
    *folders, module = name.split(".")[1:]
    if not hasattr(importlib.import_module(name), "__path__"):
        assert ROOT.joinpath("tests", *folders, f"test_{module.strip('_')}.py").exists()


@pytest.mark.parametrize("name", d2lpar.__all__)
def test_the_docstring_of_a_public_name_describes_each_parameter_and_the_result(name):
    value = getattr(d2lpar, name)
    text = inspect.getdoc(value) or ""
    described = re.findall(r"^    \*{0,2}(\w+):", text, re.MULTILINE)
    if inspect.isclass(value):  # One without an __init__ of its own takes what its base takes.
        if "__init__" in vars(value) and not issubclass(value, Exception):
            assert {*inspect.signature(value).parameters} <= {*described}
    elif callable(value):
        signature = inspect.signature(value)
        assert {*signature.parameters} <= {*described}
        returns = re.search(r"^(Returns:$|Yields:$|Return )", text, re.MULTILINE)
        assert returns or signature.return_annotation in (None, "None")
