"""Record each compilation: whether it repeats an earlier one, and what JAX was asked for anew.

How it works. JAX tells its listeners of each phase when that phase ends, in the thread that does
the work. The phases make up programs::

    trace inner    dropped: the time of `f` includes it (only JAX 0.7 tells of it)
    trace f        a new program; until it is compiled, it counts as traced only
    lower f        the same program: the last of its thread that was traced under this name
    compile f      the same program: the last of its thread that was lowered under this name
"""

import itertools
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from d2lpar._jax.compile_requests import Arrays, PhaseStack, Request, Value, Values
from d2lpar._jax.stack import COMPREHENSIONS, LOOPS, CodePosition
from d2lpar._plain.format import plural

# The ends of the names of JAX's events, in the order of the phases.
_PHASES = ["jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration"]
_TRACE, _LOWER, _COMPILE = range(3)


@dataclass(eq=False, slots=True)
class Compiled:
    """A program that JAX has traced, and perhaps compiled."""

    name: str  # The name of the function.
    thread: int  # The identifier of the thread.
    thread_number: int  # Unlike the identifier, never used again.
    began: float = 0.0  # When it began, as if its phases had followed each other at once.
    over: float = 0.0  # When the last phase ended, in seconds of `time.perf_counter`.
    seconds: float = 0.0  # The sum of the phases.
    compiled: bool = False  # Whether it was compiled, and not only traced.
    callers: tuple[CodePosition, ...] = ()  # The positions that led to it, the user's line first.
    by_library: bool = False  # Whether a library's code is between that line and JAX.
    went_elsewhere: bool = False  # Whether the thread has moved since its program before.
    request: Request = field(default_factory=Request)
    arguments: Arrays = ()
    results: Arrays = ()
    again: bool = False  # Whether it repeats an earlier program.
    before: "Compiled | None" = None  # The program that it repeats.

    @property
    def identity(self) -> tuple:
        """Equal for programs of functions with the same code."""
        return self.name, self.compiled, self.request.identity

    @property
    def asked(self) -> tuple:
        """Equal for programs that need not both be compiled."""
        request = self.request
        return self.identity, request.static, request.tree, self.arguments, self.results

    def distance_from(self, other: "Compiled") -> int:
        """Return in how many parts the requests differ."""
        was, now = other.request, self.request
        parts = [*zip(other.arguments, self.arguments, strict=False)]
        parts += [(was.static, now.static), (was.tree, now.tree), (was.options, now.options)]
        return sum(before != after for before, after in parts)


class _Thread(threading.local):
    """The programs of this thread."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self.numbers)
        self.last = Compiled("", 0, 0)  # The last that ended a phase.
        self.programs = defaultdict(lambda: deque(maxlen=1000))  # By their last phase and name.


class Compilations:
    """Collects the programs of a process from JAX's events."""

    def __init__(self) -> None:
        # For each thread, the times of the samples that saw it move.
        self.moves: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=1000))
        self.over = 0.0  # When a phase ended last, in any thread.
        self._programs: list[Compiled] = []
        self._thread = _Thread()

    @property
    def done(self) -> list[Compiled]:
        """The programs, in the order in which they ended."""
        return sorted(self._programs, key=lambda program: program.over)

    def note(self, event: str, seconds: float, name: str) -> None:
        """Record an event of JAX, in the thread that compiles."""
        now, ending = time.perf_counter(), event.rpartition("/")[-1]
        if ending not in _PHASES:
            return
        phase = _PHASES.index(ending)
        # Start at the caller: a list that holds this function's own frame is a reference cycle.
        stack = PhaseStack(sys._getframe(1))
        if not stack.callers or (phase == _TRACE and stack.is_inner):
            return
        name = name[4:-1] if name.startswith("jit(") else name
        waiting = self._thread.programs[phase - 1, name]  # Empty for a trace.
        program = waiting.pop() if waiting else self._begin(name, now - seconds, stack.callers)
        program.seconds += seconds
        # A program may be lowered now, and compiled much later.
        program.began, program.over, self.over = now - program.seconds, now, now
        program.compiled = phase == _COMPILE
        program.callers, program.by_library = stack.callers, stack.by_library
        if arrays := stack.arrays():
            program.arguments, program.results = arrays
        program.request = stack.request() or program.request
        self._thread.programs[phase, name].append(program)
        self._thread.last = program

    def _begin(self, name: str, began: float, callers: tuple[CodePosition, ...]) -> Compiled:
        thread, last = threading.get_ident(), self._thread.last
        # Samples during the tracing do not count: they show the lines of the traced function.
        moved = any(last.over < at < began for at in list(self.moves[thread]))
        moved |= last.over <= began and last.callers != callers
        program = Compiled(name, thread, self._thread.number, went_elsewhere=moved)
        self._programs.append(program)
        return program


def find_again(programs: list[Compiled]) -> None:
    """Set `again` and `before` for the programs that repeat an earlier one.

    The code of a program of the user must not be asked for twice with equal arguments. With other
    arguments, it must not either, unless one pass of a line asks for several. A library's code is
    shared by all lines, so only a line that the program returns to must not compile it.
    """
    equal: dict[tuple, Compiled] = {}
    with_code: dict[tuple, list[Compiled]] = defaultdict(list)
    for program in programs:
        line = program.callers[0].place if program.request.of_library else None
        earlier = with_code[program.identity, line]
        program.before = equal.get(program.asked)
        if earlier and not program.before and _is_another_pass(earlier[-1], program, len(earlier)):
            program.before = min(reversed(earlier), key=program.distance_from)  # The closest.
        program.again = program.before is not None
        earlier.append(program)
        if program.request.identity and not program.request.of_library:
            equal[program.asked] = program


