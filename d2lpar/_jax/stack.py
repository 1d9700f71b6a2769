"""Read the stack of a running thread: at which line of whose code it is, and what it is at.

How it works. `sys._current_frames` gives the innermost frame of every thread. Going outward from
there, the first frame whose file is no library's is the user's own, and the frames passed on the
way say what it waits for: JAX and NumPy have few functions that read a value, and the standard
library few that wait for another thread. Only code, positions and names are read. Local variables
are not, since to ask for those of a running function can change them (Python 3.11, 3.12).
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
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

# What reads the values of an array: functions of JAX, and what is called where JAX has no frame.
# What waits without reading any; and what waits for anything but a device.
_READS = {"item", "tolist", "tobytes", "__array__", "_value", "device_get", "concrete_or_error"}
_BUFFERS = {"bytes", "bytearray", "memoryview"}
_BARRIERS = {"block_until_ready", "effects_barrier", "wait_all", "drain"}
_SLEEPS = {"sleep", "select", "poll", "recv", "read", "readline", "input"}
_WAITS = {"get", "put", "join", "wait", "acquire", "result", "as_completed", "communicate"}
# Of the standard library, what waits for another thread or process.
_LOCKS = {"threading", "queue", "_base", "thread", "selectors", "connection", "queues"}
_LOCKS |= {"subprocess"}
_CALLBACKS = {"callback", "debugging", "io_callback"}

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Place:
    """A line of code that somebody wrote.

    Attributes:
        file: Its path; of a notebook, its cell, such as `In [3]`.
        line: From 1.
        code: What is on it.
    """

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        is_cell = self.file.startswith("In [") or self.file == "a cell"
        return f"{self.file}{', line ' if is_cell else ':'}{self.line}"


class CodePosition(NamedTuple):
    """A position in code: some function, and which of its instructions it is at."""

    code: CodeType
    instruction: int

    # By identity: the hash of code is that of all that is in it.
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
        """The line."""
        return _place(self)

    @property
    def operation(self) -> str:
        """What it is at there, in the words of its code."""
        at = _expression(self)
        # Of an assignment, the position is that of its left-hand side.
        return " ".join((at if "(" in at or "[" in at else self.place.code or at).split())

    @property
    def owner(self) -> str:
        """Whose code it is: the user's, or that of which library."""
        return owner_of(self.code.co_filename)

    @property
    def module(self) -> str:
        """The last part of the module's name."""
        return os.path.basename(self.code.co_filename).removesuffix(".py")

    def has_operator(self) -> bool:
        """Return whether what is evaluated there is an operator, or takes an element."""
        return bool(re.search(r"[\[+*/@<>-]", _expression(self)))

    def calls(self) -> str | None:
        """Return the name of what is called there; None if nothing is."""
        parsed = _parsed(_expression(self))
        if isinstance(parsed, ast.Call):
            return ast.unparse(parsed.func)
        return None

    def in_loop(self) -> bool:
        """Return whether it lies in a loop of its function, so that it may be passed again."""
        return self._lies_in(_LOOPS)

    def in_comprehension(self) -> bool:
        """Return whether a comprehension is on its line."""
        return self._lies_in(_COMPREHENSIONS)

    def _lies_in(self, kinds: tuple[type[ast.AST], ...]) -> bool:
        line = self.place.line
        # A function that is defined in a loop is called from elsewhere.
        first = 0 if self.code.co_name == "<module>" else self.code.co_firstlineno
        # The first line of a loop, unlike what it holds, is passed once.
        once = kinds is _LOOPS
        return any(
            first <= node.lineno and node.lineno + once <= line <= (node.end_lineno or 0)
            for node in _nodes(self.code.co_filename)
            if isinstance(node, kinds)
        )


