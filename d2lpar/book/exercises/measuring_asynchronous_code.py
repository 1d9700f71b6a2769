"""W, the exercises of Measuring Asynchronous Code: a benchmark, a comparison and a verdict.

Time is simulated: only the check moves the clock. A right answer is therefore right on every
machine, and the check knows the true times.
"""

import functools
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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

# --- W1. A benchmark to repair ----------------------------------------------------------------

_IN_FLIGHT = 32  # JAX blocks Python when this many calls are in flight.
_NEAR = 0.1


@exercise("W1", "my_seconds")
def check_w1(benchmark: Callable) -> Report:
    """Check a benchmark of a jitted function on a device that is simulated."""
    x = jax.device_put(np.ones((8, 8), np.float32), cpu())
    machines = [
        _Device(compiling=0.8, computing=0.005),
        _Device(compiling=0.03, computing=0.0005, busy=0.2),
    ]
    times = []
    for machine in machines:
        case = (machine.step, x, machine.clock)
        (seconds,) = call_answer(benchmark, [case], "my_seconds(step, x, clock)")
        times.append(_require_time(machine, seconds))
    return (
        f"{format_seconds(times[0])} and {format_seconds(times[1])}, for steps of "
        f"{format_seconds(machines[0].computing)} and {format_seconds(machines[1].computing)}. "
        "Each time, all calls were done when the clock stopped."
    )


class _Reading(NamedTuple):
    """State of the device when the clock is read."""

    now: float  # Seconds.
    busy: float  # Seconds until the queue is empty.
    unfinished: int  # Calls in flight.
    calls: int  # All calls so far.
    programs: int  # Compiled so far.


@dataclass
class _Device:
    """A device with a queue, and the host that fills it: a clock and a jitted step."""

    compiling: float  # Seconds that the host takes to compile a program.
    computing: float  # Seconds that the device takes for a call.
    busy: float = 0.0  # Seconds of other work in the queue at the start.

    _DISPATCHING = 2e-5

    def __post_init__(self):
        self.readings: list[_Reading] = []
        self._now = 0.0
        self._free_at = self.busy
        self._programs: set[tuple] = set()
        self._pending: deque[float] = deque()  # When each call in flight will be done.
        self.calls = 0

    def clock(self) -> float:
        self.wait_until(self._now + 1e-7)
        busy = max(0.0, self._free_at - self._now)
        counts = len(self._pending), self.calls, len(self._programs)
        self.readings.append(_Reading(self._now, busy, *counts))
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
            self.wait_until(self._now + self.compiling)
        if len(self._pending) >= _IN_FLIGHT:
            self.wait_until(self._pending[0])
        self.wait_until(self._now + self._DISPATCHING)
        self._free_at = max(self._free_at, self._now) + self.computing
        self._pending.append(self._free_at)
        self.calls += 1
        return _Unready(self, self._free_at, program)

    def is_past(self, when: float) -> bool:
        self.wait_until(self._now + 1e-6)  # A loop that polls until then has to end.
        return self._now >= when


