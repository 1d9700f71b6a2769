"""Links to the glossary, for Sphinx: each page leads there where a word of it first occurs.

A notebook page cannot say so itself: Colab would show the role raw.
"""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

GLOSSARY = "book/glossary"
# In these a link would disturb, or already is.
NOT_IN = (
    nodes.reference,
    nodes.title,
    nodes.rubric,
    nodes.caption,
    nodes.FixedTextElement,
    nodes.literal,
    nodes.math,
    nodes.raw,
    nodes.table,
)


class LinkToGlossary(SphinxPostTransform):
    """Link the first use of each term of the glossary on a page that is prose."""

    default_priority = 900  # when all other links are made

    def run(self, **kwargs):
        """Begin with the longest terms: "dispatch" is part of "asynchronous dispatch"."""
        if self.env.docname == GLOSSARY or self.env.docname in self.config.d2lpar_no_terms:
            return
        terms = [
            (title, anchor)
            for _, title, kind, page, anchor, _ in self.env.get_domain("std").get_objects()
            if kind == "term" and page == GLOSSARY
        ]
        uri = self.app.builder.get_relative_uri(self.env.docname, GLOSSARY)
        for term, anchor in sorted(terms, key=lambda term: -len(term[0])):
            self.link_first(term, f"{uri}#{anchor}")

    def link_first(self, term, uri):
        """Replace the first use of a term, or of its plural, by a link."""
        pattern = re.compile(rf"\b{re.escape(term)}(s|es)?\b".replace(r"\ ", r"\s+"), re.IGNORECASE)
        for text in self.document.findall(nodes.Text):
            if (found := pattern.search(text)) and not is_in(text, NOT_IN):
                before, after = text[: found.start()], text[found.end() :]
                link = nodes.reference(
                    "", found[0], refuri=uri, internal=True, classes=["d2lpar-term"]
                )
                text.parent.replace(text, [nodes.Text(before), link, nodes.Text(after)])
                return


def is_in(node, kinds):
    """Say whether a node is inside of one of some kinds."""
    while node := node.parent:
        if isinstance(node, kinds):
            return True
    return False


def setup(app):
    """Register all of it with Sphinx."""
    app.add_config_value("d2lpar_no_terms", [], "html")
    app.add_post_transform(LinkToGlossary)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
