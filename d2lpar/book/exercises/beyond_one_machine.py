"""V, the exercises of Beyond One Machine: a mean, sums and a checkpoint of many processes."""

import contextlib
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from d2lpar._plain.errors import WorkerError
from d2lpar._processes.workers import Workers
from d2lpar.book.exercises.checking import (
    Rejection,
    Report,
    call_answer,
    exercise,
    require_callable,
    require_called,
    require_number,
    shown,
)

# --- V1. The mean of all ----------------------------------------------------------------------

_NUMBERS = ([1.0, 2.0, 3.0, 6.0], [13.0])  # Of process 0, and of process 1.
_TIMEOUT = 20.0
_RAISED = 1  # The rank of an error that says what a process has raised.


@exercise("V1")
def check_v1(mean: Callable) -> Report:
    """Check a mean over what two processes have, by running it in two."""
    require_callable(mean, [(np.zeros(3),)], "my_mean(numbers)")
    right = float(np.mean(np.concatenate(_NUMBERS)))

    def call():
        import jax

        return mean(np.array(_NUMBERS[jax.process_index()]))

    with Workers(2) as workers:
        try:
            found = workers.run(call, timeout=_TIMEOUT)
        except WorkerError as error:
            own = "Is it an error of that line alone? If not: w" if error.rank == _RAISED else "W"
            raise Rejection(
                str(error),
                f"{own}hatever needs the other process has to be called by both, with arrays of "
                "one shape.",
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


# --- V2. Fewer messages -----------------------------------------------------------------------

_MOST = 100
_SHAPES = ((3, 4), (50,), (), (16, 16), (5, 2, 7), (1,))


@exercise("V2")
def check_v2(sums: Callable) -> Report:
    """Check sums of many arrays that travel in few messages."""
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in _SHAPES]
    sizes: list[int] = []

    def add_up(array):
        array = np.asarray(array)
        sizes.append(array.size)
        return 2 * array + 1  # Of two processes, of which the other has one more.

    case = (add_up, [array.copy() for array in arrays], _MOST)
    (found,) = call_answer(sums, [case], "my_sums(add_up, arrays, most)")
    require_called(
        "add_up()",
        len(sizes),
        "no number has travelled",
        "What does a process know of the arrays of the others, if nothing travels?",
    )
    if max(sizes) > _MOST:
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


# --- V3. A checkpoint to rely on --------------------------------------------------------------


class _PowerCut(BaseException):
    """Ends the reader's function in the middle, as nothing there catches it."""


class _Unreadable:
    """Stands for an array; whoever reads it dies."""

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise _PowerCut


@exercise("V3")
def check_v3(save: Callable) -> Report:
    """Check that a checkpoint is whole whenever one looks, and whenever its writer dies.

    The answer is called twice for the same path, and once more so that it dies while it writes.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.npz")
        old, new = ({"w1": np.full((200, 50), value), "w2": np.arange(value)} for value in (1, 2))

        def call(weights):
            def answer(save_path, given):
                save(save_path, given)
                return True

            call_answer(answer, [(path, weights)], "my_save(path, weights)")

        call(dict(old))
        _require_whole(
            path,
            old,
            "After your function had returned, the file did not hold what it was given.",
            "np.load(path) should give a dictionary with the same arrays under the same names.",
        )
        link = Path(folder, "as it was.npz")
        os.link(path, link)  # Whoever has opened the file goes on reading this one.
        # Also if a library makes another error of it.
        with contextlib.suppress(_PowerCut, Exception):
            save(path, {"w1": new["w1"], "w2": _Unreadable()})
        _require_whole(
            path,
            old,
            "When your function died while it wrote, the weights from before were gone.",
            "Where can the new file be written so that the old one is still there, and what makes "
            "it the new one in a single step?",
        )
        call(dict(new))
        _require_whole(
            path,
            new,
            "After the second call, the file did not hold the new weights.",
            "np.load(path) should give the weights of the last call.",
        )
        _require_whole(
            link,
            old,
            "The old file was written over, so that for a while it is neither the old nor the new.",
            "What puts a file that is complete into the place of another in a single step?",
        )
    return (
        "The file held what was saved after each call, and the old weights when your function died "
        "while it wrote."
    )


def _require_whole(path: Path, right: dict[str, np.ndarray], saw: str, look: str) -> None:
    try:
        with np.load(path) as saved:
            found = dict(saved)
    except Exception:
        raise Rejection(saw, look) from None
    if found.keys() != right.keys() or not all(
        np.array_equal(found[name], right[name]) for name in right
    ):
        raise Rejection(saw, look)