def _program_for(x: Any) -> tuple:
    """Return the key of JAX's cache of programs: shape, dtype, and if the array is committed."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise Rejection(
            f"step() was called with {shown(x)}, which is not an array.", "Pass the given x to it."
        )
    return tuple(x.shape), str(x.dtype), bool(getattr(x, "committed", False))


class _Unready:
    """The result of a step, with those methods of an array that make Python wait."""

    def __init__(self, device: _Device, ready_at: float, program: tuple):
        self._device = device
        self._ready_at = ready_at
        self.shape, self.dtype, self.committed = program  # So that step() accepts it.

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


def _require_time(device: _Device, answer: Any) -> float:
    """Return the seconds of a benchmark, or reject it."""
    require_called("step()", device.calls, "nothing was timed", "What should be measured?")
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
            "step() was not called between the first and the last reading of the clock.",
            "What should happen between start and stop?",
        )
    seconds, right = require_number(answer), device.computing
    # Readings for something else may follow that of the stop; the first of very many are enough.
    pairs = itertools.combinations(readings[:300], 2)
    stops = [b for a, b in pairs if math.isclose(b.now - a.now, seconds * (b.calls - a.calls))]
    last = min(stops, key=lambda reading: reading.unfinished, default=last)
    if last.unfinished:
        raise Rejection(
            f"When the clock stopped, {last.unfinished} of {plural(last.calls, 'call')} "
            f"{'was' if last.unfinished == 1 else 'were'} unfinished.",
            "A call returns when it is in the queue. What must have happened before the clock "
            "stops?",
        )
    if abs(seconds / right - 1) < _NEAR:
        return seconds
    mistake = f"Your function says {format_seconds(seconds)} for a step of {format_seconds(right)}"
    if first.programs < last.programs:
        look = "When is a jitted function compiled? Do that before the clock starts."
        if first.programs:
            look = (
                "You did call step() before, but JAX has compiled it again, for an array of "
                "another kind. Which array do you time?"
            )
        raise Rejection(f"{mistake}: it was compiled while the clock ran.", look)
    if first.busy:
        raise Rejection(
            f"{mistake}: when the clock started, the device was busy for another "
            f"{format_seconds(first.busy)}.",
            "Work that is already in the queue, yours or not, is done first, and the clock counts "
            "it. How do you empty the queue?",
        )
    timed = plural(last.calls - first.calls, "call")
    raise Rejection(
        f"{mistake}. Between the first and the last reading you made {timed}.",
        "What do you divide, and by how many?",
    )


# --- W2. A fair comparison --------------------------------------------------------------------

_ROUNDS = 9
_CLOSE = 0.05
_MOST_EVENTS = 20_000


@exercise("W2", "my_ratio")
def check_w2(comparison: Callable) -> Report:
    """Check a comparison on a machine that drifts, stumbles and has a neighbor."""
    machines = [_Drifting(), _Stumbling(), _Shared("b"), _Shared("a")]
    usage = "my_ratio(a, b, clock, cores_free)"
    ratios = []
    for machine in machines:
        (ratio,) = call_answer(comparison, [machine.arguments], usage)
        ratios.append(_require_ratio(machine, ratio))
    for machine in machines[:2]:  # Beside a neighbor, not all rounds count.
        firsts = machine.order[::2]
        first = max("ab", key=firsts.count)
        if 2 * firsts.count(first) > len(firsts) + 2:  # A warm-up may add a round.
            raise Rejection(
                "All four ratios are right. But in "
                f"{firsts.count(first)} of {len(firsts)} rounds, {first} came first.",
                "A cost that grows from call to call then falls more often on the other one. How "
                "can it fall on both alike?",
            )
    return (
        f"{ratios[0]:.2f} for a function and itself on a machine that gets slower, "
        f"{ratios[1]:.2f} where single calls stumble, and {ratios[2]:.2f} and {ratios[3]:.2f} "
        f"beside a neighbor, in {min(machine.counting for machine in machines)} rounds that count, "
        "or more. a and b were timed in turn, and without a neighbor, each came first about as "
        "often as the other."
    )


class _Machine:
    """A simulated machine with two functions, a and b, a clock and `cores_free`."""

    truth = 1.0  # The ratio of b to a.
    fault = ""  # Describes the machine in a message.
    look = ""

    def __init__(self):
        self.log: list[str] = []  # "a", "b", "clock", "free" or "taken", in order.
        self.counts: Counter[str] = Counter()  # Of each kind of event.
        self.now = 0.0

    @property
    def arguments(self) -> tuple[Callable, ...]:
        a = functools.partial(self._run, "a", 0.01)
        b = functools.partial(self._run, "b", 0.01 * self.truth)
        return a, b, self._clock, self._cores_free

    def _run(self, name: str, seconds: float) -> None:
        self.now += seconds * self.slowness(name)
        self._note(name)

    def _clock(self) -> float:
        self._note("clock")
        return self.now

    def _cores_free(self) -> bool:
        self.now += 0.005
        free = self.is_free()
        self._note("free" if free else "taken")
        return free

    def _note(self, event: str) -> None:
        self.log.append(event)
        self.counts[event] += 1
        if len(self.log) > _MOST_EVENTS:
            raise Rejection(
                f"Your function had called its arguments {_MOST_EVENTS} times without ending.",
                f"It takes {_ROUNDS} rounds that count. When does your loop end?",
            )

    def slowness(self, name: str) -> float:
        """Return how many times longer the next call of a or b takes than usual."""
        return 1.0

    def is_free(self) -> bool:
        """Say whether two cores are free now."""
        return True

    @property
    def polls(self) -> int:
        """Number of calls of `cores_free`."""
        return self.counts["free"] + self.counts["taken"]

    @property
    def spans(self) -> list[set[str]]:
        """The kinds of events before, between and after the readings of the clock."""
        spans: list[set[str]] = [set()]
        for event in self.log:
            spans.append(set()) if event == "clock" else spans[-1].add(event)
        return spans

    @property
    def timed(self) -> list[set[str]]:
        """Those between two readings, where a or b is among the events."""
        return [span for span in self.spans[1:-1] if {"a", "b"} & span]

    @property
    def order(self) -> list[str]:
        """The order of the timed calls of a and b; calls without a clock do not count."""
        return [name for span in self.timed if len(span) == 1 for name in span]

    @property
    def counting(self) -> int:
        """Number of timed rounds; if cores_free() is called, one for each span with a True."""
        rounds = min(self.order.count("a"), self.order.count("b"))
        return min(rounds, sum("free" in span for span in self.spans)) if self.polls else rounds


class _Drifting(_Machine):
    fault = "a function and itself, on a machine that gets slower by 2% with each call"

    def slowness(self, name):
        return 1.02 ** (self.counts["a"] + self.counts["b"])

    @property
    def look(self):
        if len(list(itertools.groupby(self.order))) < _ROUNDS:
            return (
                "You timed all calls of one before those of the other, so a change in between "
                "looks like a difference. Which order exposes both to it alike?"
            )
        return "Which times lie so close together that little has changed between them?"


class _Stumbling(_Machine):
    truth = 1.5
    fault = "a machine on which one call of b is held up, and another is lucky"
    look = "Which summary of nine numbers does not depend on how far off a single one is?"

    def slowness(self, name):
        return {("b", 3): 20, ("b", 5): 0.1}.get((name, self.counts[name]), 1)


class _Shared(_Machine):
    # One function needs two cores, and takes twice as long while the neighbor is there, which is
    # most of the time. An answer that never calls cores_free() finds it slower, in any number of
    # rounds. One that picks low ratios is wrong if it is a.
    truth = 0.6

    def __init__(self, slowed):
        super().__init__()
        self.slowed = slowed
        self.fault = f"a machine where a neighbor mostly takes a core, and {slowed} needs two"

    def slowness(self, name):
        return 2 if name == self.slowed and not self.is_free() else 1

    def is_free(self):
        return not 0.07 <= self.now % 0.8 < 0.56

    @property
    def look(self):
        if not self.polls:
            return (
                "You never called cores_free(), and the times alone do not show it: the neighbor "
                "is there in most rounds."
            )
        return "Ask in each round, and leave out the rounds in which the cores were not free."


def _require_ratio(machine: _Machine, answer: Any) -> float:
    """Return the ratio of a comparison, or reject it."""
    for name in "ab":
        look = "Which two functions should be compared?"
        require_called(f"{name}()", machine.counts[name], "there is nothing to compare", look)
    if not machine.timed:
        raise Rejection(
            "Neither a() nor b() was called between two readings of the clock.",
            "Time is simulated here. Read the `clock()` that your function is given.",
        )
    ratio = require_number(answer, "Return the ratio, a number.")
    if any({"free", "taken"} & span for span in machine.timed):
        raise Rejection(
            "cores_free() was called while the clock ran, and takes five milliseconds itself.",
            "Ask before the clock starts, or when it has stopped.",
        )
    if abs(ratio / machine.truth - 1) >= _CLOSE:
        raise Rejection(
            f"For {machine.fault}, your function says {ratio:.2g}; {machine.truth:g} is right.",
            machine.look,
        )
    if machine.counting < _ROUNDS:
        raise Rejection(
            f"On {machine.fault.removeprefix('a function and itself, on ')}, your ratio rests on "
            f"{plural(machine.counting, 'round')}.",
            f"It is right, but perhaps by chance. Go on until {_ROUNDS} rounds count.",
        )
    return ratio


# --- W3. A verdict ----------------------------------------------------------------------------

_WORDS = ("holds", "fails", "inconclusive")
_MOST_SAMPLES = 144
_COMPARISONS = 1000
_PROMISED = 60  # Of a thousand: one in twenty, and a margin for chance.


@exercise("W3", "my_verdict", "my_decision")
def check_w3(verdict: Callable, decision: Callable) -> Report:
    """Check a verdict over samples, and a decision that takes samples in several looks."""
    _require_verdicts(verdict)
    clear = _require_decided(decision, above=0, of=9, most=9, expected="holds")
    _require_decided(decision, above=9, of=9, most=9, expected="fails")
    later = _require_decided(decision, above=3, of=10, most=_MOST_SAMPLES, expected="holds")
    winners = _require_promise(decision)
    return (
        f"All {len(_CASES)} sets of samples got the right verdict. A clear case was decided after "
        f"{clear} samples and a less clear one after {later}, and in {winners} of {_COMPARISONS} "
        "comparisons of equals your decision found a winner."
    )


class _Case(NamedTuple):
    """A number of samples, how many of them lie at the bound or above, and the level to reach."""

    count: int
    above: int
    level: float


_CASES = [
    *(_Case(9, above, 0.95) for above in (0, 9, 4, 1, 8, 2)),
    _Case(9, 1, 0.99),
    *(_Case(36, above, 0.95) for above in (11, 12)),
    _Case(36, 26, 0.99),
    *(_Case(5, above, 0.95) for above in (0, 5)),
]


def _samples(above: Iterable[bool], bound: float, seed: int) -> list[float]:
    """Return samples on the given sides of a bound; some of the samples above lie far away."""
    draw = np.random.default_rng(seed)
    return [
        bound * (1 + 0.3 * draw.random() ** (-2) if is_above else 1 - 0.1 - 0.3 * draw.random())
        for is_above in above
    ]


def _require_verdicts(verdict: Callable) -> None:
    bound = 2.0
    sets = []
    for seed, case in enumerate(_CASES):
        sides = np.random.default_rng(seed).permutation(np.arange(case.count) < case.above)
        samples = _samples(sides, bound, seed)
        if case.above:  # The first of them equals the bound, and so does not lie below it.
            samples[np.argmax(sides)] = bound
        sets.append(samples)
    cases = [(list(samples), bound, case.level) for samples, case in zip(sets, _CASES, strict=True)]
    answers = call_answer(verdict, cases, "my_verdict(samples, bound, level)")
    for case, samples, answer in zip(_CASES, sets, answers, strict=True):
        right = (Quantity("time", tuple(samples), level=case.level) < bound).verdict
        if (word := _word(answer, "my_verdict")) != right:
            raise Rejection(
                f"Of {case.count} samples {case.above or 'none'} lie"
                f"{'s' if case.above == 1 else ''} at the bound or above; at "
                f"{in_percent(case.level)}, your my_verdict says {word!r}.",
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


def _word(answer: Any, name: str) -> str:
    if not isinstance(answer, str) or answer not in _WORDS:
        words = ", ".join(map(repr, _WORDS))
        raise Rejection(f"Your {name} returned {shown(answer)}.", f"Return one of {words}.")
    return answer


class _Source:
    """Gives out samples, and counts them."""

    def __init__(self, samples: Sequence[float]):
        self._samples = samples
        self.taken = self.looks = 0

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
        if self.looks == 5:  # After 9 samples, and four more times.
            raise Rejection(
                f"Your my_decision has taken samples {self.looks} times, and asked for more.",
                "Each time is a look. When do you decide how often to look?",
            )
        first = self.taken
        self.taken += int(count)
        self.looks += 1
        return list(self._samples[first : self.taken])


def _decisions(decision: Callable, sources: list[_Source], bound: float) -> list[str]:
    cases = [(source.more, bound) for source in sources]
    answers = call_answer(decision, cases, "my_decision(more, bound)")
    return [_word(answer, "my_decision") for answer in answers]


def _require_decided(decision: Callable, above: int, of: int, most: int, expected: str) -> int:
    """Return the number of samples that a decision takes to say the expected word."""
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
    """Return the number of comparisons of equals with a winner; reject if there are too many."""
    draw = np.random.default_rng(38)
    ratios = np.exp(draw.normal(size=(_COMPARISONS, _MOST_SAMPLES))).tolist()
    sources = list(map(_Source, ratios))
    words = _decisions(decision, sources, 1.0)
    winners = len(words) - words.count("inconclusive")
    if winners > _PROMISED:
        raise Rejection(
            f"In {winners} of {_COMPARISONS} comparisons of equals your my_decision found a "
            f"winner; a 95% interval may find one in twenty, {_COMPARISONS // 20}.",
            "Each look is another chance to be fooled. How sure does a single look have to be, so "
            "that all of them together are wrong at most once in twenty times?",
        )
    return winners
