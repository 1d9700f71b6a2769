"""Benchmark functions of JAX: measure one again and again, or compare several, interleaved.

How it works. A call is timed twice, when Python has control back and when the result is ready, and
an error is raised if XLA compiles meanwhile. `compare` runs rounds. In each round every function is
called once, and in every other round in reversed order. So a disturbance or a drift of the machine
hits all functions alike, and their times can be divided round by round::

    round      1       2       3     ...     9     ...     18     ...     144
    calls    A B C   C B A   A B C         A B C         C B A           C B A
                                             |              |              |
                                          look 1         look 2         look 5

Without `until` it stops after `repeats` rounds. With `until` this is a sequential test: after 9,
18, 36, 72 and 144 rounds it looks at the claim, and stops at the first look that decides it. Five
looks are wrong more often than one, so each may spend only a fifth of the allowed 5% (alpha
spending, Bonferroni): its intervals have 99%. Rounds in which a control does not hold are dropped
before anything is derived from the others, and so is the surplus of one order over the other: on a
machine that drifts, each order has a ratio of its own, and a median takes the side of the majority.
"""

import contextlib
import html
import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from d2lpar._jax import state
from d2lpar._jax.compilations import listed, record_compilations
from d2lpar._jax.devices import device_name, this_machine
from d2lpar._jax.state import require_values
from d2lpar._measure.quantity import LEVEL, Predicate, Quantity, in_percent
from d2lpar._measure.waiting import ExplainDonation, wait_all, wait_for
from d2lpar._plain.cores import Control
from d2lpar._plain.errors import CompilationError, require_count, require_function, require_seconds
from d2lpar._plain.format import (
    as_table,
    format_seconds,
    format_value,
    in_two_lines,
    plural,
    stacked_bar,
)

LOOKS = 5
"""The most looks at the claim of a comparison that stops when the claim is decided."""

FEWEST_ROUNDS = 9
"""With nine samples, the 95% interval leaves out the smallest and the largest one."""


@dataclass(frozen=True, repr=False)
class Measurement:
    """The times of one function, dispatch and total, for each repeat, and further observations.

    Attributes:
        name: The name of the function.
        dispatch: Seconds until Python had control back.
        total: Seconds until the result was ready.
        warnings: Reasons to doubt the times; one sentence each.
        devices: The names of the devices that its results lay on.
        observed: The quantities that `observe` took from each result, by name.

    Example:
        >>> import time
        >>> (measure(time.sleep, 0.01).total > 0.005).holds
        True
    """

    name: str
    dispatch: Quantity
    total: Quantity
    warnings: tuple[str, ...] = ()
    devices: frozenset[str] = frozenset()
    observed: Mapping[str, Quantity] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Quantity:
        """Return one of its quantities: `"dispatch"`, `"total"`, or an observed one.

        Raises:
            KeyError: If no quantity has that name.
        """
        known = {"dispatch": self.dispatch, "total": self.total, **self.observed}
        if name not in known:
            raise KeyError(f"{self.name!r} has no {name!r}; it has {', '.join(known)}.")
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

    def to_json(self) -> str:
        """Return it as one line of JSON, with all samples, in seconds.

        It is that of a `Comparison` of this one function, and read by `Comparison.from_json`.
        """
        return Comparison([self], self.total.level).to_json()

    @property
    def _remarks(self) -> list[str]:
        """The warnings that the intervals beside the medians do not show."""
        return [warning for warning in self.warnings if warning not in self.total.warnings]

    def _repr_html_(self) -> str:
        return _times_table([self], self._remarks)


_SHARED_FIELDS = ("machine", "level", "dropped_rounds", "needs")
"""The fields of a comparison's JSON that hold for all of its measurements."""