class StackSample(NamedTuple):
    """Where a thread is.

    Attributes:
        fingerprint: Tells whether it has moved since.
        position: In the user's own code.
        innermost: In the innermost code that is not NumPy's.
        callers: The positions in the user's code that led there, innermost first.
        activity: `"compiles"`, `"checks"`, `"barrier"`, `"value"`, `"callback"`, `"sleeps"`,
            `"locks"` (waits for another thread), `"jax"`, `"puts"` (copies to a device), `"call"`
            (of something that has no frame, and may be of JAX), `"python"`, or `"library"`, Python
            in others' code.
    """

    fingerprint: tuple[int, int, int]
    position: CodePosition
    innermost: CodePosition
    callers: tuple[CodePosition, ...]
    activity: str


def sample_stack(frame: FrameType | None) -> StackSample | None:
    """Return where the thread with this innermost frame is; None if it is in nobody's own code.

    A stack is walked once: what has returned meanwhile leads nowhere.
    """
    inner: list[CodePosition] = []
    mine: list[CodePosition] = []
    called_back = False
    for outer in frames_outward(frame):
        position = CodePosition(outer.f_code, outer.f_lasti)
        if position.owner == "user":
            mine.append(position)
        elif not mine:
            inner.append(position)
        elif position.owner == "jax":
            called_back |= position.module in _CALLBACKS
        if len(mine) == 4:
            break
    if not mine:
        return None
    innermost = next((position for position in inner if position.owner != "numpy"), mine[0])
    doing = "callback" if called_back else _doing(inner, innermost, frame.f_globals)
    fingerprint = id(frame), frame.f_lasti, mine[0].instruction
    return StackSample(fingerprint, mine[0], innermost, tuple(mine[1:]), doing)


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its identifier."""
    return _uncollected(sys._current_frames)


def frames_outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = _uncollected(getattr, frame, "f_back")


def _uncollected(read: Callable[..., Any], *args: Any) -> Any:
    """Read frames of another thread while no garbage is collected.

    Python 3.11 makes the object of a frame when it is asked for, and may collect garbage in the
    midst of it. JAX has a callback for that, in which the other thread gets its turn and leaves the
    frame. What is read then is whatever has taken its place, and the process may crash.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return read(*args)
    gc.disable()
    try:
        return read(*args)
    finally:
        gc.enable()


def _doing(inner: list[CodePosition], innermost: CodePosition, names: dict[str, Any]) -> str:
    of_jax = {position.code.co_name for position in inner if position.owner == "jax"}
    if any(word in name for name in of_jax for word in ("compil", "lower", "trace_to_jaxpr")):
        return "compiles"
    if any("check_special" in name for name in of_jax):
        return "checks"
    called = innermost.calls()
    asked = (called or "").rsplit(".", 1)[-1]
    if _BARRIERS & {*of_jax, asked}:
        return "barrier"
    if _READS & of_jax:
        return "value"
    if of_jax:
        return "puts" if "device_put" in of_jax else "jax"
    if innermost.owner == "stdlib" and innermost.module in _LOCKS:
        return "locks"
    if called is not None:
        if asked in _SLEEPS or asked in _WAITS:
            return "sleeps" if asked in _SLEEPS else "locks"
        return "jax" if _whose(called, names) == "jax" else "call"
    # NumPy reads an array behind `a[i] = x`, `a[x]` and `a + x`, without a call.
    if any(position.owner == "numpy" for position in inner) or innermost.has_operator():
        return "call"
    return "python" if innermost.owner == "user" else "library"


def _whose(called: str, names: dict[str, Any]) -> str:
    """Return whose function is called by this name; "" if that is not known.

    Of a jitted function there is no frame, once it has been compiled. Global variables can be
    looked up, and their attributes without running anything; a local variable may be anything.
    """
    root, *attributes = called.split(".")
    found = names.get(root, getattr(builtins, root, None))
    for attribute in attributes:
        if isinstance(found, ModuleType) and found.__name__.startswith("jax"):
            return "jax"
        found = inspect.getattr_static(found, attribute, None)
    while isinstance(found, functools.partial):
        found = found.func
    of = type(found).__module__.split(".")[0].replace("jaxlib", "jax")
    return "" if found is None else of


