"""The book: its sources, and what was built from them."""

import importlib
import json
import re
import string
import subprocess
import sys
from html import unescape
from itertools import compress, pairwise

import jupytext
import numpy as np
import pytest
from run_notebook import ROOT, claims_of, notebooks, read

from d2lpar._jax.stack import Place
from d2lpar._measure.overlap import SLACK, overlap_score
from d2lpar._watch.report import KINDS, Finding, Watched
from d2lpar.book import Claim, claims, exercises, recorded, results
from d2lpar.book.originals import EXPERIMENTS

BOOK = ROOT / "book"
NOTEBOOKS = notebooks()
IDS = [str(path.relative_to(BOOK)) for path in NOTEBOOKS]
PARALLELISM = BOOK / "automatic-parallelism.md"
CHAPTERS = {
    BOOK / "asynchronous-computation.md": "X",
    PARALLELISM: "Y",
    BOOK / "measuring-asynchronous-code.md": "W",
    BOOK / "in-your-own-code.md": "Z",
    BOOK / "beyond-one-machine.md": "V",
}
EXERCISES = {
    letter: re.findall(rf"^### ({letter}\d+)\.", path.read_text(), re.MULTILINE)
    for path, letter in CHAPTERS.items()
}
CHECK = r"^(exercises\.check_\w+\(.*\))$"
SOLUTIONS = {BOOK / "solutions" / path.name: letter for path, letter in CHAPTERS.items()}


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
    program = "\n".join([cells[1], *starters])  # The first one installs.
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
    checked = subprocess.run(command, input=program, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_the_notebook_that_colab_opens_is_the_chapter_without_outputs(path):
    source = jupytext.read(path)
    paired = jupytext.read(path.with_suffix(".ipynb"))
    assert [(c.cell_type, c.source) for c in paired.cells] == [
        (c.cell_type, c.source) for c in source.cells
    ], "they differ: run `make sync`"
    assert all(not cell.get("outputs") for cell in paired.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_claim_is_a_sentence_that_stands_once(path):
    notebook = jupytext.read(path)
    markdown = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    prose = " ".join(markdown.split())
    sentences = list(claims_of(path).values())
    assert sentences
    assert all(re.match(r"[A-Z`{]", sentence) and sentence[-1] == "." for sentence in sentences)
    assert [sentence for sentence in sentences if sentence in prose] == []
    assert "$" not in "".join(sentences)  # A cell's output shows math raw.


@pytest.mark.parametrize("path", list(recorded.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_appendix_explains_each_score_above_1_that_a_machine_has_recorded(path):
    page = (BOOK / "originals.md").read_text()
    runs = [run for run in results.load(path).experiments if run.experiment in ("P4", "P6")]
    assert runs
    for run in runs:
        score = overlap_score(*(run.rows[row] for row in ("first", "second", "at once")))
        if score.median > 1 + SLACK:
            low, high = score.interval
            assert f"from {low:.2f} to {high:.2f}" in page
            assert not score.broken


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
    recipes, window = map(np.median, file["ratios"].values())
    record = results.load(recorded.FOLDER / "h200-16-cores.json").claims.values()
    (loop,) = (claim.numbers for page in record for claim in page if claim.key == "loop-mended")
    for page, phrase in (
        ("asynchronous-computation", f"took {ms['a thousand increments, scan']:.0f} ms"),
        (
            "asynchronous-computation",
            f"kernel: {ms['a thousand increments, scan with unroll=50']:.1f} ms",
        ),
        ("asynchronous-computation", f"a megabyte for each step, took {window:.1f} times as long"),
        ("asynchronous-computation", f"learned from {loop['gain']:.1f} times as many examples"),
        (
            "asynchronous-computation",
            f"{loop['after']:%} of the time instead of {loop['before']:%}",
        ),
        ("asynchronous-computation", call),
        ("measuring-asynchronous-code", call),
        ("measuring-asynchronous-code", rates),
        ("automatic-parallelism", rates),
        ("automatic-parallelism", f"with a score of {late:.1f} on that H200"),
        ("automatic-parallelism", f"right behind its product, of {early:.2f},"),
        ("in-your-own-code", f"before and after both recipes: {recipes:.2f} times as fast."),
    ):
        assert phrase in " ".join((BOOK / f"{page}.md").read_text().split())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_reader_whose_machine_lacks_something_sees_no_hole_in_a_claim(path):
    for key, sentence in claims_of(path).items():
        made = Claim(sentence, needs="a GPU", key=key)
        assert not re.search(r"…|[{}]", made.text)
        not_yet = made.text == "Not yet measured: this needs a GPU."
        assert not_yet == ("Not yet measured" in made._repr_mimebundle_()["text/html"])
        # Each number of the sentence is there, or none of it.
        assert not_yet or re.fullmatch(with_any_numbers(sentence), made.text)


def with_any_numbers(sentence):
    """Return a pattern of a sentence in which some number stands in each place."""
    parts = string.Formatter().parse(sentence)
    return "".join(
        re.escape(said) + ("" if name is None else r"-?\d.*") for said, name, *_ in parts
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_page_shows_what_a_claim_says_and_not_the_cell_that_checks_it(path):
    for cell in read(path).cells:
        if re.search(r"^claim\(", cell.source, re.MULTILINE):
            assert "remove-input" in cell.metadata.get("tags", []), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_cell_that_the_page_shows_is_no_longer_than_a_reader_takes_in(path):
    folded = {"remove-input", "remove-cell", "hide-input"}
    shown = [
        cell.source for cell in read(path).cells if not folded & set(cell.metadata.get("tags", []))
    ]
    lines = {source: len([line for line in source.splitlines() if line]) for source in shown}
    # A training step that is written by hand is what it is about.
    too_long = {
        s: n for s, n in lines.items() if n > 25 and not re.search("train_step|step_by_hand", s)
    }
    assert too_long == {}
    assert [line for source in shown for line in source.splitlines() if len(line) > 78] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_fold_says_what_is_in_it_and_stands_beside_no_other(path):
    cells = jupytext.read(path).cells
    folded = ["hide-input" in cell.metadata.get("tags", []) for cell in cells]
    assert not any(map(all, pairwise(folded)))
    for cell in compress(cells, folded):
        named = cell.metadata.get("mystnb", {})
        names = {named.get("code_prompt_show"), named.get("code_prompt_hide")}
        assert all(re.match(r"Code: \w+ \w+", name or "") for name in names), cell.source


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
    texts = [
        (ROOT / f).read_text(encoding="utf-8")
        for f in files
        if f and not f.endswith((".png", ".woff2")) and (ROOT / f).exists()
    ]
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
    assert len(verdicts) == len(claims_of(path))
    assert "fails" not in verdicts
    tested = len(verdicts) - verdicts.count("untestable")
    assert verdicts.count("holds") > tested / 2


SILLY = {
    "a duration below that of light through a finger": r"\b0\.0\d* ns",
    "an interval that is none": r"interval ([\d.]+)(?: [nµm]?s)? to \1(?![.\d])",
    "a bound that is twice the same": r"claimed: ([\d.]+)(?: [nµm]?s)? to \1(?![.\d])",
    "an array that nobody reads": r"Array\(\[[^\]]*\.\.\.",
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_no_page_prints_what_nobody_would_say(html, path):
    page = html / path.relative_to(ROOT).with_suffix(".html")
    words = re.sub(r"<[^>]+>", " ", page.read_text()).replace("\u00a0", " ")
    found = {what: re.search(pattern, words) for what, pattern in SILLY.items()}
    assert {what: match[0] for what, match in found.items() if match} == {}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_no_claim_has_a_hole_where_a_number_belongs(html, path):
    page = html / path.relative_to(ROOT).with_suffix(".html")
    made = re.findall(r'class="d2lpar-claim".*?</(?:p|summary)>', page.read_text(), re.DOTALL)
    assert len(made) == len(claims_of(path))
    assert [claim for claim in made if "…" in claim] == []


@pytest.mark.parametrize("name", ["evidence", "originals"])
def test_no_table_of_claims_has_a_hole_where_a_number_belongs(html, name):
    assert "…" not in (html / "book" / f"{name}.html").read_text()


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if "first-screen" in p.read_text()])
def test_the_picture_of_a_chapter_stands_before_its_code_and_again_where_that_is_shown(html, path):
    page = (html / path.relative_to(ROOT).with_suffix(".html")).read_text()
    article = page[page.index("<h1") :]
    above = article[: article.index('class="cell ')]
    (picture,) = set(re.findall(r"_images/[^\"]+", above))
    run = html.parent / "jupyter_execute" / path.relative_to(ROOT).with_suffix(".ipynb")
    tagged = [c for c in jupytext.read(run).cells if "first-screen" in c.metadata.get("tags", [])]
    shown = any("remove-input" not in cell.metadata["tags"] for cell in tagged)
    assert (article.count(picture) > above.count(picture)) == shown
    said = [
        Claim.from_dict(data) for data in results.outputs_of({"cells": tagged}, claims.MIME_TYPE)
    ]
    assert said
    words = " ".join(unescape(re.sub(r"<[^>]+>", "", above)).split())
    assert [claim.text for claim in said if claim.text not in words] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_every_figure_of_the_page_has_a_written_alt_text_and_a_caption(html, path):
    page = (html / path.relative_to(ROOT).with_suffix(".html")).read_text()
    alts, source = alts_of(page), path.read_text(encoding="utf-8")
    drawn = re.findall(r"^ +figure:", source, re.MULTILINE)
    # Colab would show a directive raw, so the caption of a picture is a paragraph in italics.
    pictures = re.findall(r"^!\[.+\)$", source, re.MULTILINE)
    assert len(re.findall(r"^!\[.+\)\n\n\*[^*]", source, re.MULTILINE)) == len(pictures)
    assert len(alts) == len(drawn) + len(pictures)
    assert [alt for alt in alts if len(alt.split()) < 5] == []
    assert page.count("<figcaption") == len(drawn)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_formula_stays_on_one_line_with_the_punctuation_behind_it(html, path):
    page = (html / path.relative_to(ROOT).with_suffix(".html")).read_text()
    in_one = re.findall(r'"sd-text-nowrap"><math(?:(?!</math>).)*</math>[.,;:?!)]+</span>', page)
    assert len(re.findall(r"</math>[.,;:?!)]", page)) == len(in_one)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_the_colab_link_of_the_page_names_a_notebook_of_the_repository(html, path):
    page = (html / path.relative_to(ROOT).with_suffix(".html")).read_text()
    colab = r'colab\.research\.google\.com/github/d2lpar/d2lpar/blob/main/([^"]+)'
    (link,) = set(re.findall(colab, page))
    assert link == str(path.with_suffix(".ipynb").relative_to(ROOT))
    assert (ROOT / link).exists()


def test_the_first_page_explains_every_badge(html):
    page = (html / "book" / "index.html").read_text()
    _, _, table = page.partition("What the verdicts mean")
    for words in (*claims.VERDICTS.values(), "holds on \N{HORIZONTAL ELLIPSIS}"):
        assert f">{words}</span>" in table


def test_the_page_with_the_evidence_has_a_row_for_every_claim_and_none_fails_in_this_build(html):
    page = (html / "book" / "evidence.html").read_text()
    claims = [key for path in NOTEBOOKS for key in claims_of(path)]
    assert f"Claims: {len(claims)} (" in page
    tables = re.findall(r'<table class="[^"]*\bclaims\b.*?</table>', page, re.DOTALL)
    assert len(tables) == len(NOTEBOOKS)
    rows = [re.findall(r"<td>.*?</td>", row, re.DOTALL) for t in tables for row in t.split("<tr")]
    rows = [cells for cells in rows if cells]
    assert [re.search('#claim-([^"]+)', title)[1] for title, *_ in rows] == claims
    assert [cells[0] for cells in rows if "fails" in cells[1]] == []
    causes = next(table for table in tables_of(page) if ">What is taken away<" in table)
    assert causes.count("<tr") == 1 + len(NOTEBOOKS) + len(claims)  # Each page has a title.


def test_every_link_to_a_claim_leads_to_its_sentence(html):
    page = (html / "book" / "evidence.html").read_text()
    links = set(re.findall(r'href="([^"#]+)#(claim-[^"]+)"', page))
    assert len(links) == sum(len(claims_of(path)) for path in NOTEBOOKS)
    for target, anchor in links:
        assert (html / "book" / target).read_text().count(f' id="{anchor}"') == 1


def test_the_appendix_sets_editions_and_this_build_side_by_side(html):
    page = (html / "book" / "originals.html").read_text()
    summary, *tables = tables_of(page)
    findings = [(e, claimed) for e in EXPERIMENTS.values() for claimed in e.findings]
    assert summary.count("<tr") == 1 + len(findings)
    for (experiment, claimed), table in zip(findings, tables, strict=True):
        assert claimed in summary
        assert ">this build" in table
        assert all(f">{edition}<" in table for edition in experiment.printed)
    for name in EXPERIMENTS:
        assert f'id="fig-originals-{name.lower()}"' in page
    # On a busy machine, this build may be broken as well, and stands behind the editions.
    editions = tables[-1].split(">this build")[0]
    assert re.findall(r">broken<.*?<p>([\d.]+)<", editions, re.DOTALL) == ["1.08"]
    assert all(len(alt.split()) > 4 for alt in alts_of(page))


@pytest.mark.parametrize("path", [*CHAPTERS, *SOLUTIONS], ids=lambda p: str(p.relative_to(BOOK)))
def test_each_starter_still_has_to_be_changed_and_each_solution_is_accepted(html, path):
    name = path.relative_to(ROOT)
    run = html.parent / "jupyter_execute" / name.with_suffix(".ipynb")
    outputs = [o.get("data", {}) for c in jupytext.read(run).cells for o in c.get("outputs", [])]
    reports = [data[exercises.MIME_TYPE] for data in outputs if exercises.MIME_TYPE in data]
    expected = "accepted" if path in SOLUTIONS else "not yet"
    letter = (CHAPTERS | SOLUTIONS)[path]
    assert {report["verdict"] for report in reports} == {expected}
    names = sorted({report["exercise"] for report in reports})
    assert names == EXERCISES[letter]
    assert not [report for report in reports if "Your function raised" in report["saw"]]
    page = (html / name.with_suffix(".html")).read_text()
    shown = re.findall(r'class="d2lpar-exercise" data-verdict="([^"]+)"', page)
    assert shown == [report["verdict"] for report in reports]


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_each_exercise_leads_to_its_solution_and_back(html, path):
    folder = html / path.parent.relative_to(ROOT)
    chapter = f"{path.stem}.html"
    page, solutions = (folder / chapter).read_text(), (folder / "solutions" / chapter).read_text()
    span = "(?:<span[^>]*>)?"
    there = re.findall(rf'href="solutions/{chapter}#([^"]+)">{span}Solution of (\w+)<', page)
    back = re.findall(rf'href="\.\./{chapter}#([^"]+)">{span}Exercise (\w+)<', solutions)
    letter = CHAPTERS[path]
    for links, target in ((there, solutions), (back, page)):
        assert [name for _, name in links] == EXERCISES[letter]
        for anchor, name in links:
            assert anchor.startswith(name.lower())
            assert f'id="{anchor}"' in target


def tables_of(page):
    return re.findall(r"<table.*?</table>", page, re.DOTALL)


def alts_of(page):
    """Return the alternative texts of a page's images, of which one may stand twice."""
    images = re.findall(r"<img [^>]*_images/[^>]*>", page)
    alts = {re.search('src="(.*?)"', i)[1]: re.search('alt="(.*?)"', i)[1] for i in images}
    return list(alts.values())


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
        assert advice.endswith(".")
        assert (f'id="{anchor}"' if anchor else "<h1") in (html / page).read_text(), link
