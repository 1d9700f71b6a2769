"""Find the lines of a program at which Python waits.

A thread looks at the stacks of the others, some two hundred times a second. It needs no name that
is private to JAX to see a thread wait: a stack that stands still and uses no processor, while an
array is being computed, in a call that needs a value.
"""

import ast
import builtins
import functools
import html
import inspect
import json
import linecache
import logging
import math
import os
import re
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType

import jax
import numpy as np

from d2lpar._errors import D2lparError, renamed, require_seconds, require_values
from d2lpar._format import HOST, as_table, format_seconds, in_two_lines, plural, share_bar

_BOOK = "https://d2lpar.github.io/d2lpar/book"
_CHAPTER = f"{_BOOK}/asynchronous-computation.html"
_RECIPES = f"{_BOOK}/in-your-own-code.html"

KINDS = {
    "value": (
        "waits for a value",
        "Keep the array, and read it a few steps later, when it is there already.",
        f"{_RECIPES}#a-loss-that-you-want-to-see",
    ),
    "barrier": (
        "waits at a barrier",
        "Leave it out, unless you stop a clock here; to bound memory, d2lpar.InFlight waits less.",
        f"{_CHAPTER}#barriers-and-blockers",
    ),
    "compilation": (
        "compiles",
        "Keep shapes and dtypes the same from step to step, and call jax.jit once, not in a loop.",
        f"{_RECIPES}#an-evaluation-between-two-epochs",
    ),
    "device idle": (
        "keeps the device idle",
        "Do this ahead, in a thread, while the device works on the step before.",
        f"{_RECIPES}#a-value-that-decides-what-comes-next",
    ),
    "first compilation": (
        "compiles for the first time",
        "Nothing is lost here: every program is compiled once.",
        f"{_BOOK}/measuring-asynchronous-code.html#the-first-call",
    ),
    "queue": (
        "waits for room in the queue",
        "Nothing is lost here: Python is ahead, and the device is what takes the time.",
        _CHAPTER,
    ),
}
"""What Python can lose time with, in words, what to do about it, and where the book says why."""

# The share of the time from which a line is told.
_SEEN = 0.005
_WAITS = {"value", "barrier"}
_LOSES_NOTHING = {"first compilation", "queue"}
# What reads the values of an array by an attribute, and what waits without reading any.
_READ = {"item", "tolist", "tobytes", "__array__", "_value", "device_get", "concrete_or_error"}
_WAIT = {"block_until_ready", "effects_barrier", "wait_all", "drain"}


@dataclass(frozen=True)
class Place:
    """A line of code that somebody wrote.

    Attributes:
        file: Its path, or what a notebook calls its cell.
        line: From 1.
        code: What is on it.
    """

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        # A cell of a notebook has a file of its own, whose name tells nobody anything.
        is_cell = "ipykernel_" in self.file or self.file.startswith("<ipython")
        return f"line {self.line} of a cell" if is_cell else f"{self.file}:{self.line}"

    @classmethod
    def of(cls, frame: FrameType) -> "Place":
        """Return where a frame is now."""
        file, line = frame.f_code.co_filename, frame.f_lineno or 0
        return cls(file, line, linecache.getline(file, line, frame.f_globals).strip())


@dataclass
class Finding:
    """A line that costs time.

    Attributes:
        kind: One of `KINDS`.
        place: Where it stands.
        operation: What Python was at, as it is written there.
        thread: The name of the thread.
        seconds: How long, all told.
        times: At least how often.
        detail: What is known beyond that, for example which shape has changed.
    """

    kind: str
    place: Place
    operation: str
    thread: str
    seconds: float = 0.0
    times: int = 0
    detail: str = ""


