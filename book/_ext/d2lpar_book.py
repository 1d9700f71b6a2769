"""What the book needs of Sphinx beyond Jupyter Book: a strict API page, MathML, the claims."""

import importlib
import inspect
import json
import os
import pkgutil
import platform
from collections import Counter
from datetime import UTC, datetime
from html import escape
from importlib import metadata
from pathlib import Path

import jax
import psutil
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.math import get_node_equation_number

import d2lpar
from d2lpar.claims import MIME_TYPE, VERDICTS

logger = logging.getLogger(__name__)

# --- The API page -----------------------------------------------------------------------------


def warn_of_undocumented_names(app, env):
    """Warn of each public name of d2lpar that the API page lacks.

    autodoc leaves out, without a word, whatever has no docstring; so what is missing has none.
    """
    python = env.get_domain("py")
    for info in pkgutil.iter_modules(d2lpar.__path__, "d2lpar."):
        if info.name.startswith("d2lpar._"):
            continue
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
    self.body.append(mathml(node.astext(), "block", node) + "</div>\n")
    raise nodes.SkipNode


# --- The status page --------------------------------------------------------------------------


class Pending(nodes.General, nodes.Element):
    """The place of a table that can be made only when every page has been read."""


class PendingTable(SphinxDirective):
    """`{claims-table}` and `{build-table}`: leave a placeholder."""

    def run(self):
        """Return it, and have the page read again by each build."""
        self.env.note_reread()
        return [Pending(table=self.name)]


class FillPending(SphinxPostTransform):
    """Put the tables where the placeholders are."""

    default_priority = 8  # before references are resolved (10)

    def run(self, **kwargs):
        """Replace each placeholder of the page by what its function returns."""
        for node in list(self.document.findall(Pending)):
            node.replace_self(TABLES[node["table"]](self.app, self.env.docname))


def claims_table(app, docname):
    """Return a line that counts the claims of the book, and the table of them."""
    executed = Path(app.outdir).parent / "jupyter_execute"  # where myst-nb leaves the notebooks
    rows, verdicts = [], []
    for page in sorted(app.env.found_docs):
        uri = app.builder.get_relative_uri(docname, page)
        link = nodes.reference("", app.env.titles[page].astext(), refuri=uri, internal=True)
        for claim in claims_of(executed / f"{page}.ipynb"):
            verdict = VERDICTS[claim["verdict"]]
            measured = [*claim["quantities"], claim["detail"]]
            verdicts.append(verdict)
            rows.append(
                (
                    [with_code(claim["sentence"])],
                    [[nodes.strong("", verdict)]],
                    [with_code(line) for line in measured if line],
                    [[link.deepcopy()]],
                )
            )
    counts = "; ".join(f"{verdict}: {n}" for verdict, n in Counter(verdicts).items())
    count = nodes.paragraph(text=f"Claims: {len(rows)} ({counts or 'none'}).")
    return [count, table(("Claim", "Verdict", "Measured", "Page"), rows)]


def claims_of(notebook):
    """Return the claims among the outputs of an executed notebook, in the order of the page."""
    if not notebook.exists():  # the page is no notebook
        return []
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return [data[MIME_TYPE] for data in outputs if MIME_TYPE in data]


def build_table(app, docname):
    """Return the table of the machine and the versions that this build was made with."""
    devices = Counter(device.device_kind for device in jax.devices())
    packages = ("jax", "jaxlib", "numpy", "scipy", "matplotlib", "d2lpar")
    rows = {
        "Built": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "Processor": f"{processor()}, {os.cpu_count()} cores",
        "Memory": f"{psutil.virtual_memory().total / 1e9:.1f} GB",
        "System": platform.platform(terse=True),
        "Python": platform.python_version(),
        "JAX devices": ", ".join(f"{n} x {kind}" for kind, n in devices.items()),
        "Packages": ", ".join(f"{name} {metadata.version(name)}" for name in packages),
    }
    rows = [([[nodes.strong("", name)]], [[nodes.Text(value)]]) for name, value in rows.items()]
    return [table(None, rows)]


def processor():
    """Return the name of the processor; on Linux only /proc knows more than its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def with_code(text):
    """Return the inline nodes of a text, with what stands in `backticks` as code."""
    parts = enumerate(text.split("`"))
    return [nodes.literal("", part) if i % 2 else nodes.Text(part) for i, part in parts]


def table(header, rows):
    """Return a docutils table; a row has cells, a cell paragraphs, a paragraph inline nodes."""

    def row(cells):
        paragraphs = ([nodes.paragraph("", "", *inline) for inline in cell] for cell in cells)
        return nodes.row("", *(nodes.entry("", *cell) for cell in paragraphs))

    columns = len(header or rows[0])
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(columns)), cols=columns)
    if header:
        group += nodes.thead("", row([[[nodes.Text(name)]] for name in header]))
    group += nodes.tbody("", *map(row, rows))
    return nodes.table("", group, classes=["colwidths-auto", f"d2lpar-columns-{columns}"])


TABLES = {"claims-table": claims_table, "build-table": build_table}


def setup(app):
    """Register all of it with Sphinx."""
    app.connect("env-check-consistency", warn_of_undocumented_names)
    app.connect("autodoc-skip-member", skip_fields_of_named_tuples)
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_display_math, None))
    app.add_node(Pending)
    app.add_post_transform(FillPending)
    for name in TABLES:
        app.add_directive(name, PendingTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
