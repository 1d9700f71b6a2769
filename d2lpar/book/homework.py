"""Find the statements of a reader's file that an answer needs, to run them and no others.

A file also measures, prints, or hangs. So of its statements only those run that bind an answer, or
a name that such a statement needs, and so on. A call that binds no name never runs.
"""

import __future__

import ast
import json
import linecache
import re
import symtable
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from d2lpar._plain.errors import D2lparError

_BEGINS = re.compile(r"^(?![\s)\]}#]|(?:else|elif|except|finally)\b)", re.MULTILINE)
_MAGIC = re.compile(r"^(\s*)[%!].*", re.MULTILINE)  # A line for Jupyter or the shell.
_BOUND = re.compile(r"(?:(?:async +)?(?:def|class) +)?(\w*)")  # By what is no Python.


class Statement(NamedTuple):
    """A statement, the global names that it binds and needs; instead of its code, a fault."""

    binds: set[str]
    needs: set[str]
    code: CodeType | Exception


def statements_of(path: Path) -> list[Statement]:
    """Return the statements of a Python file or a notebook; for others, raise a D2lparError."""
    if path.suffix not in (".py", ".ipynb"):
        raise D2lparError(f"{path} must end in .py or .ipynb.")
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        cells = {str(path): text}
        if path.suffix == ".ipynb":
            code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
            cells = {f"{path}, code cell {n}": "".join(c["source"]) for n, c in enumerate(code, 1)}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise D2lparError(f"{path} cannot be read: {error}") from error
    for file, cell in cells.items():  # For messages that quote a line.
        linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
    return [each for file, cell in cells.items() for each in _statements(cell, file)]


def _statements(text: str, file: str) -> Iterator[Statement]:
    """Cut a text at its faults: take the longest part that is Python, or else a line and go on."""
    cuts = sorted({0, *(match.start() for match in _BEGINS.finditer(text)), len(text)})
    while len(cuts) > 1:
        above = "\n" * text.count("\n", 0, cuts[0])  # Keeps the numbers of lines.
        for end in reversed(range(1, len(cuts))):
            try:
                yield from _parsed(above + text[cuts[0] : cuts[end]], file)
                break
            except (SyntaxError, ValueError, RecursionError) as error:
                fault = error
        else:
            yield Statement({_BOUND.match(text, cuts[0])[1]}, set(), fault)
        del cuts[:end]


def _parsed(text: str, file: str) -> list[Statement]:
    try:
        nodes = ast.parse(text, file).body
    except SyntaxError:
        nodes = ast.parse(_MAGIC.sub(r"\1pass", text), file).body
    statements = []
    for node in nodes:
        table = symtable.symtable(source := ast.unparse(node), file, "exec")
        binds = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
        binds |= {"*"} if "import *" in source else set()
        postponed = __future__.annotations.compiler_flag  # A file may ask for it in its first line.
        code = compile(ast.Module([node], []), file, "exec", postponed, dont_inherit=True)
        statements.append(Statement(binds, set(_globals_of(table)), code))
    return statements


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for child in table.get_children():
        yield from _globals_of(child)


def needed_for(names: Iterable[str], statements: Sequence[Statement]) -> list[Statement]:
    """Return the statements that these names need; a fault only if all else lacks its name."""
    wanted, before = {*names, "*"}, None
    while wanted != before:
        needed = [each for each in statements if each.binds & wanted]
        before, wanted = wanted, wanted.union(*(each.needs for each in needed))
    sound = [each for each in needed if isinstance(each.code, CodeType)]
    return [e for e in needed if e in sound or not any(e.binds & each.binds for each in sound)]
