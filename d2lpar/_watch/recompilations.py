"""Record each compilation: whether it repeats an earlier one, and what JAX was asked for anew.

How it works. JAX tells its listeners of each phase when that phase ends, in the thread that does
the work. The phases make up programs::

    trace inner    dropped: the time of `f` includes it (only JAX 0.7 tells of it)
    trace f        a new program; until it is compiled, it counts as traced only
    lower f        the same program: the last of its thread that was traced under this name
    compile f      the same program: the last that was lowered under this name, for these shapes

The stack of the thread shows the user's line, and `_jax/requests.py` what JAX was asked for.
"""

import itertools
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from d2lpar._jax.requests import Argument, Request, Value, arguments_of, caches, request_of
from d2lpar._jax.stack import CodePosition, frames_outward, owner_of
from d2lpar._plain.format import plural

# The ends of the names of JAX's events.
_TRACE, _LOWER, _COMPILE = _PHASES = (
    "jaxpr_trace_duration",
    "jaxpr_to_mlir_module_duration",
    "backend_compile_duration",
)


@dataclass(eq=False, slots=True)
class Compiled:
    """A program that JAX has traced, and perhaps compiled."""

    name: str  # The name of the function.
    thread: int  # The identifier of the thread.
    thread_number: int  # Unlike the identifier, never used again.
    began: float = 0.0  # When the tracing began, in seconds of `time.perf_counter`.
    over: float = 0.0  # When the last phase ended.
    seconds: float = 0.0  # The phases, without programs that were compiled inside.
    compiled: bool = False  # Whether it was compiled, and not only traced.
    callers: tuple[CodePosition, ...] = ()  # The positions that led to it, the user's line first.
    by_library: bool = False  # Whether a library's code is between that line and JAX.
    went_elsewhere: bool = False  # A sample saw the thread move since its program before.
    request: Request | None = None  # None if it was not seen, as for a backward pass.
    arguments: tuple[Argument, ...] | None = None  # Of the lowered program. None if not seen.
    results: tuple[str, ...] = ()  # The dtypes and shapes.
    function: Any = None  # A weak reference to the function.
    beside_another: bool = False  # Another function with the same code was alive.
    caches: object = None  # Another object after JAX's caches were emptied.
    again: bool = False  # Whether it repeats an earlier program.
    before: "Compiled | None" = None  # The program that it repeats.

    @property
    def of_library(self) -> bool:
        """Whether the function belongs to a library, such as `jax.numpy`."""
        return self.request is not None and self.request.of_library

    @property
    def identity(self) -> tuple:
        """Equal for programs of functions with the same code."""
        return self.name, self.compiled, self.request and self.request.identity

    def has(self, shapes: list[str]) -> bool:
        """Return whether it was lowered for arguments of these shapes, if any are known."""
        return not shapes or [argument.shape for argument in self.arguments or ()] == shapes

    @property
    def asked(self) -> tuple:
        """Equal for programs that need not both be compiled."""
        return self.request and self.request.key, self.arguments, self.results


class _Stack:
    """The stack of the thread that a phase ended in."""

    def __init__(self, frame: FrameType, phase: str) -> None:
        frames = [(owner_of(each.f_code.co_filename), each) for each in frames_outward(frame)]
        # Drop the frames of the launcher (runpy, pytest), so that its loops do not count.
        while frames and frames[-1][0] != "user":
            frames.pop()
        first = next((n for n, (owner, _) in enumerate(frames) if owner == "user"), 0)
        self.callers = tuple(
            CodePosition(frame.f_code, frame.f_lasti)
            for owner, frame in frames[first:]
            if owner in ("user", "library")
        )
        self.by_library = any(owner == "library" for owner, _ in frames[:first])
        names = [frame.f_code.co_name for owner, frame in frames if owner == "jax"]
        enclosing = names.count("_infer_params") + names.count("lower_sharding_computation")
        # The phase is part of another one. The first two phases have such a frame of their own.
        self.is_inner = enclosing > (phase != _COMPILE)
        self._of_jax = {  # The innermost of each name.
            frame.f_code.co_name: frame
            for owner, frame in reversed(frames[:first])
            if owner == "jax"
        }

    def known(self, *functions: str) -> dict[str, Any]:
        """Return the local variables of the first of these functions of JAX that is running."""
        frames = (self._of_jax[name] for name in functions if name in self._of_jax)
        return next((frame.f_locals for frame in frames), {})


