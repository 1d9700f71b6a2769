"""The checks of V1 to V5: right answers, and wrong ones that a reader may well give."""

import os
import shutil
import tempfile
from functools import partial
from itertools import islice

import numpy as np
from attempts import both_tests, consuming

from d2lpar.book.exercises import check_v1, check_v2, check_v3, check_v4, check_v5

RIGHT, WRONG = {}, {}


def by_sums(numbers, dtype=np.float32):
    from jax.experimental import multihost_utils

    mine = np.array([numbers.sum(), len(numbers)], dtype)
    total, count = multihost_utils.process_allgather(mine).sum(0)
    return float(total / count)


def mean_of_means(numbers):
    from jax.experimental import multihost_utils

    return float(multihost_utils.process_allgather(np.mean(numbers)).mean())


RIGHT[check_v1] = {"by sums": by_sums}
WRONG[check_v1] = {
    "means": (mean_of_means, "8000000000.0 in process 0 and 8000000000.0 in process 1"),
    "wraps round": (partial(by_sums, dtype=int), "returned -153960755.2 in process 0 and -153"),
    "raises in one": (
        lambda numbers: by_sums(numbers) if len(numbers) > 1 else 5.0 + {}["missing"],
        "Process 1 failed(.|\n)*\n  Is the error in that line",
    ),
    "one calls it": (
        lambda numbers: by_sums(numbers) if len(numbers) > 1 else float(numbers[0]),
        "has not ended.*(.|\n)*\n  Both processes have to",
    ),
}


def in_buckets(add_up, arrays, most, cut=None, shape=True, order=1):
    flat = np.concatenate([array.ravel() for array in arrays])
    cut = cut or most
    sums = [add_up(flat[first : first + cut]) for first in range(0, len(flat), cut)][::order]
    ends = np.cumsum([array.size for array in arrays])[:-1]
    pieces = np.split(np.concatenate(sums), ends)
    return [
        piece.reshape(array.shape) if shape else piece
        for piece, array in zip(pieces, arrays, strict=True)
    ]


RIGHT[check_v2] = {"in buckets": in_buckets, "consuming": consuming(in_buckets)}
WRONG[check_v2] = {
    "one message": (partial(in_buckets, cut=10**6), "had 390 numbers, and at most 100"),
    "small messages": (partial(in_buckets, cut=20), "You sent 20 messages; 390 numbers fit into 4"),
    "as float64": (
        lambda add_up, *rest: in_buckets(lambda x: add_up(x.astype(float)), *rest),
        "numbers of the dtype float64",
    ),
    "flat": (partial(in_buckets, shape=False), "You returned arrays of the shapes"),
    "mixed up": (partial(in_buckets, order=-1), "Array 0 is not the sum"),
    "nothing to see": (
        lambda add_up, arrays, most: 3 * add_up(arrays[0]).size,
        "returned 36, which is not a list",
    ),
    "nothing sent": (
        lambda add_up, arrays, most: [2 * array for array in arrays],
        r"add_up\(\) was never called: nothing was sent.\n.*if nothing is sent",
    ),
}


def save(path, weights):
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez(file, **weights)
    os.replace(partial, path)


def in_place(path, weights):
    np.savez(path, **{name: np.asarray(array) for name, array in weights.items()})


def save_with_keywords(path, weights):
    save(new := path.with_name("new.npz"), weights)
    os.replace(dst=path, src=new)


RIGHT[check_v3] = {"in one step": save, "with keywords": save_with_keywords}
WRONG[check_v3] = {
    "in place": (lambda path, weights: np.savez(path, **weights), "previous weights were gone"),
    "all read first": (in_place, "The old file was overwritten"),
    "after removing it": (
        lambda path, weights: (
            arrays := {name: np.asarray(array) for name, array in weights.items()},
            path.unlink(missing_ok=True),
            np.savez(path, **arrays),
        ),
        "Your function removed the old file",
    ),
    "after moving it away": (
        lambda path, weights: (
            save(new := path.with_name("new.npz"), weights),
            path.exists() and path.rename(path.with_name("old.npz")),
            new.rename(path),
        ),
        "Your function moved the old file away",
    ),
    "from another disk": (
        lambda path, weights: (
            np.savez(new := f"{tempfile.mkdtemp()}/new.npz", **weights),
            shutil.move(new, path),
        ),
        "The old file was overwritten",
    ),
    "only once": (lambda path, w: path.exists() or save(path, w), "After the second call"),
    "elsewhere": (
        lambda path, weights: save(path.with_name("other.npz"), weights),
        "did not hold the given weights",
    ),
}