@dataclass
class Watched:
    """What `watch` has seen; complete when its block has ended.

    Attributes:
        seconds: How long it watched.
        idle_seconds: For how long no array of the program was being computed, as far as the
            arrays that were alive tell; before the first of them, it does not count.
        saw_arrays: Whether any was being computed.
        findings: The lines that cost time; those that can have lost most of it first.
    """

    seconds: float = 0.0
    idle_seconds: float = 0.0
    saw_arrays: bool = False
    findings: list[Finding] = field(default_factory=list)

    def share(self, finding: Finding) -> float:
        """Return the share of the time that a finding took."""
        return finding.seconds / self.seconds if self.seconds else 0.0

    def loss(self, finding: Finding) -> float:
        """Return the share of the time that a finding can have lost.

        A line that waits while the device works loses nothing, so none can have lost more than the
        device was idle. What compiles again counts in full: what it computes is not there yet.
        """
        if finding.kind in _LOSES_NOTHING or not self.seconds:
            return 0.0
        if finding.kind == "compilation":
            return self.share(finding)
        return min(finding.seconds, self.idle_seconds) / self.seconds

    def losses(self, over: float = 0.0) -> list[Finding]:
        """Return the findings that can have lost more than a share of the time."""
        return [finding for finding in self.findings if self.loss(finding) > over]

    def advice(self, finding: Finding) -> str:
        """Return what to do about a finding, in a sentence; nothing where it loses nothing."""
        if finding.kind in _WAITS and self.loss(finding) <= _SEEN:
            return "Nothing is lost here: the device worked meanwhile."
        return KINDS[finding.kind][1]

    def to_json(self) -> str:
        """Return all of it as JSON, with durations in seconds."""
        findings = [
            asdict(finding)
            | {"share": self.share(finding), "loss": self.loss(finding)}
            | {"advice": self.advice(finding), "link": KINDS[finding.kind][2]}
            for finding in self.findings
        ]
        whole = {"seconds": self.seconds, "idle_seconds": self.idle_seconds, "findings": findings}
        return json.dumps(whole, indent=1)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        idle = self.idle_seconds / self.seconds if self.seconds else 0.0
        yield (
            f"Watched for {format_seconds(self.seconds)}; "
            f"the device had nothing to do for {idle:.0%} of it."
        )
        for found in self.findings:
            yield ""
            yield (
                f"{self.share(found):6.1%}  {format_seconds(found.seconds)}, "
                f"at least {plural(found.times, 'time')}{self._thread(found)}"
            )
            yield f"        {found.place}  {found.place.code}"
            yield f"        {KINDS[found.kind][0]}: {found.operation}"
            if found.detail:
                yield f"        {found.detail}"
            yield f"        {self.advice(found)}"
            yield f"        {KINDS[found.kind][2]}"
        if not self.findings:
            yield "No line made Python wait for long enough to be seen."
        if not self.saw_arrays:
            yield "No array of JAX was being computed while this was watched."

    def _thread(self, found: Finding) -> str:
        return "" if found.thread == "MainThread" else f", in {found.thread}"

    def _repr_html_(self) -> str:
        rows = []
        for found in self.findings:
            what, _, link = KINDS[found.kind]
            where = f"{str(found.place).rsplit('/', 1)[-1]}{self._thread(found)}"
            rows.append(
                [
                    in_two_lines(where, found.place.code),
                    share_bar(self.share(found), HOST, f"{self.share(found):.1%}"),
                    in_two_lines(f"{self.share(found):.1%}", format_seconds(found.seconds)),
                    f"{html.escape(what)}: <code>{html.escape(found.operation)}</code><br>"
                    f"{html.escape(found.detail)} {html.escape(self.advice(found))} "
                    f'<a href="{link}">Why?</a>',
                ]
            )
        header, *_ = self._lines()
        return as_table(["line", "", "share", "what it is at"], rows, [header])


@renamed(every="interval")
@contextmanager
def watch(interval: float = 0.005) -> Iterator[Watched]:
    """Profile this program by sampling: at which lines of your code do its threads wait?

    What is shorter than the time between two looks is seen now and then, and counts with that time
    then; in a loop that comes to the same. Lines that took less than a two-hundredth of the time
    are left out.

    Args:
        interval: Seconds between two looks.

    Yields:
        What has been seen, filled in when the block ends, also by an error.

    Raises:
        D2lparError: If the program is being watched already.
        ValueError: If `interval` is no positive number of seconds, or JAX traces.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with watch() as found:
        ...     _ = float(jnp.ones(()))
        >>> found.seconds > 0
        True
    """
    require_seconds("interval", interval)
    require_values("watch()")
    watcher = _Watcher(interval)
    watcher.start()
    try:
        yield watcher.watched
    finally:
        watcher.stop()


