"""Tables of the measurements of this build and of other machines, for Sphinx."""

from collections import Counter
from datetime import UTC, datetime
from itertools import chain, compress, repeat
from pathlib import Path

import d2lpar_runs as runs
from docutils import nodes
from sphinx.util import logging
from sphinx_design.shared import create_component

from d2lpar._measure.quantity import Predicate
from d2lpar._plain.format import format_value
from d2lpar.book.notebook import badge, unbroken, words_for

logger = logging.getLogger(__name__)
in_words = runs.repeats.in_words

SIGNS = {"holds": "\u2713", "seen": "(\u2713)", "fails": "\u2717", "inconclusive": "?"}
"""The signs for a verdict."""

SPELLED = {word.lower(): word for word in ("CPU", "GPU", "JAX", "NPROC", "Python")}
"""Words of keys that are not written in small letters."""

# --- Claims -----------------------------------------------------------------------------------


def claims_table(app, docname, _):
    """Return how many claims there are, and for each page a fold with a table of its own.

    The table has each claim on this machine and on each whose record has a verdict for half of the
    page's claims or more, and how often the claim held in repeated runs.
    """
    repeated = [pages for by_page in runs.repeated(app).values() for pages in by_page.values()]
    by_machine = {
        results.name: {claim.key: claim for claim in chain(*results.claims.values())}
        for results in runs.machines(app)
    }
    verdicts = Counter(short(c.verdict) for c in chain(*runs.this_build(app).claims.values()))
    content = [
        nodes.paragraph(text=f"Claims: {verdicts.total()} ({in_words(verdicts) or 'none'}).")
    ]
    for page, claims in claims_by_page(app):
        title, titles, bounds = app.env.titles[page].astext(), [], []
        for claim in claims:
            on_machines = (known.get(claim.key) for known in by_machine.values())
            bounds.append(next((nearest(c) for c in on_machines if c and not c.needs), None))
            titles.append([[claim_link(app, docname, page, claim)]])
            if isinstance(bounds[-1], Predicate):
                titles[-1].append(with_code(compared(bounds[-1])))
        header, columns = ["Claim"], [titles]
        for name, known in by_machine.items():
            cells = [number_of(known.get(c.key), b) for c, b in zip(claims, bounds, strict=True)]
            recorded = (cell for cell in cells if not isinstance(cell, str))
            judged = sum("untestable" not in cell[0][0]["classes"] for cell in recorded)
            if name == "this build":
                header.append(name)
            elif 2 * judged >= len(claims):
                share = f"verdict on {judged} of {len(claims)}"
                header.append([[nodes.Text(name)], [nodes.Text(share)]])
            else:
                continue
            columns.append(cells)
        header.append("Held in repeated runs")
        columns.append([held_in(repeated, claim) for claim in claims])
        fold = f"{title} ({in_words(Counter(short(claim.verdict) for claim in claims))})"
        rows = list(zip(*columns, strict=True))
        content += folded(fold, table("claims", header, rows, stacked=True))
    return content


def held_in(repeated, claim):
    """Return how often a claim held under each condition, and below how far it was from failing.

    A bound of 0 has no percentage: the number itself is shown, or another comparison.
    """
    bounded = [p.low != 0 or p.high != 0 for p in claim.predicates] or repeat(True)

    def how_far(margins):
        if not any(bounded):
            unit = claim.predicates[0].quantity.unit
            return f"{format_value(min(map(min, margins)), unit)} at worst"
        return runs.repeats.worst([list(compress(run, bounded)) for run in margins])

    by_condition = [runs.repeats.how_often(pages, claim.key, how_far) for pages in repeated]
    cell = []
    for words in zip(*by_condition, strict=True):
        parts = words[:1] if len(set(words)) == 1 else filter(None, words)
        line = unbroken(" \u00b7 ".join(parts)).replace(" of ", "\u00a0of\u00a0")
        cell.append([nodes.Text(line)])
    return cell


def claims_by_page(app):
    return [(page, claims) for page, claims in runs.this_build(app).claims.items() if claims]


def claim_link(app, docname, page, claim):
    """Return the key of a claim in words, as a link to its sentence."""
    uri = f"{app.builder.get_relative_uri(docname, page)}#{claim.anchor}"
    words = " ".join(SPELLED.get(word, word) for word in claim.key.split("-"))
    return nodes.reference("", words[0].upper() + words[1:], refuri=uri, internal=True)


def nearest(claim):
    """Return the comparison of a claim that is nearest to failing."""
    decisive = (p for p in claim.predicates if p.verdict == claim.verdict)
    return min(decisive, key=lambda predicate: predicate.margin())


def compared(predicate):
    return f"{predicate.quantity.name}: {predicate.describe()}"


