import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest
from attempts import consuming, require_accepted, require_not_yet, require_told

from d2lpar import Event, Timeline, cpu
from d2lpar.book.exercises import check_y1, y1

pytestmark = pytest.mark.timed  # What a check sees depends on who else is at work.


def on_a_pool(multiply, matrices):
    with ThreadPoolExecutor() as pool:
        return list(pool.map(multiply, matrices))


def a_thread_each(multiply, matrices):
    results = [None] * len(matrices)

    def work(i):
        results[i] = jax.block_until_ready(multiply(matrices[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(matrices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(results)


RIGHT = {"a pool": (on_a_pool,), "a thread each": (consuming(a_thread_each),)}


@pytest.mark.parametrize("answers", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_is_accepted(answers):
    require_accepted(check_y1(*answers))


def deleting(multiply, matrices):
    results = jax.block_until_ready(on_a_pool(multiply, matrices))
    results[0].delete()
    return results


def failing_later(multiply, matrices):
    def fail(x):
        raise ValueError("later")

    return [jax.pure_callback(fail, multiply(m), multiply(m)) for m in matrices]


def everywhere_else(multiply, matrices):
    return [multiply(jax.device_put(matrix, cpu(1))) for matrix in matrices]


WRONG = {
    "one thread": (
        (lambda multiply, matrices: [multiply(matrix) for matrix in matrices],),
        "without waiting, by 1 Python thread, and yet .* on CPU 0 one after the other",
    ),
    "a barrier": (
        (
            lambda multiply, matrices: [
                jax.block_until_ready(multiply(matrix)) for matrix in matrices
            ],
        ),
        "asked for when the one before it was done",
    ),
    "one program": (
        (lambda multiply, matrices: jax.jit(lambda xs: list(map(multiply, xs)))(matrices),),
        r"multiply\(\) was called while JAX was tracing",
    ),
    "the last forgotten": (
        (lambda multiply, matrices: on_a_pool(multiply, matrices[:-1]),),
        "list of 5, where a result for each matrix was expected, a list of 6",
    ),
    "another order": (
        (lambda multiply, matrices: on_a_pool(multiply, matrices)[::-1],),
        "Item 0 of what your function returned is wrong",
    ),
    "deletes": ((deleting,), "Item 0 .* is an array that was deleted or donated"),
    "fails later": ((failing_later,), "raised .*CpuCallback error"),
    "another device": ((everywhere_else,), "ran on CPU 1, but all are to run on CPU 0"),
}


@pytest.fixture
def one_after_the_other(monkeypatch):
    """Have a recording show six runs in turn, without the profiler."""

    def record(function, *args):
        runs = (Event("CPU 0", "work", "dot", number, number, 1) for number in range(6))
        return function(*args), Timeline(tuple(runs))

    monkeypatch.setattr(y1, "record_trace", record)


# A true recording of calls that take turns is in the example of `check_y1`.
@pytest.mark.usefixtures("one_after_the_other")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_y1(*WRONG[name][0]), name, WRONG)


def test_what_is_no_function_is_not_yet_right():
    require_not_yet(check_y1(3), "was given an int, which cannot be called")


def test_where_the_profiler_shows_no_run_y1_does_not_judge(monkeypatch):
    def record(function, *args):
        return function(*args), Timeline((Event("CPU 0", "result", "", 0, 0, 1),))

    monkeypatch.setattr(y1, "record_trace", record)
    report = check_y1(on_a_pool)
    assert report.verdict == "untestable"
    assert "shows no run of multiply()" in report.saw