class _Compilations(logging.Filter):
    """Hear what JAX compiles, where, and for which arguments; its debugging log says so."""

    LOGGER = "jax._src.interpreters.pxla"

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[Place, str], dict[object, str]] = {}

    def __enter__(self) -> "_Compilations":
        logger = logging.getLogger(self.LOGGER)
        self._before = logger.level, logger.disabled
        # Whoever configures logging after JAX was imported disables its loggers, often unawares.
        self._shown = math.inf if logger.disabled else logger.getEffectiveLevel()
        logger.addFilter(self)
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger(self.LOGGER)
        level, logger.disabled = self._before
        logger.setLevel(level)
        logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Compiling %s") and len(record.args) > 1:
            name, arguments = map(str, record.args[:2])
            if stack := down_to_user_code(sys._getframe()):
                # The `init` of a network compiles one name for many shapes, and none of them again:
                # what one call compiles counts once, with the last of its arguments.
                call, place = _call_of(stack[-2]), Place.of(stack[-1])
                self.seen.setdefault((place, name), {})[call] = arguments
        return record.levelno >= self._shown

    def again(self, place: Place) -> str:
        """Return what compiled more than once at a place, and what had changed, or ""."""
        words = []
        for (where, name), arguments in self.seen.items():
            if where == place and len(arguments) > 1:
                last = list(arguments.values())[-2:]
                before, after = (set(re.findall(r"\w+\[[\d,]*\]", of)) for of in last)
                new, old = (" and ".join(sorted(of)) for of in (after - before, before - after))
                # Another shape says more than what it brings with it.
                changed = (
                    (0, f"{new} after {old}")
                    if new and old
                    else (1, "the same shapes: with another static argument, or a new function")
                )
                words.append((changed, f"{name} was compiled {len(arguments)} times, last for "))
        (_, why), what = min(words, default=((0, ""), ""))
        return f"{what}{why}." if what else ""


class _Call:
    """Tells one call of a function from the next."""

    def __call__(self, *_: object) -> None:
        """Do nothing, where a debugger asks what to do at each line."""


def _call_of(frame: FrameType) -> object:
    """Return what is the same for one call, and for no other."""
    # A frame may be where an earlier one was in memory, and there is no weak reference to it; kept
    # alive, it would keep its arrays. What Python traces it with goes with it, and only debuggers
    # make use of that.
    if frame.f_trace is None:
        frame.f_trace = _Call()
    return frame.f_trace if isinstance(frame.f_trace, _Call) else object()


class _Watcher:
    _running: "_Watcher | None" = None
    _lock = threading.Lock()

    def __init__(self, interval: float) -> None:
        self.watched = Watched()
        self._interval = interval
        self._found: dict[tuple[str, Place, str], Finding] = {}
        self._at: dict[int | None, _Sight] = {}
        self._done = threading.Event()
        self._compilations = _Compilations()
        self._thread = threading.Thread(target=self._run, name="d2lpar.watch", daemon=True)
        self._watching = threading.current_thread()

    def start(self) -> None:
        with _Watcher._lock:
            if _Watcher._running is not None:
                raise D2lparError("The program is being watched already. One watch() is enough.")
            _Watcher._running = self
        self._compilations.__enter__()
        self._started = time.perf_counter()
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        self.watched.seconds = time.perf_counter() - self._started
        self._compilations.__exit__()
        _Watcher._running = None
        for found in self._found.values():
            if found.kind == "first compilation":
                found.detail = self._compilations.again(found.place)
                found.kind = "compilation" if found.detail else found.kind
        found = [f for f in self._found.values() if self.watched.share(f) > _SEEN]
        found.sort(key=lambda f: (self.watched.loss(f), f.seconds), reverse=True)
        self.watched.findings = found

    def _run(self) -> None:
        before = self._started
        cost = last = 0.0
        # Not in step with a loop whose turn takes as long, and never more than a part of the time.
        # (A look at what was never seen before is dear, and says nothing of the next.)
        while not self._done.wait(max(self._interval, 50 * min(cost, last))):
            last, started = cost, time.thread_time()
            now = time.perf_counter()
            self._look(now - before)
            before = now
            cost = time.thread_time() - started

    def _look(self, seconds: float) -> None:
        busy = _is_busy()
        self.watched.saw_arrays |= busy
        threads = (thread for thread in threading.enumerate() if thread is not self._thread)
        sights = [sight for thread in threads if (sight := _Sight.of(thread))]
        time.sleep(2e-4)
        works = busy or any(sight.in_jax for sight in sights)
        idle = self.watched.saw_arrays and not works
        self.watched.idle_seconds += seconds * idle
        for sight in sights:
            kind = sight.kind
            if kind != "first compilation" and not (busy and sight.stands_still()):
                kind = "device idle" if idle and sight.thread is self._watching else None
            self._note(kind, sight, seconds)

    def _note(self, kind: str | None, sight: "_Sight", seconds: float) -> None:
        before = self._at.pop(sight.thread.ident, None)
        if kind is None:
            return
        key = kind, sight.place, sight.thread.name
        if key not in self._found:
            self._found[key] = Finding(kind, sight.place, sight.operation, sight.thread.name)
        found = self._found[key]
        found.seconds += seconds
        found.times += not (before and before.is_same_as(sight)) or not found.times
        self._at[sight.thread.ident] = sight


