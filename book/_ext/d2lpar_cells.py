"""Outputs of cells, for Sphinx: the first screen of a page, and the figures to explore.

Both read the executed notebook, since myst-nb drops outputs of unknown types.
"""

import json
from pathlib import Path

import altair
import vl_convert
from d2lpar_runs import executed
from docutils import nodes
from sphinx.transforms import SphinxTransform

from d2lpar.book import claims
from d2lpar.book.explore import MIME_TYPE
from d2lpar.book.results import outputs_of

# The version of Vega-Lite that Altair writes, as vl_convert names it.
VERSION = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
SCRIPT = "vega-embed.js"


class ShowFirst(SphinxTransform):
    """Show pictures and sentences of tagged cells after the second paragraph of a page.

    A reader should see a result before the code that makes it, but in a notebook the code comes
    first. So the cell stays at the place where its code can run, and the page shows its picture and
    the sentence of its claim above. Where the page shows the code, the picture appears there, too.
    """

    default_priority = 190

    def apply(self):
        """Move the pictures, copy those that stay with their code, and add the sentences."""
        cells = executed(self.app, self.env.docname)["cells"]
        pictures, sentences = [], []
        for cell in self.document.findall(nodes.container):
            if "tag_first-screen" not in cell["classes"]:
                continue
            for figure in list(cell.findall(nodes.figure)):
                if "tag_remove-input" in cell["classes"]:
                    figure.parent.remove(figure)
                    pictures.append(nodes.container("", figure, classes=["cell_output"]))
                else:  # The caption below is numbered, and its copy above is not.
                    copy = figure.deepcopy()
                    for caption in list(copy.findall(nodes.caption)):
                        classes = ["d2lpar-caption"]
                        text = nodes.paragraph("", "", *caption.children, classes=classes)
                        caption.replace_self(text)
                    pictures.append(nodes.container("", *copy, classes=["cell_output"]))
            for shown in outputs_of({"cells": [cells[cell["cell_index"]]]}, claims.MIME_TYPE):
                claim = claims.Claim.from_dict(shown)
                if claim.verdict != "untestable":  # Else its numbers are of another machine.
                    sentences.append(nodes.paragraph(text=claim.text))
        if pictures:
            page = next(self.document.findall(nodes.section))
            _, hook, *_ = (part for part in page if isinstance(part, nodes.paragraph))
            page[page.index(hook) + 1 : page.index(hook) + 1] = pictures + sentences


class PutExplorables(SphinxTransform):
    """Put a picture and a script where a cell shows an explorable."""

    default_priority = 200

    def apply(self):
        """Replace the outputs that are explorables, in the order of the executed notebook."""
        cells = executed(self.app, self.env.docname)["cells"]
        for cell in list(self.document.findall(is_element("cell_code"))):
            outputs = cells[cell["cell_index"]]["outputs"]
            shown = [output["data"] for output in outputs if "data" in output]
            if not any(MIME_TYPE in data for data in shown):
                continue
            bundles = list(cell.findall(is_element("mime_bundle")))
            for number, (bundle, data) in enumerate(zip(bundles, shown, strict=True)):
                if MIME_TYPE in data:
                    name = f"explorable-{cell['cell_index']}-{number}"
                    bundle.replace_self(self.picture_and_script(name, data[MIME_TYPE]))

    def picture_and_script(self, name, spec):
        path = Path(self.app.srcdir, "_build", "figures", self.env.docname, f"{name}.svg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(vl_convert.vegalite_to_svg(spec, vl_version=VERSION), encoding="utf-8")
        uri = f"/{path.relative_to(self.app.srcdir).as_posix()}"  # From the root, for any page.
        image = nodes.image(uri=uri, alt=spec["description"])
        chart = json.dumps(spec).replace("</", r"<\/")  # It would end the script.
        options = '{actions: false, renderer: "svg"}'
        embed = f'vegaEmbed("#{name}", {chart}, {options}).then(describeChart)'
        script = f'<script>addEventListener("DOMContentLoaded", () => {embed})</script>'
        return [
            nodes.container("", image, ids=[name], classes=["d2lpar-explorable"]),
            nodes.raw("", script, format="html"),
        ]


def is_element(kind):
    """Return a condition for a node that myst-nb has made."""
    return lambda node: isinstance(node, nodes.container) and node.get("nb_element") == kind


def add_script(app, page, template, context, doctree):
    """Make pages with an explorable load the libraries."""
    containers = doctree.findall(nodes.container) if doctree else ()
    if any("d2lpar-explorable" in container["classes"] for container in containers):
        app.add_js_file(SCRIPT, loading_method="defer")


def write_script(app, error):
    if not error:
        # In the book itself, so that a page loads nothing from other hosts.
        libraries = vl_convert.javascript_bundle(vl_version=VERSION)
        # A function keeps their global names apart from the names of Sphinx.
        ours = Path(__file__).with_name("describe-chart.js").read_text(encoding="utf-8")
        wrapped = f"(() => {{{libraries}\n}})();\n{ours}"
        Path(app.outdir, "_static", SCRIPT).write_text(wrapped, encoding="utf-8")


def setup(app):
    app.add_transform(ShowFirst)
    app.add_transform(PutExplorables)
    app.connect("html-page-context", add_script)
    app.connect("build-finished", write_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