class Comparison(dict[str, Measurement]):
    """The measurements of functions that were called in turn, paired up round by round.

    It is a dict: `times["new"]` is the `Measurement` of the function of that name.

    Args:
        measurements: One for each function, of the rounds that count.
        level: The confidence of their intervals.
        dropped_rounds: How many rounds do not count, by the control or as the surplus of one order.
        needs: What the machine was missing, such as free cores, if fewer than nine rounds count.
            The measurements are then of all rounds, and no claim should rest on them.
        machine: The machine that they were taken on, in words; this machine if None.

    Example:
        >>> import time
        >>> times = compare({"empty list": list, "nap": lambda: time.sleep(0.02)})
        >>> (times.ratio("nap", "empty list") > 2).holds
        True
    """

    def __init__(
        self,
        measurements: Iterable[Measurement],
        level: float = LEVEL,
        dropped_rounds: int = 0,
        needs: str | None = None,
        machine: str | None = None,
    ) -> None:
        super().__init__((measurement.name, measurement) for measurement in measurements)
        self.level: float = level
        self.dropped_rounds: int = dropped_rounds
        self.needs: str | None = needs
        self._machine = machine

    @property
    def machine(self) -> str:
        """The machine that it was measured on, in words, with JAX's devices and its version."""
        if self._machine is None:
            here = this_machine().rows
            self._machine = f"{here['Processor']}; {here['JAX devices']}; jax {jax.__version__}"
        return self._machine

    def ratio(self, over: str, under: str, of: str = "total") -> Quantity:
        """Divide a quantity of one function by the same quantity of another, round by round.

        Args:
            over: The name of the one function.
            under: The name of the other.
            of: `"total"`, `"dispatch"`, or the name of an observed quantity.

        Returns:
            The ratios, with a name such as "time, a over b".

        Raises:
            KeyError: If there is no such function or quantity.
        """
        for name in (over, under):
            if name not in self:
                raise KeyError(f"There is no function {name!r}; there are {', '.join(self)}.")
        label = {"total": "time", "dispatch": "time of dispatch"}.get(of, of)
        return (self[over][of] / self[under][of]).rename(f"{label}, {over} over {under}")

    def to_json(self) -> str:
        """Return it as one line of JSON, to be read again by `from_json`.

        It has all samples, in seconds and bytes, and names the machine they were taken on. The
        command `python -m d2lpar compare` reads two such files, of two versions of a program.

        Example:
            >>> import jax.numpy as jnp
            >>> x = jnp.ones((100, 100))
            >>> times = compare({"sum": lambda: x.sum(), "product": lambda: x @ x})
            >>> again = Comparison.from_json(times.to_json())
            >>> again["sum"].total.samples == times["sum"].total.samples
            True
        """
        shared = {name: getattr(self, name) for name in _SHARED_FIELDS}
        measured = list(map(asdict, self.values()))
        # `sorted` turns the set of devices, which JSON does not have, into a list.
        return json.dumps(shared | {"measurements": measured}, default=sorted)

    @classmethod
    def from_json(cls, text: str) -> "Comparison":
        """Read a comparison from the text that `to_json` wrote.

        Raises:
            ValueError: If it is something else.
        """
        try:
            data = json.loads(text)
            measured = [
                Measurement(
                    entry["name"],
                    Quantity(**entry["dispatch"]),
                    Quantity(**entry["total"]),
                    tuple(entry["warnings"]),
                    frozenset(entry["devices"]),
                    {name: Quantity(**quantity) for name, quantity in entry["observed"].items()},
                )
                for entry in data["measurements"]
            ]
            shared = {name: data[name] for name in _SHARED_FIELDS}
            if not isinstance(shared["machine"], str) or not 0 < shared["level"] < 1:
                raise ValueError(f"{shared} does not describe a comparison")
            return cls(measured, **shared)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"This text was not written by Comparison.to_json or Measurement.to_json: "
                f"{error!r}."
            ) from error

    def __repr__(self) -> str:
        lines = [repr(measurement) for measurement in self.values()]
        return "\n".join([*lines, *self._remarks])

    def _repr_html_(self) -> str:
        names_by_remark: dict[str, list[str]] = {}
        for name, measurement in self.items():
            for remark in measurement._remarks:
                names_by_remark.setdefault(remark, []).append(name)
        remarks = [f"{', '.join(names)}: {remark}" for remark, names in names_by_remark.items()]
        return _times_table(list(self.values()), [*remarks, *self._remarks])

    @property
    def _remarks(self) -> list[str]:
        """A sentence about the rounds that do not count, if there are any."""
        if self.needs:
            return [f"Too few rounds count: this needs {self.needs}."]
        if self.dropped_rounds:
            dropped = plural(self.dropped_rounds, "round")
            return [f"Without {dropped}: the control failed, or one order came too often."]
        return []


