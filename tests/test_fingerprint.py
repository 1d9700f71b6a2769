"""What makes evidence too old, and what does not."""

import counterfactuals
import fingerprint
import pytest
from counterfactuals import cause_of
from fingerprint import Package, fingerprint_of
from run_notebook import Intervention, notebooks

PAGE = next(page for page in notebooks() if page.stem == "automatic-parallelism")
CELLS = [
    "from d2lpar import compare",
    "def quicker(times):\n    return times.ratio('a', 'b') < 0.5",
    "times = compare({'a': f, 'b': g}, until=quicker)",
    "claim(\n    'A is quicker.', quicker(times), otherwise='a reason',\n"
    "    needs=None if cores > 1 else 'two cores', key='quicker')",
]


@pytest.fixture
def package(tmp_path):
    """A small package: the first module uses the second, and nobody the third."""
    (tmp_path / "d2lpar").mkdir()
    sources = {
        "__init__": "from d2lpar.measurement import compare",
        "measurement": '"""Measure."""\nfrom d2lpar.quantity import LEVEL\n'
        'def compare(arms, until):\n    """Compare."""\n    return LEVEL, until',
        "quantity": "LEVEL = 0.95",
        "memory": "PAGE = 4096",
    }
    for name, source in sources.items():
        (tmp_path / "d2lpar" / f"{name}.py").write_text(source, encoding="utf-8")
    return tmp_path / "d2lpar"


def changed(folder, name, old, new):
    """Return the package after a change to one of its modules."""
    file = folder / f"{name}.py"
    source = file.read_text(encoding="utf-8")
    assert old in source
    file.write_text(source.replace(old, new), encoding="utf-8")
    return Package(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'A is quicker.'", "'A takes less time than B.'"),
        ("otherwise='a reason'", "otherwise='another reason'"),
        ("else 'two cores'", "else 'two CPU cores'"),
        ("from d2lpar import compare", "# A comment.\nfrom d2lpar import (\n    compare,\n)"),
        ("def quicker(times):\n", "def quicker(times):\n    '''Say it.'''\n"),
    ],
)
def test_words_comments_and_docstrings_of_cells_leave_evidence_as_it_is(package, old, new):
    reworded = [cell.replace(old, new) for cell in CELLS]
    assert reworded != CELLS
    package = Package(package)
    assert fingerprint_of(reworded, package) == fingerprint_of(CELLS, package)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("< 0.5", "< 0.9"),
        ("until=quicker", "until=quicker, repeats=3"),
        ("cores > 1", "cores > 2"),
        ("key='quicker'", "key='quickest'"),
    ],
)
def test_a_bound_or_an_experiment_that_has_changed_makes_evidence_too_old(package, old, new):
    edited = [cell.replace(old, new) for cell in CELLS]
    assert edited != CELLS
    package = Package(package)
    assert fingerprint_of(edited, package) != fingerprint_of(CELLS, package)


@pytest.mark.parametrize(
    ("name", "old", "new", "too_old"),
    [
        ("measurement", "return LEVEL, until", "return until", True),
        ("quantity", "0.95", "0.9", True),  # Reached by way of another.
        ("measurement", '"""Compare."""', '"""Compare arms."""', False),
        ("quantity", "LEVEL = 0.95", "LEVEL = 0.95  # Of intervals.", False),
        ("memory", "4096", "8192", False),  # Not reached.
    ],
)
def test_of_the_package_only_code_that_the_cells_reach_makes_evidence_too_old(
    package, name, old, new, too_old
):
    before = fingerprint_of(CELLS, Package(package))
    after = fingerprint_of(CELLS, changed(package, name, old, new))
    assert (after != before) == too_old


def test_another_intervention_makes_evidence_too_old():
    key, cause = next(iter(cause_of(PAGE).items()))
    other = Intervention(cause.takes_away, first=f"{cause.first}\nimport time")
    here = fingerprint.fingerprint(PAGE, cause, keys=[key])
    assert fingerprint.fingerprint(PAGE, other, keys=[key]) != here
    assert fingerprint.fingerprint(PAGE, cause, keys=[key]) == here


def test_a_claim_without_a_cause_and_a_cause_without_a_claim_are_refused(monkeypatch):
    name = "automatic-parallelism"
    first, *others = counterfactuals.CAUSES[name].items()
    monkeypatch.setitem(counterfactuals.CAUSES, name, dict(others))
    with pytest.raises(ValueError, match=f"claims what has no cause .*: {first[0]}"):
        cause_of(PAGE)
    monkeypatch.setitem(counterfactuals.CAUSES, name, dict([first, *others, ("other", first[1])]))
    with pytest.raises(ValueError, match="does not claim: other"):
        cause_of(PAGE)
