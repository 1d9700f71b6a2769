"""A measured quantity: its raw samples, and a confidence interval of their median."""

import html
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any

from d2lpar._plain.format import UNITS, as_table, format_value, interval_bar, plural, prefix_of

LEVEL = 0.95
"""The confidence of an interval, unless a quantity has another one."""


@dataclass(frozen=True, eq=False, repr=False)
class Quantity:
    """Samples of one measured quantity, in the order of the measurements.

    Statistics are derived, never stored. Comparing a quantity with a number or with another
    quantity gives a `Predicate`, which looks at the whole interval: it can hold, fail, or be
    inconclusive.

    Attributes:
        name: The name of the quantity, as it should be printed.
        samples: The raw values, in `unit`.
        unit: `"s"`, `"B"`, or `""` for counts and ratios.
        exact: Whether there is no doubt about the value, since it was counted (see `exact`).
        level: The confidence of the interval: the probability that it covers the median.
        once: Whether the value was seen a single time (see `once`).

    Raises:
        ValueError: If there is no sample, one is NaN or infinite, the unit is unknown, or the
            level does not lie between 0 and 1. In a comparison: if the bound is no finite number,
            the units differ, or one side is exact seconds.

    Example:
        >>> times = Quantity("one product", (0.9, 1.1, 1.0, 1.0, 5.0, 1.0), "s")
        >>> times
        one product: 1 s (95% interval 900 ms to 5 s, 6 samples)
        >>> (times > 0.5).verdict, (times > 2).verdict, (times > 6).verdict
        ('holds', 'inconclusive', 'fails')
        >>> f"One product takes {times}."
        'One product takes 1 s.'
    """

    name: str
    samples: tuple[float, ...]
    unit: str = ""
    exact: bool = False
    level: float = LEVEL
    once: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(
                f"The confidence of {self.name!r} lies between 0 and 1, found {self.level!r}."
            )
        if self.unit not in UNITS:
            known = ", ".join(repr(unit) for unit in sorted(UNITS))
            raise ValueError(f"{self.name!r} has the unit {self.unit!r}; known are {known}.")
        try:
            values = tuple(self.samples)
            if isinstance(self.samples, str) or any(isinstance(sample, str) for sample in values):
                raise TypeError
            samples = tuple(map(float, values))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"The samples of {self.name!r} must be numbers, found {self.samples!r}."
            ) from error
        object.__setattr__(self, "samples", samples)
        if not self.samples:
            raise ValueError(f"{self.name!r} has no samples: measure it at least once.")
        for index, sample in enumerate(self.samples):
            if not math.isfinite(sample):
                raise ValueError(
                    f"Sample {index} of {self.name!r} is {sample}: nothing can be claimed of "
                    "it. Look for a division by zero or a run that did not finish."
                )

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The values below which a quarter and three quarters of the samples lie."""
        if len(self.samples) == 1:
            return self.samples * 2
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that covers the true median with a probability of at least `level`.

        It runs from the k-th smallest to the k-th largest sample. Each sample lies below the true
        median with probability 1/2, like heads of a fair coin. So k is the largest number such that
        n throws show fewer than k heads with a probability of at most (1 - level) / 2. That needs
        no assumption on how the samples are distributed, only that they are independent (H. A.
        David and H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1). With fewer than
        `min_samples` samples there is no such interval, and both ends are infinite.
        """
        ordered, n = sorted(self.samples), len(self.samples)
        if self.exact or self.once:
            return ordered[0], ordered[-1]
        # `ways` is math.comb(n, k), updated: computing each anew would take milliseconds for a
        # thousand samples.
        tail, ways, k = 0, 1, 0
        while (tail := tail + ways) / 2**n <= (1 - self.level) / 2:
            k += 1
            ways = ways * (n - k + 1) // k
        return (ordered[k - 1], ordered[-k]) if k else (-math.inf, math.inf)

    @property
    def min_samples(self) -> int:
        """The least number of samples for an interval of this level (6 for 95%, 8 for 99%)."""
        # All n lie on one side of the median with a probability of 2 / 2**n.
        return math.ceil(1 - math.log2(1 - self.level))

    @property
    def too_few_samples(self) -> bool:
        """Whether there are fewer samples than an interval of this level takes."""
        return not (self.exact or self.once) and len(self.samples) < self.min_samples

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt the median; one sentence each."""
        warnings = []
        low, high = self.quartiles
        if self.too_few_samples:
            count = len(self.samples)
            warnings.append(
                f"{plural(count, 'sample')} {'is' if count == 1 else 'are'} too few for a "
                f"{in_percent(self.level)} interval (needs {self.min_samples})"
            )
        if self.median and (share := (high - low) / abs(self.median)) > 0.25:
            warnings.append(f"interquartile range is {share:.0%} of the median")
        return tuple(warnings)

    def __truediv__(self, other: "Quantity | float") -> "Quantity":
        """Divide each sample by a number, or by the other quantity's sample of the same round.

        Raises:
            ValueError: If the two do not have the same number of samples or the same unit, or
                if the divisor or one of its samples is 0.
        """
        if isinstance(other, Real) and other:
            return replace(self, samples=tuple(sample / other for sample in self.samples))
        if isinstance(other, Real):
            raise ValueError(f"{self.name!r} cannot be divided by 0.")
        if not isinstance(other, Quantity):
            return NotImplemented
        pairs = self._rounds_with(other, "ratio")
        if 0 in other.samples:
            raise ValueError(f"Cannot divide by {other.name!r}: one of its samples is 0.")
        ratios = tuple(a / b for a, b in pairs)
        return Quantity(f"{self.name} / {other.name}", ratios, **certainty_of(self, other))

    def __sub__(self, other: "Quantity") -> "Quantity":
        """Subtract the other quantity's sample of the same round from each sample.

        Raises:
            ValueError: If the two do not have the same number of samples or the same unit.
        """
        if not isinstance(other, Quantity):
            return NotImplemented
        differences = tuple(a - b for a, b in self._rounds_with(other, "difference"))
        name = f"{self.name} - {other.name}"
        return Quantity(name, differences, self.unit, **certainty_of(self, other))

    def _rounds_with(self, other: "Quantity", result: str) -> list[tuple[float, float]]:
        if len(self.samples) != len(other.samples) or self.unit != other.unit:
            raise ValueError(
                f"A {result} is taken round by round, but "
                f"{self.name!r} has {len(self.samples)} samples in {self.unit!r} and "
                f"{other.name!r} has {len(other.samples)} in {other.unit!r}. "
                "Measure both with one `compare`."
            )
        return list(zip(self.samples, other.samples, strict=True))

    def __gt__(self, other: "Quantity | float") -> "Predicate":
        return Predicate(self, *self._bounds(other), ">", getattr(other, "once", False))

    def __lt__(self, other: "Quantity | float") -> "Predicate":
        return Predicate(self, *self._bounds(other), "<", getattr(other, "once", False))

    def between(self, low: float, high: float) -> "Predicate":
        """State that the quantity lies in `low` to `high`, both included.

        Raises:
            ValueError: If the two are no finite numbers, or in the wrong order.
        """
        if isinstance(low, Quantity) or isinstance(high, Quantity):
            raise ValueError(
                f"between() takes two numbers; state {self.name!r} > low and < high instead."
            )
        (low, _), (high, _) = self._bounds(low), self._bounds(high)
        if low > high:
            raise ValueError(f"No {self.name!r} can lie between {low} and {high}: swap them.")
        return Predicate(self, low, high, relation="between")

    def _bounds(self, other: "Quantity | float") -> tuple[float, float]:
        """Return the interval of a quantity, or a number twice."""
        for quantity in (self, other):
            if isinstance(quantity, Quantity) and quantity.exact and quantity.unit == "s":
                raise ValueError(
                    f"{quantity.name!r} is marked exact, but no time is exact: measure it several "
                    "times, with compare(), say that it was seen once, with once(), or give a "
                    "limit as a number."
                )
        if isinstance(other, Quantity):
            if other.unit != self.unit:
                raise ValueError(
                    f"{self.name!r} is in {self.unit!r} and {other.name!r} in {other.unit!r}: "
                    "quantities of different units cannot be compared."
                )
            return other.interval
        try:
            bound = float(other) if not isinstance(other, str) else math.nan
        except (TypeError, ValueError, OverflowError):
            bound = math.nan
        if not math.isfinite(bound):
            raise ValueError(f"{self.name!r} cannot be compared with {other!r}.")
        return bound, bound

    def rename(self, name: str) -> "Quantity":
        """Return the same samples under another name."""
        return replace(self, name=name)

    def as_dict(self) -> dict[str, Any]:
        """Return the quantity as plain data, for JSON."""
        return asdict(self) | {"samples": list(self.samples)}

    def __format__(self, spec: str) -> str:
        """Write the median for use in a sentence.

        Args:
            spec: Empty for two digits and the unit (a count is written out), `"%"` for a share in
                percent (two digits, or whole ones from 100 on), or Python's format of a number,
                such as `".2f"`; the unit follows.

        Example:
            >>> f"{Quantity('step', (0.0123,), 's'):.2f}"
            '12.30 ms'
        """
        if spec == "%":
            share = 100 * self.median
            return f"{format_value(share, '', digits=2 if share < 99.5 else 3)}%"
        if spec:
            scale, symbol = prefix_of(self.median, self.unit)
            return f"{format(self.median / scale, spec)} {symbol}".rstrip()
        is_count = (self.exact or self.once) and not self.unit and self.median.is_integer()
        return format_value(self.median, self.unit, digits=3 if is_count else 2)

    def __str__(self) -> str:
        return format(self, "")

    @property
    def summary(self) -> str:
        """The certainty of the median in words, which is its interval and the number of samples."""
        if self.exact:
            return "counted"
        if self.once:
            return "seen once"
        count = plural(len(self.samples), "sample")
        if len(set(self.samples)) == 1 < len(self.samples):
            return f"the same in all {count}"
        if self.too_few_samples:
            return f"{count}, too few for an interval"
        low, high = (format_value(end, self.unit) for end in self.interval)
        if low == high:  # After rounding; "1 to 1" does not read as an interval.
            return f"no spread within the {in_percent(self.level)} interval, {count}"
        return f"{in_percent(self.level)} interval {low} to {high}, {count}"

    def __repr__(self) -> str:
        value = format_value(self.median, self.unit)
        return f"{self.name}: {value}" if self.exact else f"{self.name}: {value} ({self.summary})"

    def _repr_html_(self) -> str:
        return quantities_table([self])


def quantities_table(
    quantities: Iterable[Quantity], predicates: Iterable["Predicate | None"] = ()
) -> str:
    """Return the HTML of a table of quantities, each with its interval drawn as a bar.

    Quantities of one unit share an axis, which includes zero. Each has a predicate that is claimed
    of it, or None; the bounds of the predicates are drawn as well.
    """
    predicates = list(predicates)
    pairs = list(itertools.zip_longest(quantities, predicates))
    rows = []
    for quantity, predicate in pairs:
        alike = [(q, p) for q, p in pairs if q.unit == quantity.unit]
        ends = [end for q, p in alike for end in (*q.interval, q.median, *_finite_bounds(p))]
        ends = list(filter(math.isfinite, ends))
        axis = min(0.0, *ends), max(0.0, *ends)
        low, high = quantity.interval
        finite = math.isfinite(high - low)
        bounds = _finite_bounds(predicate)
        value, *interval = (format_value(n, quantity.unit) for n in (quantity.median, low, high))
        label = f"median {value}, interval {' to '.join(interval)}"
        bar = interval_bar(low, quantity.median, high, axis, label, bounds) if finite else ""
        row = [html.escape(quantity.name), f"<b>{html.escape(value)}</b>", bar, quantity.summary]
        if predicates:
            tested = "not tested" if predicate is None else predicate.describe()
            row.append(html.escape(tested))
        rows.append(row)
    header = ["", "median", "interval", "", *(["tested"] if predicates else [])]
    return as_table(header, rows)


def _finite_bounds(predicate: "Predicate | None") -> list[float]:
    ends = () if predicate is None else (predicate.low, predicate.high)
    return sorted({end for end in ends if math.isfinite(end)})


def in_percent(share: float) -> str:
    """Write a share in percent, such as "95%" for 0.95."""
    return f"{100 * share:.3g}%"


def exact(name: str, value: float, unit: str = "") -> Quantity:
    """Return a quantity without any doubt, since it was counted.

    Args:
        name: The name of the count, as it should be printed.
        value: The number that was counted.
        unit: `"s"`, `"B"`, or `""`.

    Returns:
        A quantity whose interval is that value alone. Exact seconds can be shown, but not compared,
        since they were measured. A ratio or difference of them counts as seen once.

    Example:
        >>> exact("operators", 4)
        operators: 4
    """
    return Quantity(name, (value,), unit, exact=True)


def once(name: str, value: float, unit: str = "") -> Quantity:
    """Return a quantity that was seen a single time, and may be different the next time.

    Args:
        name: The name of the quantity, as it should be printed.
        value: The value that was seen.
        unit: `"s"`, `"B"`, or `""`.

    Returns:
        A quantity whose claims are at best `"seen"`, never `"holds"`, on either side of the sign.

    Example:
        >>> (once("until the other knows", 0.2, "s") < 10).verdict
        'seen'
    """
    return Quantity(name, (value,), unit, once=True)


def certainty_of(*quantities: Quantity) -> dict[str, Any]:
    """Return the certainty of a value computed from these quantities, as options of `Quantity`.

    It is exact only if all are and none is a time. If none was sampled, it is else seen once.
    """
    exact = all(quantity.exact and quantity.unit != "s" for quantity in quantities)
    sampled = not all(quantity.exact or quantity.once for quantity in quantities)
    level = max(quantity.level for quantity in quantities)
    return {"exact": exact, "level": level, "once": not (exact or sampled)}


@dataclass(frozen=True, repr=False)
class Predicate:
    """A comparison of a quantity's interval with a bound; true, false, or undecided.

    Attributes:
        quantity: The measured quantity.
        low: The lower end of the bound; for `>` and `<` with a number, that number.
        high: The upper end of the bound.
        relation: `">"`, `"<"`, or `"between"`.
        once: Whether the bound is a quantity that was seen once.
    """

    quantity: Quantity
    low: float
    high: float
    relation: str
    once: bool = False

    @property
    def verdict(self) -> str:
        """`"holds"` or `"fails"` if the whole interval agrees, else `"inconclusive"`.

        It is `"seen"` instead of `"holds"` if one of the two was seen once, and has no interval.
        """
        low, high = self.quantity.interval
        if self.relation == ">":
            holds, fails = low > self.high, high <= self.low
        elif self.relation == "<":
            holds, fails = high < self.low, low >= self.high
        else:
            holds = self.low <= low and high <= self.high
            fails = high < self.low or low > self.high
        if holds:
            return "seen" if self.quantity.once or self.once else "holds"
        return "fails" if fails else "inconclusive"

    @property
    def holds(self) -> bool:
        """Whether the whole interval agrees, to be used in an `assert`; False if undecided.

        Example:
            >>> times = Quantity("step", (0.9, 1.1, 1.0, 1.0, 5.0, 1.0), "s")
            >>> (times > 0.5).holds, (times > 2).holds
            (True, False)
        """
        return self.verdict == "holds"

    def margin(self) -> float:
        """Return how far the median is from the bound, in its units; negative if it fails."""
        value = self.quantity.median
        if not all(map(math.isfinite, (value, self.low, self.high))):
            return -math.inf  # A bound is infinite if it is a quantity with too few samples.
        match self.relation:
            case ">":
                distance, unit = value - self.high, self.high
            case "<":
                distance, unit = self.low - value, self.low
            case _ if self.low == self.high:  # The value has to equal a count.
                equal = value == self.low
                distance, unit = (1.0, 1.0) if equal else (-abs(value - self.low), self.low)
            case _:
                distance = min(value - self.low, self.high - value)
                unit = (self.high - self.low) / 2
        return distance / (abs(unit) or 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data for JSON, with None for infinity."""
        low, high = (end if math.isfinite(end) else None for end in (self.low, self.high))
        data = {"quantity": self.quantity.as_dict(), "relation": self.relation}
        return data | {"low": low, "high": high, "once": self.once}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Predicate":
        """Return the comparison that `as_dict` has described.

        Raises:
            ValueError: If its relation is not one of the three, or its quantity is not valid.
            KeyError, TypeError: If it describes no comparison.
        """
        if data["relation"] not in (">", "<", "between"):
            raise ValueError(f"A comparison is >, < or between, found {data['relation']!r}.")
        low = -math.inf if data["low"] is None else data["low"]
        high = math.inf if data["high"] is None else data["high"]
        once = data.get("once", False)  # Not in older files.
        return cls(Quantity(**data["quantity"]), low, high, data["relation"], once)

    def __bool__(self) -> bool:
        # Python evaluates `1 < q < 2` as `(1 < q) and (q < 2)`, and would drop the first half. An
        # undecided comparison is neither true nor false.
        raise TypeError(
            "A comparison of measured quantities can be undecided, so it has no truth value. "
            "Write .holds after it, as in `assert (time < 0.5).holds`, or read its .verdict; for "
            "two bounds, use quantity.between(low, high)."
        )

    def describe(self, percent: bool = False) -> str:
        """Return the claim about the quantity, in words.

        Args:
            percent: Whether to write a share in percent.
        """
        low, high = (
            f"{format_value(100 * end, '')}%" if percent else format_value(end, self.quantity.unit)
            for end in (self.low, self.high)
        )
        if self.relation == "between":
            return f"exactly {low}" if self.low == self.high else f"{low} to {high}"
        return f"{self.relation} {low if low == high else f'all of {low} to {high}'}"

    def __str__(self) -> str:
        # Not `repr(self.quantity)`: an `OverlapScore` would add its warnings.
        return f"{Quantity.__repr__(self.quantity)}; claimed: {self.describe()}"

    def __repr__(self) -> str:
        return f"{self}: {self.verdict}"