class _Pending(threading.local):
    """The programs of this thread that are not compiled yet."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self.numbers)
        self.inner = 0.0  # The seconds of programs that were compiled inside a phase.
        # By phase: the programs that have finished it, and whether a call asked for them.
        self.programs: dict[str, deque[tuple[Compiled, bool]]] = {
            phase: deque(maxlen=1000) for phase in _PHASES
        }

    def pop(self, phase: str, fits: Callable[[Compiled, bool], bool]) -> Compiled | None:
        """Remove the last program that has finished this phase and fits."""
        for entry in reversed(self.programs[phase]):
            if fits(*entry):
                self.programs[phase].remove(entry)
                return entry[0]
        return None


class Compilations:
    """Collects the programs of a process from JAX's events."""

    def __init__(self) -> None:
        # For each thread, the times of the samples that saw it move.
        self.moves: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=1000))
        self._programs: list[Compiled] = []
        self._pending = _Pending()
        self._latest: dict[tuple, Compiled] = {}
        self._shared: dict[Any, Any] = {}  # A loop that traces makes many equal requests.

    @property
    def done(self) -> list[Compiled]:
        """The programs, in the order in which they ended."""
        # JAX 0.7 tells of the functions of `jax.numpy` that it traces for others.
        kept = [each for each in list(self._programs) if each.compiled or not each.of_library]
        return sorted(kept, key=lambda program: program.over)

    def note(self, event: str, seconds: float, name: str) -> None:
        """Record an event of JAX, in the thread that compiles."""
        now, phase = time.perf_counter(), event.rpartition("/")[-1]
        if phase not in _PHASES:
            return
        # Start at the caller: a list that holds this function's own frame is a reference cycle.
        stack = _Stack(sys._getframe(1), phase)
        if not stack.callers or (stack.is_inner and phase == _TRACE):
            return
        pending, began = self._pending, now - seconds
        if not stack.is_inner:
            seconds, pending.inner = seconds - pending.inner, 0.0
        name = name.removeprefix("jit(").removeprefix("pmap(").removesuffix(")")
        program = self._under_way(phase, name, stack) or self._begin(name, began)
        # A program may be lowered now, and compiled much later.
        if began > program.over + 0.05:
            program.began = began
        program.over = now
        program.seconds += seconds
        program.callers = self._shared.setdefault(stack.callers, stack.callers)
        program.by_library = stack.by_library
        if phase == _COMPILE:
            program.compiled = True
            pending.inner += program.seconds if stack.is_inner else 0.0
        else:
            pending.programs[phase].append((program, bool(stack.known("cache_miss"))))
        if known := stack.known("lower_sharding_computation", "from_hlo"):
            program.arguments, program.results = arguments_of(known)
        known = stack.known("_infer_params_internal", "_infer_params", "cache_miss")
        if known and not program.request:
            self._see_request(program, known)

    def _under_way(self, phase: str, name: str, stack: _Stack) -> Compiled | None:
        """Return the program that this phase continues."""
        pending = self._pending
        if phase == _LOWER:
            asked = name, bool(stack.known("cache_miss"))
            return pending.pop(_TRACE, lambda old, by_call: (old.name, by_call) == asked)
        if phase == _COMPILE:
            known = stack.known("from_hlo")
            shapes = known and [argument.shape for argument in arguments_of(known)[0]]
            return pending.pop(_LOWER, lambda old, _: old.name == name and old.has(shapes))
        return None

    def _begin(self, name: str, began: float) -> Compiled:
        thread, number = threading.get_ident(), self._pending.number
        earlier = (old for old in reversed(self._programs) if old.thread_number == number)
        last = next((old.over for old in earlier if old.over <= began), 0.0)
        # Samples during the tracing do not count: they show the lines of the traced function.
        moved = any(last < at < began for at in list(self.moves[thread]))
        program = Compiled(name, thread, number, began, began, went_elsewhere=moved)
        program.caches = caches()
        self._programs.append(program)
        return program

    def _see_request(self, program: Compiled, known: dict[str, Any]) -> None:
        request = request_of(known)
        program.request = self._shared.setdefault((request.key, id(request.context)), request)
        program.function = weakref.ref(known["fun"])
        old = self._latest.get(request.identity)
        if old and old.function is not program.function:
            program.beside_another = old.function() is not None
        self._latest[request.identity] = program