def rows_of(examples, rows, step, process, processes, seed=None, cut=np.split, dropped=0):
    epoch, number = divmod(step, (examples - dropped) // rows)
    order = np.random.default_rng(seed or [epoch]).permutation(examples)
    return cut(order[number * rows :][:rows], processes)[process]


RIGHT[check_v4] = {
    "from the step": rows_of,
    "in turn": partial(rows_of, cut=lambda x, count: [x[p::count].tolist() for p in range(count)]),
}
WRONG[check_v4] = {
    "an order each": (
        lambda n, rows, *call: rows_of(n, rows // call[2], call[0], 0, 1, seed=1 + call[1]),
        "do not read what one process reads",
    ),
    "any": (lambda *call: np.random.permutation(103)[: 12 // call[4]], "Asked twice"),
    "drawn": (lambda *call: rows_of(12, 12, 0, *call[3:]) + call[2] // 2, "read twice in an epoch"),
    "a step too few": (partial(rows_of, dropped=1), "read twice in an epoch"),
    "one epoch": (lambda *call: range(103)[12 * call[2] :][:12], r"step 8, .*range\(96, 103\)"),
    "no numbers": (lambda *call: call[2], "At step 0, process 0 of 1 got 0;"),
}


# --- V5. Stop together ------------------------------------------------------------------------


def asks_first(step, least, batches, read=1, most=9, handles=Exception, raises=True, result=True):
    ready, steps, error = [], 0, None
    while steps < most:
        try:
            ready += islice(batches, read - len(ready))
        except handles as failed:
            error = failed
        if not least(len(ready) > 0):
            break
        step(ready.pop(0))
        steps += 1
    if error and raises:
        raise error
    return steps if result else None


def alone(step, least, batches):
    return len([step(batch) for batch in batches])


def reads_unguarded(step, least, batches):
    batch, steps = next(batches), 0
    while least(batch is not None):
        step(batch)
        batch, steps = next(batches, None), steps + 1
    return steps


RIGHT[check_v5] = {"asks first": asks_first, "one ahead": partial(asks_first, read=2)}
WRONG[check_v5] = {
    "alone": (alone, r"With 5 and 3 .* hang. .*: process 0 step\(\), process 1 nothing more"),
    "tells at its end": (
        lambda *a: alone(*a) + 0 * a[1](0),
        r"process 0 step\(\), process 1 least\(\)",
    ),
    "reads all": (partial(asks_first, read=9), "Process 0 held 3 minibatches"),
    "two steps": (partial(asks_first, most=2), "With 3 and 3 .* trained on"),
    "handles one kind of error": (
        partial(asks_first, handles=OSError),
        r"With 4 and 2 .* error of process 1's reader, the processes hang.*\n.*whatever reason",
    ),
    "hides the error": (partial(asks_first, raises=False), "1's reader, process 1 ended with 2"),
    "returns nothing": (partial(asks_first, result=False), "process 0 ended with None"),
    "takes one for granted": (reads_unguarded, "raised StopIteration"),
    "raises": (lambda step, least, batches: len(batches), "raised TypeError: object of type"),
    "no function": (3, "was given an int, which cannot be called"),
}


def test_another_name_of_the_same_folder_is_no_other_disk(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "link"))
    assert check_v3(lambda path, weights: save(path.resolve(), weights)).verdict == "accepted"


test_right_answers_are_accepted, test_wrong_answers_are_told_why = both_tests(RIGHT, WRONG)
