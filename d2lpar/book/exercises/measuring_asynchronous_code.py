"""W, the exercises of Measuring Asynchronous Code: a benchmark, a comparison and a verdict.

Time is simulated: it passes only where a check says so. Thus a right answer is right on every
machine, and a check knows the true time of what the answer has measured.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from d2lpar._jax.devices import cpu
from d2lpar._measure.quantity import Quantity, in_percent
from d2lpar._plain.format import format_seconds, plural
from d2lpar.book.exercises.checking import (
    Rejection,
    Report,
    call_answer,
    exercise,
    refuse_tracers,
    require_called,
    require_number,
    shown,
)

# --- W1. A benchmark to mend ------------------------------------------------------------------

_IN_FLIGHT = 32  # As many calls as JAX lets Python be ahead.
_NEAR = 0.1


@exercise("W1")
def check_w1(benchmark: Callable) -> Report:
    """Check a benchmark of a jitted function on a device that is simulated."""
    x = jax.device_put(np.ones((8, 8), np.float32), cpu())
    machines = [
        _Device(compiling=0.8, computing=0.005),
        _Device(compiling=0.03, computing=0.0005, busy=0.2),
    ]
    said = []
    for machine in machines:
        case = (machine.step, x, machine.clock)
        (found,) = call_answer(benchmark, [case], "my_seconds(step, x, clock)")
        said.append(_require_time(machine, found))
    return (
        f"{format_seconds(said[0])} and {format_seconds(said[1])}, for steps of "
        f"{format_seconds(machines[0].computing)} and {format_seconds(machines[1].computing)}. "
        "Each time, all calls were done when the clock stopped."
    )


class _Reading(NamedTuple):
    """What was going on when the clock was read."""

    busy: float  # Seconds until the device is done with what is queued.
    unfinished: int  # Calls.
    calls: int
    programs: int


class _Device:
    """A device with a queue, and the host that fills it: a clock and a jitted step.

    Args:
        compiling: Seconds that the host takes to compile a program.
        computing: Seconds that the device takes for a call.
        busy: Seconds of work of somebody else that are queued at the start.
    """

    _DISPATCHING = 2e-5

    def __init__(self, compiling: float, computing: float, busy: float = 0.0):
        self.computing = computing
        self.readings: list[_Reading] = []
        self._compiling = compiling
        self._now = 0.0
        self._free_at = busy
        self._programs: set[tuple] = set()
        self._pending: deque[float] = deque()  # When each call that is in flight will be done.
        self.calls = 0

    def clock(self) -> float:
        self.wait_until(self._now + 1e-7)
        busy = max(0.0, self._free_at - self._now)
        self.readings.append(_Reading(busy, len(self._pending), self.calls, len(self._programs)))
        return self._now

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)
        while self._pending and self._pending[0] <= self._now:
            self._pending.popleft()

    def step(self, x: Any) -> "_Unready":
        refuse_tracers("step()", x)
        program = _program_for(x)
        if program not in self._programs:
            self._programs.add(program)
            self.wait_until(self._now + self._compiling)
        if len(self._pending) >= _IN_FLIGHT:
            self.wait_until(self._pending[0])
        self.wait_until(self._now + self._DISPATCHING)
        self._free_at = max(self._free_at, self._now) + self.computing
        self._pending.append(self._free_at)
        self.calls += 1
        return _Unready(self, self._free_at, program)

    def is_past(self, when: float) -> bool:
        self.wait_until(self._now + 1e-6)  # Or whoever asks until it is would ask for ever.
        return self._now >= when


def _program_for(x: Any) -> tuple:
    """Return what JAX looks up a program by: shape, dtype, and whether the array is committed."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise Rejection(
            f"step() was called with {shown(x)}, which is no array.", "Call step(x) with the x."
        )
    return tuple(x.shape), str(x.dtype), bool(getattr(x, "committed", False))


