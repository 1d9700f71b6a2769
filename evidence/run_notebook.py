"""Execute notebooks and print their claims and reports of exercises, one JSON object a line.

Usage: python evidence/run_notebook.py NOTEBOOK...

A failing cell ends it with an error, and so does a claim that does not hold, or a solution that is
not accepted.
"""

import ast
import copy
import functools
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from symtable import SymbolTable, symtable

import jupytext
import nbformat
from nbclient import NotebookClient

from d2lpar.book import claims, exercises

ROOT = Path(__file__).parent.parent


def notebooks() -> list[Path]:
    """Return the sources of all chapters and solutions."""
    pages = sorted((ROOT / "book").rglob("*.md"))
    return [page for page in pages if page.read_text().startswith("---\njupytext:")]


def name_of(page: Path) -> str:
    """Return what a page is called: its path in the book, without a suffix."""
    return page.resolve().relative_to(ROOT / "book").with_suffix("").as_posix()


@dataclass(frozen=True)
class Intervention:
    """What takes a cause away: code that runs first, and other words in the code of cells."""

    takes_away: str
    first: str = ""
    edits: Mapping[str, str] = field(default_factory=dict)

    def apply_to(self, notebook: nbformat.NotebookNode) -> None:
        """Change a notebook; what is to be replaced must stand there exactly once."""
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for old, new in self.edits.items():
            cells = [cell for cell in code if old in cell.source]
            if len(cells) != 1 or cells[0].source.count(old) != 1:
                raise ValueError(f"{old!r} does not stand in the notebook exactly once.")
            cells[0].source = cells[0].source.replace(old, new)
        if self.first:
            notebook.cells.insert(0, nbformat.v4.new_code_cell(self.first))


SYNCHRONOUS = Intervention(
    "asynchronous dispatch",
    # The environment variable of that name does nothing. It must be the first thing JAX hears.
    first="import jax; jax.config.update('jax_cpu_enable_async_dispatch', False)",
)
BARRIERS = Intervention(
    "going on without a barrier behind each call",
    first="""
import jax

class Waiting:
    def __init__(self, function):
        self._function = function
    def __call__(self, *args, **kwargs):
        return jax.block_until_ready(self._function(*args, **kwargs))
    def __getattr__(self, name):
        return getattr(self._function, name)

jit = jax.jit
jax.jit = lambda function, **options: Waiting(jit(function, **options))
jax.device_put = Waiting(jax.device_put)
""",
)
# Enough to see that a page runs, where no claim has to be decided: at most nine rounds, and one
# look, since the time is up at once.
FEW_ROUNDS = """
import d2lpar

def in_few_rounds(function):
    def call(*args, repeats=9, limit=None, **options):
        return function(*args, repeats=min(repeats, 9), limit=1e-9, **options)
    return call

d2lpar.compare, d2lpar.measure = map(in_few_rounds, (d2lpar.compare, d2lpar.measure))
"""
ONE_DEVICE = Intervention(
    "more than one CPU device",
    # JAX has started before the notebook could ask for several.
    first=f"import jax; jax.config.update('jax_num_cpu_devices', 1); jax.devices(){FEW_ROUNDS}",
)
GPU_STAND_INS = Intervention(
    "the difference between a CPU and a GPU",
    # CPU devices play two GPUs, so that the cells for GPUs run, although there are none.
    first=f"""
import d2lpar.devices, jax

jax.config.update("jax_num_cpu_devices", 4)

def stand_in(kind, devices_of=d2lpar.devices._devices_of):
    cpus = devices_of("cpu")
    return cpus[::3] if kind == "cpu" else cpus[1:3]

d2lpar.devices._devices_of = stand_in
{FEW_ROUNDS}""",
    # Sizes for a GPU would keep a CPU busy for minutes.
    edits={
        "(one, other), (2000, 2000)": "(one, other), (250, 250)",
        "(2000, 6000) if pair": "(250, 250) if pair",
        "else (4000, 4000)": "else (250, 250)",
        "try_all_gpus()[0], 4000": "try_all_gpus()[0], 250",
    },
)