def number_of(claim, decisive):
    """Return the decisive number of a claim; without a verdict if its bound was another one."""
    if not claim:
        return "\u2013"
    if claim.needs:
        return [verdict("untestable", "not testable")]
    bound = compared(decisive)
    same = (p for p in claim.predicates if compared(p) == bound and p.verdict == claim.verdict)
    shown = next(same, nearest(claim))
    if shown.quantity.name != decisive.quantity.name:
        return "\u2013\u2021"  # The number is a different quantity.
    if compared(shown) != bound:
        return unbroken(f"{shown.quantity}\u2020")
    return [verdict(claim.verdict, unbroken(f"{shown.quantity} {SIGNS[claim.verdict]}"))]


# --- Claims without their cause ---------------------------------------------------------------


def causes_table(app, docname, _):
    """Return the machines of the tests, and a table of claims with their cause and without it."""
    kept, pages, rows = runs.causes(app), runs.tested_pages(app), []
    for page, claims in claims_by_page(app):
        title, run = app.env.titles[page].astext(), pages.get(page.removeprefix("book/"))
        rows.append(f"{title} ({run['date']}, at commit {run['commit']})" if run else title)
        for claim in claims:
            result = kept.get(claim.key, {})
            sides = [result.get(side) for side in ("with", "without")]
            with_it, without = (tested(side, sides[1]) for side in sides)
            link = [[claim_link(app, docname, page, claim)]]
            rows.append((link, with_it, result.get("takes_away", ""), without))
    header = ("Claim", "With its cause", "What is taken away", "Without it")
    where = "; ".join(dict.fromkeys(results["machine"] for results in pages.values()))
    paragraph = nodes.paragraph(text=f"Tested on {where or 'no machine yet'}.")
    return [paragraph, table("causes", header, rows, stacked=True)]


def tested(side, without):
    """Return the cell of a claim that was tested, with its cause or without.

    The comparisons that fail without it come first.
    """
    if not side:
        return "not tested yet"
    words = verdict(side["verdict"], short(side["verdict"]))
    if side["needs"]:
        words.append(nodes.Text(f": needs {side['needs']}"))
    if side["tries"] > 1:
        words.append(nodes.Text(f" (when tried {side['tries']} times)"))
    lines = zip(without["measured"], side["measured"], strict=True)
    in_order = sorted(lines, key=lambda line: not line[0].endswith("fails"))
    return [words, *(with_code(line) for _, line in in_order)]


def repeats_table(app, docname, _):
    """Return how often whole pages held in repeated runs, for each condition."""
    pages, content = [page.removeprefix("book/") for page, _ in claims_by_page(app)], []
    for machine, conditions in runs.repeated(app).items():
        totals = {
            name: runs.repeats.in_total(by_page, pages) for name, by_page in conditions.items()
        }
        rows = [row(name, *([with_code(cell)] for cell in cells)) for name, cells in totals.items()]
        content.append(nodes.paragraph(text=f"On {machine}:"))
        content.append(table("repeats", ("Condition", *runs.repeats.TOTALS), rows, stacked=True))
    return content


def versions_table(app, docname, _):
    """Return a table of the verdicts on each claim, and on the facts, by the version of JAX."""
    kept, header = runs.by_version(app), ["Claim"]
    for version, run in kept.items():
        where = f"Python {run['python']}, {run['cores']} cores, {run['date'][:10]}, {run['commit']}"
        header.append([[nodes.Text(f"JAX {version}")], [nodes.Text(where)]])

    def cells(kind, name):
        outcomes = (run[kind].get(name, "untestable") for run in kept.values())
        signs = SIGNS | {"untestable": "\u2013"}
        return [
            [verdict(word, signs[word])] if word in signs else word.removeprefix("# ")
            for word in outcomes
        ]

    rows = []
    for page, claims in claims_by_page(app):
        rows.append(app.env.titles[page].astext())
        for claim in claims:
            rows.append(([[claim_link(app, docname, page, claim)]], *cells("claims", claim.key)))
    rows.append("Sentences and Their Experiments, if one failed or was not run with a version")
    for words in dict.fromkeys(chain(*(run["facts"] for run in kept.values()))):
        if any(run["facts"].get(words) != "holds" for run in kept.values()):
            beginning = words.replace("*", "") + " \u2026"
            rows.append(([with_code(beginning)], *cells("facts", words)))
    held = (list(run["facts"].values()) for run in kept.values())
    rows.append(("Experiments that hold", *(f"{f.count('holds')} of {len(f)}" for f in held)))
    return [table("versions", header, rows, stacked=True)]


def seconds_table(app, docname, _):
    kept, rows = runs.by_version(app), []
    header = [
        f"JAX {version}, Python {run['python']}, {run['cores']} cores"
        for version, run in kept.items()
    ]
    for page in dict.fromkeys(chain(*(run["seconds"] for run in kept.values()))):
        if (name := f"book/{page}") in app.env.titles:  # A book may lack the solutions.
            here = app.env.nb_metadata[name]["exec_data"]["runtime"]
            seconds = here, *(run["seconds"].get(page) for run in kept.values())
            title = app.env.titles[name].astext()
            rows.append((title, *("\u2013" if s is None else f"{s:.0f} s" for s in seconds)))
    return [table("seconds", ("Notebook", "This build", *header), rows, stacked=True)]


