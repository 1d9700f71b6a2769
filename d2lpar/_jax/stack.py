"""Sample the stack of a running thread: the user's line that it is at, and its activity there.

How it works. `sys._current_frames` gives the innermost frame of each thread. The walk goes outward
from there, through code of libraries, until it comes to the user's own:

    a stack, from the innermost frame outward     owner
    _value        jax/_src/array.py               jax    `_value` reads an array: activity "value"
    __float__     jax/_src/array.py               jax
    log           train.py:12  float(loss)        user   the position
    train         train.py:30  log(loss)          user   its caller

Code in C leaves no frame: most of NumPy, compiled programs of JAX, `time.sleep`. There the source
of the innermost frame tells the name of the called function. The walk reads code objects, positions
and global names. It reads no local variables, since reading them can change a running function in
Python 3.11 and 3.12.
"""

import ast
import builtins
import functools
import gc
import inspect
import itertools
import linecache
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from d2lpar._jax.reads import READ_ATTRIBUTES

# Names of functions that read values of an array, as they appear on the stack or in a call.
_READS = {"item", "tolist", "tobytes", "__array__", "device_get", "concrete_or_error"}
_READS |= {*READ_ATTRIBUTES}
NUMPY = "np.", "numpy."  # The beginnings of names of its functions.
_BUFFERS = {"bytes", "bytearray", "memoryview"}
# Functions that wait for a device, and functions that wait for anything else. A method called `get`
# or `result` counts as waiting, as its class is unknown.
_BARRIERS = {"block_until_ready", "effects_barrier", "wait_all", "drain", "wait_at_barrier"}
_INPUTS = {"select", "poll", "recv", "accept", "read", "readline", "readlines", "input"}
_WAITS = {"get", "put", "join", "wait", "acquire", "result", "as_completed", "communicate"}
# Modules of the standard library that wait for another thread or process, or for input.
_LOCK_MODULES = {"threading", "queue", "_base", "thread", "connection", "queues", "subprocess"}
_INPUT_MODULES = {"selectors", "socket", "ssl", "socketserver"}
_NO_CALLS = {"start_trace", "stop_trace", "clear_caches"}  # Functions of JAX without a program.
_CALLBACK_MODULES = {"callback", "debugging", "io_callback"}

LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# These patterns stand for `ast.parse`: it fails in a thread that a collection of garbage
# interrupts, if another thread calls it meanwhile, such as the one that samples.
_STRING = re.compile(r"""('{3}|"{3}|['"])(?:\\.|.)*?\1""", re.DOTALL)
_OPERATOR = re.compile(r"[\[+*/%@<>&|^~-]|[=!]=|\b(?:not|and|or|in|is)\b")
_BRACKETS = re.compile(r"\(.*\)|\[.*\]")


@dataclass(frozen=True)
class Place:
    """A line of source code.

    Attributes:
        file: The path of its file, or a notebook's cell, such as `In [3]`.
        line: Its number, from 1; 0 for what is no line, such as Python's garbage collector.
        code: Its text.
    """

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        if not self.line:
            return self.file
        is_cell = self.file.startswith("In [") or self.file == "a cell"
        return f"{self.file}{', line ' if is_cell else ':'}{self.line}"


class CodePosition(NamedTuple):
    """A function's code, and the offset of one of its instructions."""

    code: CodeType
    instruction: int

    # Compare code by identity: Python's own hash of a code object goes through all its contents.
    def __hash__(self) -> int:
        return hash((id(self.code), self.instruction))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CodePosition)
            and self.code is other.code
            and self.instruction == other.instruction
        )

    @property
    def place(self) -> Place:
        """The source line."""
        return _place(self)

    @property
    def operation(self) -> str:
        """The source of the expression that is evaluated here."""
        expression = _expression(self)
        # The position of an assignment covers only its left-hand side, and that of `with` all.
        is_whole = re.search(r"[(\[]", expression) and not re.match(r"(async )?with\b", expression)
        return " ".join((expression if is_whole else self.place.code or expression).split())

    @property
    def owner(self) -> str:
        """The owner of the code, as `owner_of` names it."""
        return owner_of(self.code.co_filename)

    @property
    def module(self) -> str:
        """The last part of the module's name."""
        return os.path.basename(self.code.co_filename).removesuffix(".py")

    def has_operator(self) -> bool:
        """Return whether the expression here contains an operator or a subscript."""
        return bool(_OPERATOR.search(_STRING.sub("''", _expression(self))))

    def called_name(self) -> str:
        """Return the name of the function that is called here, such as `np.dot`, or ""."""
        return _called_name(_expression(self))

    def lies_in(self, kinds: tuple[type[ast.AST], ...]) -> bool:
        """Return whether one of these, such as `LOOPS`, repeats this line of the same function."""
        line = self.place.line
        # A loop around the `def` does not repeat the lines of the function.
        first = 0 if self.code.co_name == "<module>" else self.code.co_firstlineno
        return any(
            first <= node.lineno
            # The line of `for` itself is passed once.
            and node.lineno + isinstance(node, (ast.For, ast.AsyncFor)) <= line
            and line <= (node.end_lineno or 0)
            for node in _nodes(self.code.co_filename)
            if isinstance(node, kinds)
        )


