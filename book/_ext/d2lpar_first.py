"""The first screen of a page, for Sphinx: the results of the cells tagged `first-screen`.

A reader should see a result before the code that makes it, but in a notebook the code comes first.
So the cell stays at the place where its code can run, and the page shows its picture and the
sentence of its claim above. Where the page shows the code, the picture appears there, too.
"""

from d2lpar_runs import executed
from docutils import nodes
from sphinx.transforms import SphinxTransform

from d2lpar.book import claims
from d2lpar.book.claims import Claim
from d2lpar.book.results import outputs_of

TAG = "first-screen"


class ShowFirst(SphinxTransform):
    """Show pictures and sentences of tagged cells after the second paragraph of a page."""

    default_priority = 190

    def apply(self):
        """Read the claims from the executed notebook, since myst-nb drops unknown types."""
        cells = executed(self.app, self.env.docname)["cells"]
        pictures, sentences = [], []
        for cell in self.document.findall(nodes.container):
            if f"tag_{TAG}" not in cell["classes"]:
                continue
            for figure in list(cell.findall(nodes.figure)):
                if "tag_remove-input" in cell["classes"]:
                    figure.parent.remove(figure)
                    pictures.append(nodes.container("", figure, classes=["cell_output"]))
                else:  # The caption below is numbered, and its copy above is not.
                    parts = [part.deepcopy() for part in figure]
                    for i, part in enumerate(parts):
                        if isinstance(part, nodes.caption):
                            of = {"classes": ["d2lpar-caption"]}
                            parts[i] = nodes.paragraph("", "", *part.children, **of)
                    pictures.append(nodes.container("", *parts, classes=["cell_output"]))
            for claim in outputs_of({"cells": [cells[cell["cell_index"]]]}, claims.MIME_TYPE):
                sentences.append(nodes.paragraph(text=Claim.from_dict(claim).text))
        if pictures:
            page = next(self.document.findall(nodes.section))
            _, hook, *_ = (part for part in page if isinstance(part, nodes.paragraph))
            page[page.index(hook) + 1 : page.index(hook) + 1] = pictures + sentences


def setup(app):
    """Register it with Sphinx."""
    app.add_transform(ShowFirst)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
