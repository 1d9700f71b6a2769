"""The book: its sources, and what was built from them."""

import ast
import re
import subprocess
from html.parser import HTMLParser

import jupytext
import pytest
from run_notebook import ROOT, claimed_by, notebooks, python_of, read

from d2lpar.book.originals import EXPERIMENTS

BOOK = ROOT / "book"
NOTEBOOKS = notebooks()
IDS = [str(path.relative_to(BOOK)) for path in NOTEBOOKS]
PARALLELISM = BOOK / "automatic-parallelism.md"
CHAPTERS = {BOOK / "asynchronous-computation.md": "X", PARALLELISM: "Y"}
SOLUTIONS = {BOOK / "solutions" / path.name: letter for path, letter in CHAPTERS.items()}

# How sentences name the bounds that they are checked with; what contains another comes first.
NUMBERS = {
    "one and a half": 1.5,
    "above two": 2,
    "two thirds": 2 / 3,
    "a half": 0.5,
    "half": 0.5,
    "twice": 2,
    "a third": 1 / 3,
    "a quarter": 1 / 4,
    "four fifths": 4 / 5,
    "five quarters": 5 / 4,
    "a fifth": 1 / 5,
    "a tenth": 1 / 10,
    "ten times": 10,
    "five times": 5,
    "three times": 3,
    "a thousand": 1000,
}


def test_there_are_two_chapters_with_their_solutions():
    assert CHAPTERS.keys() | SOLUTIONS.keys() <= set(NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_the_notebook_that_colab_opens_is_the_chapter_without_outputs(path):
    source = jupytext.read(path)
    paired = jupytext.read(path.with_suffix(".ipynb"))
    assert [(c.cell_type, c.source) for c in paired.cells] == [
        (c.cell_type, c.source) for c in source.cells
    ], "they differ: run `make sync`"
    assert all(not cell.get("outputs") for cell in paired.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_every_claim_is_a_sentence_of_the_prose(path):
    notebook = jupytext.read(path)
    markdown = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    prose = " ".join(markdown.split())
    sentences = claimed_by(path)
    assert sentences
    assert all(sentence[0].isupper() and sentence[-1] == "." for sentence in sentences)
    assert [sentence for sentence in sentences if sentence not in prose] == []
    assert "$" not in "".join(sentences)  # Its box shows math raw.


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_number_that_a_sentence_names_is_a_bound_that_it_is_checked_with(path):
    functions = functions_of(path)
    for sentence, call in claimed_by(path).items():
        nodes = list(with_what_it_calls(call, functions))
        bounds = [value for node in nodes if (value := number_of(node)) is not None]
        for words, value in NUMBERS.items():
            # Within a third, or by more than a tenth, is as far from one.
            allowed = value, 1 + value, 1 - value
            fitting = [b for b in bounds if any(abs(b - a) < 1e-9 for a in allowed)]
            # What is named twice has two bounds: one that is wrong does not hide behind the other.
            assert len(fitting) >= sentence.count(words), (words, sentence)
            sentence = sentence.replace(words, "")


def functions_of(path):
    """Return the functions that the cells of a notebook define, by name."""
    trees = [ast.parse(python_of(cell.source)) for cell in read(path).cells]
    return {
        node.name: node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)
    }


def with_what_it_calls(code, functions):
    """Yield the nodes of some code and of the functions that it calls, of each once."""
    waiting, seen = [code], set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            yield node
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                if name in functions and name not in seen:
                    seen.add(name)
                    waiting.append(functions[name])


def number_of(node):
    """Return the value of an expression that consists of numbers, or None."""
    if any(not isinstance(n, ast.Constant | ast.BinOp | ast.operator) for n in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "", "eval")) if isinstance(node, ast.expr) else None
    return value if isinstance(value, int | float) else None


@pytest.mark.parametrize("path", sorted(BOOK.rglob("*.md")), ids=lambda p: str(p.relative_to(BOOK)))
def test_no_line_of_prose_is_taken_for_a_comment_or_for_the_item_of_a_list(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\s*(?:%|\+ ).*", text, re.MULTILINE) == []  # As of a broken formula.


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_notebook_page_holds_no_directive_or_role_that_colab_shows_raw(path):
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"^(```|:::)\{|\{[a-z:]+\}`", cell.source, re.MULTILINE)


def test_the_repository_has_one_address():
    project = (ROOT / "pyproject.toml").read_text()
    (address,) = re.findall(r'^Repository = "(.*)"', project, re.MULTILINE)
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    texts = [(ROOT / f).read_text(encoding="utf-8") for f in files if f and (ROOT / f).exists()]
    written = {url for text in texts for url in re.findall(r"https://[\w.]+/[\w-]+/d2lpar\b", text)}
    assert written == {address}


