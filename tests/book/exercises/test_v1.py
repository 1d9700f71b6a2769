import numpy as np
import pytest
from attempts import require_accepted, require_told

from d2lpar.book.exercises import check_v1


def by_sums(numbers):
    from jax.experimental import multihost_utils

    total, count = multihost_utils.process_allgather(np.array([numbers.sum(), len(numbers)])).sum(0)
    return float(total / count)


def mean_of_means(numbers):
    from jax.experimental import multihost_utils

    return float(multihost_utils.process_allgather(np.mean(numbers)).mean())


def leaves_one_out(numbers):
    return by_sums(numbers) if len(numbers) > 1 else 5.0 + {}["missing"]


WRONG = {
    "means": (mean_of_means, "8.0 in process 0 and 8.0 in process 1"),
    "raises in one": (leaves_one_out, "Process 1 failed"),
    "no function": (3, "was given an int, which cannot be called"),
}


def test_a_right_answer_is_accepted():
    require_accepted(check_v1(by_sums))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_v1(WRONG[name][0]), name, WRONG)