def _times_table(measurements: list[Measurement], remarks: list[str]) -> str:
    """Return the HTML of when Python had control back and when the result was ready."""
    observed = list(dict.fromkeys(label for m in measurements for label in m.observed))
    longest = max((m.total.median for m in measurements), default=0.0)
    rows = []
    for m in measurements:
        quantities = [m.dispatch, m.total, *(m[label] for label in observed)]
        returned, ready, *others = (
            in_two_lines(format_value(q.median, q.unit), _interval_of(q)) for q in quantities
        )
        bar = stacked_bar(
            m.dispatch.median,
            m.total.median,
            longest,
            f"Python is held for {format_seconds(m.dispatch.median)} of "
            f"{format_seconds(m.total.median)}",
        )
        rows.append([html.escape(m.name), returned, ready, bar, *others])
    level = in_percent(measurements[0].total.level) if measurements else ""
    count = len(measurements[0].total.samples) if measurements else 0
    note = f"Medians of {count} rounds, with their {level} intervals below."
    header = ["", "the call returns", "the result is ready", "", *observed]
    return as_table(header, rows, [note, *remarks])


def _interval_of(quantity: Quantity) -> str:
    if quantity.too_few_samples:
        return "too few for an interval"
    low, high = (format_value(end, quantity.unit) for end in quantity.interval)
    return low if low == high else f"{low} to {high}"


Until = Callable[[Any], Predicate | Iterable[Predicate]]


