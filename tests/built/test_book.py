"""The book: its sources, and the built pages."""

import importlib
import json
import re
import subprocess
import sys
from html import unescape
from itertools import compress, pairwise

import jupytext
import numpy as np
import pytest
from run_notebook import ROOT, claims_of, notebooks, read

from d2lpar._jax.stack import Place
from d2lpar._watch.report import KINDS, Finding, Watched
from d2lpar.book import Claim, claims, exercises, recorded, results

BOOK = ROOT / "book"
NOTEBOOKS = notebooks()
CHAPTERS = {
    BOOK / "asynchronous-computation.md": "X",
    BOOK / "automatic-parallelism.md": "Y",
    BOOK / "measuring-asynchronous-code.md": "W",
    BOOK / "in-your-own-code.md": "Z",
    BOOK / "beyond-one-machine.md": "V",
}
EXERCISES = {
    letter: re.findall(rf"^### ({letter}\d+)\.", path.read_text(), re.MULTILINE)
    for path, letter in CHAPTERS.items()
}
FOLDED = {"remove-input", "remove-cell", "hide-input"}
CHECK = r"^(exercises\.check_\w+\(.*\))$"
SOLUTIONS = {BOOK / "solutions" / path.name: letter for path, letter in CHAPTERS.items()}


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: str(path.relative_to(BOOK)))
def path(request):
    return request.param