def find_again(programs: list[Compiled]) -> None:
    """Set `again` and `before` for the programs that repeat an earlier one.

    The code of a program of the user must not be asked for twice with equal arguments. With other
    arguments, and for a library's code, a line that the program returns to must not compile.
    """
    equal: dict[tuple, Compiled] = {}
    at_line: dict[tuple, int] = {}
    times: Counter[tuple] = Counter()
    for number, program in enumerate(programs):
        program.before = None
        line = program.identity, program.callers[0]
        times[line] += 1
        if program.request and not program.of_library:
            key = program.identity, program.asked
            program.before = equal.get(key)
            equal[key] = program
        if program.before is None and line in at_line:
            old, *between = programs[at_line[line] : number]
            if _is_another_pass(old, between, program, times[line]):
                program.before = old
        at_line[line] = number
        program.again = program.before is not None


def _is_another_pass(old: Compiled, between: list[Compiled], new: Compiled, times: int) -> bool:
    """Return whether the line is passed again: one pass may compile several shapes."""
    if old.thread_number != new.thread_number or old.callers != new.callers:
        return True
    if not any(position.in_loop() for position in new.callers):
        return False
    if new.went_elsewhere or any(
        other.thread_number == new.thread_number
        and other.callers != new.callers
        and other.over <= new.began
        for other in between
    ):
        return True
    # A library, or a comprehension, may compile one function for many shapes in a single pass. A
    # function of JAX may do so for a few.
    for_many = new.by_library or any(position.in_comprehension() for position in new.callers)
    for_many |= new.of_library and times < 4
    return not for_many or old.asked == new.asked


ADVICE = {
    "shape": "Keep shapes and dtypes the same from step to step: pad to a few fixed sizes.",
    "last batch": "Drop the smaller last batch, or pad it to the size of the others.",
    "number": "Pass the same number of arrays in each call: stack a list that grows.",
    "weak type": "Pass jnp.float32(x) or an array instead of a Python number, from the first call.",
    "device": "Put the arguments where they belong before the first call, with jax.device_put.",
    "tree": "Pass the arguments in the same containers, with the same keys, in each call.",
    "static": (
        "Pass a number that changes as an ordinary argument. Make a static object once, or give "
        "its class __eq__ and __hash__."
    ),
    "context": "Set JAX's options once, before the first call, and to the same values everywhere.",
    "object": (
        "Call jax.jit once, on one function. Pass what differs as an argument, or use jax.vmap "
        "over it."
    ),
    "caches": "Do not call jax.clear_caches, or only where no program is needed again.",
    "race": "Call the function once before the threads start.",
    "hidden": "See what jax.config.update('jax_explain_cache_misses', True) prints.",
}
"""What to do, for each cause that `why` finds."""


def why(programs: list[Compiled]) -> tuple[str, str]:
    """Return why the programs of a line were compiled again: a key of `ADVICE`, and a sentence."""
    groups = defaultdict(list)
    for program in programs:
        groups[program.identity].append(program)
    causes = []
    for group in groups.values():
        if again := [program for program in group if program.again]:
            new = again[-1]
            cause, words = _cause(new.before, new, is_only=len(group) == 2)
            phase = "compiled" if new.compiled else "traced"
            # Prefer a program whose arguments changed: one without, such as `jnp.zeros`, only makes
            # an array for it.
            rank = new.before.arguments != new.arguments, sum(each.seconds for each in again)
            sentence = f"{new.name} was {phase} {1 + len(again)} times{words}."
            causes.append((rank, cause, sentence))
    return max(causes)[1:]


def _arguments(old: Compiled, new: Compiled) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    given = old.arguments or (), new.arguments or ()
    if given[0] == given[1] and old.request and new.request:
        # JAX leaves arguments that are not used out of the program.
        return old.request.arguments, new.request.arguments
    return given


def _number(old: Compiled, new: Compiled) -> str:
    before, now = map(len, _arguments(old, new))
    return f"for {plural(now, 'argument')} after {before}" if before != now else ""


def _shape(old: Compiled, new: Compiled) -> str:
    pairs = zip(*_arguments(old, new), strict=True)
    changes = dict.fromkeys(f"{b.shape} after {a.shape}" for a, b in pairs if a.shape != b.shape)
    return "for " + "; ".join(list(changes)[:3]) if changes else ""