@dataclass(frozen=True)
class _Sight:
    """Where a thread is, read before it can go on: a frame says where it is when it is asked.

    Attributes:
        at: Which frame, at which of its instructions, and at which of the user's code.
        used: How many seconds of a processor the thread has used.
        place: The line of the user's code.
        operation: What it is at there, in the words of its code.
        in_jax: Whether the user's code has called JAX, and JAX has not come back.
        kind: Which of `KINDS` it is if the thread stands still, or None.
    """

    thread: threading.Thread
    at: tuple[int, ...]
    used: float
    place: Place
    operation: str
    in_jax: bool
    kind: str | None

    @classmethod
    def of(cls, thread: threading.Thread) -> "_Sight | None":
        """Return where a thread is in the user's code; None if it is not there."""
        stack, at = _where(thread)
        if not stack:
            return None
        place = Place.of(stack[-1])
        operation = " ".join((expression_at(stack[-1]) or place.code).split())
        in_jax, kind = _in_jax(stack), _kind_of(stack)
        return cls(thread, at, _processor_time(thread), place, operation, in_jax, kind)

    def stands_still(self) -> bool:
        """Return whether the thread is still there, and has used no processor meanwhile."""
        _, at = _where(self.thread)
        return at == self.at and _processor_time(self.thread) - self.used < 5e-5

    def is_same_as(self, later: "_Sight") -> bool:
        """Return whether it is one wait: the thread has not moved, and has used no time."""
        return later.at == self.at and later.used - self.used < 5e-5


def _in_jax(stack: Sequence[FrameType]) -> bool:
    """Return whether user code, the last of a stack, has called JAX, and JAX has not come back."""
    *inner, user = stack
    return any(map(is_in_jax, inner)) or _is_jitted(called_at(user))


def _kind_of(stack: Sequence[FrameType]) -> str | None:
    """Return which of `KINDS` a thread with this stack is at if it stands still, or None."""
    frame, inner = stack[0], stack[:-1]
    if any(map(compiles, inner)):
        return "first compilation"
    names = {each.f_code.co_name for each in inner if not is_in_numpy(each)}
    asked = expression_at(frame).split("(")[0].rsplit(".", 1)[-1].strip()
    if _WAIT & {*names, asked}:
        return "barrier"
    if _READ & {*names, asked}:
        return "value"
    called = called_at(frame)
    if _is_jitted(called):
        return "queue"
    if _takes_values(called):
        return "value"
    return "queue" if inner and is_in_jax(inner[0]) else None


def _is_jitted(called: object) -> bool:
    return type(called).__name__ == "PjitFunction"


def _takes_values(called: object) -> bool:
    module = getattr(called, "__module__", None) or ""
    return module.startswith("numpy") or called in (float, int, bool, complex, str, memoryview)


