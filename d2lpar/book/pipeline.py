"""The three durations of a loop with two ends, measured one by one, and what they predict."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from d2lpar.barriers import block
from d2lpar.measurement import Comparison
from d2lpar.quantity import Quantity
from d2lpar.timeline import PYTHON, Timeline


@dataclass(frozen=True)
class Pipeline:
    """A loop in which Python prepares a call, a device computes it, and Python notices.

    A turn with a barrier takes t1 + t2 + t3. Without one the two ends work at the same time, and
    all turns together take t1 + t2 + t3 + (turns - 1) max(t1, t2).

    Attributes:
        t1: Seconds in which Python prepares and dispatches a call.
        t2: Seconds in which the device computes it.
        with_barrier: What the model says of all turns with a barrier in each, in seconds.
        without: What it says of them with a barrier at the end.
    """

    t1: Quantity
    t2: Quantity
    with_barrier: Quantity
    without: Quantity

    @classmethod
    def of(cls, times: Comparison, turns: int) -> "Pipeline":
        """Return what follows, round by round, from three measurements.

        Args:
            times: Has the arms `"one turn"`, which prepares and calls once; `"one call"`, without
                the preparing; and `"nine calls"`, which are all dispatched before the first is
                waited for.
            turns: How many turns the model is asked for.
        """
        turn = times["one turn"]
        t1 = turn.dispatch.renamed("t1")
        # Eight more calls in the queue, which hide all but the computing.
        more = times["nine calls"].total - times["one call"].total
        t2 = (more / 8).renamed("t2")
        rounds = list(zip(turn.total.samples, t1.samples, t2.samples, strict=True))
        level = times.level

        def model(name, seconds):
            return Quantity(name, tuple(seconds), "s", level=level)

        return cls(
            t1,
            t2,
            model("model, with barriers", (turns * whole for whole, _, _ in rounds)),
            model("model", (whole + (turns - 1) * max(a, b) for whole, a, b in rounds)),
        )


def most_unfinished(call: Callable[[], jax.Array], times: int) -> int:
    """Return how many results of a call are unfinished at most, if it is made again and again.

    Args:
        call: Dispatches some work; it takes far longer than asking whether a result is ready.
        times: How often to call it.
    """
    results, most = [], 0
    for _ in range(times):
        results.append(call())
        most = max(most, sum(not result.is_ready() for result in results))
    block(results)
    return most


def time_to_notice(timeline: Timeline) -> float:
    """Return t3: how many seconds after the end of the work a waiting Python thread knows of it.

    Args:
        timeline: The recording of one call and of the barrier behind it. (Recording takes time as
            well, so this is rather too long than too short.)
    """
    wait = timeline.row(PYTHON)[-1]
    return (wait.end - max(event.end for event in timeline.row(timeline.rows[-1]))) / 1e9
