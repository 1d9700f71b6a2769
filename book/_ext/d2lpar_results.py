"""Tables and figures of what this build and other machines have measured, for Sphinx."""

import functools
import json
import os
from collections import Counter
from datetime import UTC, datetime
from html import escape
from itertools import chain
from pathlib import Path

import matplotlib.pyplot as plt
from docutils import nodes
from matplotlib.ticker import SymmetricalLogLocator
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from d2lpar import plot
from d2lpar.book import figures
from d2lpar.book.claims import MIME_TYPE, VERDICTS
from d2lpar.book.originals import EXPERIMENTS, judge
from d2lpar.book.results import collect, load
from d2lpar.units import format_value

LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # Before anything runs.

# --- Where the numbers come from --------------------------------------------------------------


def paired_notebook(app, page):
    """Return where the notebook of a page lies that Colab opens, if the page is one."""
    return Path(app.srcdir, f"{page}.ipynb")


def executed_cells(app, page):
    """Return the cells of an executed page, or none if it is no notebook."""
    # This is where myst-nb leaves the notebooks.
    notebook = Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"
    if not notebook.exists():
        return []
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def outputs_of(app, page):
    """Return the data of the outputs of an executed page, by MIME type; none for plain text."""
    cells = executed_cells(app, page)
    return [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]


@functools.cache  # Asked for only when all pages have been read.
def machines(app):
    """Return the results of all machines: the recorded ones, and this build's."""
    recorded = sorted(Path(app.srcdir, "book", "results").glob("*.json"))
    pages = {page: outputs_of(app, page) for page in sorted(app.env.found_docs)}
    return [*map(load, recorded), collect("this build", pages, load=LOAD)]


def this_build(app):
    """Return the results of the machine that builds the book."""
    return machines(app)[-1]


def claims_of(app, page):
    """Return the claims of an executed page as data, in their order."""
    return [data[MIME_TYPE] for data in outputs_of(app, page) if MIME_TYPE in data]


# --- Tables -----------------------------------------------------------------------------------


def claims_table(app, docname, _):
    """Return a line that counts the claims of the book, and the table of them."""
    rows, verdicts = [], []
    for page, claims in this_build(app).claims.items():
        uri = app.builder.get_relative_uri(docname, page)
        link = nodes.reference("", app.env.titles[page].astext(), refuri=uri, internal=True)
        for claim in claims:
            measured = [*map(str, claim.predicates), claim.detail]
            verdicts.append(VERDICTS[claim.verdict])
            rows.append(
                (
                    [with_code(claim.sentence)],
                    [[nodes.strong("", verdicts[-1])]],
                    [with_code(line) for line in measured if line],
                    [[link.deepcopy()]],
                )
            )
    counts = "; ".join(f"{verdict}: {n}" for verdict, n in Counter(verdicts).items())
    count = nodes.paragraph(text=f"Claims: {len(rows)} ({counts or 'none'}).")
    return [count, table("claims", ("Claim", "Verdict", "Measured", "Page"), rows)]


def build_table(app, docname, _):
    """Return the table of the machine and the versions that this build was made with."""
    rows = [row(name, value) for name, value in facts(this_build(app)).items()]
    return [table("machine", None, rows)]


def machines_table(app, docname, _):
    """Return a table with a column for each machine whose results are known."""
    known = machines(app)
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


def verdicts_table(app, docname, _):
    """Return the verdict of each claim on each machine."""
    known = machines(app)
    by_machine = [
        {claim.sentence: claim for claim in chain(*results.claims.values())} for results in known
    ]
    rows = []
    for sentence in by_machine[-1]:
        found = (claims.get(sentence) for claims in by_machine)
        words = (VERDICTS[claim.verdict] if claim else "not claimed then" for claim in found)
        rows.append(([with_code(sentence)], *([[nodes.Text(word)]] for word in words)))
    return [table("verdicts", ("Claim", *(results.name for results in known)), rows)]


def causes(app):
    """Return what `make evidence` has kept; nothing before it has run."""
    file = Path(app.srcdir, "book", "evidence", "causes.json")
    if not file.exists():
        return {"claims": {}, "pages": {}}
    return json.loads(file.read_text(encoding="utf-8"))


def causes_table(app, docname, _):
    """Return a line on where claims were tested, and a table of them with cause and without."""
    kept, rows = causes(app)["claims"], []
    for claim in chain(*this_build(app).claims.values()):
        found = kept.get(claim.key, {})
        with_it, without = (tested(found.get(side)) for side in ("with", "without"))
        taken = [[nodes.Text(found.get("takes_away", ""))]]
        sentence = [with_code(claim.sentence), [nodes.literal("", claim.key)]]
        rows.append((sentence, with_it, taken, without))
    header = ("Claim", "With its cause", "What is taken away", "Without it")
    sides = [
        found[side] for found in kept.values() for side in ("with", "without") if side in found
    ]
    where = "; ".join(sorted({f"{side['machine']}, {side['date']}" for side in sides}))
    return [
        nodes.paragraph(text=f"Tested on {where or 'no machine yet'}."),
        table("causes", header, rows),
    ]


