"""A hash of what a verdict depends on: the code that ran, without what can change no verdict.

What stands here decides when evidence is too old. A word of the prose, a comment or a docstring
changes nothing; the number in a bound, a cell of an experiment, or a function of the package that
it calls does.
"""

import ast
import functools
import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path

from run_notebook import (
    ROOT,
    Intervention,
    is_claim,
    keep_what_is_needed,
    python_of,
    read,
    sentence_of,
)

# Modules that draw, show or word what has been measured. The rule: they are handed results, and
# return nothing that a comparison is made from.
WITHOUT_INFLUENCE = {
    "__main__",
    "_layout",
    "_marks",
    "_tables",
    "plot",
    "units",
    "book.explore",
    "book.figures",
    "book.notebook",
    "book.results",
    "book.traps",
}


def fingerprint(
    page: Path,
    intervention: Intervention | None = None,
    *,
    keys: Collection[str] | None = None,
    package: "Package | None" = None,
) -> str:
    """Return the hash of what `run_notebook` would run, and of the package code that it reaches.

    Whoever asks for many passes the same package, which is read once then.

    Raises:
        ValueError: If the intervention does not fit the cells.
    """
    notebook = read(page)
    if keys is not None:
        keep_what_is_needed(notebook, keys=keys)
    if intervention:
        intervention.apply_to(notebook)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return fingerprint_of(cells, package or Package(ROOT / "d2lpar"))


def fingerprint_of(cells: Iterable[str], package: "Package") -> str:
    """Return the hash of cells and of the package code that they reach."""
    cells = list(map(python_of, cells))
    used = set().union(*(_names_in(cell)[2] for cell in cells))
    # What a cell imports for others is none of them.
    code = [essence(cell, frozenset(_names_in(cell)[0].keys() & used)) for cell in cells]
    return digest([code, sorted(package.reached_from(cells).items())])


# --- Code without its prose -------------------------------------------------------------------


@functools.cache
def essence(source: str, imports: frozenset[str] | None = None) -> str:
    """Return the hash of some code without its prose, and with these of its imports if not all."""
    return digest(_written(_WithoutProse(imports).visit(ast.parse(source))))


def digest(plain: object) -> str:
    """Return the hash of plain data."""
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


_DECIDE = {"sentence", "otherwise", "needs", "key"}


class _WithoutProse(ast.NodeTransformer):
    """Leave out docstrings, what claims say, and what errors say. (A tree has no comments.)"""

    def __init__(self, imports: frozenset[str] | None):
        self._imports = imports

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> ast.stmt | None:
        if self._imports is not None:
            names = [a for a in node.names if _bound_by(node, a) in self._imports]
            node.names = sorted(names, key=lambda alias: alias.name)
        return node if node.names else None

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if not is_claim(node):
            return node
        sentence = sentence_of(node)
        node.args = [_SAID if arg is sentence else arg for arg in node.args]
        # Whatever else is given by name is a number that the sentence says.
        node.keywords = [word for word in node.keywords if word.arg in _DECIDE]
        for word in node.keywords:
            if word.value is sentence or word.arg == "otherwise":
                word.value = _SAID
            elif word.arg == "needs":
                word.value = _WithoutTexts().visit(word.value)
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        self.generic_visit(node)
        if isinstance(node.exc, ast.Call):
            node.exc.args = [_WithoutTexts().visit(arg) for arg in node.exc.args]
        return node


class _WithoutTexts(ast.NodeTransformer):
    """Leave out what a text says, but not whether there is one, or what decides between two."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return _SAID if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return _SAID

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        return node


_SAID = ast.Constant("...")


def _written(node: object) -> object:
    """Return a tree as lists, alike in each Python: `ast.dump` and `ast.unparse` differ."""
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        # Newer versions have more fields, which are empty here.
        there = [[name, _written(value)] for name, value in fields if value not in (None, [])]
        return [type(node).__name__, there]
    return [_written(element) for element in node] if isinstance(node, list) else repr(node)


# --- The package code that it reaches ---------------------------------------------------------


def _bound_by(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    """Return the name that an import binds."""
    name = alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0]
    return alias.asname or name


class Package:
    """The modules of a package, and what they take from each other."""

    def __init__(self, folder: Path):
        files = {
            ".".join([folder.name, *file.relative_to(folder).with_suffix("").parts]): file
            for file in sorted(folder.rglob("*.py"))
        }
        self._sources = {
            name.removesuffix(".__init__"): file.read_text(encoding="utf-8")
            for name, file in files.items()
        }
        self._packages = {n.removesuffix(".__init__") for n in files if n.endswith(".__init__")}
        self._name = folder.name
        self._homes: dict[str, str | None] = {}

    def reached_from(self, sources: Iterable[str]) -> dict[str, str]:
        """Return the modules that some code uses, directly or not, without their prose."""
        found: dict[str, str] = {}
        waiting = [_names_used(tuple(sources))]
        while waiting:
            for module in filter(None, map(self.home_of, waiting.pop())):
                if module not in found and module.partition(".")[2] not in WITHOUT_INFLUENCE:
                    found[module] = essence(self._sources[module])
                    waiting.append(_names_used((self._sources[module],)))
        return found

    def home_of(self, name: str) -> str | None:
        """Return the module that defines a dotted name; None if it is not of this package."""
        if name not in self._homes:
            self._homes[name] = self._find_home(name)
        return self._homes[name]

    def _find_home(self, name: str) -> str | None:
        first, *rest = name.split(".")
        if first != self._name:
            return None
        module = first
        for part in rest:
            if f"{module}.{part}" in self._sources:
                module = f"{module}.{part}"
            elif module in self._packages and (handed_on := self._handed_on(module, part)):
                return self.home_of(handed_on)
            else:
                break
        # `import d2lpar` alone uses nothing: what it hands on is looked for by name.
        return module if module != name or module not in self._packages else None

    def _handed_on(self, module: str, name: str) -> str | None:
        for node in ast.parse(self._sources[module]).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return f"{node.module}.{alias.name}"
        return None


def _names_used(sources: tuple[str, ...]) -> set[str]:
    """Return the dotted names of what code has imported, and uses further on."""
    bound, imported, used = {}, set(), set()
    for source in sources:
        names, modules, chains = _names_in(source)
        bound |= names
        imported |= modules
        used |= chains
    return imported | {
        ".".join([bound[first], *rest])
        for first, *rest in (chain.split(".") for chain in used)
        if first in bound
    }


@functools.cache
def _names_in(source: str) -> tuple[dict[str, str], set[str], set[str]]:
    """Return what some code binds by importing, the modules that it imports, and what it uses."""
    bound, modules, used = {}, set(), set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                bound |= {_bound_by(node, alias): f"{module}.{alias.name}" for alias in names}
            case ast.Import(names=names):
                for alias in names:
                    name = _bound_by(node, alias)
                    bound[name] = alias.name if alias.asname else name
                    modules.add(alias.name)
            case ast.Name(id=name):
                used.add(name)
            case ast.Attribute() if chain := _chain(node):
                used.add(chain)
    return bound, modules, used


def _chain(node: ast.expr) -> str | None:
    """Return a dotted name as it is written; None if it begins with something else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr) if before := _chain(value):
            return f"{before}.{attr}"
    return None