def run_notebook(
    path: Path,
    intervention: Intervention | None = None,
    *,
    keys: Collection[str] | None = None,
    strict: bool = True,
    timeout: int = 300,
    environment: Mapping[str, str] | None = None,
) -> list[dict]:
    """Execute a notebook in a fresh process and return the data of its outputs, in order.

    With `keys`, only the cells run that these claims need. What is in `environment` is added to the
    variables that the process inherits.
    """
    notebook = read(path)
    if keys is not None:
        keep_what_is_needed(notebook, keys)
    if intervention:
        intervention.apply_to(notebook)
    # Or each kernel warns that what is said on this machine is not encrypted.
    quiet = ["--IPKernelApp.log_level=ERROR"]
    client = NotebookClient(notebook, timeout=timeout, extra_arguments=quiet)
    variables = os.environ | {"D2LPAR_STRICT": str(int(strict))} | (environment or {})
    try:
        client.execute(env=variables)
    except Exception:
        # nbclient takes SIGINT and SIGTERM for itself: it ends the kernel, and is surprised then.
        if hasattr(client, "_async_cleanup_kernel_future"):
            raise KeyboardInterrupt from None
        raise
    return outputs_of(notebook)


def read(path: Path) -> nbformat.NotebookNode:
    """Return a notebook without its prose, which whoever asks for it may change."""
    return copy.deepcopy(_read(path, path.read_text(encoding="utf-8")))


@functools.lru_cache(maxsize=32)  # The cells of one page are asked for once for each claim.
def _read(path: Path, text: str) -> nbformat.NotebookNode:
    notebook = jupytext.read(path)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return notebook


