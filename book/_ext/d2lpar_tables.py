"""Tables of what this build and other machines have measured, for Sphinx."""

from collections import Counter, defaultdict
from datetime import UTC, datetime
from html import escape
from itertools import chain

import d2lpar_runs as runs
from docutils import nodes
from sphinx.util import logging
from sphinx_design.shared import create_component

from d2lpar._format import format_value
from d2lpar.book.claims import VERDICTS
from d2lpar.book.notebook import VERDICT_COLORS, badge, unbroken
from d2lpar.book.originals import EXPERIMENTS, judge

logger = logging.getLogger(__name__)

SUPPORTS = {"holds": "yes", "seen": "yes", "fails": "no", "inconclusive": "undecided"}
"""How the verdict on an experiment reads: whether its numbers support what is claimed."""

# --- Claims -----------------------------------------------------------------------------------


def claims_table(app, docname, _):
    """Return a line that counts the claims, and for each page a fold with the table of its own."""
    by_page = runs.this_build(app).claims
    verdicts = Counter(short(claim.verdict) for claim in chain(*by_page.values()))
    made = [nodes.paragraph(text=f"Claims: {verdicts.total()} ({in_words(verdicts) or 'none'}).")]
    for page, claims in by_page.items():
        if not claims:
            continue
        counts = Counter(short(claim.verdict) for claim in claims)
        title = f"{app.env.titles[page].astext()} ({in_words(counts)})"
        rows = [
            (
                [with_code(claim.text)],
                [verdict(claim.verdict, short(claim.verdict))],
                [with_code(line) for line in (*map(str, claim.predicates), claim.detail) if line],
            )
            for claim in claims
        ]
        made += folded(title, table("claims", ("Claim", "Verdict", "Measured"), rows))
    return made


def verdicts_table(app, docname, _):
    """Return the verdict of each claim on each machine."""
    known = runs.machines(app)
    by_machine = [
        {claim.key: claim for claim in chain(*results.claims.values())} for results in known
    ]
    rows = []
    for key, claim in by_machine[-1].items():
        found = (claims.get(key) for claims in by_machine)
        cells = ([verdict(c.verdict, short(c.verdict))] if c else "not there then" for c in found)
        rows.append(([with_code(claim.text)], *cells))
    return [table("verdicts", ("Claim", *(results.name for results in known)), rows)]


def causes_table(app, docname, _):
    """Return a line on where claims were tested, and a table of them with cause and without."""
    pages, kept, rows = runs.tested_pages(app).values(), runs.causes(app), []
    for claim in chain(*runs.this_build(app).claims.values()):
        found = kept.get(claim.key, {})
        with_it, without = (tested(found.get(side)) for side in ("with", "without"))
        sentence = [with_code(claim.text), [nodes.literal("", claim.key)]]
        rows.append((sentence, with_it, found.get("takes_away", ""), without))
    header = ("Claim", "With its cause", "What is taken away", "Without it")
    return [
        nodes.paragraph(text=f"Tested on {tested_on(pages) or 'no machine yet'}."),
        table("causes", header, rows),
    ]


def tested_on(pages):
    """Return on which machines pages were tested, when, and at which commits, in words."""
    found = defaultdict(set)
    for page in pages:
        commit, dirty, _ = page["commit"].partition("-dirty")
        changes = " with changes that are not committed" if dirty else ""
        found[page["machine"]].add(f"{page['date']} at commit {commit}{changes}")
    return "; ".join(f"{machine}: {', '.join(sorted(when))}" for machine, when in found.items())


def tested(side):
    """Return the cell of a claim that was tested, with its cause or without."""
    if not side:
        return "not tested yet"
    words = verdict(side["verdict"], short(side["verdict"]))
    if side["needs"]:
        words.append(nodes.Text(f": needs {side['needs']}"))
    if side["tries"] > 1:
        words.append(nodes.Text(f" (when tried {side['tries']} times)"))
    return [words, *(with_code(line) for line in side["measured"])]


