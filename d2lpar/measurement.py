"""Measure a function again and again, until the answer is clear or the time is up."""

import contextlib
import html
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Never

import jax

from d2lpar._tables import as_table, in_two_lines, stacked_bar
from d2lpar._tracing import require_values
from d2lpar.barriers import block
from d2lpar.compilation import listed, record_compilations
from d2lpar.control import Control
from d2lpar.devices import device_name
from d2lpar.errors import ArgumentError, CompilationError, require_count, require_function
from d2lpar.quantity import LEVEL, Predicate, Quantity, in_percent
from d2lpar.units import format_seconds, format_value

LOOKS = 5
"""How often a comparison that stops when the answer is clear looks at its claim, at most."""

FEWEST_ROUNDS = 9
"""So few rounds bear an outlier at each end of a 95 % interval."""


@dataclass(frozen=True, repr=False)
class Measurement:
    """Two times for each repeat of one function, and what else was observed of it.

    Attributes:
        name: What was measured.
        dispatch: Seconds until Python had control back.
        total: Seconds until the result was ready.
        warnings: What a reader should know before trusting it; one sentence each.
        devices: The names of the devices that its results lay on.
        observed: What was observed of each result, by name.
    """

    name: str
    dispatch: Quantity
    total: Quantity
    warnings: tuple[str, ...] = ()
    devices: frozenset[str] = frozenset()
    observed: Mapping[str, Quantity] = field(default_factory=dict)

    def of(self, name: str) -> Quantity:
        """Return one of its quantities.

        Args:
            name: `"dispatch"`, `"total"`, or what was observed.

        Raises:
            ArgumentError: If there is none of that name.
        """
        known = {"dispatch": self.dispatch, "total": self.total, **self.observed}
        if name not in known:
            raise ArgumentError(f"{self.name!r} has no {name!r}; it has {', '.join(known)}.")
        return known[name]

    def __repr__(self) -> str:
        lines = [f"{self.name}, {len(self.total.samples)} repeats"]
        for label, times in (("dispatch", self.dispatch), ("total", self.total)):
            low, high = (format_seconds(end) for end in times.interval)
            lines.append(
                f"  {label:<9}{format_seconds(times.median):>8}   "
                f"{in_percent(times.level)} interval {low} to {high}"
            )
        lines += [f"  {quantity!r}" for quantity in self.observed.values()]
        lines += [f"  caution: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    @property
    def _remarks(self) -> list[str]:
        """What the intervals beside the medians do not say."""
        return [warning for warning in self.warnings if warning not in self.total.warnings]

    def _repr_html_(self) -> str:
        return _times_table([self], self._remarks)


class Comparison(dict[str, Measurement]):
    """Measurements that were taken in turn, by name; their samples pair up round by round.

    Args:
        measurements: One for each arm.
        level: The confidence of their intervals.
        controlled: Whether the control held, for each round; None without a control.
        needs: What is missing if it held in too few rounds.
    """

    def __init__(
        self,
        measurements: Iterable[Measurement],
        level: float = LEVEL,
        controlled: Iterable[bool] | None = None,
        needs: str = "",
    ) -> None:
        super().__init__((measurement.name, measurement) for measurement in measurements)
        self.level: float = level
        self.controlled = None if controlled is None else tuple(controlled)
        self._needs = needs

    @property
    def missing(self) -> str | None:
        """What the machine lacked, if the control held in fewer than nine rounds; else None."""
        if self.controlled is None or sum(self.controlled) >= FEWEST_ROUNDS:
            return None
        return self._needs

    def counting(self, quantity: Quantity) -> Quantity:
        """Return the samples of the rounds that count: in which the control held, if it has one.

        Args:
            quantity: Has a sample for each round.

        Returns:
            The samples of those rounds, or all of them if `missing` says what is missing.
        """
        if self.controlled is None or self.missing:
            return quantity
        return quantity.where(self.controlled)

    def ratio(self, over: str, under: str, of: str = "total") -> Quantity:
        """Divide a quantity of one arm by that of another, in each round that counts.

        Args:
            over: The name of the one arm.
            under: The name of the other.
            of: `"total"`, `"dispatch"`, or what was observed.

        Returns:
            The ratios, with a name that says what they are.

        Raises:
            ArgumentError: If there is no such arm or quantity.
        """
        for name in (over, under):
            if name not in self:
                raise ArgumentError(f"There is no arm {name!r}; there are {', '.join(self)}.")
        ratio = self.counting(self[over].of(of) / self[under].of(of))
        label = {"total": "time", "dispatch": "time of dispatch"}.get(of, of)
        return ratio.renamed(f"{label}, {over} over {under}")

    def __repr__(self) -> str:
        lines = [repr(measurement) for measurement in self.values()]
        if self.controlled is not None:
            lines.append(f"control: {sum(self.controlled)} of {len(self.controlled)} rounds count")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        below = [f"{name}: {remark}" for name, m in self.items() for remark in m._remarks]
        if self.controlled is not None:
            counting = f"{sum(self.controlled)} of {len(self.controlled)}"
            below.append(f"In {counting} rounds the control held; only these count in a ratio.")
        return _times_table(list(self.values()), below)


def _times_table(measurements: list[Measurement], below: list[str]) -> str:
    """Return the HTML of when Python had control back and when the result was ready."""
    observed = list(dict.fromkeys(label for m in measurements for label in m.observed))
    longest = max((m.total.median for m in measurements), default=0.0)
    rows = []
    for m in measurements:
        shown = [m.dispatch, m.total, *(m.of(label) for label in observed)]
        asked, ready, *others = (
            in_two_lines(format_value(q.median, q.unit), _ends(q)) for q in shown
        )
        bar = stacked_bar(
            m.dispatch.median,
            m.total.median,
            longest,
            f"Python is held for {format_seconds(m.dispatch.median)} of "
            f"{format_seconds(m.total.median)}",
        )
        rows.append([html.escape(m.name), asked, ready, bar, *others])
    level = in_percent(measurements[0].total.level) if measurements else ""
    count = len(measurements[0].total.samples) if measurements else 0
    note = f"Medians of {count} rounds, with their {level} intervals below."
    header = ["", "Python has control back", "the result is ready", "", *observed]
    return as_table(header, rows, [note, *below])


def _ends(quantity: Quantity) -> str:
    if not quantity.exact and len(quantity.samples) < quantity.fewest:
        return "too few for an interval"
    low, high = (format_value(end, quantity.unit) for end in quantity.interval)
    return low if low == high else f"{low} to {high}"


Until = Callable[[Any], Predicate | Iterable[Predicate]]


def measure(
    function: Callable[..., Any],
    *args: Any,
    until: Until | None = None,
    repeats: int = FEWEST_ROUNDS,
    limit: float = 20.0,
    warmup: int = 1,
    name: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time `function(*args)`: until Python has control back, and until the result is ready.

    Args:
        function: What to measure. It must *return* what it computes: that is what is waited for.
        *args: Its arguments, made beforehand so that making them is not timed. A function that
            donates them cannot be called twice with the same ones.
        until: As for `compare`; it is given the measurement so far.
        repeats: How many times to measure; six or more give a 95 % interval.
        limit: As for `compare`.
        warmup: How many calls to make first, uncounted, so that nothing compiles later.
        name: What to print; the function's name if None.
        clock: Returns seconds.

    Returns:
        The raw times and what follows from them.

    Raises:
        ArgumentError: If `function` cannot be called, or a count or the limit is out of range.
        CompilationError: If XLA compiles something while the clock runs.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> double = jax.jit(lambda x: 2 * x)
        >>> result = measure(double, jnp.ones(1000), repeats=6)
        >>> (result.dispatch / result.total).median <= 1
        True
    """
    require_values("measure()")
    require_function("measure", function)
    name = name or getattr(function, "__name__", type(function).__name__)
    question = None if until is None else _Question(until, lambda rounds: rounds[name])
    rounds = _Rounds([_Arm(name, lambda: function(*args), clock, {}, {})], warmup)
    return rounds.taken(question, repeats, limit)[name]


def compare(
    arms: Mapping[str, Callable[[], Any]],
    *,
    until: Until | None = None,
    repeats: int = FEWEST_ROUNDS,
    limit: float = 20.0,
    observe: Mapping[str, Callable[[Any], float]] | None = None,
    units: Mapping[str, str] | None = None,
    control: Control | None = None,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time several functions in turn, so that whatever disturbs the machine hits all alike.

    The order is reversed in every other round (A B C, C B A, ...). In an even number of rounds a
    steady drift cancels; in an odd one, that of a single call is left.
    Divide the times of two arms to get their ratio round by round: `times.ratio("a", "b")`.

    With `until` it goes on until what is to be claimed is decided. It looks after `repeats` rounds,
    then after twice as many, and so on, five times at most. Whoever looks several times and stops
    when it pleases is wrong more often than the interval says, so each look has a fifth of the
    allowed error: the intervals are those of 99 %, and whatever the number of looks, at most 5 % of
    the claims whose bound is the truth are decided. (Alpha spending in equal parts: K. K. G. Lan
    and D. L. DeMets, 1983, Discrete sequential boundaries for clinical trials, Biometrika 70;
    that the parts add up to no more than the whole is Bonferroni's inequality.)

    Args:
        arms: Functions without arguments, by name. Each must return what it computes.
        until: Takes the comparison so far and returns what is to be decided: one comparison of
            quantities, such as `times.ratio("a", "b") < 0.5`, or several. None for just `repeats`
            rounds.
        repeats: How many rounds; six or more give a 95 % interval. With `until`, how many before
            the first look.
        limit: Seconds. Once so many have passed, the round under way is the last; only the first
            `repeats` rounds are always taken. What is still undecided then stays inconclusive.
        observe: What else to note of each result, by name: functions that return a number. They
            are called when the result is ready and the clock has stopped.
        units: Their units, by name, where they have one: `"s"` or `"B"`.
        control: What decides which rounds count, such as `free_cores(2)`.
        warmup: How many uncounted rounds to run first.
        clock: Returns seconds.

    Returns:
        A measurement for each name.

    Raises:
        ArgumentError: If there is no arm, one cannot be called, a count or the limit is out of
            range, or `until` does not look at what is measured.
        CompilationError: If XLA compiles something while the clock runs.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((1000, 1000))
        >>> times = compare(
        ...     {"sum": lambda: x.sum(), "product": lambda: x @ x},
        ...     until=lambda times: times.ratio("product", "sum") > 1.5,
        ... )
        >>> (times.ratio("product", "sum") > 1.5).verdict
        'holds'
    """
    require_values("compare()")
    if not isinstance(arms, Mapping) or not arms:
        raise ArgumentError(
            "compare() needs a dictionary of functions by name, "
            f'found {arms!r}: compare({{"a": f, "b": g}}).'
        )
    for name, function in arms.items():
        if not callable(function):
            raise ArgumentError(
                f"compare() cannot call {name!r}, which is {type(function).__name__}: "
                f'pass a function without arguments, {{"{name}": lambda: f(x)}}.'
            )
    question = None if until is None else _Question(until)
    made = [_Arm(name, arm, clock, observe or {}, units or {}) for name, arm in arms.items()]
    return _Rounds(made, warmup, control).taken(question, repeats, limit)


# --- Rounds -----------------------------------------------------------------------------------


class _Arm:
    """One function with the times it has taken so far."""

    def __init__(
        self,
        name: str,
        call: Callable[[], Any],
        clock: Callable[[], float],
        observe: Mapping[str, Callable[[Any], float]],
        units: Mapping[str, str],
    ) -> None:
        self.name = name
        self.call = call
        self.clock = clock
        self.observe = observe
        self.units = units
        self.dispatch: list[float] = []
        self.total: list[float] = []
        self.observed: dict[str, list[float]] = {label: [] for label in observe}
        self.waited_for_something = False
        self.devices: set[jax.Device] = set()

    def warm_up(self) -> None:
        block(self.call())

    def time_once(self) -> None:
        with record_compilations() as compiled:
            start = self.clock()
            result = self.call()
            returned = self.clock()
            block(result)
            ready = self.clock()
        if compiled:
            raise CompilationError(
                f"{listed(compiled)} was compiled while {self.name!r} was being timed, so the "
                "time is that of the compiler. Warm up with arguments of the same shapes, dtypes "
                "and devices; an array from device_put and one that is not compile separately. If "
                "another thread compiles, stop it while measuring."
            )
        self.dispatch.append(returned - start)
        self.total.append(ready - start)
        for label, look_at in self.observe.items():
            self.observed[label].append(look_at(result))
        for leaf in jax.tree.leaves(result):
            self.waited_for_something |= hasattr(leaf, "block_until_ready")
            if isinstance(leaf, jax.Array):
                self.devices |= leaf.devices()

    def measurement(self, level: float) -> Measurement:
        def quantity(label: str, samples: Iterable[float], unit: str) -> Quantity:
            return Quantity(f"{self.name}, {label}", tuple(samples), unit, level=level)

        dispatch, total = (
            quantity("dispatch", self.dispatch, "s"),
            quantity("total", self.total, "s"),
        )
        observed = {
            label: quantity(label, samples, self.units.get(label, ""))
            for label, samples in self.observed.items()
        }
        warnings = total.warnings
        if not self.waited_for_something:
            warnings += ("returned no JAX array: total is when Python was done, no more",)
        devices = frozenset(map(device_name, self.devices))
        return Measurement(self.name, dispatch, total, warnings, devices, observed)


class _Rounds:
    """Rounds in which each arm has its turn."""

    def __init__(self, arms: list[_Arm], warmup: int, control: Control | None = None) -> None:
        require_count("warmup", warmup, at_least=0)
        self._arms = arms
        self._warmup = warmup
        self._control = control
        self._probed: list[float] = []

    def taken(self, question: "_Question | None", repeats: int, limit: float) -> Comparison:
        """Take rounds until the question is decided or the time is up; without one, `repeats`."""
        require_count("repeats", repeats, at_least=1)
        if not limit > 0:
            raise ArgumentError(f"limit must be more than 0 seconds, found {limit!r}.")
        if question:
            question.must_look()
        clock = self._arms[0].clock
        for round_ in range(-self._warmup, 0):
            self._take(round_)
        started, rounds = clock(), 0
        for look in range(LOOKS if question else 1):
            # When the time is up is no result of what was measured, so such a look is like others.
            while rounds < repeats * 2**look and not (look and clock() - started > limit):
                self._take(rounds)
                rounds += 1
            so_far = self._comparison(1 - (1 - LEVEL) / LOOKS if question else LEVEL)
            if not question or question.decided_by(so_far) or clock() - started > limit:
                break
        return so_far

    def _take(self, round_: int) -> None:
        for arm in self._arms if round_ % 2 == 0 else reversed(self._arms):
            try:
                arm.warm_up() if round_ < 0 else arm.time_once()
            except BaseException as error:  # Also the reader's Ctrl-C.
                where = "the warm-up" if round_ < 0 else f"round {round_ + 1}"
                with contextlib.suppress(AttributeError):  # A frozen exception takes no note.
                    error.add_note(f"Raised in {where} of {arm.name!r}.")
                raise
        if self._control and round_ >= 0:
            self._probed.append(self._control.probe())

    def _comparison(self, level: float) -> Comparison:
        measurements = [arm.measurement(level) for arm in self._arms]
        if not self._control:
            return Comparison(measurements, level)
        held = [number < self._control.below for number in self._probed]
        return Comparison(measurements, level, held, self._control.needs)


# --- When to stop -----------------------------------------------------------------------------


class _Question:
    """What is to be decided by a comparison, or by a part of it."""

    def __init__(
        self, until: Until, part: Callable[[Comparison], Any] = lambda rounds: rounds
    ) -> None:
        if not callable(until):
            raise ArgumentError(
                f"until must be a function of what is measured, found {until!r}: "
                "until=lambda times: times.ratio('a', 'b') < 0.5."
            )
        self._until = until
        self._part = part

    def must_look(self) -> None:
        """Refuse a question that has its answer before anything is measured."""
        with contextlib.suppress(_LookedAtError):
            self._until(_Unmeasured())
            raise ArgumentError(
                "until does not look at what is measured, so no number of rounds could change its "
                "answer: compare quantities of the comparison that it is given."
            )

    def decided_by(self, comparison: Comparison) -> bool:
        asked = self._until(self._part(comparison))
        predicates = (asked,) if isinstance(asked, Predicate) else tuple(asked or ())
        if not predicates or not all(isinstance(p, Predicate) for p in predicates):
            raise ArgumentError(
                "until must return a comparison of quantities, such as ratio < 0.5, or several, "
                f"found {asked!r}."
            )
        for quantity in (predicate.quantity for predicate in predicates):
            if quantity.level < comparison.level and not quantity.exact:
                raise ArgumentError(
                    f"{quantity.name!r} has an interval of {in_percent(quantity.level)}, which is "
                    f"too narrow for one of {LOOKS} looks: derive it from the comparison with "
                    "ratio(), of(), - and /, or observe it, so that it keeps its level."
                )
        return not comparison.missing and all(p.verdict != "inconclusive" for p in predicates)


class _LookedAtError(Exception):
    """Something was asked of what has not been measured yet."""


class _Unmeasured:
    """What `until` is given before anything is measured, to see that it looks at it."""

    def _looked_at(self, *_: object) -> Never:
        raise _LookedAtError

    __getattr__ = __getitem__ = __iter__ = __len__ = __contains__ = _looked_at
