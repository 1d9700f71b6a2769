import random

import numpy as np
import pytest
from attempts import require_accepted, require_not_yet, require_told

from d2lpar.book.exercises import check_x1
from d2lpar.book.exercises.x1 import _pipeline


def formula(t1, t2, t3, turns):
    return t1 + t2 + t3 + (turns - 1) * max(t1, t2)


def back_end_is_slower(t1, t2, turns):
    return t2 >= t1


RIGHT = {
    "one formula": (formula, back_end_is_slower),
    "by cases": (
        lambda t1, t2, t3, n: t1 + n * t2 + t3 if t1 <= t2 else n * t1 + t2 + t3,
        lambda t1, t2, n: np.bool_(t1 + n * t2 == formula(t1, t2, 0, n)),
    ),
}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_x1(*answers))


WRONG = {
    "one after the other": (
        (lambda t1, t2, t3, n: n * (t1 + t2 + t3), back_end_is_slower),
        "right for a single turn. What can happen at the same time in two",
    ),
    "the printed formula": (
        (lambda t1, t2, t3, n: t1 + n * t2 + t3, back_end_is_slower),
        "36 of 128 cases differ.\n  It is right wherever the back end is the slower one",
    ),
    "once too often": (
        (lambda t1, t2, t3, n: t1 + t2 + t3 + n * max(t1, t2), back_end_is_slower),
        r"says 3\.5; .* takes 3\.",
    ),
    "the last one forgotten": (
        (lambda t1, t2, t3, n: n * max(t1, t2) + t3, back_end_is_slower),
        r"says 2\.5; .* takes 3\.",
    ),
    "nan": ((lambda t1, t2, t3, n: float("nan"), back_end_is_slower), "says nan;"),
    "a word": ((lambda t1, t2, t3, n: "soon", back_end_is_slower), "is no number"),
    "the printed condition": (
        (formula, lambda t1, t2, n: n * t2 > (n - 1) * t1),
        "for t1 = 1.25, t2 = 1 and 2 turns your condition says that .* is the time",
    ),
    "strictly slower": (
        (formula, lambda t1, t2, n: t2 > t1),
        "for t1 = 0.5, t2 = 0.5 and 2 turns your condition says that .* is not the time",
    ),
    "always": ((formula, lambda t1, t2, n: True), "t1 = 1, t2 = 0.5 and 2 turns"),
    "nearly as slow": (
        (formula, lambda t1, t2, n: t2 > 0.8 * t1),
        "for t1 = 1, t2 = 0.875 and 2 turns your condition says",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_x1(*WRONG[name][0]), name, WRONG)


@pytest.mark.parametrize("answers", [(3, back_end_is_slower), (formula, 3)])
def test_what_is_no_function_is_not_yet_right(answers):
    require_not_yet(check_x1(*answers), "was given an int, which cannot be called")


def test_the_simulated_loop_takes_what_the_formula_says():
    chance = random.Random(0)
    for _ in range(500):
        t1, t2, t3 = (chance.randint(0, 20) / 4 for _ in range(3))
        turns = chance.randint(1, 20)
        # The longest path: up to one turn the front end, from there on the back end.
        paths = [(turn + 1) * t1 + (turns - turn) * t2 + t3 for turn in range(turns)]
        assert _pipeline(t1, t2, t3, turns) == max(paths)
        assert max(paths) == formula(t1, t2, t3, turns)