class _Unready:
    """The result of a step, with what makes Python wait for an array."""

    def __init__(self, device: _Device, ready_at: float, program: tuple):
        self._device = device
        self._ready_at = ready_at
        self.shape, self.dtype, self.committed = program  # For a step that takes it in turn.

    def block_until_ready(self) -> "_Unready":
        self._device.wait_until(self._ready_at)
        return self

    def is_ready(self) -> bool:
        return self._device.is_past(self._ready_at)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.block_until_ready()
        return np.ones(self.shape, dtype or self.dtype)

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.asarray(self)[index]


def _require_time(device: _Device, found: Any) -> float:
    """Return what a benchmark said of the device's step, or say what is wrong with it."""
    require_called("step()", device.calls, "nothing was timed", "What is to be measured?")
    readings = device.readings
    if len(readings) < 2:
        raise Rejection(
            f"The clock was read {plural(len(readings), 'time')}.",
            "Time is simulated here, so that the check is the same on every machine. Read the "
            "`clock()` that your function is given, before and after.",
        )
    first, last = readings[0], readings[-1]
    if first.calls == last.calls:
        raise Rejection(
            "No call of step() lies between the first and the last reading of the clock.",
            "What is to happen between its start and its stop?",
        )
    if last.unfinished:
        raise Rejection(
            f"When the clock stopped, {last.unfinished} of {plural(last.calls, 'call')} "
            f"{'was' if last.unfinished == 1 else 'were'} unfinished.",
            "A call returns when it is in the queue. What must have happened before the clock "
            "stops?",
        )
    said = require_number(found)
    if abs(said / device.computing - 1) < _NEAR:
        return said
    mistake = f"Your function says {format_seconds(said)} of a step that takes "
    mistake += f"{format_seconds(device.computing)}"
    if first.programs < last.programs:
        look = "When is a jitted function compiled? Let that be over before the clock starts."
        if first.programs:
            look = (
                "You did call step() before, but JAX has compiled it again, for an array of "
                "another kind. Which array is it that you time?"
            )
        raise Rejection(f"{mistake}: it was compiled while the clock ran.", look)
    if first.busy:
        raise Rejection(
            f"{mistake}: when the clock started, the device was busy for another "
            f"{format_seconds(first.busy)}.",
            "What is in the queue already, of yours or of others, is done first, and the clock "
            "counts it. How do you empty the queue?",
        )
    timed = last.calls - first.calls
    raise Rejection(
        f"{mistake}. Between the first and the last reading there "
        f"{'was' if timed == 1 else 'were'} {plural(timed, 'call')}.",
        "What do you divide, and by how many?",
    )


# --- W2. A fair comparison --------------------------------------------------------------------

_ROUNDS = 9
_CLOSE = 0.05
_MOST_EVENTS = 20_000


@exercise("W2")
def check_w2(comparison: Callable) -> Report:
    """Check a comparison on a machine that drifts, stumbles and has a neighbour."""
    machines = [_Drifting(), _Stumbling(), _Shared()]
    usage = "my_ratio(a, b, clock, cores_free)"
    said = []
    for machine in machines:
        (found,) = call_answer(comparison, [machine.arguments], usage)
        said.append(_require_ratio(machine, found))
    orders = [machine.order for machine in machines]
    pairs = [pair for order in orders for pair in zip(order[::2], order[1::2], strict=False)]
    if len(set(pairs)) == 1:
        first = pairs[0][0]
        raise Rejection(
            f"All three ratios are right. But in each of {len(pairs)} rounds, {first} came first.",
            "What grows from call to call then always hits the other one. How can a round hit "
            "both alike?",
        )
    return (
        f"{said[0]:.2f} of a function and itself on a machine that gets slower, {said[1]:.2f} "
        f"where single calls stumble, and {said[2]:.2f} beside a neighbour, in "
        f"{min(machine.rounds for machine in machines)} rounds or more. a and b were timed in "
        "turn, and neither was always the first."
    )