class StackSample(NamedTuple):
    """The stack of a thread at one moment."""

    fingerprint: tuple[int, int, int]  # Usually differs if the thread has moved.
    position: CodePosition  # The innermost one in the user's own code.
    innermost: CodePosition  # The innermost one outside NumPy.
    callers: tuple[CodePosition, ...]  # Up to three of the user's that led here, innermost first.
    activity: str  # One of `_ACTIVITIES`, or "callback" if JAX called the user's code back.


def sample_stack(frame: FrameType | None) -> StackSample | None:
    """Return the sample of the thread with this innermost frame; None without a frame of the user.

    The walk visits each frame once. After the thread has left a frame, `f_back` leads nowhere.
    """
    inner: list[CodePosition] = []
    user: list[CodePosition] = []
    called_back = False
    for outer in frames_outward(frame):
        position = CodePosition(outer.f_code, outer.f_lasti)
        if position.owner == "user":
            user.append(position)
        elif not user:
            inner.append(position)
        elif position.owner == "jax" and "trace_to_jaxpr" in position.code.co_name:
            inner, user = [position], []  # The frames so far are those of the traced function.
        elif position.owner == "jax":
            called_back |= position.module in _CALLBACK_MODULES
        if len(user) == 4:
            break
    if not user:
        return None
    innermost = next((position for position in inner if position.owner != "numpy"), user[0])
    at = _Inner(inner, innermost, frame.f_globals)
    activities = (name for name, holds in _ACTIVITIES if holds(at))
    activity = "callback" if called_back else next(activities)
    fingerprint = id(frame), frame.f_lasti, user[0].instruction
    return StackSample(fingerprint, user[0], innermost, tuple(user[1:]), activity)


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its identifier."""
    return _without_gc(sys._current_frames)


def frames_outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = _without_gc(getattr, frame, "f_back")


def _without_gc(read: Callable[..., Any], *args: Any) -> Any:
    """Read frames of another thread, or parse, while the garbage collector is off.

    Python 3.11 creates a frame object on request, and may collect garbage halfway. A callback of
    JAX for the collector then gives the other thread its turn, and the thread leaves the frame. The
    read continues in reused memory, and the process may crash. `ast.parse` fails if another thread
    parses in such a turn.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return read(*args)
    gc.disable()
    try:
        return read(*args)
    finally:
        gc.enable()


class _Inner:
    """The part of a stack inside the user's line, and the call at its innermost position."""

    def __init__(
        self, positions: list[CodePosition], innermost: CodePosition, names: dict[str, Any]
    ) -> None:
        self.innermost, self.names = innermost, names
        self.jax = {each.code.co_name for each in positions if each.owner == "jax"}
        self.stdlib_module = innermost.module if innermost.owner == "stdlib" else ""
        self.in_numpy = any(position.owner == "numpy" for position in positions)

    @functools.cached_property
    def called(self) -> str:
        """The dotted name of the called function, or ""."""
        return self.innermost.called_name()

    @property
    def method(self) -> str:
        """The last part of that name."""
        return self.called.rsplit(".", 1)[-1]

    def in_jax(self, *parts: str) -> bool:
        """Return whether a function of JAX on the stack has one of these parts in its name."""
        return any(part in name for name in self.jax for part in parts)