def _last_batch(old: Compiled, new: Compiled) -> bool:
    """Return whether only the first dimension is smaller, and by the same for all arguments."""
    if _number(old, new) or old.thread_number != new.thread_number:
        return False
    sizes = set()
    for a, b in zip(*_arguments(old, new), strict=True):
        if a.shape != b.shape:
            (kind, _, size), (kind_now, _, size_now) = (x.shape.partition("[") for x in (a, b))
            (first, *rest), (first_now, *rest_now) = (x[:-1].split(",") for x in (size, size_now))
            if (kind, rest) != (kind_now, rest_now):
                return False
            sizes.add((int(first or 0), int(first_now or 0)))
    return len(sizes) == 1 and all(0 < now < before for before, now in sizes)


def _weak_type(old: Compiled, new: Compiled) -> str:
    for was, now in zip(*_arguments(old, new), strict=True):
        if was.weak != now.weak:
            words = ("weakly", "strongly") if now.weak else ("strongly", "weakly")
            return (
                f"for a {now.shape} that is {words[0]} typed after a {words[1]} typed one (a "
                "Python number makes a weak type)"
            )
    return ""


def _device(old: Compiled, new: Compiled) -> str:
    for was, now in zip(*_arguments(old, new), strict=True):
        if was.where != now.where:
            return f"for a {now.shape} that is {now.placed()}, after one that is {was.placed()}"
    return ""


def _result(old: Compiled, new: Compiled) -> str:
    changed = [(a, b) for a, b in zip(old.results, new.results, strict=False) if a != b]
    return f"for a result {changed[0][1]} after {changed[0][0]}" if changed else ""


def _values(kind: str, old: dict[str, Value], new: dict[str, Value]) -> str:
    """Return the first change of a value of this kind, in words."""
    if old.keys() != new.keys():
        return f"for the {kind}s {', '.join(new) or 'none'} after {', '.join(old) or 'none'}"
    for name, was in old.items():
        now, label = new[name], f"since {kind} `{name.rstrip('=')}`".replace("option ", "")
        if was.text != now.text:
            return f"{label} was {was.text} and is {now.text}"
        if was != now:
            way_out = ": give it __eq__ and __hash__" if now.by_identity else ""
            return f"{label} is another {now.text}, unequal to the one before{way_out}"
    return ""


def _in_request(kind: str, field: str) -> Callable[[Compiled, Compiled], str]:
    def change(old: Compiled, new: Compiled) -> str:
        if not old.request or not new.request:
            return ""
        return _values(kind, getattr(old.request, field), getattr(new.request, field))

    return change


def _object(old: Compiled, new: Compiled) -> str:
    if old.function is new.function:
        return ""
    if new.beside_another and not new.of_library:
        return "for the same shapes, but another object with the same code (made for each trainer?)"
    return "for the same shapes, but another function (made in each iteration? make it once)"


def _caches(old: Compiled, new: Compiled) -> str:
    return "since jax.clear_caches had emptied the caches" if old.caches is not new.caches else ""


def _race(old: Compiled, new: Compiled) -> str:
    is_race = old.thread_number != new.thread_number and new.began < old.over
    return "since another thread was compiling the same at that time" if is_race else ""


# The first row that tells of a change is the cause, so the most telling come first.
_CHANGES: list[tuple[str, Callable[[Compiled, Compiled], str]]] = [
    ("number", _number),
    ("shape", _shape),
    ("weak type", _weak_type),
    ("device", _device),
    ("tree", _in_request("argument", "trees")),
    # The static arguments of a library's functions, such as `jnp.zeros`, are mostly shapes.
    ("shape", lambda old, new: _result(old, new) if new.of_library else ""),
    ("static", _in_request("static argument", "static")),
    ("context", _in_request("option", "context")),
    ("shape", _result),
    ("object", _object),
    ("caches", _caches),
    ("race", _race),
]


def _cause(old: Compiled, new: Compiled, is_only: bool) -> tuple[str, str]:
    for cause, change in _CHANGES:
        if words := change(old, new):
            if cause == "shape" and is_only and _last_batch(old, new):
                return "last batch", f", last {words}, a smaller last batch"
            return cause, f", last {words}"
    return "hidden", "; the cause was not seen"
