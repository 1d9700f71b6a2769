"""What the book needs of Sphinx beyond Jupyter Book: a strict API page, MathML, and the others."""

import importlib
import inspect
import pkgutil
import re
import shutil
from html import escape
from pathlib import Path

from d2lpar_runs import paired_notebook
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

import d2lpar

logger = logging.getLogger(__name__)

# --- The API page -----------------------------------------------------------------------------


def warn_of_undocumented_names(app, env):
    """Warn of each public name that anybody may import and the API page lacks.

    autodoc leaves out, without a word, whatever has no docstring; so what is missing has none.
    """
    python = env.get_domain("py")
    for info in pkgutil.iter_modules(d2lpar.__path__, "d2lpar."):
        if info.name.startswith("d2lpar._") or info.name == "d2lpar.book":
            continue  # Plumbing, and what only the book needs.
        names = {info.name, *public_names(importlib.import_module(info.name))}
        for name in sorted(names - python.objects.keys() - python.modules.keys()):
            message = "%s is public, but not on the API page: is a docstring missing?"
            logger.warning(message, name, location="book/api", type="d2lpar")


def public_names(module):
    """Yield each function, class, method, property and field of a module by its dotted name."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        yield f"{module.__name__}.{name}"
        if inspect.isclass(value):
            behaviour = {n for n, v in vars(value).items() if callable(v) or hasattr(v, "__get__")}
            for member in behaviour | inspect.get_annotations(value).keys():
                if not member.startswith("_"):
                    yield f"{module.__name__}.{name}.{member}"


def skip_fields_of_named_tuples(app, what, name, value, skip, options):
    """Leave them to the class docstring; Python's own says "Alias for field number 0"."""
    return True if type(value).__name__ == "_tuplegetter" else None


# --- Math -------------------------------------------------------------------------------------


def mathml(latex, display, node):
    """Convert LaTeX to MathML, which needs no script, font or network; warn where that fails."""
    try:
        # latex2mathml knows `split`, which is the same, but not `aligned`.
        result = convert(latex.replace("{aligned}", "{split}"), display=display)
    except Exception as error:  # it has a dozen kinds of its own, without a common base
        result, problem = f"<code>{escape(latex)}</code>", type(error).__name__
    else:
        # What it does not know it hands on as text, without an error.
        unknown = "\\" in result or "<mi>&</mi>" in result
        problem = "a command or a & that latex2mathml does not know" if unknown else None
        result = result.replace('columnalign="', 'style="text-align:')  # browsers ignore the former
        # As TeX sets them: a thin space before, and none behind, where an argument follows.
        result = re.sub(r"<mo>(max|min)</mo>", r'<mo lspace="0.167em" rspace="0">\1</mo>', result)
    if problem:
        logger.warning("math %r: %s", latex, problem, location=node, type="d2lpar")
    return result


def visit_inline_math(self, node):
    """Write inline math."""
    self.body.append(mathml(node.astext(), "inline", node))
    raise nodes.SkipNode


def visit_display_math(self, node):
    """Write display math, with its anchor and number if it has a label."""
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    formula = mathml(node.astext(), "block", node)
    # On a phone it may have to scroll, and then the keyboard has to reach it.
    self.body.append(formula.replace("<math ", '<math tabindex="0" ', 1) + "</div>\n")
    raise nodes.SkipNode


# --- Numbers of figures ------------------------------------------------------------------------


def number_from_one(app, env):
    """Have the figures of a page without a number begin at 1, since its next page is no sequel."""
    for figures in env.toc_fignumbers.values():
        for numbers in figures.values():
            for count, (name, number) in enumerate(numbers.items(), 1):
                if len(number) == 1:
                    numbers[name] = (count,)
    return []  # No page has to be read again for that.


# --- What readers load ------------------------------------------------------------------------


def offer_the_notebooks_of_colab(app, error):
    """Have the download button give the notebook that Colab opens, without outputs."""
    for page in [] if error else sorted(app.env.found_docs):
        notebook = paired_notebook(app, page)
        if notebook.exists():
            shutil.copyfile(notebook, Path(app.outdir, "_sources", f"{page}.ipynb"))


# What a screen reader could not make sense of in the HTML of the theme and of docutils.
MENDED = {
    '<summary><span class="toctree-toggle"': (
        '<summary aria-label="Pages below"><span class="toctree-toggle"'
    ),
    ' role="doc-biblioentry"': ' role="listitem"',  # They stand in a list.
}


# The theme has every page load the index of all words, for a search while one types; ours has none.
SEARCH = re.compile(
    r'<script src="(?:[^"]*/)?(searchtools|language_data|searchindex)\.js[^"]*"></script>'
)


def mend_pages(app, error):
    """Name what has no name, and leave out what readers would load in vain."""
    if error:
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for wrong, right in MENDED.items():
            text = text.replace(wrong, right)
        if page.name != "search.html":
            text = SEARCH.sub("", text)
        page.write_text(text, encoding="utf-8")
    # One and a half megabytes of icons, which come as a font already.
    Path(app.outdir, "_static", "scripts", "fontawesome.js").write_text("", encoding="utf-8")


def setup(app):
    """Register all of it with Sphinx."""
    for name in ("results", "explore", "glossary", "typography", "progress"):
        app.setup_extension(f"d2lpar_{name}")
    app.connect("env-get-updated", number_from_one, priority=900)  # when Sphinx has counted
    app.connect("env-check-consistency", warn_of_undocumented_names)
    app.connect("build-finished", offer_the_notebooks_of_colab)
    app.connect("build-finished", mend_pages)
    app.connect("autodoc-skip-member", skip_fields_of_named_tuples)
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_display_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
