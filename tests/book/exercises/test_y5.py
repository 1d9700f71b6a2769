import jax
import numpy as np
import pytest
from attempts import consuming, require_accepted, require_not_yet, require_told
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from d2lpar.book.exercises import check_y5

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def pipeline_at_once(first, second, batches, devices):
    return [second(jax.device_put(first(batch), devices[1])) for batch in batches]


def pipeline_by_stages(first, second, batches, devices):
    middle = [first(batch) for batch in batches]
    return tuple(second(jax.device_put(x, devices[1])) for x in middle)


RIGHT = {"at once": (pipeline_at_once,), "stage by stage": (consuming(pipeline_by_stages),)}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_y5(*answers))


def batch_by_batch(first, second, batches, devices):
    return [
        jax.block_until_ready(pipeline_at_once(first, second, [batch], devices))[0]
        for batch in batches
    ]


def stage_by_stage(first, second, batches, devices):
    middle = jax.block_until_ready([first(batch) for batch in batches])
    return [second(jax.device_put(x, devices[1])) for x in middle]


def half_by_half(first, second, batches, devices):
    halves = (batches[:4], batches[4:])
    return [
        x
        for half in halves
        for x in jax.block_until_ready(stage_by_stage(first, second, half, devices))
    ]


def all_on_the_other(first, second, batches, devices):
    return [second(first(jax.device_put(batch, devices[1]))) for batch in batches]


def spread(first, second, batches, devices):
    mesh = NamedSharding(Mesh(np.array(devices), "d"), PartitionSpec("d"))
    return [second(jax.device_put(first(batch), mesh)) for batch in batches]


WRONG = {
    "one device": (
        (lambda f, g, batches, devices: [g(f(batch)) for batch in batches],),
        r"second\(\) of batch 0 ran on CPU 0, but",
    ),
    "the other device": ((all_on_the_other,), r"first\(\) of batch 0 ran on CPU 1, but"),
    "each batch": (
        (batch_by_batch,),
        "stage one was asked for when stage two had nothing left to do: the stages take turns",
    ),
    "half by half": (
        (half_by_half,),
        "Only 0 of 8 batches were in stage one while an earlier one was in stage two",
    ),
    "stage by stage": ((stage_by_stage,), "when all of stage one was done: the stages run one"),
    "another order": (
        (lambda *args: pipeline_at_once(*args)[::-1],),
        "Item 0 of what your function returned is wrong",
    ),
    "the last forgotten": (
        (lambda f, g, batches, devices: pipeline_at_once(f, g, batches[1:], devices),),
        r"first\(\) was called 7 times; it takes 8 calls",
    ),
    "both devices": ((spread,), r"second\(\) of batch 0 ran on CPU 0 and CPU 1, but"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_y5(*WRONG[name][0]), name, WRONG)


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_y5(3), "was given an int, which cannot be called")


def test_in_a_pipeline_stage_two_may_be_asked_for_before_stage_one_of_the_next():
    def in_lock_step(first, second, batches, devices):
        results, middle = [], None
        for batch in [*batches, None]:
            ticks = []
            if middle is not None:
                results.append(second(jax.device_put(middle, devices[1])))
                ticks.append(results[-1])
            middle = None if batch is None else first(batch)
            jax.block_until_ready([*ticks, middle])
        return results

    require_accepted(check_y5(in_lock_step))
