"""What the first page shows, for Sphinx: a picture of the idea, and a card for each chapter."""

import math
from html import escape
from pathlib import Path

import d2lpar_runs as runs
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)


def first_picture(app, docname, _):
    """Return the time that Python and the device take for ten products in this build, to scale."""
    results = runs.this_build(app)
    kept = next((kept.rows for kept in results.experiments if kept.experiment == "A1"), None)
    if not kept:
        logger.warning("no page has kept A1, which the first picture shows", type="d2lpar")
        return []
    handed_out, ready = (kept[row].median for row in ("handed out", "ready"))
    asked, there = in_seconds(handed_out, 1), in_seconds(ready, 2)
    share = 100 * handed_out / ready
    machine = results.machine
    on = f"{escape(machine.processor)}, {machine.cores} core{'s' * (machine.cores != 1)}"
    products = "".join(f"<i>{number}</i>" for number in range(1, 11))
    label = f"Python hands out ten products in {asked}, and they take {there}"
    html = f"""
<figure class="d2lpar-first" aria-label="{label}">
<div class="lane host"><b>Python</b><span class="track">
<i style="width:max(3px,{share:.3f}%)"></i><em>has its answer here, and goes on</em></span></div>
<div class="lane device"><b>device</b><span class="track" aria-hidden="true">{products}</span></div>
<div class="lane end"><b></b><span class="track"><em>here are the results</em></span></div>
<dl><div class="host"><dt>{asked}</dt><dd>is what a clock says that does not wait</dd></div>
<div class="device"><dt>{there}</dt><dd>is how long the ten products take</dd></div></dl>
<figcaption>To scale, measured while this page was made ({on}).</figcaption>
</figure>"""
    return [nodes.raw("", html, format="html")]


def in_seconds(seconds, digits):
    """Write a time in seconds, however short, so that two of them can be compared at a glance."""
    decimals = max(0, digits - 1 - math.floor(math.log10(seconds)))
    return f"{seconds:.{decimals}f} s"


class Card(SphinxDirective):
    """`{card} page`: the title of a page with its thumbnail and some words, which lead there.

    The thumbnail is `_static/card-PAGE.svg`. It is put into the page, so that it can take the
    page's colors.
    """

    required_arguments = 1
    has_content = True

    def run(self):
        """Return the card, with the title as a link that Sphinx resolves."""
        name = self.arguments[0]
        file = Path(self.env.srcdir, "book", "_static", f"card-{name}.svg")
        self.env.note_dependency(str(file))
        picture = nodes.raw("", file.read_text(encoding="utf-8"), format="html")
        link, _ = self.parse_inline(f"{{doc}}`{name}`", lineno=self.lineno)
        card = nodes.container("", picture, classes=["d2lpar-card"])
        card += nodes.paragraph("", "", *link, classes=["d2lpar-card-title"])
        self.state.nested_parse(self.content, self.content_offset, card)
        return [card]
