"""Exercise Z3: an evaluation that waits once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar.book.exercises.answers import Rejection, call_answer, require_number
from d2lpar.book.exercises.calls import CallLog
from d2lpar.book.exercises.report import Report, exercise
from d2lpar.book.exercises.work import require_asynchrony, work

_ROWS = 64
_EXAMPLES = 7 * _ROWS + 5


@exercise("Z3")
def check_z3(evaluation: Callable) -> Report:
    """Check an evaluation that compiles once and waits once.

    Args:
        evaluation: `evaluation(count, examples, rows)` calls `count(batch, valid)`, which says how
            many of the first `valid` rows of a batch are right, for all examples, a NumPy array,
            `rows` at a time and always with batches of the same shape. It returns the sum.

    Returns:
        A report.

    Example:
        >>> def evaluation(count, examples, rows):
        ...     return int(sum(
        ...         count(examples[i : i + rows], len(examples[i : i + rows]))
        ...         for i in range(0, len(examples), rows)
        ...     ))
        >>> print(check_z3(evaluation))
        Exercise Z3: not yet
          count() was given batches of the shapes (64, 64) and (5, 64), and each shape is compiled \
by itself.
          What can stand in the rows that the last batch lacks, so that they do not count?
    """
    require_asynchrony()
    examples = np.random.default_rng(3).standard_normal((_EXAMPLES, _ROWS), dtype=np.float32)
    right = sum(
        int(_count(jnp.asarray(np.pad(batch, [(0, _ROWS - len(batch)), (0, 0)])), len(batch)))
        for batch in (examples[first : first + _ROWS] for first in range(0, _EXAMPLES, _ROWS))
    )
    calls = CallLog()
    watched = calls.watch("count()", _count)
    shapes: list[tuple[int, ...]] = []

    def count(batch, valid):
        shapes.append(_shape_of(batch))
        if shapes[-1] != (_ROWS, _ROWS):  # Long work on few rows would be work of another kind.
            return jnp.sum(_is_right(jnp.asarray(batch))[:valid])
        return watched(jnp.asarray(batch), valid)

    case = (count, examples.copy(), _ROWS)
    (found,) = call_answer(evaluation, [case], "my_evaluation(count, examples, rows)")
    _require_one_shape(shapes)
    if (value := require_number(found, "Return the sum of the counts.")) != right:
        raise Rejection(
            f"Your function returned {value:g}, but {right} of {_EXAMPLES} rows are right.",
            "Is each example in one batch, and is `valid` the number of those that count?",
        )
    needed = -(-_EXAMPLES // _ROWS)
    calls.require_count("count()", needed)
    waited = [call.number for call in calls.calls[1:] if not call.unfinished]
    if len(waited) > needed / 2:
        raise Rejection(
            f"{len(waited)} of {needed} calls were made when the one before was done.",
            "Adding arrays gives an array, and needs no value. Which line of your loop needs one?",
        )
    return (
        f"{right} of {_EXAMPLES} are right; {needed} calls with one shape, and "
        f"{needed - 1 - len(waited)} of them were made while the one before was running."
    )


def _shape_of(batch: object) -> tuple[int, ...]:
    try:
        return tuple(np.shape(batch))
    except Exception:
        raise Rejection(
            "count() was given something that is no array.", "Hand it the rows of a batch."
        ) from None


def _require_one_shape(shapes: list[tuple[int, ...]]) -> None:
    different = list(dict.fromkeys(shapes))
    if len(different) > 1:
        raise Rejection(
            f"count() was given batches of the shapes {' and '.join(map(str, different[:3]))}, and "
            "each shape is compiled by itself.",
            "What can stand in the rows that the last batch lacks, so that they do not count?",
        )
    if different != [(_ROWS, _ROWS)]:
        raise Rejection(
            f"count() was given batches of the shape {different[0] if different else '(none)'}; "
            f"with rows={_ROWS} it is {(_ROWS, _ROWS)}.",
            "How many examples does the exercise ask for at a time?",
        )


def _is_right(batch: jax.Array) -> jax.Array:
    return batch.sum(axis=1) > 0


@jax.jit
def _count(batch: jax.Array, valid: int) -> jax.Array:
    # What the work gives is not used, but must be there before the count is.
    nothing = jnp.isnan(work(batch)).sum()
    return jnp.sum(_is_right(batch) & (jnp.arange(len(batch)) < valid)) + nothing