# The first row that holds is the activity, each with an example of a line. The order matters:
# compiling and callbacks read arrays, a barrier may pass `_value`, and all of these are functions
# of JAX, so the general row "jax" comes after them.
_ACTIVITIES: list[tuple[str, Callable[[_Inner], object]]] = [
    ("compiles", lambda at: at.in_jax("compil", "lower", "trace_to_jaxpr")),  # step(x), at first
    ("callback", lambda at: "_wrapped_callback" in at.jax),  # step(x), with jax.debug.print
    ("checks", lambda at: at.in_jax("check_special")),  # step(x), with jax_debug_nans
    ("barrier", lambda at: _BARRIERS & {*at.jax, at.method}),  # y.block_until_ready()
    ("value", lambda at: _READS & at.jax),  # float(loss)
    ("puts", lambda at: "device_put" in at.jax),  # jax.device_put(batch)
    ("library", lambda at: _NO_CALLS & at.jax),  # jax.profiler.start_trace(folder)
    ("slow call", lambda at: "cache_miss" in at.jax),  # step(x), between two callbacks
    ("jax", lambda at: at.jax),  # jnp.dot(x, y)
    ("locks", lambda at: at.stdlib_module in _LOCK_MODULES),  # thread.join()
    ("input", lambda at: at.stdlib_module in _INPUT_MODULES or at.method in _INPUTS),  # f.read()
    ("sleeps", lambda at: at.method == "sleep"),  # time.sleep(1)
    ("locks", lambda at: at.method in _WAITS),  # lock.acquire(), in C
    ("jax", lambda at: _package_of_callee(at.called, at.names) == "jax"),  # step(x), compiled
    ("call", lambda at: at.called),  # model(x), a local variable: perhaps of JAX
    ("call", lambda at: at.in_numpy or at.innermost.has_operator()),  # a[i] = x, read by NumPy
    ("python", lambda at: at.innermost.owner == "user"),  # total = 0
    ("library", lambda at: True),  # for batch in loader: Python code of another package
]


def _package_of_callee(called: str, names: dict[str, Any]) -> str:
    """Return the package of the callee's type, such as "jax" for a jitted function; "" if unknown.

    A jitted function has no frame once it is compiled, so the name must be looked up. Only global
    variables, and attributes that run no code when read, can be. A local variable stays unknown.
    """
    root, *attributes = called.split(".")
    value = names.get(root, getattr(builtins, root, None))
    for attribute in attributes:
        if isinstance(value, ModuleType) and value.__name__.split(".")[0] in ("jax", "jaxlib"):
            return "jax"
        value = inspect.getattr_static(value, attribute, None)
    while isinstance(value, functools.partial):
        value = value.func
    package = type(value).__module__.split(".")[0].replace("jaxlib", "jax")
    return "" if value is None else package


def may_dispatch(sample: StackSample, names: dict[str, Any]) -> bool:
    """Return whether a thread with these global names may be in a call that dispatches work."""
    if sample.activity != "call":
        return sample.activity in ("jax", "slow call", "puts")
    called = sample.innermost.called_name()
    if not called or only_reads(sample.innermost) or sample.innermost.owner == "stdlib":
        return False
    return not _package_of_callee(called, names)


def only_reads(position: CodePosition) -> bool:
    """Return whether the call at a position can read an array but cannot run a program of JAX."""
    called = position.called_name()
    if not called:
        return position.owner != "jax"
    if called in _BUFFERS or called.startswith(NUMPY):
        return True
    return called.rsplit(".", 1)[-1] in _READS


def processor_time(thread: threading.Thread | None) -> float | None:
    """Return the CPU seconds that a thread has used; None if unknown."""
    # Linux encodes the CPU clock of a thread as (~tid << 3) | 6. pthread_getcpuclockid returns the
    # same number, but may crash when the thread has ended.
    try:
        return time.clock_gettime(~thread.native_id << 3 | 6)
    except (AttributeError, OSError, TypeError, OverflowError):
        return None


_STDLIB = tuple({sysconfig.get_path(k) + os.sep for k in ("stdlib", "platstdlib")})
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep  # The folder of the package.
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_projects: set[str] = set()


def belongs_to_the_user(package: str) -> None:
    """Count an installed package as the user's own code, as that of a console script should be."""
    _projects.add(package)
    owner_of.cache_clear()


