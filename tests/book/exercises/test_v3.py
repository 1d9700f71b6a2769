import os

import numpy as np
import pytest
from attempts import require_accepted, require_told

from d2lpar.book.exercises import check_v3


def save(path, weights):
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez(file, **weights)
    os.replace(partial, path)


def in_place(path, weights):
    np.savez(path, **{name: np.asarray(array) for name, array in weights.items()})


def away_and_back(path, weights):
    path.unlink(missing_ok=True)
    np.savez(path, **weights)


def only_once(path, weights):
    if not path.exists():
        save(path, weights)


def elsewhere(path, weights):
    save(path.with_name("other.npz"), weights)


WRONG = {
    "in place": (lambda path, weights: np.savez(path, **weights), "from before were gone"),
    "all read first": (in_place, "The old file was written over"),
    "only once": (only_once, "After the second call"),
    "elsewhere": (elsewhere, "did not hold what it was given"),
}


def test_a_right_answer_is_accepted():
    require_accepted(check_v3(save))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_v3(WRONG[name][0]), name, WRONG)


def test_one_that_is_away_for_a_while_is_told_so():
    report = check_v3(away_and_back)
    assert (report.verdict, "from before were gone" in report.saw) == ("not yet", True)