def _is_busy() -> bool:
    """Return whether an array that is alive is still being computed."""
    if not _has_started():
        return False
    for array in jax.live_arrays():
        try:
            if not array.is_ready():
                return True
        except RuntimeError:  # It was deleted, or given away, meanwhile.
            continue
    return False


def _has_started() -> bool:
    """Return whether JAX has started, which asking for its arrays would make it do."""
    # Where a version of JAX has another name for it, they are asked for all the same.
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    return backends is None or bool(backends)


def _where(thread: threading.Thread) -> tuple[list[FrameType], tuple[int, ...]]:
    """Return the frames of a thread down to the user's, and what tells if it has moved."""
    stack = down_to_user_code(sys._current_frames().get(thread.ident))
    # A frame may be where one was that has ended, as nobody holds on to either.
    return stack, (id(stack[0]), stack[0].f_lasti, stack[-1].f_lasti) if stack else ()


def _processor_time(thread: threading.Thread) -> float:
    # What pthread_getcpuclockid would return on Linux; that may crash if the thread has ended.
    try:
        return time.clock_gettime(~thread.native_id << 3 | 6)
    except (AttributeError, OSError, TypeError, OverflowError):
        return 0.0


_JAX = os.path.dirname(jax.__file__) + os.sep
_NUMPY = os.path.dirname(np.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep
_INSTALLED = {sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")}
_LIBRARIES = (*(path + os.sep for path in _INSTALLED), _JAX, _NUMPY, _OURS, "<frozen")


def down_to_user_code(frame: types.FrameType | None) -> list[types.FrameType]:
    """Return the frames of a stack, innermost first, to one in no library; none if all are in one.

    Nobody can walk the stack of another thread twice: what has returned meanwhile leads nowhere.
    """
    found = []
    while frame is not None:
        found.append(frame)
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return found
        frame = frame.f_back
    return []


def is_in_jax(frame: types.FrameType) -> bool:
    """Return whether a frame runs code of JAX."""
    return frame.f_code.co_filename.startswith(_JAX)


def is_in_numpy(frame: types.FrameType) -> bool:
    """Return whether a frame runs code of NumPy."""
    return frame.f_code.co_filename.startswith(_NUMPY)


def compiles(frame: types.FrameType) -> bool:
    """Return whether a frame is in the part of JAX that traces, lowers and compiles."""
    name = frame.f_code.co_name
    return is_in_jax(frame) and any(w in name for w in ("compil", "lower", "trace_to_jaxpr"))


def expression_at(frame: types.FrameType) -> str:
    """Return the source of what a frame is evaluating, or "" where that is not known."""
    positions = _positions(frame.f_code)
    index = frame.f_lasti // 2
    if not 0 <= index < len(positions):
        return ""
    first, last, start, end = positions[index]
    if None in (first, last, start, end):
        return ""
    lines = [
        linecache.getline(frame.f_code.co_filename, number, frame.f_globals).encode()
        for number in range(first, last + 1)
    ]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace").strip()


@functools.lru_cache(maxsize=512)
def _positions(code: types.CodeType) -> list[tuple]:
    return list(code.co_positions())


@functools.lru_cache(maxsize=512)
def _parsed(expression: str) -> ast.expr | None:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError:
        return None


def called_at(frame: types.FrameType) -> object | None:
    """Return the function that a frame has called, or None where its name does not say."""
    parsed = _parsed(expression_at(frame))
    return _value_of(parsed.func, frame) if isinstance(parsed, ast.Call) else None


def _value_of(node: ast.expr, frame: types.FrameType) -> object | None:
    """Return the value of a name or of an attribute; of nothing that would have to run."""
    if isinstance(node, ast.Name):
        if (
            node.id
            in frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_freevars
        ):
            return _local(frame, node.id)
        return frame.f_globals.get(node.id, vars(builtins).get(node.id))
    if isinstance(node, ast.Attribute):
        of = _value_of(node.value, frame)
        return None if of is None else inspect.getattr_static(of, node.attr, None)
    return None


def _local(frame: types.FrameType, name: str) -> object | None:
    copied = frame.f_locals
    value = copied.get(name)
    if sys.version_info < (3, 13):
        # There it is a copy that the frame keeps, and it would keep large arrays alive.
        copied.clear()
    return value
