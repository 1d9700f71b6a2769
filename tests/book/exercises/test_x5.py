import jax
import pytest
from attempts import require_accepted, require_not_yet, require_told

from d2lpar.book.exercises import check_x5

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def little_arithmetic(function, x):
    return (function.lower(x).compile().cost_analysis().get("flops") or 0) < 1000


def ready_at_once(function, x):
    # Once would do on an idle machine; a busy one may come back late.
    jax.block_until_ready(function(x))
    found = []
    for _ in range(3):
        y = function(x)
        found.append(y.is_ready())
        jax.block_until_ready(y)
    return all(found)


RIGHT = {"by the program": (little_arithmetic,), "by trying": (ready_at_once,)}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_x5(*answers))


def elementwise(function, x):
    return little_arithmetic(function, x) if x.size < 5e6 else True


def no_arithmetic(function, x):
    return not function.lower(x).compile().cost_analysis().get("flops")


WRONG = {
    "never": (
        (lambda function, x: False,),
        r"exp\(x\) of eight million elements runs inside .* says that it goes on after",
    ),
    "always": (
        (lambda function, x: True,),
        "1500x1500 matrices goes on after .* says that it runs inside the call",
    ),
    "whatever is elementwise": ((elementwise,), r"exp\(x\) \+ 1 of .* goes on after"),
    "whatever has no arithmetic": ((no_arithmetic,), "over 100 elements runs inside"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_x5(*WRONG[name][0]), name, WRONG)


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_x5(3), "was given an int, which cannot be called")
