"""Execute notebooks and print their claims and reports of exercises, one JSON object a line.

Usage: python evidence/run_notebook.py NOTEBOOK...

A failing cell ends it with an error, and so does a claim that does not hold.
"""

import ast
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
# Enough to see that a page runs, where no claim has to be decided.
FEW_ROUNDS = """
import d2lpar

def compare(arms, *, repeats=9, all_rounds=d2lpar.compare, **options):
    return all_rounds(arms, repeats=min(repeats, 9), **options)

d2lpar.compare = compare
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
    sentences: Collection[str] | None = None,
    strict: bool = True,
    timeout: int = 300,
) -> list[dict]:
    """Execute a notebook in a fresh process and return the data of its outputs, in order.

    With `sentences`, only the cells run that the claims of these sentences need.
    """
    notebook = jupytext.read(path)
    if sentences is not None:
        keep_what_is_needed(notebook, sentences)
    if intervention:
        intervention.apply_to(notebook)
    environment = os.environ | {"D2LPAR_STRICT": str(int(strict))}
    return outputs_of(NotebookClient(notebook, timeout=timeout).execute(env=environment))


def outputs_of(notebook: nbformat.NotebookNode) -> list[dict]:
    """Return the data of the outputs of an executed notebook, in order; none for plain text."""
    return [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", [])]


def keep_what_is_needed(notebook: nbformat.NotebookNode, sentences: Collection[str]) -> None:
    """Leave only the cells that the claims of some sentences need, directly or not."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parts = [CellNames.of(ast.parse(python_of(cell.source))) for cell in code]
    later = set()
    while True:
        needed, kept = set(later), []
        for cell, names in zip(reversed(code), reversed(parts), strict=True):
            claims_them = not names.sentences.isdisjoint(sentences)
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
    """What a cell does with global names, and the sentences that it claims."""

    bound: set[str]
    filled: set[str]
    needed: set[str]
    needed_when_called: set[str]
    sentences: set[str]

    @classmethod
    def of(cls, tree: ast.Module) -> "CellNames":
        """Find them in the code of a cell."""
        bound, filled, needed, when_called = set(), set(), set(), set()
        for statement in tree.body:
            stores, loads, inner = names_of(symtable(ast.unparse(statement), "cell", "exec"))
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
        return cls(bound, filled, needed, when_called, set(claimed_in(tree)))


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


def claimed_in(tree: ast.Module) -> dict[str, ast.Call]:
    """Return the calls of `claim` in some code, by their sentences."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    claims = (call for call in calls if ast.unparse(call.func) == "claim")
    return {ast.literal_eval(call.args[0]): call for call in claims}


def claimed_by(path: Path) -> dict[str, ast.Call]:
    """Return the calls of `claim` in a notebook, by their sentences, in their order."""
    cells = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    trees = (ast.parse(python_of(cell.source)) for cell in cells)
    return {sentence: call for tree in trees for sentence, call in claimed_in(tree).items()}


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


if __name__ == "__main__":
    main()
