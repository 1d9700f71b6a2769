import random

import pytest
from attempts import consuming, require_accepted, require_not_yet, require_told

from d2lpar.book.exercises import check_x3
from d2lpar.book.exercises.x3 import _two_queues


def loop_time(first, second, barrier):
    if barrier == "none":
        return max(sum(first), sum(second))
    if barrier == "each minibatch":
        return sum(map(max, zip(first, second, strict=True)))
    now, done = 0, [0, 0]
    for turn in zip(first, second, strict=True):
        for device in (0, 1):
            now = max(now, done[device])
            done[device] = now + turn[device]
    return max(done)


RIGHT = {"at once": (loop_time,), "with lists of its own": (consuming(loop_time),)}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_x3(*answers))


WRONG = {
    "one after the other": (
        (lambda first, second, barrier: sum(first) + sum(second),),
        "barrier 'none' .* says 9; the simulated loop takes 6.\n  Nobody waits before the end",
    ),
    "nobody waits": (
        (lambda first, second, barrier: max(sum(first), sum(second)),),
        "barrier 'each minibatch' .*\n  In each turn Python waits for both",
    ),
    "each device for itself": (
        (lambda a, b, barrier: loop_time(a, b, barrier.replace("each device", "none")),),
        "barrier 'each device' .*says 8; .* takes 10.\n  There is one Python thread",
    ),
    "each device like both": (
        (lambda a, b, barrier: loop_time(a, b, barrier.replace("device", "minibatch")),),
        "barrier 'each device' .*says 12; .* takes 10.\n",
    ),
    "nan": ((lambda first, second, barrier: float("nan"),), "says nan"),
    "a list": ((lambda first, second, barrier: [first, second],), "is no number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_x3(*WRONG[name][0]), name, WRONG)


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_x3(3), "was given an int, which cannot be called")


def tick_by_tick(first, second, barrier):
    """Let a thread and two devices go on by one tick at a time, and count the ticks."""
    todo = [(device, turn[device]) for turn in zip(first, second, strict=True) for device in (0, 1)]
    left, queued, ticks = [0, 0], [[], []], 0
    while True:
        while todo:
            device, seconds = todo[0]
            ends_turn = len(todo) % 2 == 0
            if barrier == "each device" and (left[device] or queued[device]):
                break
            if barrier == "each minibatch" and ends_turn and any([*left, *queued]):
                break
            queued[device].append(seconds)
            todo.pop(0)
            for free in (0, 1):
                if not left[free] and queued[free]:
                    left[free] = queued[free].pop(0)
        if not any([*todo, *left, *queued]):
            return ticks
        ticks += 1
        for device in (0, 1):
            left[device] = max(0, left[device] - 1)
            if not left[device] and queued[device]:
                left[device] = queued[device].pop(0)


@pytest.mark.parametrize("barrier", ["none", "each minibatch", "each device"])
def test_the_simulated_devices_are_done_when_they_are_tick_by_tick(barrier):
    chance = random.Random(0)
    for _ in range(300):
        turns = chance.randint(1, 7)
        lists = [[chance.randint(1, 9) for _ in range(turns)] for _ in (0, 1)]
        expected = tick_by_tick(*lists, barrier)
        assert _two_queues(*lists, barrier) == expected, lists
