"""Measure how much two activities overlap, that is, ran at the same time.

How it works. `measure_overlap` times three functions with one `compare`: the first activity alone,
the second alone, and both at once. The overlap score is the time that was saved over the time that
could have been saved, (first + second - together) / min(first, second)::

    first    ======                     first    ======
    second         ===   score 0        second   ===      score 1
    together =========                  together ======

It is computed for each round, so that it has an interval. A score clearly above 1 is no overlap but
a sign that the runs differ in something else. One clearly below 0 mostly means that the two hinder
each other: together they take longer than one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from d2lpar._measure.comparison import Comparison, Measurement, Until, compare
from d2lpar._measure.quantity import Quantity, certainty_of, once, quantities_table

SLACK = 0.05
"""A score may lie this far outside 0 to 1 without a warning."""


class OverlapScore(Quantity):
    """How much two activities overlapped, round by round: 0 is not at all, 1 is perfectly.

    It has the attributes of a `Quantity`; its unit is empty, since it is a ratio.
    """

    @property
    def broken(self) -> bool:
        """Whether the score lies clearly above 1, which no overlap can cause."""
        return self.interval[0] > 1 + SLACK

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt the score; one sentence each."""
        warnings = []
        if self.broken:
            warnings.append(
                "a broken measurement: clearly above 1, so the runs differ in something other "
                "than overlap"
            )
        if self.interval[1] < -SLACK:
            warnings.append("clearly below 0: the two hinder each other, or the runs differ")
        return tuple(warnings)

    def __repr__(self) -> str:
        return "; ".join([super().__repr__(), *self.warnings])


def overlap_score(
    first: Measurement | Quantity | float,
    second: Measurement | Quantity | float,
    together: Measurement | Quantity | float,
) -> OverlapScore:
    """Return the overlap score: which share of the shorter activity the longer one hid.

    The score is (first + second - together) / min(first, second), round by round. Without any
    overlap, the two together take as long as their sum, and the score is 0. With perfect overlap
    they take as long as the longer one, and the score is 1.

    Args:
        first: The time of one activity alone, in seconds: a measurement (its total counts), a
            quantity, or a single number such as a printed one.
        second: The time of the other alone, likewise.
        together: The time of both, likewise. Take all three with one `compare`.

    Returns:
        The score of each round, with an interval; without one for single numbers.

    Raises:
        ValueError: If the three do not have the same number of samples or are no times.

    Example:
        >>> overlap_score(1.0, 2.0, 2.25)
        overlap score: 0.75 (seen once)
        >>> overlap_score(1.0, 2.0, 1.9).broken
        True
    """
    times = [_seconds(time) for time in (first, second, together)]
    counts = [len(quantity.samples) for quantity in times]
    if len(set(counts)) > 1:
        raise ValueError(
            "A score is taken round by round, but the three have "
            f"{counts[0]}, {counts[1]} and {counts[2]} samples. Measure them with one `compare`."
        )
    if any(sample <= 0 for quantity in times for sample in quantity.samples):
        raise ValueError("An overlap score needs times above 0 seconds.")
    rounds = zip(*(quantity.samples for quantity in times), strict=True)
    scores = tuple((a + b - both) / min(a, b) for a, b, both in rounds)
    return OverlapScore("overlap score", scores, **certainty_of(*times))


@dataclass(frozen=True, repr=False)
class Overlap:
    """Two activities that were timed each alone and both at once.

    Attributes:
        times: The comparison of `"first alone"`, `"second alone"` and `"at once"`.
    """

    times: Comparison

    @property
    def score(self) -> OverlapScore:
        """How much of the shorter activity was hidden."""
        return overlap_score(*self.times.values())

    @property
    def needs(self) -> str | None:
        """What the machine was missing according to the control, such as free cores; or None."""
        return self.times.needs

    def __repr__(self) -> str:
        return f"{self.times!r}\n{self.score!r}"

    def _repr_html_(self) -> str:
        return self.times._repr_html_() + quantities_table([self.score])


def measure_overlap(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    until: Until | None = None,
    **options: Any,
) -> Overlap:
    """Time two functions each alone and both at once, and say how much they overlap.

    Args:
        first: The one activity. It must return the arrays that it computes, to be waited for.
        second: The other one, likewise. At once means that it is called as soon as `first` has
            returned, without a barrier in between.
        until: As for `compare`; it is given the `Overlap` so far.
        **options: Further options of `compare`, such as `repeats` or `control`.

    Returns:
        The times, and the score that follows from them.

    Raises:
        TypeError, ValueError, CompilationError, D2lparError: As `compare` raises them.

    Example:
        >>> import time
        >>> nap = lambda: time.sleep(0.01)  # Python itself never does two things at once.
        >>> measure_overlap(nap, nap).score.median < 0.9
        True
    """
    claim = None if until is None else lambda times: until(Overlap(times))
    functions = {
        "first alone": first,
        "second alone": second,
        "at once": lambda: (first(), second()),
    }
    return Overlap(compare(functions, until=claim, **options))


def _seconds(time: Measurement | Quantity | float) -> Quantity:
    if isinstance(time, Measurement):
        return time.total
    if isinstance(time, Real) and not isinstance(time, bool):
        return once("printed time", float(time), "s")
    if isinstance(time, Quantity) and time.unit == "s":
        return time
    raise ValueError(
        f"An overlap score is made of times in seconds, found {time!r}: pass what `compare` "
        "measured, or numbers."
    )