def outputs_of(notebook: nbformat.NotebookNode) -> list[dict]:
    """Return the data of the outputs of an executed notebook, in order; none for plain text."""
    return [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", [])]


def keep_what_is_needed(notebook: nbformat.NotebookNode, keys: Collection[str]) -> None:
    """Leave only the cells that some claims need, directly or not."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parts = [CellNames.of(cell.source) for cell in code]
    later = set()
    while True:
        needed, kept = set(later), []
        for cell, names in zip(reversed(code), reversed(parts), strict=True):
            claims_them = not names.keys.isdisjoint(keys)
            if claims_them or "use_style" in cell.source or (names.bound | names.filled) & needed:
                needed = needed - names.bound | names.needed
                kept.append((cell, names))
        # A function may be called after a name that it uses has been bound anew.
        called = set().union(*(names.needed_when_called for _, names in kept))
        if called <= later:
            notebook.cells = [cell for cell, _ in reversed(kept)]
            return
        later |= called


@dataclass(frozen=True)
class CellNames:
    """What a cell does with global names, and the claims that it makes."""

    bound: set[str]
    filled: set[str]
    needed: set[str]
    needed_when_called: set[str]
    keys: set[str]

    @classmethod
    @functools.cache  # For each claim of a page, all of its cells are looked at.
    def of(cls, source: str) -> "CellNames":
        """Find them in the source of a cell."""
        bound, filled, needed, when_called = set(), set(), set(), set()
        tree = ast.parse(python_of(source))
        for statement in tree.body:
            code = ast.unparse(_OwnScopes().visit(copy.deepcopy(statement)))
            stores, loads, inner = names_of(symtable(code, "cell", "exec"))
            bound |= bound_by_the_header(statement)
            needed |= (loads | inner) - bound
            if isinstance(statement, ast.FunctionDef):
                when_called |= inner
            bound |= stores
            for node in ast.walk(statement):
                match node:
                    case (
                        ast.Subscript(ast.Name(name), _, ast.Store())  # table[key] = ...
                        | ast.Call(ast.Attribute(ast.Name(name), "append" | "setdefault"))
                    ):
                        filled.add(name)
        keys = {key for call in calls_of_claim(tree) if (key := key_of(call))}
        return cls(bound, filled, needed, when_called, keys)


class _OwnScopes(ast.NodeTransformer):
    """Make generators of comprehensions, which since Python 3.12 have no table of their own."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        pair = ast.Tuple([node.key, node.value], ast.Load())
        return ast.GeneratorExp(pair, node.generators)


def bound_by_the_header(statement: ast.stmt) -> set[str]:
    """Return the names that a `for` or a `with` binds before its block runs."""
    match statement:
        case ast.For(target):
            headers = [target]
        case ast.With(items):
            headers = [item.optional_vars for item in items if item.optional_vars]
        case _:
            headers = []
    nodes = (node for header in headers for node in ast.walk(header))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def names_of(table: SymbolTable) -> tuple[set[str], set[str], set[str]]:
    """Return the global names that some code stores, loads, and loads in functions."""
    outermost = table.get_type() == "module"
    known = [s for s in table.get_symbols() if outermost or s.is_global()]
    stores = {s.get_name() for s in known if s.is_assigned() or s.is_imported()}
    loads = {s.get_name() for s in known if s.is_referenced()}
    inner = set()
    for child in table.get_children():
        _, *in_child = names_of(child)
        inner |= set().union(*in_child)
    return stores, loads, inner


def python_of(code: str) -> str:
    """Return the code of a cell without line magics, which are not Python."""
    return re.sub(r"^(\s*)%.*", r"\1pass", code, flags=re.MULTILINE)


def calls_of_claim(tree: ast.AST) -> list[ast.Call]:
    """Return the calls of `claim` in some code."""
    return [node for node in ast.walk(tree) if is_claim(node)]


def is_claim(node: ast.AST) -> bool:
    """Say whether a piece of code calls `claim`."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "claim"
    )


def sentence_of(call: ast.Call) -> ast.expr | None:
    """Return the sentence of a claim, as code."""
    by_name = (word.value for word in call.keywords if word.arg == "sentence")
    return call.args[0] if call.args else next(by_name, None)


def key_of(call: ast.Call) -> str | None:
    """Return the key of a claim; None if it has none, or one that must be computed."""
    return literal(next((word.value for word in call.keywords if word.arg == "key"), None))


def literal(code: ast.expr | None) -> str | None:
    """Return a text that stands in the code as it is; None for anything else."""
    is_text = isinstance(code, ast.Constant) and isinstance(code.value, str)
    return code.value if is_text else None


def claimed_by(path: Path) -> dict[str, ast.Call]:
    """Return the calls of `claim` in a notebook, by their sentences, in their order."""
    return {ast.literal_eval(sentence_of(call)): call for call in _claims_of(path)}


def claims_of(path: Path) -> dict[str, ast.Call]:
    """Return the calls of `claim` in a notebook, by their keys, in their order.

    Raises:
        ValueError: If a claim has no key, or if two have the same.
    """
    found = {}
    for call in _claims_of(path):
        key, where = key_of(call), f"{path}: {ast.unparse(sentence_of(call))}"
        if not key:
            raise ValueError(f'{where} has no key. Give it one: claim(..., key="some-words").')
        if key in found:
            raise ValueError(f"{where} has a key that another claim has, too: {key!r}.")
        found[key] = call
    return found


def _claims_of(path: Path) -> tuple[ast.Call, ...]:
    return _claims_in(path, path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=32)
def _claims_in(path: Path, text: str) -> tuple[ast.Call, ...]:
    trees = (ast.parse(python_of(cell.source)) for cell in _read(path, text).cells)
    return tuple(call for tree in trees for call in calls_of_claim(tree))


def pages_by_key(pages: Iterable[Path]) -> dict[str, Path]:
    """Return the page of each claim, by its key, in the order of the book.

    Raises:
        ValueError: If a claim has no key, or if two have the same, on whichever pages.
    """
    found = {}
    for page in pages:
        for key in claims_of(page):
            if key in found:
                raise ValueError(f"{found[key]} and {page} both have a claim with the key {key!r}.")
            found[key] = page
    return found


def of_type(outputs: Iterable[Mapping], mime_type: str) -> list[dict]:
    """Return the data of one MIME type among those of outputs."""
    return [data[mime_type] for data in outputs if mime_type in data]


def main() -> None:
    """Run what the command line names."""
    for path in map(Path, sys.argv[1:]):
        outputs = run_notebook(path)
        for mime_type in (claims.MIME_TYPE, exercises.MIME_TYPE):
            for found in of_type(outputs, mime_type):
                print(json.dumps(found))
        reports = of_type(outputs, exercises.MIME_TYPE)
        refused = [made["exercise"] for made in reports if made["verdict"] == "not yet"]
        if refused and path.parent.name == "solutions":
            sys.exit(f"{path}: not every solution is accepted: {', '.join(refused)}")


if __name__ == "__main__":
    main()
