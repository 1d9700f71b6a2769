"""The hash of what a verdict depends on changes with it, and with nothing else."""

import pytest
from fingerprint import Package, fingerprint, fingerprint_of
from pages import write_page
from run_notebook import ROOT, Intervention, notebooks, python_of, read

MODULES = {
    "__init__": '''"""A package."""\nfrom d2lpar.measuring import compare, other''',
    "measuring": '''
"""Measure."""
import d2lpar.plot
from d2lpar.inner import half
from d2lpar._errors import refuse

def compare(x):
    """Compare."""
    if x is None:
        raise refuse(f"cannot compare {x!r}", 3)
    return half(x) + d2lpar.plot.nothing()  # What is half of it?
''',
    "inner": """
def half(x):
    return x / 2
""",
    "errors": "def refuse(text, number): ...",
    "plot": "from d2lpar.colors import RED\ndef nothing(): return 0",
    "colors": "RED = 1",
    "unused": "def useless(): ...",
    "rooms/__init__": "from d2lpar.rooms.first import seat as seat",
    "rooms/first": "def seat(): ...",
    "rooms/second": "def table(): ...",
}
CELLS = [
    "from d2lpar import compare, plot, unused\nfrom d2lpar.rooms import seat",
    "%matplotlib inline\nlength = 7  # Long enough.",
    'def measured():\n    """Return it."""\n    return compare(length)',
    """claim(
    "It is more than three.",
    measured() > 3,
    otherwise="it is less",
    needs="a GPU" if seat == "none" else None,
    key="more",
)""",
]


@pytest.fixture
def code(tmp_path):
    """A function that returns the hash of the cells, and of the package, with some changes."""
    numbers = iter(range(100))

    def hash_with(old="", new="", *, module=None):
        folder = tmp_path / str(next(numbers)) / "d2lpar"
        files = dict(MODULES)
        cells = list(CELLS)
        if module:
            assert old in files[module]
            files[module] = files[module].replace(old, new)
        else:
            assert old in "".join(cells)
            cells = [cell.replace(old, new) for cell in cells]
        for name, source in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).with_suffix(".py").write_text(source, encoding="utf-8")
        return fingerprint_of(cells, Package(folder))

    return hash_with


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("measured() > 3", "measured() > 2"),
        ("measured() > 3", "measured() < 3"),
        ("length = 7", "length = 8"),
        ("return compare(length)", "return compare(length + 1)"),
        ('seat == "none"', 'seat == "some"'),
        ('if seat == "none"', 'if seat != "none"'),
        (' if seat == "none" else None', ""),
        ("from d2lpar import compare,", "from d2lpar import other as compare,"),
    ],
)
def test_it_changes_with_a_bound_and_with_the_experiment(code, old, new):
    assert code(old, new) != code()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("It is more than three.", "More than three it is."),
        ('"It is more than three."', 'f"It is more than {3}."'),
        ('key="more",', 'key="more",\n    half=measured() / 2,'),
        ("it is less", "it is slower"),
        ("a GPU", "an accelerator"),
        ("  # Long enough.", ""),
        ("length = 7", "length = (\n    7\n)"),
        ('    """Return it."""\n', ""),
        ("compare, plot, unused", "compare"),
        ("from d2lpar import compare", "import jax.numpy as jnp\nfrom d2lpar import compare"),
        ("inline", "svg"),
    ],
)
def test_it_does_not_change_with_what_a_claim_says_or_how_a_cell_is_written(code, old, new):
    assert code(old, new) == code()


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("measuring", "half(x) +", "half(x) -"),
        ("measuring", "if x is None", "if x is 0"),
        ("measuring", ", 3)", ", 4)"),
        ("inner", "x / 2", "x / 3"),
        ("rooms/first", "...", "return 1"),
    ],
)
def test_it_changes_with_a_function_of_the_package_that_is_used_directly_or_not(
    code, module, old, new
):
    assert code(old, new, module=module) != code()


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("measuring", '    """Compare."""\n', ""),
        ("measuring", "  # What is half of it?", ""),
        ("measuring", "cannot compare {x!r}", "there is nothing to compare"),
        ("unused", "...", "return 1"),
        ("rooms/second", "...", "return 1"),
        ("__init__", "compare, other", "compare, other, more"),
        ("plot", "return 0", "return 1"),  # It only draws.
        ("colors", "RED = 1", "RED = 2"),  # Only what draws asks for it.
    ],
)
def test_it_does_not_change_with_prose_of_the_package_or_what_is_not_used(code, module, old, new):
    assert code(old, new, module=module) == code()


def test_a_number_in_an_error_is_no_prose(code):
    assert code(", 3)", ", 5)", module="measuring") != code()


def test_it_is_of_the_cells_that_a_claim_needs_with_what_an_intervention_makes_of_them(tmp_path):
    def page(*cells, **options):
        return write_page(tmp_path / "page.md", *cells, **options)

    mine, another = "claim('M.', x > 1, key='mine')", "claim('A.', y > 1, key='another')"
    before = fingerprint(page("x = 2", "y = 3", mine, another), keys=["mine"])
    assert fingerprint(page("x = 2", "y = 4", mine, another), keys=["mine"]) == before
    again = page("x = 2", "y = 3", mine, another, prose="Other prose.")
    assert fingerprint(again, keys=["mine"]) == before
    assert len({before, fingerprint(again, keys=["another"]), fingerprint(again)}) == 3
    changed = {
        fingerprint(again, intervention, keys=["mine"])
        for intervention in (
            Intervention("two", edits={"x = 2": "x = 0"}),
            Intervention("two", edits={"x = 2": "x = 1"}),
            Intervention("peace", first="import jax"),
        )
    }
    assert len(changed - {before}) == 3
    in_words = Intervention("it, in other words", edits={"x = 2": "x = 0  # Not 2."})
    assert fingerprint(again, in_words, keys=["mine"]) in changed


def test_of_the_real_package_what_measures_is_reached_and_what_draws_is_not():
    (page,) = (page for page in notebooks() if page.name == "measuring-asynchronous-code.md")
    cells = [python_of(cell.source) for cell in read(page).cells]
    reached = Package(ROOT / "d2lpar").reached_from(cells)
    assert {"d2lpar.measurement", "d2lpar.quantity", "d2lpar.book.claims"} <= reached.keys()
    assert not reached.keys() & {"d2lpar.plot", "d2lpar._plot", "d2lpar.book.notebook"}
    assert not any(name.startswith("d2lpar.book.exercises") for name in reached)