@pytest.fixture
def page(html, path):
    return (html / path.relative_to(ROOT).with_suffix(".html")).read_text()


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_an_exercise_is_checked_in_the_module_that_is_named_like_its_page(path):
    module = importlib.import_module(f"d2lpar.book.exercises.{path.stem.replace('-', '_')}")
    letter, text = CHAPTERS[path], path.read_text()
    names = EXERCISES[letter]
    assert names == [f"{letter}{number}" for number in range(1, len(names) + 1)] != []
    checks = [re.search(r"check_\w+", call)[0] for call in re.findall(CHECK, text, re.MULTILINE)]
    assert checks == [f"check_{name.lower()}" for name in names]
    assert {getattr(exercises, check).__module__ for check in checks} == {module.__name__}
    title = re.search(r"^# (.*)", text, re.MULTILINE)[1]
    assert module.__doc__.startswith(f"{letter}, the exercises of {title}: ")


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_starter_needs_only_the_first_two_cells(path):
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    starters = [source for source in cells if re.search(CHECK, source, re.MULTILINE)]
    program = "\n".join([cells[1], *starters])  # The first cell installs d2lpar.
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
    checked = subprocess.run(command, input=program, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_notebook_that_colab_opens_is_the_chapter_without_outputs(path):
    source = jupytext.read(path)
    paired = jupytext.read(path.with_suffix(".ipynb"))
    assert [(c.cell_type, c.source) for c in paired.cells] == [
        (c.cell_type, c.source) for c in source.cells
    ], "they differ: run `make sync`"
    assert all(not cell.get("outputs") for cell in paired.cells)


def test_a_claim_is_a_sentence_that_stands_once(path):
    notebook = jupytext.read(path)
    markdown = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    prose = " ".join(markdown.split())
    sentences = list(claims_of(path).values())
    assert sentences
    assert all(re.match(r"[A-Z`{]", sentence) and sentence[-1] == "." for sentence in sentences)
    assert [sentence for sentence in sentences if sentence in prose] == []
    assert "$" not in "".join(sentences)  # A cell's output shows math raw.


def test_the_numbers_of_an_h200_that_chapters_have_typed_are_those_of_its_files():
    """Colab shows a role raw, so a chapter cannot read them."""
    file = json.loads((ROOT / "evidence" / "h200.json").read_text())
    runs = file["seconds"]["JAX"]
    ms = {work: 1e3 * np.median(seconds) for work, seconds in runs.items()}
    calls = runs["a thousand increments, call by call"]
    call = f"{1e3 * min(calls):.0f} to {1e3 * max(calls):.0f} µs"
    products, megabytes = ms["fifty products"], file["bytes copied"] / 1e6
    pageable, pinned = (ms[f"copying them to {kind} memory"] for kind in ("pageable", "pinned"))
    rates = f"{megabytes / pageable:.1f} GB/s into pageable memory and "
    rates += f"{megabytes / pinned:.0f} GB/s into pinned"
    late, early = (
        (products + pinned - ms[way]) / products
        for way in ("fifty products, then fifty copies", "each copy behind its product")
    )
    twice = ms["training, a barrier in each step"] / ms["training"]
    recipes, window = map(np.median, file["ratios"].values())
    record = results.load(recorded.FOLDER / "h200-16-cores.json").claims.values()
    (loop,) = (claim.numbers for page in record for claim in page if claim.key == "loop-mended")
    longer = lambda ratio: f"about {round(100 * (ratio - 1), -1):.0f}% longer"  # noqa: E731
    phrases = {
        "asynchronous-computation": [
            call,
            f"took {ms['a thousand increments, scan']:.0f} ms",
            f"kernel: {ms['a thousand increments, scan with unroll=50']:.1f} ms",
            f"(beside-pytorch.md#training) took {longer(twice)}",
            f"a megabyte for each step, took {longer(window)}",
            f"was {loop['gain']:.1f} times as fast",
            f"{loop['after']:%} of the time instead of {loop['before']:%}",
        ],
        "measuring-asynchronous-code": [call, rates],
        "automatic-parallelism": [
            rates,
            f"with a score of {late:.1f} on that H200",
            f"the score was {early:.2f}.",
        ],
        "in-your-own-code": [f"before and after both recipes: {recipes:.2f} times as fast."],
    }
    for page, expected in phrases.items():
        text = " ".join((BOOK / f"{page}.md").read_text().split())
        assert [phrase for phrase in expected if phrase not in text] == []


def test_a_cell_that_the_page_shows_is_short_and_no_claim(path):
    for cell in read(path).cells:
        if not FOLDED & set(cell.metadata.get("tags", [])):
            lines = [line for line in cell.source.splitlines() if line]
            assert not [line for line in lines if line.startswith("claim(") or len(line) > 78]
            # A training step written by hand is the subject of its section.
            assert len(lines) <= 25 or re.search("train_step|step_by_hand", cell.source)


def test_a_fold_has_a_title_and_no_fold_beside_it(path):
    cells = jupytext.read(path).cells
    folded = ["hide-input" in cell.metadata.get("tags", []) for cell in cells]
    assert not any(map(all, pairwise(folded)))
    for cell in compress(cells, folded):
        titles = cell.metadata.get("mystnb", {})
        for title in ("code_prompt_show", "code_prompt_hide"):
            assert re.match(r"Code: \w+ \w+", titles.get(title, "")), cell.source


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_says_how_long_it_takes_without_its_exercises(html, path):
    prose, lines = "", 0
    for cell in jupytext.read(path).cells:
        if "## Exercises" in prose:
            break
        if cell.cell_type == "markdown":
            prose += re.sub(r"<details>.*?</details>|\]\([^)]*\)", "", cell.source, flags=re.DOTALL)
        elif not FOLDED & set(cell.metadata.get("tags", [])):
            lines += len(cell.source.split("\n"))
    words = len(prose.partition("## Exercises")[0].split())
    table = re.sub(r"<[^>]+>", " ", (html / "book" / "teach.html").read_text())
    title = re.search(r"^# (.+)", path.read_text(), re.MULTILINE)[1]
    seconds = int(re.search(rf"{title}\s+(?:This build:\s+)?(\d+)\ss", table)[1])
    # Technical prose at 150 words a minute, and three seconds for each line of code.
    minutes = words / 150 + lines / 20 + seconds / 60
    stated = re.search(r"^\*About (\d+) minutes, without the exercises", path.read_text(), re.M)
    assert abs(int(stated[1]) - minutes) < 6


@pytest.mark.parametrize("path", sorted(BOOK.rglob("*.md")), ids=lambda p: str(p.relative_to(BOOK)))
def test_no_line_of_prose_is_taken_for_a_comment_or_for_the_item_of_a_list(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    # Such a line is the second half of a broken formula.
    assert re.findall(r"^\s*(?:%|\+ ).*", text, re.MULTILINE) == []


def test_a_notebook_page_holds_no_directive_or_role_that_colab_shows_raw(path):
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"^(```|:::)\{|\{[a-z:]+\}`", cell.source, re.MULTILINE)


def test_the_repository_has_one_address():
    project = (ROOT / "pyproject.toml").read_text()
    (address,) = re.findall(r'^Repository = "(.*)"', project, re.MULTILINE)
    search = ["git", "grep", "--only-matching", "-hIP", r"https://[\w.]+/[\w-]+/d2lpar\b"]
    written = subprocess.check_output(search, cwd=ROOT, text=True).splitlines()
    assert set(written) == {address}


def test_the_page_shows_each_claim_with_a_verdict_and_none_fails(page, path):
    shown = re.findall(
        r'class="d2lpar-claim" data-verdict="(\w+)"(.*?)</(?:p|summary)>', page, re.DOTALL
    )
    assert len(shown) == len(claims_of(path))
    verdicts = [verdict for verdict, _ in shown]
    assert "fails" not in verdicts
    tested = len(verdicts) - verdicts.count("untestable")
    assert verdicts.count("holds") > tested / 2


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if "first-screen" in p.read_text()])
def test_a_chapter_begins_with_the_picture_and_the_claims_of_its_first_screen(html, page, path):
    article = page[page.index("<h1") :]
    above = article[: article.index('class="cell ')]
    assert "_images/" in above
    run = html.parent / "jupyter_execute" / path.relative_to(ROOT).with_suffix(".ipynb")
    tagged = [c for c in jupytext.read(run).cells if "first-screen" in c.metadata.get("tags", [])]
    shown = [Claim.from_dict(d) for d in results.outputs_of({"cells": tagged}, claims.MIME_TYPE)]
    words = " ".join(unescape(re.sub(r"<[^>]+>", "", above)).split())
    assert shown
    # What this machine cannot test has the numbers of another, and no badge here to say so.
    tested = [claim.text for claim in shown if claim.verdict != "untestable"]
    assert [claim.text for claim in shown if claim.text in words] == tested