def _is_another_pass(old: Compiled, new: Compiled, times: int) -> bool:
    """Return whether the line is passed again: one pass may compile several shapes."""
    if old.thread_number != new.thread_number:
        return True
    is_same_line = [at.place for at in old.callers] == [at.place for at in new.callers]
    if not any(position.lies_in(LOOPS) for position in new.callers):
        # A library's helper may make arrays for several lines, each of which runs once.
        return not new.request.of_library and (not is_same_line or new.went_elsewhere)
    # One pass of a library or a comprehension may compile many shapes, and one of JAX a few.
    for_many = new.by_library or any(position.lies_in(COMPREHENSIONS) for position in new.callers)
    for_many |= new.request.of_library and times < 3
    is_one_pass = for_many and is_same_line and old.asked != new.asked
    return new.went_elsewhere or not is_one_pass


ADVICE = {  # For each cause that `why` finds.
    "shape": "Keep shapes and dtypes the same, or pad to a few sizes, each compiled once.",
    "last batch": "Drop the smaller last batch, or pad it to the size of the others.",
    "number": "Pass the same number of arrays in each call: stack a list that grows.",
    "weak type": "Pass jnp.float32(x) or an array instead of a Python number, from the first call.",
    "device": "Put the arguments where they belong before the first call, with jax.device_put.",
    "tree": "Pass the arguments in the same containers, with the same keys, in each call.",
    "static": "Pass a changing number as an array, and give a static object __eq__ and __hash__.",
    "context": "Set JAX's options once, before the first call, and to the same values everywhere.",
    "object": "Call jax.jit once, and pass what differs as an argument, or use jax.vmap over it.",
    "caches": "Do not call jax.clear_caches, or only where no program is needed again.",
    "hidden": "See what jax.config.update('jax_explain_cache_misses', True) prints.",
}


def why(programs: list[Compiled]) -> tuple[str, str]:
    """Return why the programs of a line were compiled again: a key of `ADVICE`, and a sentence."""
    again = [program for program in programs if program.again]
    # Prefer a change of arguments: `jnp.zeros`, without any, only makes an array for others.
    worst = max(again, key=lambda new: (new.arguments != new.before.arguments, new.seconds))
    *others, last = [program for program in again if program.identity == worst.identity]
    cause, words = next(_causes(last.before, last))
    cause = "shape" if cause == "last batch" and others else cause
    phase = "compiled" if last.compiled else "traced"
    times = f" {len(others) + 1} times, the last time" if others else ""
    return cause, f"{last.name} was {phase} again{times} {words}."


def _causes(old: Compiled, new: Compiled) -> Iterator[tuple[str, str]]:
    """Yield what is new to JAX's cache, the most telling first: a key of `ADVICE`, and words."""
    was, now = old.request, new.request
    for key in sorted(now.keys - was.keys):
        yield "tree", f"because the arguments have a new key, {key!r}"
    yield from _changes_of_arrays(old.arguments, new.arguments)
    for before, after in zip(old.results, new.results, strict=False):
        # The static arguments of `jnp.zeros` and its like are the shape of the result.
        if new.request.of_library and before[:2] != after[:2]:
            yield "shape", f"for a result {after} instead of {before}"
    if was.tree != now.tree:
        yield "tree", "because the arguments are in other containers"
    for change in _changes_of_values(was.static, now.static):
        yield "static", f"because static argument {change}"
    for change in _changes_of_values(was.options, now.options):
        yield "context", f"because {change}"
    if was.functions != now.functions:
        yield "object", "for another function object with the same code"
    if was.caches is not now.caches:
        yield "caches", "because jax.clear_caches had emptied the caches"
    yield "hidden", "for a cause that was not seen"


def _changes_of_arrays(old: Arrays, new: Arrays) -> Iterator[tuple[str, str]]:
    if len(old) != len(new):
        yield "number", f"for {plural(len(new), 'argument')} instead of {len(old)}"
        return
    pairs = list(zip(old, new, strict=True))
    if changed := [(was, now) for was, now in pairs if was[:2] != now[:2]]:
        is_smaller = all(
            () < now.shape < was.shape and now == was._replace(shape=now.shape[:1] + was.shape[1:])
            for was, now in changed
        )
        words = dict.fromkeys(f"{now} instead of {was}" for was, now in changed)
        yield "last batch" if is_smaller else "shape", f"for {'; '.join([*words][:3])}"
    for was, now in pairs:
        if was.typing != now.typing:
            yield "weak type", f"for a {now.typing} {now} instead of a {was.typing} one"
        if was.device != now.device:
            yield "device", f"for a {now} {now.device} instead of {was.device}"


def _changes_of_values(old: Values, new: Values) -> Iterator[str]:
    for name in dict(old) | dict(new):
        was, now = (dict(each).get(name, Value("its default", 0)) for each in (old, new))
        if was != now:
            if was.text == now.text:
                yield f"`{name}` is another {now.text}, which does not compare equal"
            else:
                yield f"`{name}` changed from {was.text} to {now.text}"