def may_dispatch(sample: StackSample, names: dict[str, Any]) -> bool:
    """Return whether a thread is in a call that hands work to a device, as far as can be seen.

    Args:
        sample: Where the thread is.
        names: The global variables of its innermost frame.
    """
    if sample.activity != "call":
        return sample.activity in ("jax", "puts")
    called = sample.innermost.calls()
    if called is None or only_reads(sample.innermost) or sample.innermost.owner == "stdlib":
        return False
    return not _whose(called, names)


def only_reads(position: CodePosition) -> bool:
    """Return whether what is called there can only read an array, and is no program of JAX."""
    called = position.calls()
    if called is None:
        return position.owner != "jax"
    if called in _BUFFERS or called.startswith(("np.", "numpy.")):
        return True
    return called.rsplit(".", 1)[-1] in _READS


def processor_time(thread: threading.Thread | None) -> float | None:
    """Return the seconds of processor time that a thread has used; None if that is not known."""
    # What pthread_getcpuclockid would return on Linux; that may crash if the thread has ended.
    try:
        return time.clock_gettime(~thread.native_id << 3 | 6)
    except (AttributeError, OSError, TypeError, OverflowError):
        return None


_STDLIB = tuple({sysconfig.get_path(k) + os.sep for k in ("stdlib", "platstdlib")})
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep  # The folder of the package.
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_projects: set[str] = set()


def belongs_to_the_user(package: str) -> None:
    """Count an installed package as the user's own code, as what starts the program lives there."""
    _projects.add(package)
    owner_of.cache_clear()


@functools.cache
def owner_of(file: str) -> str:
    """Return whose code a file has: the user's, or that of which library."""
    if file.startswith("<"):
        # Generated code has no file; what somebody typed has none either.
        mine = ("<ipython-input", "<stdin>", "<timed ", "<magic-timeit>", "<doctest")
        typed = file.startswith(mine) or (file == "<string>" and _is_command())
        return "user" if typed else "generated"
    if file.startswith(_OURS):
        return "d2lpar"
    if found := _INSTALLED.search(file):
        package = found[1].removesuffix(".py")
        known = {"jaxlib": "jax", "jax": "jax", "numpy": "numpy"}
        return "user" if package in _projects else known.get(package, "library")
    for name in ("jax", "numpy"):  # They may lie elsewhere.
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin and file.startswith(os.path.dirname(origin) + os.sep):
            return name
    return "stdlib" if file.startswith(_STDLIB) else "user"


def _is_command() -> bool:
    """Return whether this is `python -c`, whose code has the file name of generated code."""
    return not hasattr(sys.modules.get("__main__"), "__file__")


def _source_of(file: str, line: int) -> str:
    if file.startswith("<timed ") and (shell := _shell()):
        lines = shell.history_manager.input_hist_raw[-1].splitlines()
        return lines[line] if line < len(lines) else ""  # The first line is the magic.
    return linecache.getline(file, line)


def cell_of(file: str) -> str:
    """Return how a notebook calls the cell with this file, or ""."""
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
    file, line = (
        position.code.co_filename,
        _source_range(position)[0] or position.code.co_firstlineno,
    )
    return Place(cell_of(file) or file, line, _source_of(file, line).strip())


@functools.lru_cache(maxsize=4096)
def _expression(position: CodePosition) -> str:
    """Return the source of what is being evaluated, or "" where that is not known."""
    first, last, start, end = _source_range(position)
    if None in (first, last, start, end):
        return ""
    lines = [_source_of(position.code.co_filename, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace").strip()


def _source_range(position: CodePosition) -> tuple[int | None, int | None, int | None, int | None]:
    at = itertools.islice(position.code.co_positions(), position.instruction // 2, None)
    return next(at, (None, None, None, None))


@functools.lru_cache(maxsize=4096)
def _parsed(expression: str) -> ast.expr | None:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError:
        return None


@functools.lru_cache(maxsize=256)
def _nodes(file: str) -> list[ast.AST]:
    """Return the loops and comprehensions in a file; none if it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, _LOOPS + _COMPREHENSIONS)]