def test_every_figure_of_the_page_has_a_written_alt_text_and_a_caption(page, path):
    images = re.findall(r"<img [^>]*_images/[^>]*>", page)  # An image may be shown twice.
    alts = {re.search('src="(.*?)"', i)[1]: re.search('alt="(.*?)"', i)[1] for i in images}
    source = path.read_text(encoding="utf-8")
    drawn = re.findall(r"^ +figure:", source, re.MULTILINE)
    # Colab would show a directive raw, so the caption of a picture is a paragraph in italics.
    pictures = re.findall(r"^!\[.+\)$", source, re.MULTILINE)
    assert len(re.findall(r"^!\[.+\)\n\n\*[^*]", source, re.MULTILINE)) == len(pictures)
    assert len(alts) == len(drawn) + len(pictures)
    assert [alt for alt in alts.values() if len(alt.split()) < 5] == []
    assert page.count("<figcaption") == len(drawn)


def test_a_formula_stays_on_one_line_with_the_punctuation_behind_it(page):
    in_one = re.findall(r'"sd-text-nowrap"><math(?:(?!</math>).)*</math>[.,;:?!)]+</span>', page)
    assert len(re.findall(r"</math>[.,;:?!)]", page)) == len(in_one)


def test_the_page_with_the_evidence_has_a_row_for_every_claim(html):
    page = (html / "book" / "evidence.html").read_text()
    claims = [key for path in NOTEBOOKS for key in claims_of(path)]
    assert f"Claims: {len(claims)} (" in page
    tables = "".join(re.findall(r'<table class="[^"]*\bclaims\b.*?</table>', page, re.DOTALL))
    assert re.findall('#claim-([^"]+)', tables) == claims
    every = re.findall(r"<table.*?</table>", page, re.DOTALL)
    causes = next(table for table in every if ">What is taken away<" in table)
    assert causes.count("<tr") == 1 + len(NOTEBOOKS) + len(claims)  # Each page has a title.


@pytest.mark.parametrize("path", [*CHAPTERS, *SOLUTIONS], ids=lambda p: str(p.relative_to(BOOK)))
def test_each_starter_still_has_to_be_changed_and_each_solution_is_accepted(html, page, path):
    run = html.parent / "jupyter_execute" / path.relative_to(ROOT).with_suffix(".ipynb")
    reports = results.outputs_of(jupytext.read(run), exercises.MIME_TYPE)
    expected = "accepted" if path in SOLUTIONS else "not yet"
    letter = (CHAPTERS | SOLUTIONS)[path]
    assert {report["verdict"] for report in reports} == {expected}
    names = sorted({report["exercise"] for report in reports})
    assert names == EXERCISES[letter]
    assert not [report for report in reports if "Your function raised" in report["saw"]]
    shown = re.findall(r'class="d2lpar-exercise" data-verdict="([^"]+)"', page)
    assert shown == [report["verdict"] for report in reports]


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_each_exercise_leads_to_its_solution_and_back(html, page, path):
    chapter, span = f"{path.stem}.html", "(?:<span[^>]*>)?"
    solutions = (html / "book" / "solutions" / chapter).read_text()
    there = re.findall(rf'href="solutions/{chapter}#(\w+)[^"]*">{span}Solution of (\w+)<', page)
    back = re.findall(rf'href="\.\./{chapter}#(\w+)[^"]*">{span}Exercise (\w+)<', solutions)
    assert there == back == [(name.lower(), name) for name in EXERCISES[CHAPTERS[path]]]


def test_each_field_of_the_report_of_watch_is_explained():
    page = (BOOK / "use-it.md").read_text()
    found = Finding("value", Place("a.py", 1, ""), "", "")
    report = json.loads(Watched(findings=[found]).to_json())
    fields = {*report, *report["findings"][0], *report["findings"][0]["place"]}
    assert [field for field in fields if f"`{field}`" not in page] == []
    assert [kind for kind in KINDS if f"`{kind}`" not in page] == []


def test_the_advice_of_watch_leads_to_a_heading_of_the_book(html):
    for _, advice, link in KINDS.values():
        page, _, anchor = link.removeprefix("https://d2lpar.github.io/d2lpar/").partition("#")
        assert advice[-1:] in ("", ".")  # Some kinds need no advice.
        assert (f'id="{anchor}"' if anchor else "<h1") in (html / page).read_text(), link
