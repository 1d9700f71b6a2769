"""Keep on one line what is read as one, for Sphinx."""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from d2lpar.book.notebook import unbroken

VERBATIM = nodes.FixedTextElement, nodes.literal, nodes.math, nodes.raw


class KeepTogether(SphinxPostTransform):
    """Keep a number with its unit, and a formula with the punctuation behind it."""

    default_priority = 950  # when tables are filled in and links are made

    def run(self, **kwargs):
        """Change the text of a page."""
        for formula in list(self.document.findall(nodes.math)):
            self.keep_with_punctuation(formula)
        self.keep_units(self.document)

    def keep_units(self, element):
        """Put no-break spaces into the text of an element, except where it is code."""
        for index, child in enumerate(element.children):
            if isinstance(child, nodes.Text):
                element[index] = nodes.Text(unbroken(child))
            elif not isinstance(child, VERBATIM):
                self.keep_units(child)

    def keep_with_punctuation(self, formula):
        """Put a formula and the punctuation behind it, if there is any, in one unbroken span."""
        behind = formula.next_node(descend=False, siblings=True)
        if not isinstance(behind, nodes.Text) or not (mark := re.match(r"[.,;:?!)]+", behind)):
            return
        formula.parent.replace(behind, nodes.Text(behind[mark.end() :]))
        together = nodes.inline(classes=["d2lpar-together"])
        formula.replace_self(together)
        together += [formula, nodes.Text(mark[0])]


def setup(app):
    """Register it with Sphinx."""
    app.add_post_transform(KeepTogether)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
