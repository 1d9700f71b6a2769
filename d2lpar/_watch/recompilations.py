"""Record each compilation: its line, whether the line compiled before, and the changed arguments.

How it works. JAX tells its listeners whenever it has traced, lowered or compiled a program, in the
thread that does so. The stack of that thread shows the user's line. Two functions of JAX on the
same stack show the compiled function (`cache_miss`) and its arguments
(`lower_sharding_computation`).
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

_COMPILED = "backend_compile_duration"  # The end of the name of a program's last event.


class Argument(NamedTuple):
    """An argument that a program is compiled for."""

    shape: str  # With the dtype, such as `float32[3,5]`.
    weak: bool  # Whether it is weakly typed.
    where: str  # The device that it is committed to; "" if to none.

    def placed(self) -> str:
        """Return where it is, in words."""
        return f"committed to {self.where}" if self.where else "not committed to a device"


@dataclass(eq=False)
class Compiled:
    """A program that was compiled, or is being compiled."""

    began: float  # When its tracing began, in seconds of `time.perf_counter`.
    over: float  # When its compilation ended.
    arguments: list[Argument] | None = None  # None if they were not seen.
    results: tuple[str, ...] = ()  # The dtypes and shapes.
    thread: int = 0  # The identifier of the thread that compiled it.
    name: str = ""
    callers: tuple[CodePosition, ...] = ()  # The positions that led to it, the user's line first.
    by_library: bool = False  # Whether a library's code is between that line and JAX.
    went_elsewhere: bool = False  # A sample saw the thread move since its compilation before.
    function: Any = None  # A weak reference to the Python function, if JAX has one.
    of_library: bool = False  # Whether that function belongs to a library, such as `jax.numpy`.
    code: Any = None  # Distinguishes it from other programs with the same name.
    again: bool = False  # The thread returned to this line, and had compiled it there before.

    @property
    def seconds(self) -> float:
        """How long tracing and compiling took."""
        return self.over - self.began


class Compilations:
    """Collects the compilations of a process from JAX's events."""

    def __init__(self) -> None:
        self.done: list[Compiled] = []  # In order.
        # For each thread, the times of the samples that saw it move.
        self.moves: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=1000))
        self._under_way: dict[int, Compiled] = {}

    def note(self, event: str, seconds: float, name: str) -> None:
        """Record an event of JAX, in the thread that compiles."""
        now, thread = time.perf_counter(), threading.get_ident()
        program = self._under_way.get(thread)
        # Tracing, lowering and compiling follow each other at once. After a gap, an event starts
        # another program, and one that was only traced is dropped. The last event, however, always
        # belongs to the lowering before: the thread may have been preempted in between.
        if program is None or now - seconds > program.over + 0.05:
            is_last = event.endswith(_COMPILED)
            lowered = [program.arguments, program.results] if program and is_last else []
            program = self._under_way[thread] = Compiled(now, now, *lowered)
        program.began, program.over = min(program.began, now - seconds), now
        # Start at the caller: a list that holds this function's own frame is a reference cycle.
        stack = [(owner_of(f.f_code.co_filename), f) for f in frames_outward(sys._getframe(1))]
        # Drop the frames of the launcher (runpy, pytest), so that its loops do not count.
        while stack and stack[-1][0] != "user":
            stack.pop()
        first = next((n for n, (owner, _) in enumerate(stack) if owner == "user"), 0)
        of_jax = {frame.f_code.co_name: frame for owner, frame in stack[:first] if owner == "jax"}
        if lowering := of_jax.get("lower_sharding_computation"):
            _see_arguments(program, lowering.f_locals)
        if not event.endswith(_COMPILED):
            return
        del self._under_way[thread]
        if not stack:
            return
        program.thread, program.name = thread, name
        program.callers = tuple(
            CodePosition(frame.f_code, frame.f_lasti)
            for owner, frame in stack[first:]
            if owner in ("user", "library")
        )
        program.by_library = any(owner == "library" for owner, _ in stack[:first])
        last = next((old.over for old in reversed(self.done) if old.thread == thread), 0.0)
        # Samples during the tracing do not count: they show the lines of the traced function.
        program.went_elsewhere = any(last < at < program.began for at in list(self.moves[thread]))
        self._see_function(program, of_jax.get("cache_miss"))
        self.done.append(program)

    def _see_function(self, program: Compiled, calling: FrameType | None) -> None:
        function = calling and calling.f_locals["fun"]
        code = getattr(function, "__code__", None)
        program.code = id(code)
        program.of_library = code is not None and owner_of(code.co_filename) != "user"
        with suppress(TypeError):  # Some callables allow no weak references.
            program.function = weakref.ref(function)
        # Two living functions with the same code, such as two closures, are two programs. A
        # function made anew in each iteration is dead by the next. JAX's own functions are exempt:
        # JAX makes and keeps one for each shape.
        if program.function and not program.of_library:
            for old in reversed(self.done):
                is_other = old.function is not program.function
                if old.code == program.code and old.function and is_other:
                    if old.function() is not None:
                        program.code = program.code, id(program.function)
                    break