class _Machine:
    """A machine on which two functions, a and b, take time, and so does asking for its cores."""

    truth = 1.0  # How many times as long b takes as a.
    slow = ""  # What is wrong with this machine, for a message.
    look = ""

    def __init__(self):
        self.log: list[str] = []  # "a", "b", "clock", "free" or "taken", in order.
        self.times: Counter[str] = Counter()  # How often each of them.
        self._now = 0.0

    @property
    def arguments(self) -> tuple[Callable, ...]:
        return self._a, self._b, self._clock, self._cores_free

    def _a(self) -> None:
        self._take("a", 0.01)

    def _b(self) -> None:
        self._take("b", 0.01 * self.truth)

    def _take(self, name: str, seconds: float) -> None:
        self._now += seconds * self.slowness(name, self.times[name], self._now)
        self._note(name)

    def _clock(self) -> float:
        self._note("clock")
        return self._now

    def _cores_free(self) -> bool:
        self._now += 0.005
        free = self.is_free(self._now)
        self._note("free" if free else "taken")
        return free

    def _note(self, event: str) -> None:
        self.log.append(event)
        self.times[event] += 1
        if len(self.log) > _MOST_EVENTS:
            raise Rejection(
                f"Your function had called what it is given {_MOST_EVENTS} times, and went on.",
                f"It takes {_ROUNDS} rounds that count. When does your loop end?",
            )

    def slowness(self, name: str, number: int, now: float) -> float:
        """Return how many times as long as usual a call takes."""
        return 1.0

    def is_free(self, now: float) -> bool:
        """Say whether two cores are free."""
        return True

    @property
    def asked(self) -> int:
        """How often somebody asked for its cores."""
        return self.times["free"] + self.times["taken"]

    @property
    def timed(self) -> list[tuple[str, ...]]:
        """What lies between two readings of the clock, where it has called a or b."""
        parts: list[list[str]] = [[]]
        for event in self.log:
            parts.append([]) if event == "clock" else parts[-1].append(event)
        return [tuple(part) for part in parts[1:-1] if {"a", "b"} & set(part)]

    @property
    def order(self) -> list[str]:
        """In which order a and b were timed; what was called without a clock does not count."""
        return [part[0] for part in self.timed if set(part) in ({"a"}, {"b"})]

    @property
    def rounds(self) -> int:
        """How many rounds were timed."""
        return min(self.order.count("a"), self.order.count("b"))


class _Drifting(_Machine):
    slow = "a function and itself, on a machine that gets slower by 2 % with each call"

    def slowness(self, name, number, now):
        return 1.02 ** (self.times["a"] + self.times["b"])

    @property
    def look(self):
        if len(list(itertools.groupby(self.order))) < _ROUNDS:
            return (
                "You timed all calls of the one before those of the other, and what changes "
                "meanwhile looks like a difference. In which order does it hit both alike?"
            )
        return "Which times are neighbours, so that nothing has changed between them?"


class _Stumbling(_Machine):
    truth = 1.5
    slow = "a machine on which one call of b is held up, and another is lucky"
    look = "Which number of nine does not care how far off a single one of them is?"

    def slowness(self, name, number, now):
        return {("b", 3): 20, ("b", 5): 0.1}.get((name, number), 1)


class _Shared(_Machine):
    # The neighbour is there for most of the time, and b, which needs two cores, takes twice as long
    # then: whoever does not ask finds that b is slower, however many rounds are taken.
    truth = 0.6
    slow = "a machine where a neighbour takes a core most of the time, and b needs two"

    def slowness(self, name, number, now):
        return 2 if name == "b" and not self.is_free(now) else 1

    def is_free(self, now):
        return not 0.07 <= now % 0.8 < 0.56

    @property
    def look(self):
        if not self.asked:
            return (
                "You have never asked cores_free(), and the times do not tell: the neighbour is "
                "there in most rounds."
            )
        return "Ask in each round, and leave out the rounds in which the cores were not free."


