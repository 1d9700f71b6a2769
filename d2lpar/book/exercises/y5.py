"""Exercise Y5: more than a list."""

import functools
from collections.abc import Callable

import jax

from d2lpar._devices import device_name, two_devices
from d2lpar.book.exercises.answers import Rejection, call_answer, require_arrays
from d2lpar.book.exercises.calls import CallLog
from d2lpar.book.exercises.report import Report, exercise
from d2lpar.book.exercises.work import inputs, require_asynchrony, right_results, work

_BATCHES = 8


@exercise("Y5")
def check_y5(pipeline: Callable) -> Report:
    """Check a pipeline of two stages over two devices.

    Args:
        pipeline: `pipeline(first, second, batches, devices)` returns `second(first(batch))` for
            each batch, in order. The batches lie on the first of the two devices, where all of
            stage one is to run; stage two is to run on the other one.

    Returns:
        A report.

    Example:
        >>> def one_device(first, second, batches, devices):
        ...     return [second(first(batch)) for batch in batches]
        >>> check_y5(one_device).verdict in ("not yet", "untestable")
        True
    """
    devices = two_devices("cpu+cpu")
    require_asynchrony()
    batches = inputs(_BATCHES, devices[0])

    right = _right(devices)
    log = CallLog()
    stages = (log.watch("first()", work), log.watch("second()", _second_stage))
    case = (*stages, list(batches), devices)
    (found,) = call_answer(pipeline, [case], "my_pipeline(first, second, batches, devices)")
    for stage in ("first()", "second()"):
        log.require_count(stage, len(batches))
    require_arrays(found, right, "a result for each batch")
    for stage, device in zip(("first()", "second()"), devices, strict=True):
        for call in log.of(stage):
            if call.result.devices() != {device}:
                raise Rejection(
                    f"{stage} of batch {call.number} ran on {call.where}, but this stage is to run "
                    f"on {device_name(device)}.",
                    "A jitted function runs where its arguments are. How does an array get to "
                    "another device?",
                )
    beside = {
        call.number
        for call in log.of("first()")
        if call.found_busy("second()")
        or any(c.number < call.number and call in c.unfinished for c in log.of("second()"))
    }
    turns = sum(
        any(c.label == "second()" for c in call.earlier) and call.number not in beside
        for call in log.of("first()")
    )
    if turns > len(batches) / 2:
        raise Rejection(
            f"{turns} of {len(batches)} times, stage one was asked for when stage two had nothing "
            "left to do: the stages take turns.",
            "Batch i + 1 does not need batch i. What makes Python wait for it?",
        )
    late = sum(
        sum(c.label == "first()" for c in call.earlier) == len(batches)
        and not call.found_busy("first()")
        for call in log.of("second()")
    )
    if late > len(batches) / 2:
        raise Rejection(
            f"{late} of {len(batches)} times, stage two was asked for when all of stage one was "
            "done: the stages run one after the other.",
            "What does stage two of the first batch have to wait for?",
        )
    if len(beside) <= len(batches) / 2:
        raise Rejection(
            f"Only {len(beside)} of {len(batches)} batches were in stage one while an earlier one "
            "was in stage two.",
            "For what does your loop wait, and does anything need that?",
        )
    return (
        f"All {len(batches)} results are right, each stage ran on its device, and {len(beside)} "
        f"of {len(batches)} batches were in stage one while an earlier one was in stage two."
    )


@jax.jit
def _second_stage(x: jax.Array) -> jax.Array:
    return 1 + work(x)


@functools.cache
def _right(devices: tuple[jax.Device, jax.Device]) -> list[jax.Array]:
    middle = right_results(_BATCHES, devices[0])
    return jax.block_until_ready([_second_stage(jax.device_put(x, devices[1])) for x in middle])
