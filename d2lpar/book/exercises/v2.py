"""Exercise V2: sums in as few messages as there can be."""

import math
from collections.abc import Callable

import numpy as np

from d2lpar.book.exercises.answers import Rejection, call_answer, shown
from d2lpar.book.exercises.report import Report, exercise

_MOST = 100
_SHAPES = ((3, 4), (50,), (), (16, 16), (5, 2, 7), (1,))


@exercise("V2")
def check_v2(sums: Callable) -> Report:
    """Check sums of many arrays that travel in few messages.

    Args:
        sums: `sums(add_up, arrays, most)` returns what `add_up` makes of each of the arrays, which
            it does number by number, in the shapes they had. It calls `add_up` as seldom as
            possible with arrays of at most `most` numbers.

    Returns:
        A report.

    Example:
        >>> print(check_v2(lambda add_up, arrays, most: [add_up(array) for array in arrays]))
        Exercise V2: not yet
          A message had 256 numbers, and at most 100 were allowed.
          Where can a large array be cut, and its sum be put together again?
    """
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in _SHAPES]
    sizes: list[int] = []

    def add_up(array):
        array = np.asarray(array)
        sizes.append(array.size)
        return 2 * array + 1  # Of two processes, of which the other has one more.

    case = (add_up, [array.copy() for array in arrays], _MOST)
    (found,) = call_answer(sums, [case], "my_sums(add_up, arrays, most)")
    if sizes and max(sizes) > _MOST:
        raise Rejection(
            f"A message had {max(sizes)} numbers, and at most {_MOST} were allowed.",
            "Where can a large array be cut, and its sum be put together again?",
        )
    _require_sums(found, [2 * array + 1 for array in arrays])
    total = sum(array.size for array in arrays)
    fewest = math.ceil(total / _MOST)
    if len(sizes) > fewest:
        raise Rejection(
            f"You sent {len(sizes)} messages; {total} numbers fit into {fewest}.",
            "Does a message have to end where an array ends?",
        )
    return f"{len(arrays)} arrays of {total} numbers travelled in {fewest} messages."


def _require_sums(found: object, right: list[np.ndarray]) -> None:
    try:
        found = [np.asarray(array) for array in found]
    except Exception:
        raise Rejection(
            f"Your function returned {shown(found)}, which is no list of arrays.",
            "Return a sum for each array, in their order.",
        ) from None
    if [array.shape for array in found] != [array.shape for array in right]:
        raise Rejection(
            f"You returned arrays of the shapes {[array.shape for array in found]}; those given "
            f"have {[array.shape for array in right]}.",
            "Which shape had the array that these numbers come from?",
        )
    wrong = [
        number
        for number, (ours, theirs) in enumerate(zip(found, right, strict=True))
        if not np.allclose(ours, theirs, rtol=1e-5)
    ]
    if wrong:
        raise Rejection(
            f"Array {wrong[0]} is not the sum that add_up makes of it.",
            "Do the numbers come back in the order in which they were sent?",
        )
