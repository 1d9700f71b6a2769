"""The page of facts: its sentences stand on their pages, and its experiments run."""

import ast
import re

import jax
import pytest
from run_notebook import ROOT

from d2lpar import wait_all

BOOK = ROOT / "book"
INTRO, *SECTIONS = re.split(r"^## ", (BOOK / "facts.md").read_text(), flags=re.MULTILINE)
ENTRY = r"((?:^>.*\n|^\n)+)^```python\n((?:.*\n)*?)^```$"
NEWER = r"^# Needs JAX (\d+)\.(\d+) or newer\.$"
ALONE = "# In a process of its own.\n"


def words(text):
    return " ".join(re.sub(r"^>", "", text, flags=re.MULTILINE).split())


def entries():
    """Yield, for each experiment, its page, the sentences that it tests, and its code."""
    for section in SECTIONS:
        page = re.match(r"\[.+\]\((.+)\)\n", section)[1]
        for quotes, code in re.findall(ENTRY, section, re.MULTILINE):
            sentences = list(map(words, re.split(r"^\n", quotes.strip() + "\n", flags=re.M)))
            yield pytest.param(page, sentences, code, id=" ".join(sentences[0].split()[:7]))


ENTRIES = list(entries())


def test_nothing_on_the_page_is_overlooked():
    text = "".join(SECTIONS)
    assert text.count("```") == 2 * len(ENTRIES)
    code = "".join(entry.values[2] for entry in ENTRIES)
    assert [line for line in code.splitlines() if len(line) > 76] == []  # It would be cut off.
    quotes = re.findall(r"^>.*\n(?!>)", text, re.MULTILINE)
    assert len(quotes) == sum(len(entry.values[1]) for entry in ENTRIES)


def test_the_oldest_jax_that_the_page_names_is_the_one_of_the_matrix():
    pinned = re.findall(r"jax==([\d.]+)", (ROOT / "noxfile.py").read_text())
    assert re.findall(r"JAX (\d+\.\d+\.\d+)", INTRO) == pinned


@pytest.mark.parametrize(("page", "sentences", "code"), ENTRIES)
def test_each_sentence_stands_on_its_page(page, sentences, code):
    text = words((BOOK / page).read_text())
    assert [sentence for sentence in sentences if sentence not in text] == []


@pytest.mark.weekly
@pytest.mark.filterwarnings("default")  # A reader's Python shows a warning, and goes on.
@pytest.mark.parametrize(("page", "sentences", "code"), ENTRIES)
def test_each_experiment_can_fail_and_does_not(page, sentences, code, run_python):
    nodes = [*ast.walk(ast.parse(code))]
    assert any(isinstance(node, ast.Assert) for node in nodes)
    imports = ast.Import, ast.ImportFrom
    assert sum(isinstance(node, ast.stmt) and not isinstance(node, imports) for node in nodes) <= 14
    needed = re.search(NEWER, code, re.MULTILINE)
    if needed and jax.version.__version_info__[:2] < tuple(map(int, needed.groups())):
        pytest.skip(needed[0])
    if ALONE in code:
        run_python(code)
    else:
        wait_all()
        exec(code, {"__name__": "__main__"})
