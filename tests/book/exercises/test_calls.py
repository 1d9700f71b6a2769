import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from fakes import FakeArray, FakeDevice

from d2lpar.book.exercises.answers import Rejection, call_answer
from d2lpar.book.exercises.calls import CallLog

X = jnp.ones((3, 3))


@pytest.fixture
def log():
    return CallLog()


def numbers(calls):
    return [(call.label, call.number) for call in calls]


# --- What was unfinished ----------------------------------------------------------------------


def test_a_call_tells_which_earlier_ones_were_unfinished(clock, log):
    step = log.watch("step()", FakeDevice(clock).run)
    step(10)  # Done at 10.
    step(10)  # Done at 20.
    clock.advance_to(15)
    step(10)  # Done at 30.
    clock.advance_to(30)
    step(10)
    assert [[one.number for one in call.unfinished] for call in log.calls] == [[], [0], [1], []]


def test_what_is_done_at_that_very_moment_is_done(clock, log):
    step = log.watch("step()", FakeDevice(clock).run)
    step(10).block_until_ready()
    step(10)
    assert log.calls[1].unfinished == ()


def test_it_counts_what_was_unfinished_before_the_call_and_not_after_it(clock, log):
    device = FakeDevice(clock)
    step = log.watch("step()", lambda work, dispatch: device.run(work, dispatch=dispatch))
    step(10, 0)
    step(5, 40)
    assert [call.number for call in log.calls[1].unfinished] == [0]


def test_what_was_unfinished_is_not_asked_again_later(clock, log):
    step = log.watch("step()", FakeDevice(clock).run)
    step(10), step(10)
    clock.advance(100)
    assert [call.number for call in log.calls[1].unfinished] == [0]


@pytest.mark.parametrize("devices", [1, 3])
def test_at_random_it_agrees_with_when_the_results_were_ready(clock, devices):
    for seed in range(10):
        chance, log = random.Random(seed), CallLog()
        queues = [FakeDevice(clock) for _ in range(devices)]
        step = log.watch("step()", lambda queue, work: queue.run(work))
        started, ready = [], []
        for _ in range(15):
            clock.advance(chance.randint(0, 6))
            started.append(clock.now)
            result = step(chance.choice(queues), chance.randint(0, 9))
            ready.append(result._ready_at)
        for number, call in enumerate(log.calls):
            expected = [i for i in range(number) if ready[i] > started[number]]
            assert [other.number for other in call.unfinished] == expected


def test_a_deleted_result_is_done_and_never_asked(clock, log):
    step = log.watch("step()", FakeDevice(clock).run)
    step(10).delete()
    step(10)  # A fake array refuses to be asked once it is deleted; JAX kills the process.
    assert log.calls[1].unfinished == ()


def test_a_deleted_array_of_jax_is_done_too(log):
    double = log.watch("double()", jax.jit(lambda x: 2 * x))
    double(X).delete()
    double(X)
    assert log.calls[1].unfinished == ()


def test_whoever_waited_for_a_copy_finds_the_array_done(clock, log, monkeypatch):
    # The copy wakes Python up a little before the array says that it is ready.
    monkeypatch.setattr(time, "sleep", clock.advance)
    step = log.watch("step()", lambda: FakeArray(clock, clock.now + 2e-4))
    step(), step()
    assert log.calls[1].unfinished == ()


def test_a_call_found_those_busy_that_were_unfinished(clock, log):
    first, second = FakeDevice(clock), FakeDevice(clock)
    make, send = log.watch("make()", first.run), log.watch("send()", second.run)
    make(10)
    send(1)
    clock.advance(5)
    send(1)
    clock.advance(10)
    make(1)
    found = [(call.found_busy("make()"), call.found_busy("send()")) for call in log.calls]
    assert found == [(False, False), (True, False), (True, False), (False, False)]


# --- What a call is ---------------------------------------------------------------------------


