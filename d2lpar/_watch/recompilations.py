"""What a program compiles: at which line, whether it had before, and what has changed since.

How it works. JAX tells its listeners when it has traced, lowered or compiled something, in the
thread that does it. The stack of that thread says at which line, and two functions of JAX that are
on it know which function, and for which arguments.
"""

import sys
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from d2lpar._jax.stack import CodePosition, frames_outward, owner_of
from d2lpar._plain.format import plural

_COMPILED = "backend_compile_duration"  # How the last event ends that JAX tells of a program.


class Argument(NamedTuple):
    """What a program is compiled for: `float32[3,5]`, weakly typed or not, and where it is.

    That is "" if nobody has said where it is to be.
    """

    shape: str
    weak: bool
    where: str

    def placed(self) -> str:
        """Return where it is, in words."""
        return f"committed to {self.where}" if self.where else "not committed to a device"


@dataclass(eq=False)
class Compiled:
    """A program that was compiled, or is.

    Attributes:
        began: When its tracing began; seconds of `time.perf_counter`, as `over`.
        arguments: Those that it takes; None if they were not seen.
        results: The shapes that it returns.
        thread: The number of the one that compiles.
        callers: The positions in the code that led there, the user's own line first.
        by_library: Whether a library's code is between that line and JAX.
        moved: Whether the thread was seen elsewhere since it compiled the one before.
        function: Refers to the function, if JAX has one.
        of_library: Whether that is a library's, such as those of `jax.numpy`.
        code: Tells it from others of that name.
        again: Whether the program came to this line anew, and had compiled it there before.
    """

    began: float
    over: float
    arguments: list[Argument] | None = None
    results: tuple[str, ...] = ()
    thread: int = 0
    name: str = ""
    callers: tuple[CodePosition, ...] = ()
    by_library: bool = False
    moved: bool = False
    function: Any = None
    of_library: bool = False
    code: Any = None
    again: bool = False

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.over - self.began


class Compilations:
    """Takes down what is compiled when JAX tells it.

    Attributes:
        done: What was, in the order in which it was ready.
        moved: When each thread was seen to move.
    """

    def __init__(self) -> None:
        self.done: list[Compiled] = []
        self.moved: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=1000))
        self._under_way: dict[int, Compiled] = {}

    def note(self, event: str, seconds: float, name: str) -> None:
        """Take down a step of compiling, in the thread that compiles."""
        now, thread = time.perf_counter(), threading.get_ident()
        one = self._under_way.get(thread)
        # Tracing, lowering and compiling follow each other; what was only traced is forgotten. What
        # is compiled has been lowered, however long ago: the thread may have lost its core.
        if one is None or now - seconds > one.over + 0.05:
            lowered = [one.arguments, one.results] if one and event.endswith(_COMPILED) else []
            one = self._under_way[thread] = Compiled(now, now, *lowered)
        one.began, one.over = min(one.began, now - seconds), now
        # Without the frame of this function, which would keep them all alive if it held itself.
        stack = [(owner_of(f.f_code.co_filename), f) for f in frames_outward(sys._getframe(1))]
        # What started the program has loops of its own.
        while stack and stack[-1][0] != "user":
            stack.pop()
        first = next((n for n, (owner, _) in enumerate(stack) if owner == "user"), 0)
        of_jax = {frame.f_code.co_name: frame for owner, frame in stack[:first] if owner == "jax"}
        if lowering := of_jax.get("lower_sharding_computation"):
            _see_arguments(one, lowering.f_locals)
        if not event.endswith(_COMPILED):
            return
        del self._under_way[thread]
        if not stack:
            return
        one.thread, one.name = thread, name
        one.callers = tuple(
            CodePosition(frame.f_code, frame.f_lasti)
            for owner, frame in stack[first:]
            if owner in ("user", "library")
        )
        one.by_library = any(owner == "library" for owner, _ in stack[:first])
        last = next((old.over for old in reversed(self.done) if old.thread == thread), 0.0)
        # While JAX traces, it is in the function itself.
        one.moved = any(last < at < one.began for at in list(self.moved[thread]))
        self._see_function(one, of_jax.get("cache_miss"))
        self.done.append(one)

    def _see_function(self, one: Compiled, calling: FrameType | None) -> None:
        function = calling and calling.f_locals["fun"]
        code = getattr(function, "__code__", None)
        one.code = id(code)
        one.of_library = code is not None and owner_of(code.co_filename) != "user"
        with suppress(TypeError):  # Not everything that can be called has weak references.
            one.function = weakref.ref(function)
        # While they live, two functions of one code are two, and neither is made in each turn; but
        # of its own ones, JAX makes and keeps one for each shape.
        if one.function and not one.of_library:
            for old in reversed(self.done):
                if old.code == one.code and old.function and old.function is not one.function:
                    if old.function() is not None:
                        one.code = one.code, id(one.function)
                    break