def measure(
    function: Callable[..., Any],
    *args: Any,
    until: Until | None = None,
    repeats: int = FEWEST_ROUNDS,
    max_seconds: float = 20.0,
    warmup: int = 1,
    name: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time `function(*args)`: until Python has control back, and until the result is ready.

    Args:
        function: The function to measure. It must *return* the arrays that it computes, since the
            clock stops when these are ready.
        *args: Its arguments, made beforehand so that making them is not timed. Keyword arguments
            come with `functools.partial(function, name=value)`, since `measure` takes the names
            here for its own. A donated argument cannot be passed again: measure
            `carried(function, ...)`.
        until: As for `compare`; it is given the measurement so far.
        repeats: How many times to measure; six or more give a 95% interval.
        max_seconds: As for `compare`.
        warmup: How many calls to make first, uncounted, so that nothing compiles later.
        name: The name to print; the function's own if None.
        clock: Returns seconds.

    Returns:
        The raw times, with their medians and intervals.

    Raises:
        TypeError: If `function` cannot be called.
        ValueError: If a number is out of range, or the function needs an array that was deleted, or
            donated to an earlier call.
        CompilationError: If XLA compiles something while the clock runs.
        D2lparError: If JAX traces.

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
    rounds = _Rounds([_Timed(name, partial(function, *args), clock, {}, {})], warmup)
    return rounds.take(until, repeats, max_seconds, of=name)[name]


def compare(
    functions: Mapping[str, Callable[[], Any]],
    *,
    until: Until | None = None,
    repeats: int = FEWEST_ROUNDS,
    max_seconds: float = 20.0,
    observe: Mapping[str, Callable[[Any], float]] | None = None,
    units: Mapping[str, str] | None = None,
    control: Control | None = None,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Compare the times of functions that are called in turn, so that drift hits all alike.

    The order is reversed in every other round (A B C, C B A, ...). In an even number of rounds a
    steady drift cancels; in an odd one, the drift during a single call is left.
    Divide the times of two functions to get their ratio round by round: `times.ratio("a", "b")`.

    With `until` it goes on until the claim is decided. It looks after `repeats` rounds, then after
    twice as many, and so on, five times at most, with intervals of 99%. So, however often it
    looks, a claim whose bound is exactly the truth is decided in at most 5% of the cases. (Alpha
    spending in equal parts: K. K. G. Lan and D. L. DeMets, 1983, Discrete sequential boundaries for
    clinical trials, Biometrika 70; that the parts add up to no more than the whole is Bonferroni's
    inequality.)

    Args:
        functions: Functions without arguments, by name. Each must return the arrays that it
            computes. For a step that donates its state, pass `carried(step, state, ...)`.
        until: Takes the comparison so far and returns the claim to decide: one comparison of
            quantities, such as `times.ratio("a", "b") < 0.5`, or several. None for just `repeats`
            rounds.
        repeats: How many rounds; six or more give a 95% interval. With `until`, how many before
            the first look. With `until` and a `control`, so many have to count, but it looks after
            twice as many at the latest.
        max_seconds: After so many seconds the round under way is the last; only the first `repeats`
            rounds are always taken. A claim that is still undecided stays inconclusive.
        observe: Functions by name that each return a number for a result, to be noted as well. They
            are called when the result is ready and the clock has stopped.
        units: Their units, by name, where they have one: `"s"` or `"B"`.
        control: Decides which rounds count, such as `free_cores(2)`. If it holds so rarely that too
            few rounds would count in the end, `compare` gives up after twice `repeats` or later.
        warmup: How many uncounted rounds to run first.
        clock: Returns seconds.

    Returns:
        A measurement for each name.

    Raises:
        TypeError: If there is no function, or something given as one cannot be called.
        ValueError: If a number is out of range, `observe` uses the name `"total"` or `"dispatch"`,
            `units` has a name that `observe` lacks, `until` returns no claim of the comparison, or
            a function needs an array that was deleted or donated to an earlier call.
        CompilationError: If XLA compiles something while the clock runs.
        D2lparError: If JAX traces.

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
    if not isinstance(functions, Mapping) or not functions:
        raise TypeError(
            "compare() needs a dictionary of functions by name, "
            f'found {functions!r}: compare({{"a": f, "b": g}}).'
        )
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(
                f"compare() cannot call {name!r}, which is {type(function).__name__}: "
                f'pass a function without arguments, {{"{name}": lambda: f(x)}}.'
            )
    observe, units = observe or {}, units or {}
    _check_observed(observe, units)
    timed = [_Timed(name, call, clock, observe, units) for name, call in functions.items()]
    return _Rounds(timed, warmup, control).take(until, repeats, max_seconds)


def carried(
    step: Callable[..., Any], state: Any, /, *args: Any, **kwargs: Any
) -> Callable[[], Any]:
    """Turn a step into a function without arguments that passes its state on from call to call.

    So `measure`, `compare`, `record_trace` and `InFlight` can call it again and again, each time on
    the state of the call before, even if it donates that (`donate_argnums=0`). The state that you
    pass is then gone after the first call, and so are all arrays that share its memory:
    `jax.device_put` to where an array lies already copies nothing, and it may not copy the part of
    a replicated array that stays there. To keep it, pass `jax.tree.map(jnp.copy, state)`.

    If the step returns a state of another layout, or one that is committed to its device, as
    arguments from `jax.device_put(x, device)` make it, the second call compiles again: `warmup=2`
    leaves that out of the times, too.

    Args:
        step: Takes the state first, and returns the new one, or a tuple whose first element it is.
        state: The state of the first call: an array or a tree of them.
        *args: The further arguments, the same in each call.
        **kwargs: Likewise, by name.

    Returns:
        A function that calls `step` on the state of the call before, and returns all that `step`
        returns.

    Raises:
        TypeError: If `step` cannot be called.
        ValueError: At the first call, if `step` returns neither a state of the same tree structure
            and shapes, nor a tuple that begins with one.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> step = jax.jit(lambda w, x: (w + x, w.sum()), donate_argnums=0)
        >>> times = measure(carried(step, jnp.zeros(1000), 2.0), repeats=6)
        >>> len(times.total.samples)
        6
    """
    require_function("carried", step)
    name = getattr(step, "__name__", type(step).__name__)
    form = _form_of(state)
    take: Callable[[Any], Any] | None = None

    def call() -> Any:
        nonlocal state, take
        result = step(state, *args, **kwargs)
        # Decided in the first call, usually a warm-up: comparing two trees takes long.
        take = take or _way_to_state(name, form, result)
        state = take(result)
        return result

    call.__name__ = name
    return call


def _form_of(tree: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) for leaf in leaves]


def _way_to_state(name: str, form: tuple[Any, list[Any]], result: Any) -> Callable[[Any], Any]:
    """Return a function that takes the new state, which has this form, from the step's result."""
    if _form_of(result) == form:
        return lambda result: result
    if isinstance(result, tuple) and result and _form_of(result[0]) == form:
        return itemgetter(0)
    raise ValueError(
        f"carried() found no new state in the result of {name!r}: neither the result nor the first "
        f"element of a tuple has the form of the state. The state is {_described(form)}; it "
        f"returned {_described(_form_of(result))}. Return the new state, or (state, ...)."
    )


def _described(form: tuple[Any, list[Any]]) -> str:
    structure, shapes = form
    text = str(jax.tree.unflatten(structure, shapes))
    return text if len(text) < 200 else f"{text[:200]}..."


def _check_observed(observe: Mapping[str, Any], units: Mapping[str, str]) -> None:
    for name, observer in observe.items():
        if name in ("dispatch", "total"):
            raise ValueError(
                f"compare() itself measures {name!r}: give your observation another name."
            )
        if not callable(observer):
            raise TypeError(
                f"compare() cannot call {observer!r} to observe {name!r}: pass a function of the "
                f'result that returns a number, {{"{name}": lambda result: ...}}.'
            )
    for name in units:
        if name not in observe:
            raise ValueError(
                f"units gives {name!r} a unit, but observe has {', '.join(observe) or 'nothing'}."
            )


@dataclass
class _Timed:
    """One function with the times it has taken so far."""

    name: str
    call: Callable[[], Any]
    clock: Callable[[], float]
    observe: Mapping[str, Callable[[Any], float]]
    units: Mapping[str, str]
    returned_arrays: bool = False
    dispatch: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    observed: dict[str, list[float]] = field(default_factory=dict)
    devices: set[jax.Device] = field(default_factory=set)

    def warm_up(self) -> None:
        _drain_unless_arrays(wait_for(self.call()))

    def time_once(self) -> None:
        with record_compilations() as compiled:
            start = self.clock()
            result = self.call()
            returned = self.clock()
            wait_for(result)
            ready = self.clock()
        if compiled:
            raise CompilationError(
                f"{listed(compiled)} was compiled while {self.name!r} was being timed, so the "
                "time is that of the compiler. Warm up with arguments of the same shapes, dtypes "
                "and devices; arrays put on a named device and others differ in this, so a carried "
                "state may need warmup=2. If another thread compiles, stop it while measuring."
            )
        self.dispatch.append(returned - start)
        self.total.append(ready - start)
        for label, observer in self.observe.items():
            self.observed.setdefault(label, []).append(observer(result))
        self.returned_arrays |= _drain_unless_arrays(result)
        for leaf in jax.tree.leaves(result):
            if isinstance(leaf, jax.Array):
                self.devices |= leaf.devices()

    def measurement(self, level: float, counts: Sequence[bool]) -> Measurement:
        """Return the measurement over the rounds that count."""

        def quantity(label: str, samples: Iterable[float], unit: str) -> Quantity:
            counting = tuple(itertools.compress(samples, counts))
            return Quantity(f"{self.name}, {label}", counting, unit, level=level)

        dispatch = quantity("dispatch", self.dispatch, "s")
        total = quantity("total", self.total, "s")
        observed = {
            label: quantity(label, samples, self.units.get(label, ""))
            for label, samples in self.observed.items()
        }
        warnings = total.warnings
        if not self.returned_arrays:
            warnings += ("returned no JAX array, so nothing was waited for",)
        devices = frozenset(map(device_name, self.devices))
        return Measurement(self.name, dispatch, total, warnings, devices, observed)


def _drain_unless_arrays(result: Any) -> bool:
    """Return whether a result has arrays; if not, wait for all devices.

    Work that a function has dispatched but not returned would be in the time of the next function.
    """
    has_arrays = any(hasattr(leaf, "block_until_ready") for leaf in jax.tree.leaves(result))
    if not has_arrays and state.has_started():
        wait_all()
    return has_arrays


@dataclass
class _Rounds:
    """Rounds that each call every function once."""

    timed: list[_Timed]
    warmup: int
    control: Control | None = None
    probes: list[float] = field(default_factory=list)

    def take(
        self, until: Until | None, repeats: int, max_seconds: float, of: str | None = None
    ) -> Comparison:
        """Take rounds until a claim is decided or the time is up; without one, `repeats`."""
        if not (until is None or callable(until)):
            raise ValueError(
                f"until must be a function of what is measured, found {until!r}: "
                "until=lambda times: times.ratio('a', 'b') < 0.5."
            )
        require_count("warmup", self.warmup, at_least=0)
        require_count("repeats", repeats, at_least=1)
        require_seconds("max_seconds", max_seconds)
        clock = self.timed[0].clock
        for round_ in range(-self.warmup, 0):
            self._call_each(round_)
        started, rounds = clock(), 0
        for look in range(LOOKS if until else 1):
            # Slow rounds bring the end of the time nearer, so the number of rounds at a look then
            # depends on the samples. The five looks at 1% each leave room for that: together they
            # decide at most 2% in simulation, of the allowed 5%.
            while self._needs_more(rounds, repeats * 2**look, bool(until)):
                if rounds >= repeats and clock() - started > max_seconds:
                    break
                self._call_each(rounds)
                rounds += 1
            so_far = self._comparison(1 - (1 - LEVEL) / LOOKS if until else LEVEL)
            is_decided = not until or _is_decided(until(so_far[of] if of else so_far), so_far)
            if is_decided or clock() - started > max_seconds:
                break
            # Give up if too few rounds would count even at the last look, where at most
            # `repeats * 2**LOOKS` rounds are taken.
            counting_share = (rounds - so_far.dropped_rounds) / rounds
            counting_at_end = counting_share * repeats * 2**LOOKS
            if rounds >= 2 * repeats and counting_at_end < FEWEST_ROUNDS:
                break
        return so_far

    def _needs_more(self, rounds: int, wanted: int, has_claim: bool) -> bool:
        """Say whether the next look has to wait for more rounds: for `wanted` that count."""
        most = 2 * wanted if has_claim else wanted
        return rounds < wanted or (sum(self._counts()) < wanted and rounds < most)

    def _counts(self) -> list[bool]:
        """Return for each round whether it counts; the two orders differ by one round at most."""
        if not self.control:
            return [True] * len(self.timed[0].total)
        holds = np.array([probe < self.control.below for probe in self.probes], bool)
        for order in (slice(0, None, 2), slice(1, None, 2)):
            others = holds.sum() - holds[order].sum()
            holds[order] &= holds[order].cumsum() <= others + 1
        return holds.tolist()

    def _call_each(self, round_: int) -> None:
        for timed in self.timed if round_ % 2 == 0 else reversed(self.timed):
            try:
                with ExplainDonation(timed.name):
                    timed.warm_up() if round_ < 0 else timed.time_once()
            except BaseException as error:  # A KeyboardInterrupt as well.
                where = "the warm-up" if round_ < 0 else f"round {round_ + 1}"
                with contextlib.suppress(AttributeError):  # A frozen exception takes no note.
                    error.add_note(f"Raised in {where} of {timed.name!r}.")
                raise
        if self.control and round_ >= 0:
            self.probes.append(self.control.probe())

    def _comparison(self, level: float) -> Comparison:
        counts, needs = self._counts(), None
        dropped = counts.count(False)
        if self.control and sum(counts) < FEWEST_ROUNDS:
            counts, needs = [True] * len(counts), self.control.needs
        measurements = [timed.measurement(level, counts) for timed in self.timed]
        return Comparison(measurements, level, dropped, needs)


def _is_decided(claim: Any, comparison: Comparison) -> bool:
    """Return whether a comparison decides a claim that was derived from it."""
    predicates = (claim,) if isinstance(claim, Predicate) else claim
    predicates = tuple(predicates) if isinstance(predicates, Iterable) else ()
    if not predicates or not all(isinstance(p, Predicate) for p in predicates):
        raise ValueError(
            "until must return a comparison of quantities, such as ratio < 0.5, or several, found "
            f"{claim!r}."
        )
    for quantity in (predicate.quantity for predicate in predicates):
        if quantity.level < comparison.level and not quantity.exact:
            raise ValueError(
                f"{quantity.name!r} has an interval of {in_percent(quantity.level)}, which is too "
                f"narrow for one of {LOOKS} looks: derive it from the comparison with ratio(), "
                "[...], - and /, or observe it, so that it keeps its level."
            )
    return not comparison.needs and all(p.verdict != "inconclusive" for p in predicates)
