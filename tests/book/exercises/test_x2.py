import jax
import jax.numpy as jnp
import pytest
from attempts import consuming, require_accepted, require_not_yet, require_told, to_numpy

from d2lpar import InFlight
from d2lpar.book.exercises import check_x2

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def window_of(limit):
    def my_epoch(step, parameters, batches):
        with InFlight(limit) as window:
            for batch in batches:
                parameters = window.submit(step, parameters, batch)
        return parameters

    return my_epoch


def wait_for_the_one_before(step, parameters, batches):
    for batch in batches:
        before, parameters = parameters, step(parameters, batch)
        jax.block_until_ready(before)
    return parameters


RIGHT = {"a window": (window_of(2),), "the one before": (consuming(wait_for_the_one_before),)}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_x2(*answers))


def epoch(wait):
    """Return a loop over batches that waits as it is told to."""

    def my_epoch(step, parameters, batches):
        for number, batch in enumerate(batches):
            parameters = step(parameters, batch)
            wait(number, parameters)
        return parameters

    return my_epoch


def stale(step, parameters, batches):
    found = [parameters, parameters]
    for batch in batches:
        jax.block_until_ready(found[-2])
        found.append(step(found[-2], batch))
    return found[-1]


def without_the_last(step, parameters, batches):
    return wait_for_the_one_before(step, parameters, batches[:-1])


def scanned(step, parameters, batches):
    return jax.lax.scan(lambda p, b: (step(p, b), None), parameters, jnp.stack(batches))[0]


WRONG = {
    "window of three": ((window_of(3),), "while steps 0 and 1 were unfinished"),
    "each step": (
        (epoch(lambda _, p: jax.block_until_ready(p)),),
        "No step was dispatched while the one",
    ),
    "once without": (
        (epoch(lambda i, p: None if i == 5 else jax.block_until_ready(p)),),
        "Only 1 of 12 steps.*\n.*also the later ones",
    ),
    "every second": (
        (epoch(lambda i, p: jax.block_until_ready(p) if i % 2 else None),),
        "Only 6 of 12 steps",
    ),
    "stale": ((stale,), "wrong: it differs from the right one"),
    "without the last": ((without_the_last,), "called 11 times; it takes 12 calls"),
    "to NumPy": ((to_numpy(wait_for_the_one_before),), r"NumPy's, not JAX's \(ndarray\)"),
    "scanned": ((scanned,), "while JAX was tracing, so all its calls became one program"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_x2(*WRONG[name][0]), name, WRONG)


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_x2(3), "was given an int, which cannot be called")