def _see_arguments(program: Compiled, known: dict[str, Any]) -> None:
    from d2lpar._jax.devices import device_name  # Imports JAX, which is compiling anyway.

    def where(sharding: Any) -> str:
        devices = getattr(sharding, "device_set", ())
        if len(devices) > 1:
            return f"{len(devices)} devices, {getattr(sharding, 'spec', sharding)}"
        return "".join(map(device_name, devices))

    def shape(aval: Any) -> str:
        return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"

    given = zip(known["global_in_avals"], known["in_shardings"], strict=True)
    program.arguments = [Argument(shape(aval), aval.weak_type, where(put)) for aval, put in given]
    program.results = tuple(map(shape, known["global_out_avals"]))


def find_again(compiled: list[Compiled]) -> None:
    """Set `again` for the programs that their line had compiled before."""
    last: dict[tuple, int] = {}
    times: Counter[tuple] = Counter()
    for number, program in enumerate(compiled):
        # The code is part of the key, since two functions may have the same name.
        key = program.thread, program.name, program.callers[0], program.code
        times[key] += 1
        if key in last:
            old, *between = compiled[last[key] : number]
            program.again = _is_another_pass(old, between, program, times[key])
        last[key] = number


def _is_another_pass(old: Compiled, between: list[Compiled], new: Compiled, times: int) -> bool:
    """Return whether the thread has returned to the line: one pass may compile several shapes."""
    if old.callers != new.callers:
        return True
    if not any(position.in_loop() for position in new.callers):
        return False
    if new.went_elsewhere or any(
        other.thread == new.thread and other.callers != new.callers for other in between
    ):
        return True
    # A library, or a comprehension, may compile one function for many shapes in a single pass. A
    # function of JAX may do so for a few.
    for_many = new.by_library or any(position.in_comprehension() for position in new.callers)
    for_many |= new.of_library and times < 4
    return not for_many or (old.arguments, old.results) == (new.arguments, new.results)


def why(compiled: list[Compiled]) -> str:
    """Return, in words, the recompiled function of a line, and the last change of its arguments."""
    programs = defaultdict(list)
    for program in compiled:
        programs[program.name, program.code].append(program)
    causes = []
    for (name, _), times in programs.items():
        if again := [program for program in times if program.again]:
            old, new = times[-2:]
            changed = "; ".join(_changes(old, new))
            because = f", last for {changed}." if changed else "; the cause was not seen."
            function = name.removeprefix("jit(").removesuffix(")")
            # Prefer a program whose arguments changed: one without, such as `jnp.zeros`, only makes
            # an array for it.
            rank = old.arguments != new.arguments, sum(program.seconds for program in again)
            causes.append((rank, f"{function} was compiled {1 + len(again)} times{because}"))
    return max(causes)[-1]


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
