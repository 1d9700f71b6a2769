"""Exercise Z1: a log without waiting."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from d2lpar._devices import cpu
from d2lpar.book.exercises.answers import Rejection, call_answer, require_array, shown
from d2lpar.book.exercises.calls import CallLog
from d2lpar.book.exercises.report import Report, exercise
from d2lpar.book.exercises.work import inputs, require_asynchrony, work

_STEPS = 12
_MOST_LATER = 3


@exercise("Z1")
def check_z1(training: Callable) -> Report:
    """Check a training loop that logs each loss without keeping the device waiting.

    Args:
        training: `training(step, parameters, batches, log)` calls `step(parameters, batch)` for
            each batch in order, each time with the parameters that the step before has returned
            (beside its loss), and `log(number, value)` for each step in order, with its loss as a
            number: after step number + 1 was dispatched, and before step number + 4 is. It returns
            the last parameters.

    Returns:
        A report.

    Example:
        >>> def training(step, parameters, batches, log):
        ...     for number, batch in enumerate(batches):
        ...         parameters, loss = step(parameters, batch)
        ...         log(number, float(loss))
        ...     return parameters
        >>> print(check_z1(training))
        Exercise Z1: not yet
          Loss 0 was logged before step 1 was dispatched, and so were 11 of 12.
          A loss that is read at once is a barrier, and the device is idle until the next step is \
dispatched. Which loss is there already, and can be read instead?
    """
    require_asynchrony()
    right, losses = _right()
    parameters, *batches = inputs(1 + _STEPS, cpu())
    calls = CallLog()
    watched = calls.watch("step()", _update)
    logged: list[tuple[object, object, int]] = []  # Number, value, steps dispatched by then.

    def step(parameters, batch):
        new = watched(parameters, batch)
        return new, _loss(new)

    def log(number, value):
        logged.append((number, value, len(calls.calls)))

    case = (step, parameters, list(batches), log)
    (found,) = call_answer(training, [case], "my_training(step, parameters, batches, log)")
    calls.require_count("step()", len(batches))
    _require_all_logged(logged, losses)
    early = [number for number, _, dispatched in logged[:-1] if dispatched < number + 2]
    if early:
        raise Rejection(
            f"Loss {early[0]} was logged before step {early[0] + 1} was dispatched, and so were "
            f"{len(early)} of {len(batches)}.",
            "A loss that is read at once is a barrier, and the device is idle until the next step "
            "is dispatched. Which loss is there already, and can be read instead?",
        )
    late = [number for number, _, made in logged if made > number + 1 + _MOST_LATER]
    if late:
        raise Rejection(
            f"Loss {late[0]} was logged after step {late[0] + 1 + _MOST_LATER} had been "
            "dispatched: losses pile up.",
            "How many of them do you have to keep, so that the device always has a step to do?",
        )
    overlapping = sum(bool(call.unfinished) for call in calls.calls)
    if overlapping <= len(batches) / 2:
        raise Rejection(
            f"Only {overlapping} of {len(batches)} steps were dispatched while the one before was "
            "running.",
            "Does something else in your loop need a value?",
        )
    require_array(found, right, "What your function returned")
    return (
        f"All {len(batches)} losses were logged in order, each when the next step had been "
        f"dispatched; {overlapping} steps were dispatched while the one before was running."
    )


def _require_all_logged(logged: list, losses: list[float]) -> None:
    numbers = [number for number, *_ in logged]
    if numbers != list(range(len(losses))):
        raise Rejection(
            f"Logged were the steps {shown(numbers)}; there are {len(losses)}, from 0, and each is "
            "to be logged once, in order.",
            "What is left over when the loop ends?",
        )
    for (number, value, _), right in zip(logged, losses, strict=True):
        if isinstance(value, jax.Array):
            raise Rejection(
                f"Loss {number} was logged as an array of JAX.",
                "A log writes numbers: call float() on it, at the right moment.",
            )
        if not isinstance(value, int | float) or abs(value - right) > 1e-3:
            raise Rejection(
                f"Loss {number} was logged as {shown(value)}, which is not the loss of that step.",
                "Does each number go with the loss of its own step?",
            )


@jax.jit
def _update(parameters: jax.Array, batch: jax.Array) -> jax.Array:
    return work(parameters) + batch


@jax.jit
def _loss(parameters: jax.Array) -> jax.Array:
    return jnp.mean(jnp.abs(parameters))


@functools.cache
def _right() -> tuple[jax.Array, list[float]]:
    parameters, *batches = inputs(1 + _STEPS, cpu())
    losses = []
    for batch in batches:
        parameters = _update(parameters, batch)
        losses.append(float(_loss(parameters)))
    return jax.block_until_ready(parameters), losses