def conditions_table(app, docname, _):
    """Return the table of what whole pages showed on one core, on one device, without a GPU."""
    kept, rows = runs.tested_pages(app), []
    for page in runs.this_build(app).claims:
        name = page.removeprefix("book/")
        for condition, found in kept.get(name, {"conditions": {}})["conditions"].items():
            claims = Counter(short(verdict) for verdict in found["claims"].values())
            exercises = Counter(found["exercises"].values())
            counts = map(in_words, (claims, exercises))
            rows.append(row(app.env.titles[page].astext(), condition, *counts))
    return [table("conditions", ("Page", "Run on", "Claims", "Exercises"), rows)]


def short(verdict):
    """Return how a verdict reads where it is plain of which machine it speaks."""
    return VERDICTS[verdict].removesuffix(" here")


def in_words(counts):
    """Return a line such as "holds: 12, inconclusive: 1"."""
    return ", ".join(f"{word}: {count}" for word, count in counts.items())


def measured(app, docname, argument):
    """Return a number of a claim of this build, given as in "loop-mended gain:.1f"."""
    place, _, spec = argument.partition(":")
    key, _, name = place.strip().partition(" ")
    claims = (c for c in chain(*runs.this_build(app).claims.values()) if c.key == key)
    claim = next(claims, None)
    if claim and claim.needs:  # This machine lacks it.
        return [nodes.Text("…")]
    if not claim or name not in claim.numbers:
        logger.warning("no claim %r with a number %r", key, name, location=docname, type="d2lpar")
        return []
    return [nodes.Text(unbroken(format(claim.numbers[name], spec)))]


MEANINGS = {
    "holds": "The whole interval (95 or 99 %) of each tested number lies on its side of the bound.",
    "seen": "It was seen a single time, which agrees with it. That is no interval.",
    "inconclusive": "The interval reaches over the bound, so that nobody can say.",
    "fails": "No part of the interval agrees with it.",
    "untestable": "The machine lacks something, such as a GPU or a second core.",
}
"""What each verdict means."""


def badges_table(app, docname, _):
    """Return a table of the verdicts, as they stand beside a claim, with what they mean."""
    shown = {key: badge(VERDICTS[key], VERDICT_COLORS[key]) for key in MEANINGS}
    rows = [
        ([[nodes.raw("", shown[key], format="html")]], meaning) for key, meaning in MEANINGS.items()
    ]
    elsewhere = badge(VERDICTS["holds"].replace("here", "on an H200"), VERDICT_COLORS["holds"])
    rows += [([[nodes.raw("", elsewhere, format="html")]], "It is tested there, and not here.")]
    return [table("badges", ("Verdict", "What it means"), rows)]


# --- Machines and experiments -----------------------------------------------------------------


def build_table(app, docname, _):
    """Return the table of the machine and the versions that this build was made with."""
    rows = [row(name, value) for name, value in facts(runs.this_build(app)).items()]
    return [table("machine", None, rows)]


def machines_table(app, docname, _):
    """Return a table with a column for each machine whose results are known."""
    known = runs.machines(app)
    described = [facts(results) for results in known]
    rows = [row(name, *(facts[name] for facts in described)) for name in described[0]]
    return [table("machines", ("Machine", *(results.name for results in known)), rows)]


def facts(results):
    """Return what a reader should know of a machine, by name."""
    return {
        "Measured": f"{datetime.fromisoformat(results.date).astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        **results.machine.rows,
        "Packages": ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        "Load before": f"{results.load:.1f}",
        "Commit": results.commit or "that of these pages",
    }


class Noted(dict):
    """The rows of an experiment, which note what somebody asks for."""

    def __init__(self, rows):
        super().__init__(rows)
        self.asked = []

    def __getitem__(self, name):
        self.asked.append(name)
        return super().__getitem__(name)


