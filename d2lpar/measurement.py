"""Measure a function again and again, and say how sure the answer is."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from d2lpar.barriers import block
from d2lpar.compilation import listed, record_compilations
from d2lpar.devices import device_name
from d2lpar.errors import ArgumentError, CompilationError, require_count
from d2lpar.quantity import Quantity
from d2lpar.units import format_seconds


@dataclass(frozen=True, repr=False)
class Measurement:
    """Two times for each repeat of one function.

    Attributes:
        name: What was measured.
        dispatch: Seconds until Python had control back.
        total: Seconds until the result was ready.
        warnings: What a reader should know before trusting it; one sentence each.
        devices: The names of the devices that its results lay on.
    """

    name: str
    dispatch: Quantity
    total: Quantity
    warnings: tuple[str, ...] = ()
    devices: frozenset[str] = frozenset()

    def __repr__(self):
        lines = [f"{self.name}, {len(self.total.samples)} repeats"]
        for label, times in (("dispatch", self.dispatch), ("total", self.total)):
            low, high = (format_seconds(end) for end in times.interval)
            lines.append(
                f"  {label:<9}{format_seconds(times.median):>8}   95 % interval {low} to {high}"
            )
        lines += [f"  caution: {warning}" for warning in self.warnings]
        return "\n".join(lines)


class Comparison(dict[str, Measurement]):
    """Measurements that were taken in turn, by name; their samples pair up round by round."""

    def __repr__(self):
        return "\n".join(repr(measurement) for measurement in self.values())


def measure(
    function: Callable,
    *args,
    repeats: int = 9,
    warmup: int = 1,
    name: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time `function(*args)`: until Python has control back, and until the result is ready.

    Args:
        function: What to measure. It must *return* what it computes: that is what is waited for.
        *args: Its arguments, made beforehand so that making them is not timed. A function that
            donates them cannot be called twice with the same ones.
        repeats: How many times to measure; six or more give a 95 % interval.
        warmup: How many calls to make first, uncounted, so that nothing compiles later.
        name: What to print; the function's name if None.
        clock: Returns seconds.

    Returns:
        The raw times and what follows from them.

    Raises:
        ArgumentError: If `function` cannot be called, or a count is out of range.
        CompilationError: If XLA compiles something while the clock runs.
        Exception: Whatever the function raises; the repeats before it are kept on the
            exception, as `partial_measurement`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> double = jax.jit(lambda x: 2 * x)
        >>> result = measure(double, jnp.ones(1000), repeats=6)
        >>> (result.dispatch / result.total).median <= 1
        True
    """
    if not callable(function):
        raise ArgumentError(
            f"measure() needs a function to call, found {type(function).__name__}: "
            "pass f and its arguments, measure(f, x), not its result, measure(f(x))."
        )
    name = name or getattr(function, "__name__", type(function).__name__)
    arm = _Arm(name, lambda: function(*args), clock)
    return _run([arm], repeats, warmup)[name]


def compare(
    arms: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 9,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time several functions in turn, so that whatever disturbs the machine hits all alike.

    The order is reversed in every other round (A B C, C B A, ...). In an even number of rounds a
    steady drift cancels; in an odd one, that of a single call is left.
    Divide the times of two arms to get their ratio round by round:
    `times["a"].total / times["b"].total`.

    Args:
        arms: Functions without arguments, by name. Each must return what it computes.
        repeats: How many rounds; six or more give a 95 % interval.
        warmup: How many uncounted rounds to run first.
        clock: Returns seconds.

    Returns:
        A measurement for each name.

    Raises:
        ArgumentError: If there is no arm, one cannot be called, or a count is out of range.
        CompilationError: If XLA compiles something while the clock runs.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((100, 100))
        >>> times = compare({"sum": lambda: x.sum(), "product": lambda: x @ x}, repeats=6)
        >>> len((times["product"].total / times["sum"].total).samples)
        6
    """
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
    return _run([_Arm(name, arm, clock) for name, arm in arms.items()], repeats, warmup)


class _Arm:
    """One function with the times it has taken so far."""

    def __init__(self, name: str, call: Callable[[], Any], clock: Callable[[], float]):
        self.name = name
        self.call = call
        self.clock = clock
        self.dispatch: list[float] = []
        self.total: list[float] = []
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
        for leaf in jax.tree.leaves(result):
            self.waited_for_something |= hasattr(leaf, "block_until_ready")
            if isinstance(leaf, jax.Array):
                self.devices |= leaf.devices()

    def measurement(self) -> Measurement:
        dispatch = Quantity(f"{self.name}, dispatch", tuple(self.dispatch), "s")
        total = Quantity(f"{self.name}, total", tuple(self.total), "s")
        warnings = total.warnings
        if not self.waited_for_something:
            warnings += ("returned no JAX array: total is when Python was done, no more",)
        devices = frozenset(map(device_name, self.devices))
        return Measurement(self.name, dispatch, total, warnings, devices)


def _run(arms: list[_Arm], repeats: int, warmup: int) -> Comparison:
    require_count("repeats", repeats, at_least=1)
    require_count("warmup", warmup, at_least=0)
    for round_ in range(-warmup, repeats):
        for arm in arms if round_ % 2 == 0 else reversed(arms):
            try:
                arm.warm_up() if round_ < 0 else arm.time_once()
            except BaseException as error:  # Also the reader's Ctrl-C.
                _keep_earlier_times(error, arm, round_, repeats)
                raise
    return Comparison((arm.name, arm.measurement()) for arm in arms)


def _keep_earlier_times(error: BaseException, arm: _Arm, round_: int, repeats: int) -> None:
    where = "the warm-up" if round_ < 0 else f"repeat {round_ + 1} of {repeats}"
    note = f"Raised in {where} of {arm.name!r}"
    if arm.total:
        note += f"; the {len(arm.total)} before it are kept in this exception's partial_measurement"
    with contextlib.suppress(AttributeError):  # A frozen exception takes neither.
        error.partial_measurement = arm.measurement() if arm.total else None
        error.add_note(f"{note}.")
