import jax
import jax.numpy as jnp
import pytest
from attempts import require_accepted, require_not_yet, require_told, to_numpy

from d2lpar import wait_all
from d2lpar.book.exercises import check_x4

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def second_result(start):
    return jax.block_until_ready(start()[1])


def everything_by_a_sentinel(start):
    results = start()
    wait_all()
    return results


def everything_by_hand(start):
    results = start()
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.float32(0)))
    return tuple(jax.block_until_ready(results))


RIGHT = {
    "a sentinel": (second_result, everything_by_a_sentinel),
    "by hand": (lambda start: start().pop(1).block_until_ready(), everything_by_hand),
}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_x4(*answers))


def after_waiting_for(index, then=1):
    def my_second(start):
        results = start()
        jax.block_until_ready(results[index])
        return results[then]

    return my_second


def twice(start):
    start()
    return jax.block_until_ready(start())


WRONG = {
    "the first": (
        (after_waiting_for(0), everything_by_a_sentinel),
        "second result was not ready",
    ),
    "the third": (
        (after_waiting_for(2), everything_by_a_sentinel),
        "not only the second result was ready: the third was",
    ),
    "all for one": (
        (lambda start: jax.block_until_ready(start())[1], everything_by_a_sentinel),
        "not only the second result was ready: all of them were",
    ),
    "another one": ((after_waiting_for(1, 0), everything_by_a_sentinel), "my_second.*wrong"),
    "to NumPy": ((to_numpy(second_result), everything_by_a_sentinel), "my_second.*NumPy's"),
    "no start": (
        (lambda start: 1.0, everything_by_a_sentinel),
        r"my_second called start\(\) 0, 0, 0 times",
    ),
    "twice": ((second_result, twice), r"3 runs, my_everything called start\(\) 2, 2, 2 times"),
    "the list": (
        (second_result, lambda start: jax.block_until_ready(start())),
        "the device still had work for .* it does not return.\n.*no reference to a result",
    ),
    "all that lives": (
        (second_result, lambda start: (start(), jax.effects_barrier())[0]),
        "some of the results were not ready",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_x4(*WRONG[name][0]), name, WRONG)


@pytest.mark.parametrize("answers", [(3, everything_by_a_sentinel), (second_result, 3)])
def test_what_is_no_function_is_not_yet_right(answers):
    require_not_yet(check_x4(*answers), "was given an int, which cannot be called")


def no_start_at_first():
    """Return an answer to X4 that calls start three times in three runs, but not once in each."""
    runs = iter([0, 2, 1])

    def my_second(start):
        results = [start() for _ in range(next(runs))]
        return jax.block_until_ready(results[-1][1]) if results else 1.0

    return my_second


def test_calls_that_only_add_up_to_one_in_each_run_are_counted_run_by_run():
    answers = (no_start_at_first(), everything_by_a_sentinel)
    require_not_yet(check_x4(*answers), r"my_second called start\(\) 0, 2, 1 times")