def _see_arguments(one: Compiled, known: dict[str, Any]) -> None:
    from d2lpar._jax.devices import device_name  # JAX has been imported: it is compiling.

    def where(sharding: Any) -> str:
        devices = getattr(sharding, "device_set", ())
        if len(devices) > 1:
            return f"{len(devices)} devices, {getattr(sharding, 'spec', sharding)}"
        return "".join(map(device_name, devices))

    def shape(aval: Any) -> str:
        return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"

    given = zip(known["global_in_avals"], known["in_shardings"], strict=True)
    one.arguments = [Argument(shape(aval), aval.weak_type, where(put)) for aval, put in given]
    one.results = tuple(map(shape, known["global_out_avals"]))


def find_again(compiled: list[Compiled]) -> None:
    """Mark those that were compiled at a line that had compiled them before."""
    last: dict[tuple, int] = {}
    times: Counter[tuple] = Counter()
    for number, one in enumerate(compiled):
        # Another function, with other code, may have the same name.
        key = one.thread, one.name, one.callers[0], one.code
        times[key] += 1
        if key in last:
            old, *between = compiled[last[key] : number]
            one.again = _is_another_pass(old, between, one, times[key])
        last[key] = number


def _is_another_pass(old: Compiled, between: list[Compiled], one: Compiled, times: int) -> bool:
    """Return whether the program came to a line anew; what one pass compiles is never "again"."""
    if old.callers != one.callers:
        return True
    if not any(position.in_loop() for position in one.callers):
        return False
    if one.moved or any(
        other.thread == one.thread and other.callers != one.callers for other in between
    ):
        return True
    # A library, or a comprehension, may compile one for many shapes in a single pass, and a
    # function of JAX for a few.
    for_many = one.by_library or any(position.in_comprehension() for position in one.callers)
    for_many |= one.of_library and times < 4
    return not for_many or (old.arguments, old.results) == (one.arguments, one.results)


def why(compiled: list[Compiled]) -> str:
    """Return what was compiled again at a line, and what had changed, as far as it was seen."""
    programs = defaultdict(list)
    for one in compiled:
        programs[one.name, one.code].append(one)
    told = []
    for (name, _), times in programs.items():
        if again := [one for one in times if one.again]:
            old, new = times[-2:]
            changed = "; ".join(_changes(old, new))
            because = f", last for {changed}." if changed else "; why was not seen."
            what = name.removeprefix("jit(").removesuffix(")")
            # What only makes an array of some shape, for the program that it is for, comes second.
            rank = old.arguments != new.arguments, sum(one.seconds for one in again)
            told.append((rank, f"{what} was compiled {1 + len(again)} times{because}"))
    return max(told)[-1]


def _changes(old: Compiled, new: Compiled) -> Iterator[str]:
    if old.arguments is None or new.arguments is None:
        return
    if len(old.arguments) != len(new.arguments):
        yield f"{plural(len(new.arguments), 'argument')} after {len(old.arguments)}"
        return
    pairs = list(zip(old.arguments, new.arguments, strict=True))
    shapes = dict.fromkeys(f"{b.shape} after {a.shape}" for a, b in pairs if a.shape != b.shape)
    yield from list(shapes)[:3]
    alike = [(a, b) for a, b in pairs if a.shape == b.shape]
    for _, now in [(a, b) for a, b in alike if a.weak != b.weak][:1]:
        words = ("weakly", "strongly") if now.weak else ("strongly", "weakly")
        yield (
            f"a {now.shape} that is {words[0]} typed after a {words[1]} typed one (a Python "
            "number makes a weak type)"
        )
    for was, now in [(a, b) for a, b in alike if a.where != b.where][:1]:
        yield f"a {now.shape} that is {now.placed()}, after one that is {was.placed()}"
    if old.arguments == new.arguments and old.results != new.results:
        for a, b in [(a, b) for a, b in zip(old.results, new.results, strict=False) if a != b][:1]:
            yield f"a result {b} after {a}"
    elif old.arguments == new.arguments and old.function is not new.function:
        yield "the same shapes, but another function (made in each iteration? make it once)"