def _require_ratio(machine: _Machine, found: Any) -> float:
    """Return what a comparison said of a machine, or say what is wrong with it."""
    for name in "ab":
        require_called(
            f"{name}()",
            machine.times[name],
            "so there is nothing to compare",
            "Which two are to be compared?",
        )
    if not machine.timed:
        raise Rejection(
            "No call of a() or b() lies between two readings of the clock.",
            "Time is simulated here. Read the `clock()` that your function is given.",
        )
    said = require_number(found, "Return the ratio, a number.")
    if any({"free", "taken"} & set(part) for part in machine.timed):
        raise Rejection(
            "cores_free() was called while the clock ran, and takes five milliseconds itself.",
            "Ask before the clock starts, or when it has stopped.",
        )
    if abs(said / machine.truth - 1) >= _CLOSE:
        raise Rejection(
            f"Of {machine.slow}, your function says {said:.2g} where {machine.truth:g} is right.",
            machine.look,
        )
    counting = machine.rounds
    if machine.asked:
        counting = min(counting, machine.times["free"])
    if counting < _ROUNDS:
        raise Rejection(
            f"On {machine.slow.removeprefix('a function and itself, on ')}, your ratio rests on "
            f"{plural(counting, 'round')}.",
            f"It is right, and may be so by chance. Go on until {_ROUNDS} rounds count.",
        )
    return said


# --- W3. A verdict ----------------------------------------------------------------------------

_WORDS = ("holds", "fails", "inconclusive")
_MOST_SAMPLES = 144
_COMPARISONS = 1000
_PROMISED = 60  # Of a thousand: one in twenty, and what chance adds to that.


@exercise("W3")
def check_w3(verdict: Callable, decision: Callable) -> Report:
    """Check a verdict over samples, and a decision that looks at them several times."""
    _require_verdicts(verdict)
    clear = _require_decided(decision, above=0, of=9, most=9, expected="holds")
    _require_decided(decision, above=9, of=9, most=9, expected="fails")
    later = _require_decided(decision, above=3, of=10, most=_MOST_SAMPLES, expected="holds")
    winners = _require_promise(decision)
    return (
        f"All {len(_CASES)} samples got the right verdict. What is clear was decided after "
        f"{clear} samples and what is less so after {later}, and in {winners} of {_COMPARISONS} "
        "comparisons of equals your decision found a winner."
    )


class _Case(NamedTuple):
    """So many samples, of which some lie above the bound, and how sure one is to be."""

    count: int
    above: int
    level: float


_CASES = [
    _Case(9, 0, 0.95),
    _Case(9, 9, 0.95),
    _Case(9, 4, 0.95),
    _Case(9, 1, 0.95),
    _Case(9, 8, 0.95),
    _Case(9, 2, 0.95),
    _Case(9, 1, 0.99),
    _Case(36, 11, 0.95),
    _Case(36, 12, 0.95),
    _Case(36, 26, 0.99),
    _Case(5, 0, 0.95),
    _Case(5, 5, 0.95),
]


def _samples(above: Iterable[bool], bound: float, seed: int) -> list[float]:
    """Return samples on the given sides of a bound, some of those above it far away."""
    draw = np.random.default_rng(seed)
    return [
        bound * (1 + 0.3 * draw.random() ** (-2) if is_above else 1 - 0.1 - 0.3 * draw.random())
        for is_above in above
    ]


def _require_verdicts(verdict: Callable) -> None:
    bound = 2.0
    sets = [
        _samples(
            np.random.default_rng(seed).permutation(np.arange(case.count) < case.above), bound, seed
        )
        for seed, case in enumerate(_CASES)
    ]
    cases = [(list(samples), bound, case.level) for samples, case in zip(sets, _CASES, strict=True)]
    found = call_answer(verdict, cases, "my_verdict(samples, bound, level)")
    for case, samples, said in zip(_CASES, sets, found, strict=True):
        right = (Quantity("time", tuple(samples), level=case.level) < bound).verdict
        if (word := _word(said, "my_verdict")) != right:
            raise Rejection(
                f"Of {case.count} samples {case.above or 'none'} lie"
                f"{'s' if case.above == 1 else ''} above the bound; at {in_percent(case.level)}, "
                f"your my_verdict says {word!r} of them.",
                _look_at(case, word, right),
            )