def tested(side):
    """Return the cell of a claim that was tested, with its cause or without."""
    if not side:
        return [[nodes.Text("not tested yet")]]
    words = [nodes.strong("", VERDICTS[side["verdict"]].removesuffix(" here"))]
    if side["needs"]:
        words.append(nodes.Text(f": needs {side['needs']}"))
    if side["tries"] > 1:
        words.append(nodes.Text(f" (when tried {side['tries']} times)"))
    return [words, *(with_code(line) for line in side["measured"])]


def conditions_table(app, docname, _):
    """Return the table of what whole pages showed on one core, on one device, without a GPU."""
    kept, rows = causes(app)["pages"], []
    for page in this_build(app).claims:
        name = page.removeprefix("book/")
        for condition, found in kept.get(name, {}).items():
            verdicts = found["claims"].values()
            claims = Counter(VERDICTS[verdict].removesuffix(" here") for verdict in verdicts)
            exercises = Counter(found["exercises"].values())
            counts = (
                "; ".join(f"{words}: {n}" for words, n in c.items()) for c in (claims, exercises)
            )
            rows.append(row(app.env.titles[page].astext(), condition, *counts))
    if not rows:
        return [nodes.paragraph(text="No page has been tested yet.")]
    return [table("conditions", ("Page", "Run on", "Claims", "Exercises"), rows)]


def sources(app, name):
    """Return the rows of an experiment by where they come from: editions, then machines."""
    found = dict(EXPERIMENTS[name].editions)
    for results in machines(app):
        for kept in results.experiments:
            if kept.experiment == name:
                found[", ".join(filter(None, [results.name, kept.variant]))] = kept.rows
    return found


def experiment_table(app, docname, name):
    """Return what editions and machines have measured in an experiment, side by side."""
    experiment, rows = EXPERIMENTS[name], []
    for source, measured in sources(app, name).items():
        times = [format_value(measured[r].median, measured[r].unit) for r in experiment.rows]
        found = [in_short(predicate) for predicate in judge(name, measured).values()]
        rows.append(row(source, *times, *found))
    title = nodes.paragraph(text=f"{experiment.title}.")
    return [title, table("experiment", ("Source", *experiment.rows, *experiment.findings), rows)]


def in_short(predicate):
    """Return the value behind a finding, and whether it supports the claim."""
    quantity = predicate.quantity
    value = f"{format_value(quantity.median, '')}: " if not quantity.unit else ""
    if getattr(quantity, "broken", False):
        return f"{value}broken"
    return value + {"holds": "yes", "fails": "no", "inconclusive": "undecided"}[predicate.verdict]


def row(name, *values):
    """Return a row of a table whose first cell is a heading."""
    return ([[nodes.strong("", name)]], *([[nodes.Text(value)]] for value in values))


def with_code(text):
    """Return the inline nodes of a text, with what stands in `backticks` as code."""
    parts = enumerate(text.split("`"))
    return [nodes.literal("", part) if i % 2 else nodes.Text(part) for i, part in parts]


def table(name, header, rows):
    """Return a docutils table; a row has cells, a cell paragraphs, a paragraph inline nodes.

    The style sheet knows it by its name.
    """

    def line(cells):
        paragraphs = ([nodes.paragraph("", "", *inline) for inline in cell] for cell in cells)
        return nodes.row("", *(nodes.entry("", *cell) for cell in paragraphs))

    columns = len(header or rows[0])
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(columns)), cols=columns)
    if header:
        group += nodes.thead("", line([[[nodes.Text(title)]] for title in header]))
    group += nodes.tbody("", *map(line, rows))
    return nodes.table("", group, classes=["colwidths-auto", f"d2lpar-{name}"])


# --- Figures ----------------------------------------------------------------------------------


def causes_figure(app, docname, _):
    """Return a figure of how far each claim is from its bound, with its cause and without."""
    kept = causes(app)["claims"]
    there = [claim.key for claim in chain(*this_build(app).claims.values())]
    found = {
        key: [kept[key].get(side, {}).get("clearance") for side in ("with", "without")]
        for key in there
        if key in kept
    }
    drawn = {key: pair for key, pair in found.items() if None not in pair}
    if not drawn:
        return [nodes.paragraph(text="No claim has been tested yet.")]
    return figure(
        app,
        docname,
        "causes",
        lambda: draw_causes(drawn),
        alt="Two points for each claim: with its cause right of the bound, without it left of it.",
        caption="How far the measured median is from the bound of a claim, in units of the bound; "
        "of several comparisons, the one that is nearest to failing. Right of the line it holds.",
    )


