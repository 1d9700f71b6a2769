"""Additions to Jupyter Book, for Sphinx: MathML, narrow pages, results, links to the glossary."""

import re
import shutil
import sys
from html import escape
from pathlib import Path

import d2lpar_charts as charts
import d2lpar_peers as peers
import d2lpar_tables as tables
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.domains.python import PyObject
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from d2lpar.book.notebook import unbroken

logger = logging.getLogger(__name__)

# --- Math -------------------------------------------------------------------------------------


def mathml(node, as_block):
    """Convert LaTeX to MathML, which needs no script, font or network; warn where that fails."""
    latex = node.astext()
    try:
        result = re.sub(r"\n\s*", "", tex2mathml(latex, as_block))
    except Exception as error:  # Docutils has no error of its own for an & outside of a table.
        logger.warning("math %r: %s", latex, error, location=node, type="d2lpar")
        return f"<code>{escape(latex)}</code>"
    # TeX sets a thin space before them, and none before their argument.
    return re.sub(r"<mo>(max|min)</mo>", r'<mo lspace="0.167em" rspace="0">\1</mo>', result)


def visit_math(self, node):
    """Write inline math, or display math with its anchor if it has a label."""
    if isinstance(node, nodes.math_block):
        # On a phone a wide formula scrolls, and then the keyboard must reach it.
        formula = mathml(node, as_block=True).replace("<math ", '<math tabindex="0" ', 1)
        self.body.append(f"{self.starttag(node, 'div', CLASS='math')}{formula}</div>\n")
    else:
        self.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


class KeepPunctuation(SphinxPostTransform):
    """Keep a formula and the punctuation after it on one line; a browser may separate them."""

    default_priority = 900

    def run(self, **kwargs):
        """Move the punctuation into a span with the formula."""
        for formula in list(self.document.findall(nodes.math)):
            text = formula.next_node(descend=False, siblings=True)
            if isinstance(text, nodes.Text) and (mark := re.match(r"[.,;:?!)]+", text)):
                text.parent.replace(text, nodes.Text(text[mark.end() :]))
                together = nodes.inline("", "", classes=["sd-text-nowrap"])
                formula.replace_self(together)
                together += [formula, nodes.Text(mark[0])]


# --- Lines and tables on a phone --------------------------------------------------------------


class KeepUnits(SphinxPostTransform):
    """Keep a number and its unit on one line, in the text and in the HTML that cells show."""

    default_priority = 900

    def run(self, **kwargs):
        """Put spaces that do not break between them."""
        for text in list(self.document.findall(nodes.Text)):
            if isinstance(text.parent, nodes.raw):
                ours = "d2lpar-" in text  # Other HTML may be a script.
                new = re.sub(r">[^<]+", lambda match: unbroken(match[0]), text) if ours else text
            elif is_in(text, (nodes.literal, nodes.FixedTextElement, nodes.math)):
                continue
            else:
                new = unbroken(text)
            if new != text:  # Of equal siblings, replace() takes one after the other.
                text.parent.replace(text, nodes.Text(new))


class RepeatHeads(SphinxPostTransform):
    """Put the head of its column into each cell of a table of the text with three columns or more.

    The style sheet shows it on a phone, where such cells stand below each other.
    """

    default_priority = 900

    def run(self, **kwargs):
        """Leave out the first column, which names the row, and tables with a style of their own."""
        for table in self.document.findall(nodes.table):
            heads = next((head[0] for head in table.findall(nodes.thead)), [])
            if len(heads) < 3 or any(name.startswith("d2lpar") for name in table["classes"]):
                continue
            for row in next(table.findall(nodes.tbody)):
                for head, entry in zip(heads[1:], row[1:], strict=False):
                    if head.astext() and entry.astext():
                        words = [word.deepcopy() for word in head[0].children]
                        first = next(entry.findall(nodes.paragraph), entry)
                        words.append(nodes.Text(": "))
                        first.insert(0, nodes.inline("", "", *words, classes=["d2lpar-head"]))


