import numpy as np
import pytest
from attempts import consuming, require_accepted, require_told, to_numpy

from d2lpar.book.exercises import check_v2


def in_buckets(add_up, arrays, most, cut=None, shape=True, order=1):
    """Return the sums of arrays that travel one behind the other."""
    flat = np.concatenate([array.ravel() for array in arrays])
    cut = cut or most
    sums = [add_up(flat[first : first + cut]) for first in range(0, len(flat), cut)][::order]
    ends = np.cumsum([array.size for array in arrays])[:-1]
    pieces = np.split(np.concatenate(sums), ends)
    return [
        piece.reshape(array.shape) if shape else piece
        for piece, array in zip(pieces, arrays, strict=True)
    ]


def with_options(**options):
    return lambda add_up, arrays, most: in_buckets(add_up, arrays, most, **options)


WRONG = {
    "one message": (with_options(cut=10**6), "had 390 numbers, and at most 100"),
    "small messages": (with_options(cut=20), "You sent 20 messages; 390 numbers fit into 4"),
    "flat": (with_options(shape=False), "You returned arrays of the shapes"),
    "mixed up": (with_options(order=-1), "Array 0 is not the sum"),
    "nothing to see": (lambda add_up, arrays, most: 3, "returned 3, which is no list"),
}


@pytest.mark.parametrize("answer", [in_buckets, consuming(in_buckets), to_numpy(in_buckets)])
def test_a_right_answer_is_accepted(answer):
    require_accepted(check_v2(answer))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_v2(WRONG[name][0]), name, WRONG)