def draw_causes(found):
    """Draw how far claims are from their bounds: pairs by key, with the cause and without."""
    _, axes = plt.subplots(figsize=(5.2, 1.2 + 0.17 * len(found)))
    places = range(len(found), 0, -1)
    with_it, without = zip(*found.values(), strict=True)
    axes.hlines(places, without, with_it, color="#cccccc", lw=1)
    axes.axvline(0, color=plot.COLOURS["model"], lw=1.2)
    axes.plot(with_it, places, "o", color=plot.COLOURS["host"], ms=5, label="with its cause")
    axes.plot(
        without, places, "D", color=plot.COLOURS["none"], ms=4.5, mfc="white", label="without it"
    )
    axes.set_xscale("symlog", linthresh=1)
    # A label for each power of ten would run into the next one.
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=100, linthresh=1))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(
        "fails  \N{LEFTWARDS ARROW}  distance from the bound  \N{RIGHTWARDS ARROW}  holds"
    )
    axes.set_yticks(places, found, fontsize=8)
    axes.set_ylim(0.2, len(found) + 0.8)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)


def experiment_figure(app, docname, name):
    """Return the findings of an experiment as a figure: editions, machines, and this build."""
    found = {source: judge(name, rows) for source, rows in sources(app, name).items()}
    panels = {
        claimed: {source: predicates[claimed] for source, predicates in found.items()}
        for claimed in EXPERIMENTS[name].findings
        if not any(predicates[claimed].quantity.unit for predicates in found.values())
    }
    return figure(
        app,
        docname,
        name,
        lambda: figures.draw_findings(panels),
        alt=f"Points for each source: {'; '.join(panels)}.",
        caption=f"{EXPERIMENTS[name].title}. Hollow points are single runs; bars are 95 % "
        "intervals. The claim holds where it is shaded.",
    )


def figure(app, docname, name, draw, alt, caption):
    """Return what a function draws, with its caption, as a figure of the page."""
    path = Path(app.srcdir, "_build", "figures", f"{name}.svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    plot.use_style()
    draw()
    plt.savefig(path, format="svg", bbox_inches="tight")
    plt.close("all")
    uri = path.relative_to(app.srcdir).as_posix()
    app.env.images.add_file(docname, uri)
    image = nodes.image(uri=uri, candidates={"*": uri}, alt=alt)
    made = nodes.figure("", image, nodes.caption(text=caption), classes=["d2lpar-figure"])
    made["ids"] = [f"fig-results-{name.lower()}"]
    return [made]


# --- Sphinx -----------------------------------------------------------------------------------


class Pending(nodes.General, nodes.Element):
    """The place of something that can be made only when every page has been read."""


class PendingDirective(SphinxDirective):
    """`{claims-table}` and the like: leave a placeholder."""

    optional_arguments = 1

    def run(self):
        """Return it, and have the page read again by each build."""
        self.env.note_reread()
        return [Pending(what=self.name, argument="".join(self.arguments))]


class Folded(SphinxDirective):
    """`{folded} Title`: what the page shows only to whoever asks for it, without a script."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self):
        """Return its content between the tags of HTML that fold it."""
        content = nodes.container(classes=["d2lpar-sound"])
        self.state.nested_parse(self.content, self.content_offset, content)
        summary = f"<details><summary>{escape(self.arguments[0])}</summary>"
        raw = (nodes.raw("", html, format="html") for html in (summary, "</details>"))
        return [next(raw), content, next(raw)]


class FillPending(SphinxPostTransform):
    """Put what was waited for where the placeholders are."""

    default_priority = 8  # before references are resolved (10)

    def run(self, **kwargs):
        """Replace each placeholder of the page by what its function returns."""
        for node in list(self.document.findall(Pending)):
            make = DIRECTIVES[node["what"]]
            node.replace_self(make(self.app, self.env.docname, node["argument"]))


DIRECTIVES = {
    "claims-table": claims_table,
    "build-table": build_table,
    "machines-table": machines_table,
    "verdicts-table": verdicts_table,
    "causes-figure": causes_figure,
    "causes-table": causes_table,
    "conditions-table": conditions_table,
    "experiment-table": experiment_table,
    "experiment-figure": experiment_figure,
}


def setup(app):
    """Register all of it with Sphinx."""
    app.add_node(Pending)
    app.add_post_transform(FillPending)
    for name in DIRECTIVES:
        app.add_directive(name, PendingDirective)
    app.add_directive("folded", Folded)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