def test_the_example_of_the_readme_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "assert" in example
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    exec(compile(example, "README.md", "exec"), {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_the_page_shows_each_claim_with_a_verdict_and_none_fails(html, path):
    page = html / path.relative_to(ROOT).with_suffix(".html")
    verdicts = re.findall(r'class="d2lpar-claim" data-verdict="(\w+)"', page.read_text())
    assert len(verdicts) == len(claimed_by(path))
    assert "fails" not in verdicts
    tested = len(verdicts) - verdicts.count("untestable")
    assert verdicts.count("holds") > tested / 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_every_figure_of_the_page_has_a_written_alt_text_and_a_caption(html, path):
    page = (html / path.relative_to(ROOT).with_suffix(".html")).read_text()
    figures = Figures.of(page)
    assert len(figures.alts) > 3
    assert [alt for alt in figures.alts if len(alt.split()) < 5] == []
    assert figures.captions == len(figures.alts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_formula_stays_on_one_line_with_the_punctuation_behind_it(html, path):
    page = (html / path.relative_to(ROOT).with_suffix(".html")).read_text()
    in_one = re.findall(r'"d2lpar-together"><math(?:(?!</math>).)*</math>[.,;:?!)]+</span>', page)
    assert len(re.findall(r"</math>[.,;:?!)]", page)) == len(in_one)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_the_colab_link_of_the_page_names_a_notebook_of_the_repository(html, path):
    page = (html / path.relative_to(ROOT).with_suffix(".html")).read_text()
    colab = r'colab\.research\.google\.com/github/d2lpar/d2lpar/blob/main/([^"]+)'
    (link,) = set(re.findall(colab, page))
    assert link == str(path.with_suffix(".ipynb").relative_to(ROOT))
    assert (ROOT / link).exists()


def test_the_editions_are_shown_in_tables_and_a_broken_score_is_called_so(html):
    page = (html / PARALLELISM.relative_to(ROOT).with_suffix(".html")).read_text()
    tables = tables_of(page)
    assert [table.count("PyTorch edition") for table in tables] == [1, 1]
    assert ["1.08 (broken)" in table for table in tables] == [False, True]


def test_the_status_page_lists_every_claim(html):
    status = (html / "book" / "status.html").read_text()
    assert f"Claims: {sum(len(claimed_by(path)) for path in NOTEBOOKS)} (" in status


def test_the_results_page_sets_editions_and_this_build_side_by_side(html):
    page = (html / "book" / "results.html").read_text()
    for name, experiment in EXPERIMENTS.items():
        words = [*experiment.printed, *experiment.rows]
        (table,) = (t for t in tables_of(page) if all(f">{word}<" in t for word in words))
        assert "this build" in table
        assert f'id="fig-results-{name.lower()}"' in page
    assert ["1.08: broken" in table for table in tables_of(page)] == [False] * 6 + [True, False]
    verdicts = tables_of(page)[-1]
    assert verdicts.count("<tr") == 1 + sum(len(claimed_by(path)) for path in NOTEBOOKS)
    assert all(len(alt.split()) > 4 for alt in Figures.of(page).alts)


def test_the_page_on_soundness_has_every_claim_with_and_without_its_cause(html):
    page = (html / "book" / "soundness.html").read_text()
    causes, *repeats = tables_of(page)
    assert causes.count("<tr") == 1 + sum(len(claimed_by(path)) for path in NOTEBOOKS)
    assert repeats


@pytest.mark.parametrize("path", [*CHAPTERS, *SOLUTIONS], ids=lambda p: str(p.relative_to(BOOK)))
def test_each_starter_still_has_to_be_changed_and_each_solution_is_accepted(html, path):
    reports = re.findall(
        r'class="d2lpar-exercise" data-verdict="([\w ]+)".*?<div>Exercise (\w+)</div>',
        (html / path.relative_to(ROOT).with_suffix(".html")).read_text(),
        re.DOTALL,
    )
    expected = "accepted" if path in SOLUTIONS else "not yet"
    letter = (CHAPTERS | SOLUTIONS)[path]
    assert {verdict for verdict, _ in reports} == {expected}
    assert sorted({name for _, name in reports}) == [f"{letter}{n}" for n in range(1, 6)]


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_each_exercise_leads_to_its_solution_and_back(html, path):
    folder = html / path.parent.relative_to(ROOT)
    chapter = f"{path.stem}.html"
    page, solutions = (folder / chapter).read_text(), (folder / "solutions" / chapter).read_text()
    span = "(?:<span[^>]*>)?"
    there = re.findall(rf'href="solutions/{chapter}#([^"]+)">{span}Solution of (\w+)<', page)
    back = re.findall(rf'href="\.\./{chapter}#([^"]+)">{span}Exercise (\w+)<', solutions)
    for links, target in ((there, solutions), (back, page)):
        assert [name for _, name in links] == [f"{CHAPTERS[path]}{n}" for n in range(1, 6)]
        for anchor, name in links:
            assert anchor.startswith(name.lower())
            assert f'id="{anchor}"' in target


def tables_of(page):
    return re.findall(r"<table.*?</table>", page, re.DOTALL)


class Figures(HTMLParser):
    """The alt texts and captions of the figures that cells of a page drew."""

    @classmethod
    def of(cls, page):
        parser = cls()
        parser.alts, parser.captions = [], 0
        parser.feed(page)
        return parser

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "img" and "_images/" in attributes.get("src", ""):
            self.alts.append(attributes.get("alt", ""))
        self.captions += tag == "figcaption"
