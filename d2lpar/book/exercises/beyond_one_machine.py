"""V, the exercises of Beyond One Machine: a mean, sums, a checkpoint, rows, and a common end."""

import contextlib
import errno
import math
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

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

# Process 0 has the first array. Its sum has more than 32 bits.
_NUMBERS = [np.array(numbers) * 10**9 for numbers in ([1, 2, 3, 6], [13])]
_TIMEOUT = 20.0


@exercise("V1", "my_mean")
def check_v1(mean: Callable) -> Report:
    """Check a mean over the numbers of two processes, in two processes."""
    require_callable(mean, (np.zeros(3),), "my_mean(numbers)")
    right = float(np.mean(np.concatenate(_NUMBERS)))

    def call():
        import jax

        return mean(_NUMBERS[jax.process_index()].copy())

    with Workers(2) as workers:
        try:
            means = workers.run(call, timeout=_TIMEOUT)
        except WorkerError as error:
            own = "Is the error in that line alone? " if error.raised else ""
            raise Rejection(
                str(error),
                f"{own}Both processes have to make each call that communicates, with arrays of "
                "the same shape.",
            ) from None
    numbers = [require_number(value, "Return the mean of all.") for value in means]
    if any(not np.isclose(number, right, rtol=1e-5) for number in numbers):
        first, second = map(shown, numbers)
        raise Rejection(
            f"Your function returned {first} in process 0 and {second} in process 1; all five "
            f"numbers have the mean {right:g}.",
            "A process knows only its own numbers, and its weight is how many it has. What must be "
            "sent besides the sum, and is there room for it in 32 bits, which JAX sends?",
        )
    return f"Both processes returned {right:g}, the mean of the numbers of both."


# --- V2. Fewer messages -----------------------------------------------------------------------

_MOST = 100
_SHAPES = ((3, 4), (50,), (), (0, 3), (16, 16), (5, 2, 7), (1,))


@exercise("V2", "my_sums")
def check_v2(sums: Callable) -> Report:
    """Check sums of many arrays that are sent in few messages."""
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in _SHAPES]
    sizes: list[int] = []

    def add_up(array):
        array = np.asarray(array)
        sizes.append(array.size)
        if array.dtype != np.float32:
            raise Rejection(
                f"A message had numbers of the dtype {array.dtype}; the arrays have float32.",
                "How many bytes does a number have, then and now?",
            )
        return 2 * array + 1  # The sum over two processes, if the other has array + 1.

    case = (add_up, [array.copy() for array in arrays], _MOST)
    (results,) = call_answer(sums, [case], "my_sums(add_up, arrays, most)")
    require_called(
        "add_up()",
        sizes,
        "nothing was sent",
        "What does a process know of the arrays of the others, if nothing is sent?",
    )
    if max(sizes) > _MOST:
        raise Rejection(
            f"A message had {max(sizes)} numbers, and at most {_MOST} were allowed.",
            "Where can you cut a large array, and how do you put its sum together again?",
        )
    _require_sums(results, [2 * array + 1 for array in arrays])
    total = sum(array.size for array in arrays)
    fewest = math.ceil(total / _MOST)
    if len(sizes) > fewest:
        raise Rejection(
            f"You sent {len(sizes)} messages; {total} numbers fit into {fewest}.",
            "Does a message have to end where an array ends?",
        )
    return f"{len(arrays)} arrays of {total} numbers traveled in {fewest} messages."


def _require_sums(results: object, right: list[np.ndarray]) -> None:
    try:
        sums = [np.asarray(array) for array in results]
    except Exception:
        raise Rejection(
            f"Your function returned {shown(results)}, which is not a list of arrays.",
            "Return a sum for each array, in their order.",
        ) from None
    shapes, right_shapes = ([array.shape for array in arrays] for arrays in (sums, right))
    if shapes != right_shapes:
        raise Rejection(
            f"You returned arrays of the shapes {shapes}; those given have {right_shapes}.",
            "What was the shape of the array that these numbers come from?",
        )
    for number, pair in enumerate(zip(sums, right, strict=True)):
        if not np.allclose(*pair, rtol=1e-5):
            raise Rejection(
                f"Array {number} is not the sum that add_up makes of it.",
                "Do the numbers come back in the order in which they were sent?",
            )


# --- V3. A checkpoint to rely on --------------------------------------------------------------


class _PowerCut(BaseException):
    """Ends the reader's function in the middle; `except Exception` does not catch it."""


