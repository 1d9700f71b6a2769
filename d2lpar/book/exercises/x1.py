"""Exercise X1: when the shorter formula is right."""

import itertools
from collections.abc import Callable

from d2lpar.book.exercises.answers import (
    Rejection,
    call_answer,
    require_number,
    require_truth,
)
from d2lpar.book.exercises.report import Report, exercise


@exercise("X1")
def check_x1(total: Callable, enough: Callable) -> Report:
    """Check a formula for the time of a loop without barriers, and when t1 + N t2 + t3 is it.

    Both are compared with a simulation of the two ends, over many cases.

    Args:
        total: `total(t1, t2, t3, turns)` returns the seconds that the loop takes until Python
            knows the last result.
        enough: `enough(t1, t2, turns)` says whether `t1 + turns * t2 + t3` is exactly that.

    Returns:
        A report.

    Example:
        >>> check_x1(lambda t1, t2, t3, n: t1 + n * t2 + t3, lambda t1, t2, n: True).verdict
        'not yet'
    """
    times = (0.5, 1.0, 1.25, 4.0)
    cases = [
        (t1, t2, t3, turns)
        for turns, t1, t2, t3 in itertools.product((4, 2, 1, 30), times, times, (0.5, 3.0))
    ]
    cases.sort(key=lambda case: case[0] > case[1])  # First those that the book has met.
    found = call_answer(total, cases, "my_total(t1, t2, t3, turns)")
    _require_formula(found, cases)
    gaps = [(t1, t2, turns) for turns in (2, 4, 30) for t1 in times for t2 in times]
    gaps += [(1.0, 0.875, turns) for turns in (2, 4, 6)]
    found = call_answer(enough, gaps, "my_condition(t1, t2, turns)")
    for (t1, t2, turns), said in zip(gaps, found, strict=True):
        simple, right = t1 + turns * t2, _pipeline(t1, t2, 0.0, turns)
        if require_truth(said) != (simple == right):
            yours = "is the time" if said else "is not the time"
            raise Rejection(
                f"The formula is right. But for t1 = {t1:g}, t2 = {t2:g} and {turns} turns your "
                f"condition says that t1 + N t2 + t3 {yours}: it gives {simple:g} + t3, and the "
                f"simulation ends at {right:g} + t3.",
                "For which t1 and t2 does the back end never wait for the front end, after the "
                "first call?",
            )
    return f"Formula and condition agree with a simulation in {len(cases) + len(gaps)} cases."


def _pipeline(t1: float, t2: float, t3: float, turns: int) -> float:
    """Simulate a loop without barriers: call by call, who is waiting for whom."""
    dispatched = computed = 0.0
    for _ in range(turns):
        dispatched += t1
        computed = max(dispatched, computed) + t2
    return computed + t3


def _require_formula(found: list, cases: list[tuple]) -> None:
    wrong = []
    for (t1, t2, t3, turns), seconds in zip(cases, found, strict=True):
        seconds = require_number(seconds)
        right = _pipeline(t1, t2, t3, turns)
        if not abs(seconds - right) <= 1e-4 * right:  # NaN as well.
            wrong.append((t1, t2, t3, turns, seconds, right))
    if not wrong:
        return
    if all(t1 > t2 for t1, t2, *_ in wrong):
        look = (
            "It is right wherever the back end is the slower one. If the front end is slower, "
            "when does the last call begin to be computed?"
        )
    elif all(turns > 1 for *_, turns, _, _ in wrong):
        look = "It is right for a single turn. What can happen at the same time in two?"
    else:
        look = "A single turn cannot overlap with anything. Is it right for that?"
    t1, t2, t3, turns, seconds, right = wrong[0]
    raise Rejection(
        f"For t1 = {t1:g}, t2 = {t2:g}, t3 = {t3:g} and {turns} turn{'s' * (turns > 1)} your "
        f"function says {seconds:g}; simulated call by call, the loop takes {right:g}. "
        f"{len(wrong)} of {len(cases)} cases differ.",
        look,
    )
