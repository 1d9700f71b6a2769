"""Exercise X2: one step ahead."""

import functools
from collections.abc import Callable

import jax

from d2lpar._devices import cpu
from d2lpar.book.exercises.answers import Rejection, call_answer, require_array
from d2lpar.book.exercises.calls import CallLog
from d2lpar.book.exercises.report import Report, exercise
from d2lpar.book.exercises.work import inputs, require_asynchrony, work

_STEPS = 12


@exercise("X2")
def check_x2(epoch: Callable) -> Report:
    """Check an epoch in which one step may overlap with the next, and no more.

    Args:
        epoch: `epoch(step, parameters, batches)` calls `step(parameters, batch)` for each batch
            in order, each time with the parameters that the step before has returned, and returns
            the last ones. Before it dispatches step t + 2, step t has finished.

    Returns:
        A report.

    Example:
        >>> def epoch(step, parameters, batches):
        ...     for batch in batches:
        ...         parameters = jax.block_until_ready(step(parameters, batch))
        ...     return parameters
        >>> print(check_x2(epoch))
        Exercise X2: not yet
          No step was dispatched while the one before it was running.
          The device is idle from the end of a step until the next is dispatched. Which step does \
your loop wait for, and does it have to be that one?
    """
    require_asynchrony()
    right = _right()
    parameters, *batches = inputs(1 + _STEPS, cpu())
    log = CallLog()
    case = (log.watch("step()", _step), parameters, list(batches))
    (found,) = call_answer(epoch, [case], "my_epoch(step, parameters, batches)")
    log.require_count("step()", len(batches))
    for call in log.calls:
        if len(call.unfinished) > 1:
            steps = " and ".join(str(other.number) for other in call.unfinished)
            raise Rejection(
                f"Step {call.number} was dispatched while steps {steps} were unfinished: at that "
                "moment, at most one may be.",
                "Before you dispatch a step, whose result must be there?",
            )
    overlapping = sum(len(call.unfinished) == 1 for call in log.calls)
    if overlapping == 0:
        raise Rejection(
            "No step was dispatched while the one before it was running.",
            "The device is idle from the end of a step until the next is dispatched. Which step "
            "does your loop wait for, and does it have to be that one?",
        )
    if overlapping <= len(batches) / 2:
        raise Rejection(
            f"Only {overlapping} of {len(batches)} steps were dispatched while the one before was "
            "running.",
            "Does each turn of your loop do the same, also the later ones?",
        )
    require_array(found, right, "What your function returned")
    return (
        f"{overlapping} of {len(batches)} steps were dispatched while the one before was running, "
        "and none while more than one was unfinished."
    )


@jax.jit
def _step(parameters: jax.Array, batch: jax.Array) -> jax.Array:
    return work(parameters) + batch


@functools.cache
def _right() -> jax.Array:
    parameters, *batches = inputs(1 + _STEPS, cpu())
    for batch in batches:
        parameters = _step(parameters, batch)
    return jax.block_until_ready(parameters)