# --- Results ----------------------------------------------------------------------------------

CONTENT = {
    "measured": tables.measured,
    "causes-table": tables.causes_table,
    "claims-table": tables.claims_table,
    "repeats-table": tables.repeats_table,
    "conditions-table": tables.conditions_table,
    "seconds-table": tables.seconds_table,
    "versions-table": tables.versions_table,
    "machines-table": tables.machines_table,
    "first-picture": charts.first_picture,
    "badges-table": tables.badges_table,
    "beside-pytorch-figure": peers.figure,
    "beside-pytorch-table": peers.table,
}


class Pending(nodes.General, nodes.Element):
    """A placeholder for content that needs all pages to be read first."""


class PendingDirective(SphinxDirective):
    """`{claims-table}` and the like: leave a placeholder."""

    optional_arguments = 1

    def run(self):
        return [Pending(name=self.name, argument="".join(self.arguments))]


def pending_role(name, source, text, *_):
    """Leave a placeholder for a number, as for ``{measured}`loop-mended gain:.1f` ``."""
    return [Pending(name=name, argument=text)], []


class FillPending(SphinxPostTransform):
    """Replace the placeholders by their content."""

    default_priority = 8  # before references are resolved (10)

    def run(self, **kwargs):
        """Replace each placeholder of the page by the nodes that its function returns."""
        for node in list(self.document.findall(Pending)):
            make = CONTENT[node["name"]]
            node.replace_self(make(self.app, self.env.docname, node["argument"]))


# --- Links to the glossary --------------------------------------------------------------------

GLOSSARY = "book/glossary"
# A link in these would disturb, or there is one already.
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
    """Link the first use of each term of the glossary on a page of prose.

    A notebook cannot mark a term by a role, which Colab would show raw.
    """

    default_priority = 900  # after all other links

    def run(self, **kwargs):
        """Begin with the longest terms: "dispatch" is part of "asynchronous dispatch"."""
        if self.env.docname.startswith((GLOSSARY, *self.config.d2lpar_no_terms)):
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
        words = re.escape(term).replace(r"\ ", r"\s+")
        # Windows, the system, is no window.
        pattern = re.compile(rf"\b(?!(?-i:Windows)\b){words}(s|es)?\b", re.IGNORECASE)
        for text in self.document.findall(nodes.Text):
            if (match := pattern.search(text)) and not is_in(text, NOT_IN):
                before, after = text[: match.start()], text[match.end() :]
                attributes = {"refuri": uri, "internal": True, "classes": ["d2lpar-term"]}
                link = nodes.reference("", match[0], **attributes)
                text.parent.replace(text, [nodes.Text(before), link, nodes.Text(after)])
                return


def is_in(node, kinds):
    while node := node.parent:
        if isinstance(node, kinds):
            return True
    return False


# --- The rest ---------------------------------------------------------------------------------


def leave_out_links_to_missing_solutions(app, page, source):
    """In a book without solutions, leave out the lines that only lead there, and other links."""
    if not any(name.startswith("book/solutions/") for name in app.env.found_docs):
        text = re.sub(r"^\[Solution of \w+\]\(.*\)\n", "", source[0], flags=re.MULTILINE)
        text, *_ = text.split("\n## [Solutions: ")  # The end of the facts quotes them.
        source[0] = re.sub(r"\[([^\[\]]*)\]\(solutions/[^)]*\)", r"\1", text)


LONG_WORD = re.compile(r'(?<=<span class="pre">)[^<]{22,}')
# A long word of code may break after these characters, before a letter or a quote.
MAY_BREAK = re.compile(r"(?<=[.(\[,=/])(?=\w|\"|&quot;)")


def let_long_words_break(code):
    """Return the HTML of inline code, with the places where its long words may break."""
    return LONG_WORD.sub(lambda word: MAY_BREAK.sub("<wbr>", word[0]), code[0])


