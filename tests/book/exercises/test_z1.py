from collections import deque

import jax
import numpy as np
import pytest
from attempts import require_accepted, require_not_yet, require_told

from d2lpar.book.exercises import check_z1

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def training(lag, as_number=float, drain=True, shift=0):
    """Return a training loop that logs each loss so many steps later."""

    def my_training(step, parameters, batches, log):
        pending = deque()
        for number, batch in enumerate(batches):
            parameters, loss = step(parameters, batch)
            pending.append((number + shift, loss))
            if len(pending) > lag:
                then, loss = pending.popleft()
                log(then, as_number(loss))
        while drain and pending:
            then, loss = pending.popleft()
            log(then, as_number(loss))
        return parameters

    return my_training


RIGHT = {lag: training(lag) for lag in (1, 2, 3)}


@pytest.mark.parametrize("lag", RIGHT)
def test_a_right_answer_is_accepted(lag):
    require_accepted(check_z1(RIGHT[lag]))


def waits_for_each(step, parameters, batches, log):
    def wait_and_step(parameters, batch):
        return jax.block_until_ready(step(parameters, batch))

    return training(2)(wait_and_step, parameters, batches, log)


def stale_parameters(step, parameters, batches, log):
    first = parameters
    return training(1)(lambda _, batch: step(first, batch), parameters, batches, log)


def logs_another_loss(step, parameters, batches, log):
    losses = []

    def note(parameters, batch):
        parameters, loss = step(parameters, batch)
        losses.append(loss)
        return parameters, losses[0]

    return training(1)(note, parameters, batches, log)


WRONG = {
    "at once": (training(0), "so were 11 of 12"),
    "all at the end": (training(12), "losses pile up"),
    "never the last": (training(1, drain=False), r"steps \[0, 1, .* 10\];"),
    "arrays": (training(1, as_number=lambda loss: loss), "as an array of JAX"),
    "another loss": (logs_another_loss, "is not the loss of that step"),
    "waits all the same": (waits_for_each, "Only . of 12 steps"),
    "wrong numbers": (training(1, shift=1), r"steps \[1, 2, .* 12\];"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_z1(WRONG[name][0]), name, WRONG)


def test_an_answer_that_learns_nothing_is_told_so():
    require_not_yet(check_z1(stale_parameters), "is not the loss of that step")


def test_a_number_of_numpy_is_a_number():
    require_accepted(check_z1(training(1, as_number=lambda loss: np.float64(loss))))


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_z1(3), "was given an int, which cannot be called")