@functools.cache
def owner_of(file: str) -> str:
    """Return the owner of a file's code.

    This is `"user"`, `"jax"`, `"numpy"`, `"stdlib"`, `"d2lpar"`, `"library"` for other installed
    packages, or `"generated"` for code without a file.
    """
    if file.startswith("<"):
        typed = ("<ipython-input", "<stdin>", "<timed ", "<magic-timeit>", "<doctest")
        # The code of `python -c` has the file name "<string>".
        is_command = file == "<string>" and not hasattr(sys.modules.get("__main__"), "__file__")
        return "user" if is_command or file.startswith(typed) else "generated"
    if file.startswith(_OURS):
        return "d2lpar"
    if package := _installed_package(file):
        known = {"jaxlib": "jax", "jax": "jax", "numpy": "numpy"}
        return "user" if package in _projects else known.get(package, "library")
    for name in ("jax", "numpy"):  # An editable install has no files in the list of its package.
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin and file.startswith(os.path.dirname(origin) + os.sep):
            return name
    return "stdlib" if file.startswith(_STDLIB) else "user"


def _installed_package(file: str) -> str:
    """Return the top-level name of the installed package that a file belongs to, or ""."""
    if installed := _INSTALLED.search(file):
        return installed[1].removesuffix(".py")
    for folder in map(os.path.abspath, sys.path):  # `pip install --target` takes any folder.
        if file.startswith(folder + os.sep):
            name = file[len(folder) + 1 :].split(os.sep)[0].removesuffix(".py")
            if name in _installed_names(folder):
                return name
    return ""


@functools.cache
def _installed_names(folder: str) -> set[str]:
    """Return the top-level names in the lists of files of the packages that lie in a folder."""
    records = Path(folder).glob("*.dist-info/RECORD")
    lines = (line for record in records for line in record.read_text("utf-8").splitlines())
    return {re.split("[/,]", line)[0].removesuffix(".py") for line in lines}


def _source_of(file: str, line: int) -> str:
    if file.startswith("<timed ") and (shell := _shell()):
        lines = shell.history_manager.input_hist_raw[-1].splitlines()
        return lines[line] if line < len(lines) else ""  # Line 0 is `%%time` itself.
    return linecache.getline(file, line)


def cell_of(file: str) -> str:
    """Return a notebook's name for the cell with this file, such as `In [3]`, or ""."""
    if file.startswith("<timed ") and (shell := _shell()):
        return f"In [{len(shell.history_manager.input_hist_raw) - 1}]"
    if "ipykernel_" not in file and not file.startswith("<ipython"):
        return ""
    names = getattr(getattr(_shell(), "compile", None), "_filename_map", {})
    return f"In [{names[file]}]" if file in names else "a cell"


def _shell() -> object | None:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


@functools.lru_cache(maxsize=4096)
def _place(position: CodePosition) -> Place:
    file = position.code.co_filename
    line = _source_range(position)[0] or position.code.co_firstlineno
    return Place(cell_of(file) or file, line, _source_of(file, line).strip())


@functools.lru_cache(maxsize=4096)
def _expression(position: CodePosition) -> str:
    """Return the source of the expression that is being evaluated, or "" if unknown."""
    first, last, start, end = _source_range(position)
    if None in (first, last, start, end):
        return ""
    lines = [_source_of(position.code.co_filename, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace").strip()


def _source_range(position: CodePosition) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the first and last line, and the start and end column, of an instruction's source.

    A jump to the head of a loop may have none. Then the instruction before it counts.
    """
    ranges = list(itertools.islice(position.code.co_positions(), position.instruction // 2 + 1))
    return next((each for each in reversed(ranges) if each[0]), (None, None, None, None))


@functools.lru_cache(maxsize=4096)
def _called_name(expression: str) -> str:
    """Return what comes before the last pair of parentheses, if that is a name of some kind."""
    text, depth = _STRING.sub("''", expression), 0
    for n in reversed(range(len(text) if text.endswith(")") else 0)):
        depth += (text[n] in ")]}") - (text[n] in "([{")
        if not depth:
            name = re.sub(r"\s*\.\s*", ".", text[:n])
            return name if re.fullmatch(r"\w[\w.]*", _BRACKETS.sub("", name)) else ""
    return ""


@functools.lru_cache(maxsize=256)
def _nodes(file: str) -> list[ast.AST]:
    """Return the loops and comprehensions in a file; none if it is missing or does not parse."""
    try:
        tree = _without_gc(ast.parse, "".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, LOOPS + COMPREHENSIONS)]
