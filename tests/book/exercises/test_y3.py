from itertools import chain

import jax
import pytest
from attempts import require_accepted, require_not_yet, require_told, to_numpy

from d2lpar.book.exercises import check_y3

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def send_at_once(make, send, n):
    copies = [], []
    for i in range(n):
        for device in (0, 1):
            copies[device].append(send(make(device, i)))
    return copies


def make_all_and_send(make, send, n):
    made = [[make(device, i) for i in range(n)] for device in (0, 1)]
    return [[send(array) for array in arrays] for arrays in made]


RIGHT = {"send at once": (send_at_once,), "make all, then send": (make_all_and_send,)}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_y3(*answers))


def make_and_wait_for_each(make, send, n):
    return send_at_once(lambda device, i: jax.block_until_ready(make(device, i)), send, n)


def make_and_wait_for_all(make, send, n):
    made = jax.block_until_ready([[make(device, i) for i in range(n)] for device in (0, 1)])
    return [[send(array) for array in arrays] for arrays in made]


def keep_what_was_sent(make, send, n):
    made = [[make(device, i) for i in range(n)] for device in (0, 1)]
    for array in made[0] + made[1]:
        send(array)
    return made


def pair_by_pair(make, send, n):
    pairs = [jax.block_until_ready([send(make(0, i)), send(make(1, i))]) for i in range(n)]
    return [list(copies) for copies in zip(*pairs, strict=True)]


def without_the_last_array(make, send, n):
    return send_at_once(make, send, n - 1)


WRONG = {
    "each array": (
        (make_and_wait_for_each,),
        "asked for while the other .*: the devices take turns",
    ),
    "all arrays": (
        (make_and_wait_for_all,),
        "Both devices compute at the same time, but 0 of 12 copies",
    ),
    "each pair": (
        (pair_by_pair,),
        "0 of 10 later arrays were asked for while their own device was still busy",
    ),
    "no copies": ((keep_what_was_sent,), "Not all copies of the arrays of device 0 lie on"),
    "one list": (
        (lambda *args: list(chain(*send_at_once(*args))),),
        "returned list, not two lists",
    ),
    "the last forgotten": (
        (without_the_last_array,),
        r"make\(0, i\) was called 5 times; it takes 6 calls",
    ),
    "arguments swapped": (
        (lambda make, send, n: [[send(make(i, d)) for i in range(n)] for d in (0, 1)],),
        r"make\(2, 0\) was called; the devices are 0 and 1",
    ),
    "a list sent": (
        (lambda make, send, n: [send([make(d, i) for i in range(n)]) for d in (0, 1)],),
        r"send\(\) was given list, not an array of JAX",
    ),
    "to NumPy": ((to_numpy(send_at_once),), "Item 0 .* is NumPy's"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_y3(*WRONG[name][0]), name, WRONG)


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_y3(3), "was given an int, which cannot be called")


def test_a_copy_beside_one_device_that_computes_is_not_beside_both():
    def my_exchange(make, send, n):
        made = [[make(0, i) for i in range(n)], [make(1, i) for i in range(n // 2)]]
        jax.block_until_ready(made[0])
        made[1] += [make(1, i) for i in range(n // 2, n)]
        return [[send(array) for array in arrays] for arrays in made]

    report = check_y3(my_exchange)
    assert report.verdict == "not yet"
    assert "of 12 copies were asked for while both were still computing" in report.saw


def test_lists_of_the_wrong_device_are_not_taken_for_arrays_that_were_not_sent():
    report = check_y3(lambda *args: send_at_once(*args)[::-1])
    assert "Item 0 of what your function returned is wrong" in report.saw