def conditions_table(app, docname, _):
    """Return the results of whole pages on one core, on one device, and without a GPU."""
    kept, rows = runs.tested_pages(app), []
    for page in runs.this_build(app).claims:
        conditions = kept.get(page.removeprefix("book/"), {"conditions": {}})["conditions"]
        for condition, record in conditions.items():
            claims = Counter(short(verdict) for verdict in record["claims"].values())
            exercises = Counter(record["exercises"].values())
            counts = map(in_words, (claims, exercises))
            rows.append(row(app.env.titles[page].astext(), condition, *counts))
    return [table("conditions", ("Page", "Run on", "Claims", "Exercises"), rows, stacked=True)]


def short(verdict):
    """Return the words for a verdict without "here"."""
    return words_for(verdict).removesuffix(" here")


def measured(app, docname, argument):
    """Return a number of a claim of this build, or one computed from a file in `evidence/`.

    Examples are "loop-mended gain:.1f" for the first and "h200 JAX training / steps:.1f" for the
    second.
    """
    place, _, spec = argument.partition(":")
    source, _, name = place.strip().partition(" ")
    try:
        if Path(app.srcdir, "evidence", f"{source}.json").exists():
            number = runs.peers_number(app, source, name)
        else:
            number = runs.numbers_of(app, source)[name]
    except (KeyError, NameError, StopIteration, SyntaxError):
        logger.warning("nothing measured %r", argument, location=docname, type="d2lpar")
        return []
    return [nodes.Text(unbroken(format(number, spec)))]


MEANINGS = {
    "holds": "The whole interval (95 or 99%) of each tested number lies on its side of the bound.",
    "seen": "It was seen a single time, which agrees with it. That is no interval.",
    "inconclusive": "The interval reaches over the bound, so it is undecided.",
    "fails": "No part of the interval agrees with it.",
    "untestable": "The machine lacks something, such as a GPU or a second core.",
}
"""The meaning of each verdict."""


def badges_table(app, docname, _):
    """Return a table of the verdicts, as badges like those beside claims, with their meanings."""
    badges = [(badge(verdict), meaning) for verdict, meaning in MEANINGS.items()]
    elsewhere = badge("holds", "on …")
    badges.append((elsewhere, "It held on the machine that is named; here it is not tested."))
    rows = [([[nodes.raw("", html, format="html")]], meaning) for html, meaning in badges]
    return [table("badges", ("Verdict", "What it means"), rows)]


# --- Machines ---------------------------------------------------------------------------------


def machines_table(app, docname, _):
    machines = runs.machines(app)
    columns = [facts(results) for results in machines]
    rows = [row(name, *(column[name] for column in columns)) for name in columns[0]]
    return [table("machines", ("Machine", *(results.name for results in machines)), rows)]


def facts(results):
    return {
        "Measured": f"{datetime.fromisoformat(results.date).astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        **results.machine.rows,
        "Packages": ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        "Load average before": f"{results.load:.1f}",
        "Commit": results.commit or "that of these pages",
    }


# --- Docutils ---------------------------------------------------------------------------------


def verdict(key, word):
    return [nodes.inline("", word, classes=["d2lpar-word", key])]


def row(name, *values):
    """Return a row of a table whose first cell is a heading."""
    return ([[nodes.strong("", name)]], *values)


def with_code(text):
    """Return the inline nodes of a text, with `backticks` as code."""
    parts = enumerate(text.split("`"))
    return [nodes.literal("", part) if i % 2 else nodes.Text(unbroken(part)) for i, part in parts]


def table(name, header, rows, stacked=False):
    """Return a docutils table, whose name is for the style sheet.

    A row has cells, or is a title for the rows below; a cell is a text, or has paragraphs of inline
    nodes. On a phone a `stacked` table shows its cells below each other, like tables of the text.
    """
    columns = len(header)

    def entry(cell, **attributes):
        paragraphs = [[nodes.Text(cell)]] if isinstance(cell, str) else cell
        content = (nodes.paragraph("", "", *inline) for inline in paragraphs)
        return nodes.entry("", *content, **attributes)

    def line(cells):
        if isinstance(cells, str):
            return nodes.row("", entry([[nodes.strong("", cells)]], morecols=columns - 1))
        return nodes.row("", *map(entry, cells))

    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(columns)), cols=columns)
    group += nodes.thead("", line(header))
    group += nodes.tbody("", *map(line, rows))
    return nodes.table("", group, classes=["colwidths-auto", name if stacked else f"d2lpar-{name}"])


def folded(title, *content):
    """Return content that a reader unfolds, as `{dropdown}` makes it."""
    # The transform of sphinx-design reads all of these attributes.
    attributes = {"icon": None, "chevron": None, "title_classes": [], "body_classes": []}
    attributes |= {"opened": False, "container_classes": ["sd-mb-3"]}
    children = [nodes.rubric("", title), *content]
    return [create_component("dropdown", children=children, has_title=True, **attributes)]
