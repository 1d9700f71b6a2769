"""Exercise V3: a checkpoint that is whole at any moment."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from d2lpar.book.exercises.answers import Rejection, call_answer
from d2lpar.book.exercises.report import Report, exercise


class _PowerCut(BaseException):
    """Ends the reader's function in the middle, as nothing there catches it."""


class _Unreadable:
    """Stands for an array; whoever reads it dies."""

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise _PowerCut


@exercise("V3")
def check_v3(save: Callable) -> Report:
    """Check that a checkpoint is whole whenever one looks, and whenever its writer dies.

    Args:
        save: `save(path, weights)` writes a dictionary of arrays to a file that `np.load` reads.
            It is called twice for the same path, and once more so that it dies while it writes.

    Returns:
        A report.

    Example:
        >>> print(check_v3(lambda path, weights: np.savez(path, **weights)))
        Exercise V3: not yet
          When your function died while it wrote, the weights from before were gone.
          Where can the new file be written so that the old one is still there, and what makes it \
the new one in a single step?
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