EDITS = {
    r'(?s)<code class="[^"]*\bliteral\b.*?</code>': let_long_words_break,
    # A label that says "Toggle hidden content" in place of the words of each fold.
    ' aria-label="Toggle hidden content"': "",
    # Spans of names, punctuation and blanks in code have the color of the text around them, and
    # would be up to two fifths of a page.
    r'<span class="[npw]">([^<]*)</span>': r"\1",
}
"""What replaces a pattern in the HTML of each page."""


def edit_html(app, page, template, context, doctree):
    """Make these edits in the text of a page."""
    for pattern, new in EDITS.items() if "body" in context else ():
        context["body"] = re.sub(pattern, new, context["body"])


def leave_out_an_unused_style_sheet(app, page, template, context, doctree):
    """Leave out the style sheet of sphinx-design, 55 kB, where no card or fold of it is."""
    if not re.search(r'"[^"]*\bsd-(?!text-nowrap)', context.get("body", "")):
        files = context["css_files"]
        context["css_files"] = [f for f in files if "sphinx-design" not in str(f.filename)]


def offer_the_notebooks_of_colab(app, error):
    """Let the download button give the notebook that Colab opens, without outputs."""
    for page in [] if error else sorted(app.env.found_docs):
        notebook = Path(app.srcdir, f"{page}.ipynb")
        if notebook.exists():
            shutil.copyfile(notebook, Path(app.outdir, "_sources", f"{page}.ipynb"))


def skip_fields_of_named_tuples(app, what, name, value, skip, options):
    """Skip a field whose docstring is Python's own: "Alias for field number 0"."""
    return True if type(value).__name__ == "_tuplegetter" else None


# Users get these from functions, and make none by hand.
RESULTS = {
    "Comparison",
    "Event",
    "Finding",
    "Measurement",
    "Overlap",
    "OverlapScore",
    "Predicate",
    "Timeline",
    "Watched",
}


def shorten_signature(app, what, name, value, options, arguments, returns):
    """Leave out the arguments of results and errors; show a constant default by its value."""
    if what == "exception" or (what == "class" and value.__name__ in RESULTS):
        return "", None
    module = vars(sys.modules[getattr(value, "__module__", None) or "builtins"])
    constant = re.compile(r"(?<== )_?[A-Z][A-Z_]+\b")
    return constant.sub(lambda name: repr(module[name[0]]), arguments or ""), returns


def keep_how_it_works(app, what, name, value, options, lines):
    """Leave out the first sentence of a private module; the page has its own."""
    if what == "module" and name.startswith("d2lpar._"):
        text = "\n".join(lines)
        lines[:] = text[text.index("How it works. ") :].removeprefix("How it works. ").splitlines()
        # Else Sphinx colors the words of the drawings as Python.
        lines[:] = [".. highlight:: none", "", *lines, "", ".. highlight:: default"]


def call_attributes_by_their_name():
    """Title the `Attributes:` of a docstring with that word; Sphinx writes "Variables"."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"


def setup(app):
    app.setup_extension("d2lpar_cells")
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.add_config_value("d2lpar_no_terms", [], "html")
    app.add_node(Pending)
    for name in CONTENT:
        app.add_directive(name, PendingDirective)
    app.add_role("measured", pending_role)
    for transform in (KeepPunctuation, KeepUnits, RepeatHeads, FillPending, LinkToGlossary):
        app.add_post_transform(transform)
    call_attributes_by_their_name()
    app.connect("source-read", leave_out_links_to_missing_solutions)
    app.connect("autodoc-skip-member", skip_fields_of_named_tuples)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", keep_how_it_works)
    app.connect("html-page-context", edit_html)
    app.connect("html-page-context", leave_out_an_unused_style_sheet)
    app.connect("build-finished", offer_the_notebooks_of_colab)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