class _Unreadable:
    """Stands for an array; reading its values raises a power cut."""

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise _PowerCut


@exercise("V3", "my_save")
def check_v3(save: Callable) -> Report:
    """Check that a checkpoint is whole at any moment, even if its writer dies.

    The answer saves to the same path twice; in between, it is made to die while it writes.
    """
    usage = "my_save(path, weights)"
    require_callable(save, (Path(), {}), usage)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.npz")
        old, new = ({"w1": np.full((200, 50), value), "w2": np.arange(value)} for value in (1, 2))

        def call(weights):
            call_answer(lambda *args: (save(*args), True), [(path, dict(weights))], usage)

        def guarded(function, what):
            def guard(*args, **kwargs):
                named = [kwargs[name] for name in ("path", "src", "dst") if name in kwargs]
                source, *target = map(Path, [*args, *named])
                if target and not source.resolve().is_relative_to(Path(folder).resolve()):
                    raise OSError(errno.EXDEV, "the other folder may be on another disk")
                if source == path:
                    raise Rejection(
                        f"Your function {what}, so for a while there was none.",
                        "How can a complete file take the place of another in a single step?",
                    )
                return function(*args, **kwargs)

            return guard

        call(old)
        _require_whole(
            path,
            old,
            "After your function had returned, the file did not hold the given weights.",
            "np.load(path) should give a dictionary with the same arrays under the same names.",
        )
        link = Path(folder, "as it was.npz")
        os.link(path, link)  # A process that has opened the file goes on reading this one.
        # A library may turn the power cut into another error.
        with contextlib.suppress(_PowerCut, Exception):
            save(path, {"w1": new["w1"], "w2": _Unreadable()})
        _require_whole(
            path,
            old,
            "When your function died while it wrote, the previous weights were gone.",
            "Where can you write the new file while the old one is still there, and how does it "
            "take the place of the old one in a single step?",
        )
        verbs = dict.fromkeys(("unlink", "remove"), "removed the old file")
        verbs |= dict.fromkeys(("rename", "replace"), "moved the old file away")
        guards = {name: guarded(getattr(os, name), what) for name, what in verbs.items()}
        with mock.patch.multiple(os, **guards):
            call(new)
        _require_whole(
            path,
            new,
            "After the second call, the file did not hold the new weights.",
            "np.load(path) should give the weights of the last call.",
        )
        _require_whole(
            link,
            old,
            "The old file was overwritten, so for a while it was neither the old nor the new one.",
            "How can a complete file take the place of another in a single step?",
        )
    return (
        "The file held what was saved after each call, and the old weights when your function died "
        "while it wrote."
    )


def _require_whole(path: Path, right: dict[str, np.ndarray], saw: str, look: str) -> None:
    try:
        with np.load(path) as saved:
            whole = saved.keys() == right.keys() and all(
                np.array_equal(saved[name], right[name]) for name in right
            )
    except Exception:
        whole = False
    if not whole:
        raise Rejection(saw, look)


# --- V4. Whose rows ---------------------------------------------------------------------------

_ROWS, _EPOCH = 12, 8  # An epoch has eight steps of twelve rows.


@exercise("V4", "my_rows")
def check_v4(rows: Callable) -> Report:
    """Check which examples each process reads at each step, by one, two and three processes."""
    for examples in (103, 96):
        _require_rows(rows, examples)
    return f"{2 * _EPOCH} steps read the same minibatches in one process, in two and in three."


def _require_rows(rows: Callable, examples: int) -> None:
    calls = [(s, p, n) for n in (1, 1, 2, 3) for s in range(2 * _EPOCH) for p in range(n)]
    usage = "my_rows(examples, rows, step, process, processes)"
    answers = call_answer(rows, [(examples, _ROWS, *call) for call in calls], usage)
    read = []
    for (step, process, processes), answer in zip(calls, answers, strict=True):
        numbers = np.ravel(answer)
        if len(numbers) != _ROWS // processes or not np.isin(numbers, range(examples)).all():
            raise Rejection(
                f"At step {step}, process {process} of {processes} got {shown(answer)}; it has to "
                f"read {_ROWS // processes} of the examples 0 to {examples - 1}.",
                "After how many steps is an epoch over, and what follows?",
            )
        read.extend(numbers)
    alone, again, *others = np.reshape(read, (4, 2 * _EPOCH, _ROWS))
    if (alone != again).any():
        raise Rejection(
            "Asked twice for the same step, your function gave different examples.",
            "A process that was started again remembers nothing. What does it know?",
        )
    if (np.sort(others) != np.sort(alone)).any():
        raise Rejection(
            "Two or three processes do not read what one process reads at the same step.",
            "After a restart with another number of processes, which examples are read twice? Is "
            "there a minibatch of all, and a part of it for each process?",
        )
    if any(len(np.unique(epoch)) < epoch.size for epoch in np.split(alone, 2)):
        raise Rejection(
            f"An example was read twice in an epoch of {_EPOCH} steps, with {examples} examples.",
            "How can all steps of an epoch share one order? How many steps has an epoch?",
        )


