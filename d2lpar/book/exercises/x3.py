"""Exercise X3: one loop, two devices."""

from collections.abc import Callable, Sequence

import numpy as np

from d2lpar.book.exercises.answers import Rejection, call_answer, require_number
from d2lpar.book.exercises.report import Report, exercise


@exercise("X3")
def check_x3(total: Callable) -> Report:
    """Check how long two devices take that are fed in one loop, for three ways of waiting.

    It is compared with a simulation of the loop, over many cases.

    Args:
        total: `total(first, second, barrier)` returns the seconds until both devices are done.
            `first` and `second` list how long each minibatch takes on each device; `barrier` is
            `"each minibatch"`, `"each device"` or `"none"`.

    Returns:
        A report.

    Example:
        >>> check_x3(lambda first, second, barrier: sum(first) + sum(second)).verdict
        'not yet'
    """
    rng = np.random.default_rng(0)
    kinds = ("none", "each minibatch", "each device")
    lists = [([2, 2, 2], [1, 1, 1]), ([3, 1, 3, 1], [1, 3, 1, 3]), ([4], [7])]
    lists += [rng.integers(1, 9, (2, turns)).tolist() for turns in (2, 3, 5, 8) for _ in range(5)]
    cases = [(first, second, barrier) for barrier in kinds for first, second in lists]
    copies = [(list(first), list(second), barrier) for first, second, barrier in cases]
    found = call_answer(total, copies, "my_loop_time(first, second, barrier)")
    for (first, second, barrier), seconds in zip(cases, found, strict=True):
        seconds, right = require_number(seconds), _two_queues(first, second, barrier)
        if not abs(seconds - right) <= 1e-4 * right:
            look = {
                "none": "Nobody waits before the end. When is each device done with its own list?",
                "each minibatch": "In each turn Python waits for both. How long is such a turn?",
                "each device": "There is one Python thread. While it waits for one device, who "
                "hands the other its next minibatch?",
            }[barrier]
            raise Rejection(
                f"With first = {first}, second = {second} and the barrier {barrier!r} your "
                f"function says {seconds:g}; the simulated loop takes {right:g}.",
                look,
            )
    return f"Your function agrees with a simulation in {len(cases)} cases."


def _two_queues(first: Sequence[float], second: Sequence[float], barrier: str) -> float:
    """Simulate one Python thread that hands each minibatch to two devices in turn."""
    now, done = 0.0, [0.0, 0.0]
    for turn in zip(first, second, strict=True):
        for device, seconds in enumerate(turn):
            if barrier == "each device":  # Wait for the minibatch that this device has.
                now = max(now, done[device])
            done[device] = max(now, done[device]) + seconds
        if barrier == "each minibatch":
            now = max(done)
    return max(done)
