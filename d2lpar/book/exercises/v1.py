"""Exercise V1: the mean of what all processes have."""

from collections.abc import Callable

import numpy as np

from d2lpar._errors import WorkerError
from d2lpar._workers import Workers
from d2lpar.book.exercises.answers import Rejection, require_callable, require_number, shown
from d2lpar.book.exercises.report import Report, exercise

_NUMBERS = ([1.0, 2.0, 3.0, 6.0], [13.0])  # Of process 0, and of process 1.
_LIMIT = 20.0


@exercise("V1")
def check_v1(mean: Callable) -> Report:
    """Check a mean over what two processes have, by running it in two.

    Args:
        mean: `mean(numbers)` is called in both with the numbers of that process, a NumPy array of
            one axis, and returns the mean of the numbers of both, as a number.

    Returns:
        A report.

    Example:
        >>> print(check_v1(lambda numbers: float(numbers.mean())))
        Exercise V1: not yet
          Your function returned 3.0 in process 0 and 13.0 in process 1; all five numbers have the \
mean 5.
          A process knows its own numbers only, and those who have few count for few. What has to \
travel besides the sum?
    """
    require_callable(mean, [(np.zeros(3),)], "my_mean(numbers)")
    right = float(np.mean(np.concatenate(_NUMBERS)))

    def call():
        import jax

        return mean(np.array(_NUMBERS[jax.process_index()]))

    with Workers(2) as workers:
        try:
            found = workers.run(call, timeout=_LIMIT)
        except WorkerError as error:
            raise Rejection(
                str(error),
                "Whatever needs the other process has to be called by both, with arrays of one "
                "shape.",
            ) from None
    numbers = [require_number(value, "Return the mean of all.") for value in found]
    if any(not np.isclose(number, right, rtol=1e-5) for number in numbers):
        first, second = map(shown, numbers)
        raise Rejection(
            f"Your function returned {first} in process 0 and {second} in process 1; all five "
            f"numbers have the mean {right:g}.",
            "A process knows its own numbers only, and those who have few count for few. What has "
            "to travel besides the sum?",
        )
    return f"Both processes returned {right:g}, the mean of the numbers of both."
