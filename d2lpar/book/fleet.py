"""A model of what messages between processes cost, and of when a second process pays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from d2lpar.quantity import Quantity


class MessageCost(NamedTuple):
    """What an all-reduce takes: a latency for each message, and the time of its bytes.

    The model is that of R. W. Hockney (1994, The communication challenge for MPP, Parallel
    Computing 20), whose two numbers are called alpha and beta.

    Attributes:
        alpha: Seconds for each message, however small.
        beta: Seconds for each byte.
    """

    alpha: Quantity
    beta: Quantity

    @classmethod
    def of(cls, times: dict[int, Quantity]) -> "MessageCost":
        """Find both from the times of a small and of a large message, round by round.

        Args:
            times: Seconds by size in bytes; only the smallest and the largest are looked at.

        Example:
            >>> times = {0: Quantity("small", [2.0], "s"), 10: Quantity("large", [7.0], "s")}
            >>> cost = MessageCost.of(times)
            >>> cost.alpha.median, cost.beta.median
            (2.0, 0.5)
        """
        small, large = min(times), max(times)
        beta = (times[large] - times[small]) / (large - small)
        return cls(times[small].renamed("alpha"), beta.renamed("beta"))

    def seconds(self, messages: int, size: float) -> float:
        """Return what so many messages take that have so many bytes all told.

        Args:
            messages: How many, one after the other.
            size: Bytes of all of them.
        """
        return messages * self.alpha.median + size * self.beta.median


def break_even(sizes: Sequence[float], speed_ups: Sequence[float]) -> float:
    """Return the size from which on it pays, between two measured ones.

    Args:
        sizes: Of the minibatch, for example, rising.
        speed_ups: For each of them, how many times as fast it gets.

    Returns:
        Where the last rise through 1 is, on logarithmic scales; the smallest size if it pays
        everywhere. Where it pays nowhere, the rise at the end is continued, but to no more than a
        thousand times the largest size.

    Example:
        >>> break_even([10, 1000], [0.5, 2.0])
        100.0
    """
    xs, ys = np.log(sizes), np.log(speed_ups)
    below = [index for index, y in enumerate(ys) if y < 0]
    if not below:
        return float(sizes[0])
    left = min(below[-1], len(xs) - 2)
    slope = (ys[left + 1] - ys[left]) / (xs[left + 1] - xs[left])
    furthest = xs[-1] + np.log(1000)
    found = min(xs[left] - ys[left] / slope, furthest) if slope > 0 else furthest
    return round(float(np.exp(found)), 6)
