"""Exercise X4: waiting for one or for all."""

import itertools
import time
from collections.abc import Callable

import jax

from d2lpar._devices import cpu
from d2lpar._format import format_seconds
from d2lpar._measurement import measure
from d2lpar._waiting import wait_all
from d2lpar.book.exercises.answers import Rejection, call_answer, require_array, require_arrays
from d2lpar.book.exercises.report import Report, exercise
from d2lpar.book.exercises.work import inputs, require_asynchrony, work


@exercise("X4")
def check_x4(second: Callable, everything: Callable) -> Report:
    """Check two ways of waiting: for the second result, and for everything.

    Args:
        second: `second(start)` calls `start()`, which dispatches chains and returns a list of
            results, waits until the second of them is ready, and returns it.
        everything: `everything(start)` calls `start()` too, waits until all that it has
            dispatched is done, also what it does not return, and returns the list.

    Returns:
        A report.

    Example:
        >>> check_x4(lambda start: jax.block_until_ready(start()[1]), lambda start: jax.block_until_ready(start())).verdict
        'not yet'
    """
    require_asynchrony()
    x = inputs(1, cpu())[0]
    started: list[list[jax.Array]] = []
    counts: list[int] = []  # How many there were after each call.

    def starting(dependent):
        def start():
            results = [work(x)]
            for _ in range(5):
                results.append(work(results[-1] if dependent else x))
            work(work(work(x)))  # Nobody keeps these; on a busy core Python wakes up late.
            started.append(results)
            return list(results)

        return start

    cases = [(starting(dependent),) for dependent in (False, True, False)]

    # How long one of them takes. What my_second leaves says less: it may come back late.
    one = min(measure(work, x, repeats=3).total.samples)

    def what_is_left():
        counts.append(len(started))
        last = started[-1] if started else []
        # A deleted one must not be asked (jax < 0.11.2).
        ready = [not array.is_deleted() and array.is_ready() for array in last]
        began = time.perf_counter()
        wait_all([cpu()])
        return ready, time.perf_counter() - began

    def tries(name, function):
        started.clear()
        counts.clear()
        found = call_answer(function, cases, f"my_{name}(start)", probe=what_is_left)
        if counts != [1, 2, 3]:
            raise Rejection(
                f"In {len(cases)} runs, my_{name} called start() "
                f"{', '.join(str(b - a) for a, b in itertools.pairwise([0, *counts]))} times.",
                "Call it once, and wait for what it returns.",
            )
        returned, left = zip(*found, strict=True)
        return returned, [ready for ready, _ in left], min(seconds for _, seconds in left)

    returned, readies, _ = tries("second", second)
    if not all(ready[1] for ready in readies):
        raise Rejection(
            "When my_second returned, the second result was not ready.",
            "Which of the results do you wait for, and with what? Lists begin with 0.",
        )
    if all(ready[2] for ready in readies):
        others = "all of them were" if all(ready[-1] for ready in readies) else "the third was"
        raise Rejection(
            f"When my_second returned, not only the second result was ready: {others}.",
            "What else do you wait for?",
        )
    for answer, results in zip(returned, started, strict=True):
        require_array(answer, results[1], "What my_second returned")
    returned, readies, left = tries("everything", everything)
    if not all(all(ready) for ready in readies):
        raise Rejection(
            "When my_everything returned, some of the results were not ready.",
            "Which of them do you wait for, and with what?",
        )
    if left > one:
        raise Rejection(
            "When my_everything returned, all results in the list were ready, but the device "
            f"still had work for {format_seconds(left)}: start() has dispatched something that it "
            "does not return.",
            "What can Python wait for, if it has no reference to a result? A queue works in order.",
        )
    for answer, results in zip(returned, started, strict=True):
        require_arrays(answer, results, "all results")
    return (
        "When my_second returned, the second result was there and later ones were not; when "
        "my_everything returned, the device had nothing left to do."
    )
