"""What the programs of `beside_pytorch.py` share: the sizes of the network, and the clock."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

LAYERS = (512, 2048, 512, 1)
BATCH = 1024
RATE = 0.01
STEPS = {"cpu": 50, "gpu": 150}
"""How many steps of training are timed, by the kind of device."""


def go_on(*_):
    """Do nothing, in the place of a barrier."""


def medians(work: Mapping[str, Callable], wait: Callable[[Any], Any]) -> dict[str, float]:
    """Return the median seconds of each piece of work, and of handing out ten products alone."""
    found = {}
    for name, run in work.items():
        handed_out, found[name] = seconds(run, wait)
        if name.startswith("ten random products"):
            found[f"{name}, handed out"] = handed_out
    return found


def seconds(
    run: Callable[[], Any],
    wait: Callable[[Any], Any],
    most: int = 100,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Return the median times until `run` returns and until what it returns is ready.

    It runs once before, which only warms up.

    Args:
        run: The work. What it returns is dropped before it runs again, and not on the clock.
        wait: Called with what was returned, and comes back when that is computed.
        most: How often it is timed at most; fewer times, but three, if a second is over before.
        clock: Returns seconds.
    """
    wait(run())
    handed_out, ready = [], []
    while len(ready) < min(3, most) or (len(ready) < most and sum(ready) < 1):
        begin = clock()
        results = run()
        handed_out.append(clock() - begin)
        wait(results)
        ready.append(clock() - begin)
        del results
    return statistics.median(handed_out), statistics.median(ready)