def experiment_table(app, docname, name):
    """Return a fold with a table for each claim: every source, its verdict, ratio and times."""
    found = runs.sources(app, name)
    content = []
    for claimed, compare in EXPERIMENTS[name].findings.items():
        rows = []
        for source, measured in found.items():
            noted = Noted(measured)
            predicate = compare(noted)
            ratio = "" if predicate.quantity.unit else value_of(predicate.quantity)
            times = (f"{row} {value_of(measured[row])}" for row in dict.fromkeys(noted.asked))
            rows.append((source, [supports(predicate)], ratio, ", ".join(times)))
        content.append(nodes.paragraph("", "", nodes.strong("", claimed[0].upper() + claimed[1:])))
        content.append(table("experiment", ("Source", "Verdict", "Ratio", "Numbers"), rows))
    return folded("The numbers behind it", *content)


def value_of(quantity):
    """Return the median of a quantity with its unit."""
    return unbroken(format_value(quantity.median, quantity.unit))


def supports(predicate):
    """Return whether what was measured supports what is claimed, as inline nodes."""
    if getattr(predicate.quantity, "broken", False):
        return verdict("fails", "broken")
    return verdict(predicate.verdict, SUPPORTS[predicate.verdict])


def summary_table(app, docname, _):
    """Return what editions and machines say to each claim of the editions, a sign for each."""
    rows = []
    for name, experiment in EXPERIMENTS.items():
        found = runs.sources(app, name)
        for claimed in experiment.findings:
            signs = {source: judge(name, rows_)[claimed] for source, rows_ in found.items()}
            editions = [sign(s, p) for s, p in signs.items() if s in experiment.editions]
            machines = [sign(s, p) for s, p in signs.items() if s not in experiment.editions]
            claim = f"{experiment.title.split(',')[0]}: {claimed} ({name})"
            rows.append((claim, [editions], [machines]))
    header = ("What the editions claim", "Editions", "Machines")
    legend = [
        node
        for key, word in SUPPORTS.items()
        if key != "seen"  # It looks as what holds.
        for node in (nodes.inline("", "", classes=["d2lpar-sign", key]), nodes.Text(f" {word}  "))
    ]
    key = nodes.paragraph("", "", *legend, classes=["d2lpar-legend"])
    return [table("summary", header, rows), key]


def sign(source, predicate):
    """Return the sign for what one source says, which has it in words too."""
    (word,) = (node.astext() for node in supports(predicate))
    label = escape(f"{source}: {word}", quote=True)
    html = (
        f'<span class="d2lpar-sign {predicate.verdict}" role="img" aria-label="{label}" '
        f'title="{label}"></span>'
    )
    return nodes.raw("", html, format="html")


# --- Docutils ---------------------------------------------------------------------------------


def verdict(key, word):
    """Return the inline nodes of a verdict, in its color."""
    return [nodes.inline("", word, classes=["d2lpar-word", key])]


def row(name, *values):
    """Return a row of a table whose first cell is a heading."""
    return ([[nodes.strong("", name)]], *values)


def with_code(text):
    """Return the inline nodes of a text, with what stands in `backticks` as code."""
    parts = enumerate(text.split("`"))
    return [nodes.literal("", part) if i % 2 else nodes.Text(unbroken(part)) for i, part in parts]


def table(name, header, rows):
    """Return a docutils table, whose name is for the style sheet.

    A row has cells; a cell is a text, or has paragraphs, and a paragraph has inline nodes.
    """

    def entry(cell):
        paragraphs = [[nodes.Text(cell)]] if isinstance(cell, str) else cell
        return nodes.entry("", *(nodes.paragraph("", "", *inline) for inline in paragraphs))

    def line(cells):
        return nodes.row("", *map(entry, cells))

    columns = len(header or rows[0])
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(columns)), cols=columns)
    if header:
        group += nodes.thead("", line(header))
    group += nodes.tbody("", *map(line, rows))
    return nodes.table("", group, classes=["colwidths-auto", f"d2lpar-{name}"])


def folded(title, *content):
    """Return content that the page shows only to whoever asks for it, as `{dropdown}` does."""
    # All that the transform of sphinx-design asks of a node.
    looks = {"icon": None, "chevron": None, "title_classes": [], "body_classes": []}
    looks |= {"opened": False, "container_classes": ["sd-mb-3"]}
    children = [nodes.rubric("", title), *content]
    return [create_component("dropdown", children=children, has_title=True, **looks)]