def test_each_function_has_its_numbers_and_all_calls_have_one_order(clock, log):
    make = log.watch("make()", FakeDevice(clock).run)
    send = log.watch("send()", FakeDevice(clock).run)
    make(1), send(1), send(1), make(1)
    assert numbers(log.calls) == [("make()", 0), ("send()", 0), ("send()", 1), ("make()", 1)]
    assert numbers(log.of("send()")) == [("send()", 0), ("send()", 1)]
    assert log.of("receive()") == []
    assert [len(call.earlier) for call in log.calls] == [0, 1, 2, 3]
    assert log.calls[3].earlier == tuple(log.calls[:3])


def test_the_function_gets_its_arguments_and_the_caller_its_result(log):
    seen = []

    def function(*args):
        seen.append(args)
        return X

    watched = log.watch("function()", function)
    assert watched("a", X) is X
    assert watched() is X
    assert seen == [("a", X), ()]
    assert [call.result is X for call in log.calls] == [True, True]


def test_a_call_knows_its_thread(log):
    double = log.watch("double()", lambda x: 2 * x)
    double(X)
    call_answer(double, [(X,)], "double(x)")
    (here, there) = (call.thread for call in log.calls)
    assert here == threading.get_ident() != there


def test_calls_of_several_threads_are_in_one_order(log):
    inside = []

    def function(x):
        inside.append("in")
        time.sleep(1e-3)  # Long enough for the others to come in, if they could.
        inside.append("out")
        return x

    watched = log.watch("function()", function)
    start = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: (start.wait(), watched(X), watched(X)), range(4)))
    assert inside == ["in", "out"] * 8
    assert [call.number for call in log.calls] == list(range(8))
    assert [len(call.earlier) for call in log.calls] == list(range(8))
    assert len({call.thread for call in log.calls}) == 4


def test_a_call_that_raises_passes_through_and_is_no_call(log):
    watched = log.watch("divide()", lambda x: X / x if x else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        watched(0)
    assert log.calls == []
    assert watched(2).shape == X.shape
    assert log.calls[0].number == 0


# --- What is turned down ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "under",
    [
        lambda f: jax.jit(f)(X),
        lambda f: jax.vmap(f)(X),
        lambda f: jax.lax.scan(lambda x, _: (f(x), None), X, length=2),
        lambda f: jax.grad(lambda x: f(x).sum())(X),
        lambda f: jax.make_jaxpr(f)(X),
        lambda f: jax.jit(lambda x: f(X, x))(X),
        lambda f: jax.jit(lambda x: f({"x": [x]}))(X),
    ],
    ids=["jit", "vmap", "scan", "grad", "make_jaxpr", "the second argument", "nested"],
)
def test_under_a_transformation_all_calls_would_be_one_and_none_is_noted(log, under):
    called = []
    watched = log.watch("step()", lambda x, *more: called.append(x) or x)
    with pytest.raises(Rejection, match=r"^step\(\) was called while JAX was tracing") as caught:
        under(watched)
    assert "Do without jit, vmap or scan" in caught.value.look
    assert called == log.calls == []


@pytest.mark.parametrize(("calls", "count"), [(0, 2), (1, 2), (3, 2), (1, 0)])
def test_another_number_of_calls_is_turned_down(clock, log, calls, count):
    step = log.watch("step()", FakeDevice(clock).run)
    other = log.watch("other()", FakeDevice(clock).run)
    for _ in range(calls):
        step(1)
    for _ in range(2 - calls):
        other(1)  # Calls of others do not count.
    message = rf"^step\(\) was called {calls} times?; it takes {count} calls\.$"
    with pytest.raises(Rejection, match=message) as caught:
        log.require_count("step()", count)
    assert "the first and the last as well" in caught.value.look


def test_the_right_number_of_calls_is_fine(clock, log):
    step = log.watch("step()", FakeDevice(clock).run)
    log.require_count("step()", 0)
    step(1), step(1)
    log.require_count("step()", 2)
