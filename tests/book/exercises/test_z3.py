import jax.numpy as jnp
import numpy as np
import pytest
from attempts import require_accepted, require_not_yet, require_told

from d2lpar.book.exercises import check_z3

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def evaluation(add, fill=np.zeros, valid=len, step=1):
    """Return an evaluation that fills up the last batch, and adds up in some way."""

    def my_evaluation(count, examples, rows):
        total = 0
        for first in range(0, len(examples), rows * step):
            batch = examples[first : first + rows]
            even = np.concatenate([batch, fill((rows - len(batch), examples.shape[1]))])
            total = add(total, count(even.astype(np.float32), valid(batch)))
        return total

    return my_evaluation


def later(total, count):
    return total + count


def with_a_list(count, examples, rows):
    found = []
    for first in range(0, len(examples), rows):
        batch = examples[first : first + rows]
        even = jnp.zeros((rows, examples.shape[1])).at[: len(batch)].set(batch)
        found.append(count(even, len(batch)))
    return sum(map(int, found))


RIGHT = {
    "an array": evaluation(later),
    "ones": evaluation(later, fill=np.ones),
    "a list, read at the end": with_a_list,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted(name):
    require_accepted(check_z3(RIGHT[name]))


def uneven(count, examples, rows):
    return sum(
        count(examples[first : first + rows], len(examples[first : first + rows]))
        for first in range(0, len(examples), rows)
    )


WRONG = {
    "a short last batch": (uneven, r"shapes \(64, 64\) and \(5, 64\)"),
    "one by one": (
        lambda count, examples, rows: evaluation(later)(count, examples, 1),
        r"of the shape \(1, 64\)",
    ),
    "waits for each": (evaluation(lambda total, n: total + int(n)), "when the one before was done"),
    "counts what is filled in": (
        evaluation(later, fill=np.ones, valid=lambda batch: 64),
        "of 453 rows are right",
    ),
    "no number": (evaluation(lambda total, n: "many"), "which is no number.\n.*Return the sum"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_z3(WRONG[name][0]), name, WRONG)


def test_half_of_the_examples_are_not_enough():
    require_not_yet(check_z3(evaluation(later, step=2)), "of 453 rows are right")


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_z3(3), "was given an int, which cannot be called")
