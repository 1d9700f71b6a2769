"""Sizes, clock and report for both programs of `beside_pytorch.py`; imports neither framework."""

import json
import statistics
import time

LAYERS = (512, 2048, 512, 1)
BATCH = 1024
RATE = 0.01
STEPS = {"cpu": 50, "gpu": 150}  # of training, by the kind of device


def go_on(*_):
    """Do nothing, in the place of a barrier."""


def report(version, steps, work, wait):
    """Print the median seconds of each piece of work, and of dispatching ten products, as JSON."""
    medians = {}
    for name, run in work.items():
        dispatch, medians[name] = seconds(run, wait)
        if name.startswith("ten random products"):
            medians[f"{name}, handed out"] = dispatch
    print(json.dumps({"version": version, "training steps": steps, "seconds": medians}))


def seconds(run, wait, most=100, clock=time.perf_counter):
    """Return the median times until `run` returns and until its result is ready.

    A first run only warms up.

    Args:
        run: The work. Its result is dropped before the next run, off the clock.
        wait: Takes the result, and returns when that is computed.
        most: The most runs to time; once a second is over, three are enough.
        clock: Returns seconds.
    """
    wait(run())
    dispatch, total = [], []
    while len(total) < min(3, most) or (len(total) < most and sum(total) < 1):
        begin = clock()
        results = run()
        dispatch.append(clock() - begin)
        wait(results)
        total.append(clock() - begin)
        del results
    return statistics.median(dispatch), statistics.median(total)