def _look_at(case: _Case, word: str, right: str) -> str:
    if {word, right} == {"holds", "fails"}:
        return "The claim is that the median lies below the bound."
    if right == "inconclusive":
        return (
            "If the median were the bound, each sample would be the toss of a fair coin. How often "
            f"do {case.count} coins fall like that, or even more to this side? Each side may be "
            f"wrong with a probability of {in_percent((1 - case.level) / 2)}."
        )
    return (
        f"How far off a sample is does not matter, only on which side. How often do {case.count} "
        "fair coins fall as much to one side?"
    )


def _word(said: Any, name: str) -> str:
    if not isinstance(said, str) or said not in _WORDS:
        raise Rejection(
            f"Your {name} returned {shown(said)}.", f"Return one of {', '.join(map(repr, _WORDS))}."
        )
    return said


class _Source:
    """Gives samples, and counts how many it has given."""

    def __init__(self, samples: Sequence[float]):
        self._samples = samples
        self.taken = 0

    def more(self, count: int) -> list[float]:
        if count < 1:
            raise Rejection(
                f"Your my_decision asked for {shown(count)} samples.",
                "How many does it have, and how many does it want before it looks again?",
            )
        if self.taken + int(count) > _MOST_SAMPLES:
            raise Rejection(
                f"Your my_decision has taken {self.taken} samples, and asked for {count} more.",
                f"At {_MOST_SAMPLES} it has to end. What is the honest answer if they do not "
                "decide?",
            )
        first, self.taken = self.taken, self.taken + int(count)
        return list(self._samples[first : self.taken])


def _decisions(decision: Callable, sources: list[_Source], bound: float) -> list[str]:
    cases = [(source.more, bound) for source in sources]
    found = call_answer(decision, cases, "my_decision(more, bound)")
    return [_word(said, "my_decision") for said in found]


def _require_decided(decision: Callable, above: int, of: int, most: int, expected: str) -> int:
    """Return after how many samples a decision says what is expected of it."""
    sides = [number % of < above for number in range(_MOST_SAMPLES)]
    source = _Source(_samples(sides, 1.0, seed=of))
    (word,) = _decisions(decision, [source], 1.0)
    if word != expected:
        raise Rejection(
            f"Of every {of} samples, {above or 'none'} lie above the bound; your my_decision says "
            f"{word!r} after {source.taken}.",
            "Is it clear then? If so, in which direction; and if not, may it take more?",
        )
    if source.taken > most:
        raise Rejection(
            f"Of the first {most} samples, {above or 'none'} lie above the bound; your my_decision "
            f"took {source.taken} before it said {word!r}.",
            f"It may stop at the first look that decides. The first comes after {most}.",
        )
    return source.taken


def _require_promise(decision: Callable) -> int:
    """Return in how many comparisons of equals a decision finds a winner; not in too many."""
    draw = np.random.default_rng(38)
    ratios = np.exp(draw.normal(size=(_COMPARISONS, _MOST_SAMPLES))).tolist()
    sources = list(map(_Source, ratios))
    words = _decisions(decision, sources, 1.0)
    winners = len(words) - words.count("inconclusive")
    if winners > _PROMISED:
        raise Rejection(
            f"In {winners} of {_COMPARISONS} comparisons of equals your my_decision found a "
            f"winner; one in twenty, {_COMPARISONS // 20}, is what an interval of 95 % may.",
            "Each look is another chance to be fooled. How sure has a single one to be, so that "
            "all of them together are wrong once in twenty times?",
        )
    return winners