# --- V5. Stop together ------------------------------------------------------------------------


class _ReaderError(Exception):
    """An error that an answer cannot foresee, so it must handle any."""


_FAILED = _ReaderError("the disk is gone")
# For each run, how many minibatches each process has, and the process whose reader then fails.
_RUNS = (
    ((3, 3), None),
    ((5, 3), None),
    ((2, 4, 3), None),
    ((3, 0), None),
    ((4, 2), 1),
    ((3, 0), 1),
)


class _Stuck(BaseException):
    """Ends a simulated process that would wait forever."""


def _run_in_threads(epoch: Callable, counts: tuple, fails: int | None) -> list[SimpleNamespace]:
    changed = threading.Condition()
    ran = [SimpleNamespace(calls=[], steps=[], held=0, end=None) for _ in counts]

    def run(me, count, fails):
        def add(call):
            with changed:
                me.calls.append(call)
                changed.notify_all()

        def least(number, name="least()"):
            add((name, number))
            at = len(me.calls) - 1  # The call returns when all others have made theirs.
            with changed:
                changed.wait_for(lambda: all(len(other.calls) > at for other in ran))
            if len({other.calls[at][0] for other in ran}) > 1:
                raise _Stuck
            return min(other.calls[at][1] for other in ran)

        def step(batch):
            least(0, "step()")
            me.steps.append(batch)

        def batches():
            for number in range(count):
                me.held = max(me.held, number + 1 - len(me.steps))
                yield number
            if fails:
                raise _FAILED

        try:
            me.end = epoch(step, least, batches())
        except BaseException as error:
            me.end = error
        add(("nothing more", 0))

    cases = [(ran[at], count, at == fails) for at, count in enumerate(counts)]
    threads = [threading.Thread(target=run, args=case, daemon=True) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ran


@exercise("V5", "my_steps")
def check_v5(epoch: Callable) -> Report:
    """Check that processes with unequal readers end a loop at the same step."""
    usage = "my_steps(step, least, batches)"
    require_callable(epoch, (min, min, iter(())), usage)
    call_answer(lambda *case: _require_common_end(epoch, *case), _RUNS, usage)
    return (
        f"In {len(_RUNS)} runs, all processes made the same calls, and as many steps as each had "
        "minibatches for. One reader failed, and its process raised the error."
    )


def _require_common_end(epoch: Callable, counts: tuple[int, ...], fails: int | None) -> bool:
    ran = _run_in_threads(epoch, counts, fails)
    failing = "" if fails is None else f" and an error of process {fails}'s reader"
    had = f"With {' and '.join(map(str, counts))} minibatches{failing},"
    for each in ran:
        if isinstance(each.end, BaseException) and not isinstance(each.end, _Stuck | _ReaderError):
            raise each.end
    for calls in zip(*(each.calls for each in ran), strict=False):
        if len({name for name, _ in calls}) > 1:
            listed = ", ".join(f"process {number} {name}" for number, (name, _) in enumerate(calls))
            raise Rejection(
                f"{had} the processes hang. Their next calls: {listed}.",
                "All have to make the same calls in the same order, also one that has no minibatch "
                "left or could not read, for whatever reason. What must they find out before each "
                "step?",
            )
    right = list(range(min(counts)))
    for number, each in enumerate(ran):
        if each.held > 2:
            raise Rejection(
                f"Process {number} held {each.held} minibatches that it had not trained on.",
                "An epoch may not fit into memory. When is the next minibatch needed?",
            )
        if each.steps != right:
            raise Rejection(
                f"{had} process {number} trained on {shown(each.steps)}, not on {right}.",
                "Which minibatches do all processes have, and which of them was left out?",
            )
        if each.end is not _FAILED if number == fails else each.end != len(right):
            raise Rejection(
                f"{had} process {number} ended with {shown(each.end)}.",
                "Return the number of steps. If the reader failed, raise its error instead, but "
                "not before the others know that no step follows.",
            )
    return True
