import functools
import gc
import logging
import operator
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from d2lpar import waits_allowed, watch
from d2lpar._plain.errors import D2lparError
from d2lpar._watch.sampler import Watcher
from d2lpar.book.asynchronous_computation import NEED_A_VALUE, NEED_NONE
from d2lpar.book.workloads import Work, chain

# --- What is found --------------------------------------------------------------------------------

WAITS = {"value", "barrier"}


@functools.cache
def work():
    return Work()


@pytest.fixture(autouse=True, scope="module")
def _measured_before():
    work()  # Its own waits must not be found in the first test.


@jax.jit
def unready(matrix, links):
    # The number of links is no static argument, so that nothing compiles inside `watch`.
    y = jax.lax.fori_loop(0, links, lambda _, y: chain(y, 1), matrix)
    return y, jnp.abs(y).sum(), jnp.argmax(y) % 2


def found_in(function, *kinds, seconds=0.1, attempts=5):
    """Return the lines that are found to be at one of these kinds, in the first attempt with any.

    There are several, since another process may have the core during one.
    """
    function(*unready(work().matrix, work().links(0.001)))  # Compiles.
    for attempt in range(attempts):
        arrays = unready(work().matrix, work().links(seconds * 2**attempt))
        with watch(0.001) as watched:
            function(*arrays)
        if found := {f.place.code for f in watched.findings if f.kind in kinds}:
            break
    return found


@pytest.mark.parametrize("name", NEED_A_VALUE)
def test_each_wait_for_a_value_is_found_on_its_line(name):
    def ask(*arrays):
        NEED_A_VALUE[name](*arrays)  # This line.

    assert found_in(ask, *WAITS) == {"NEED_A_VALUE[name](*arrays)  # This line."}


@pytest.mark.parametrize("name", NEED_NONE)
def test_what_needs_no_value_is_not_said_to_wait(name):
    def ask(*arrays):
        for _ in range(5):
            NEED_NONE[name](*arrays)

    assert found_in(ask, *WAITS, seconds=0.03, attempts=1) == set()


@pytest.mark.parametrize(
    "other",
    [
        lambda *arrays: time.sleep(0.02),
        lambda *arrays: threading.Event().wait(0.02),
        lambda *arrays: threading.Thread(target=time.sleep, args=[0.02]).run(),
    ],
    ids=["sleep", "event", "function that sleeps"],
)
def test_whoever_waits_for_something_else_does_not_wait_for_the_device(other):
    assert found_in(other, *WAITS, "queue", attempts=1) == set()


def test_an_array_is_read_through_the_buffer_protocol_and_by_dlpack():
    filled = np.zeros(work().matrix.shape, np.float32)

    def fill(y, s, i):
        filled[:] = y

    def view(y, s, i):
        memoryview(y)

    def share(y, s, i):
        np.from_dlpack(y)

    lines = {fill: "filled[:] = y", view: "memoryview(y)", share: "np.from_dlpack(y)"}
    assert {read: found_in(read, "value") for read in lines} == {r: {c} for r, c in lines.items()}


def test_a_barrier_is_told_from_a_value():
    def wait(y, s, i):
        jax.block_until_ready([y, {"s": s}])

    assert found_in(wait, "barrier") == {'jax.block_until_ready([y, {"s": s}])'}


def test_a_full_queue_is_no_wait():
    step = jax.jit(lambda x: chain(x, work().links(0.01)))

    def run_ahead(y, s, i):
        x = work().matrix
        for _ in range(60):
            x = step(x)

    assert found_in(run_ahead, "queue") == {"x = step(x)"}


def test_a_device_that_has_nothing_to_do_is_found_with_what_python_does_meanwhile():
    def read(y, s, i):
        y.block_until_ready()
        time.sleep(0.6)  # Read.

    assert "time.sleep(0.6)  # Read." in found_in(read, "device idle", seconds=0.03)


@pytest.mark.parametrize(
    "step",
    [functools.partial(operator.add, 1), jax.jit(lambda y: y + 1)],
    ids=["frames of JAX", "no frame of JAX"],
)
def test_small_steps_cost_python_more_than_the_device(step):
    y = step(jnp.ones(2))
    for _ in range(5):  # Another process may have the core.
        with watch() as watched:
            end = time.perf_counter() + 0.4
            while time.perf_counter() < end:
                y = step(y)  # This line.
        found = watched.findings[0]
        if found.kind == "dispatch" and watched.loss(found) > 0.3:
            break
    assert (found.kind, found.place.code) == ("dispatch", "y = step(y)  # This line.")
    assert watched.loss(found) > 0.3


def test_a_program_that_calls_back_waits_at_the_line_of_the_callback():
    def log(x):
        time.sleep(0.01)  # This line.

    @jax.jit
    def step(x):
        io_callback(log, None, x.sum(), ordered=True)
        return x + 1

    x = jax.block_until_ready(step(jnp.ones(3)))
    with watch() as watched:
        for _ in range(40):
            x = step(x)
        jax.block_until_ready(x)
        jax.effects_barrier()
    found = watched.findings[0]
    assert (found.kind, found.place.code) == ("callback", "time.sleep(0.01)  # This line.")
    assert watched.loss(found) > 0.5


def test_a_light_callback_is_named_as_what_makes_a_call_slow():
    @jax.jit
    def step(x):
        jax.debug.callback(len, x)
        return x + 1

    x = jax.block_until_ready(step(jnp.ones(3)))
    with watch() as watched:
        end = time.perf_counter() + 0.4
        while time.perf_counter() < end:
            x = step(x)  # This line.
    found = watched.findings[0]
    assert found.place.code == "x = step(x)  # This line."
    assert found.kind in ("callback", "slow dispatch")


def test_a_collection_by_hand_is_charged_to_its_line_and_known_without_a_window():
    with watch() as watched:
        for _ in range(5):
            gc.collect()  # This line.
    (found,) = [f for f in watched.findings if f.kind == "collection" and f.place.line]
    assert found.place.code == "gc.collect()  # This line."
    assert watched.share(found) > 0.5


def test_a_line_that_may_wait_is_told_from_others():
    with watch(0.001) as watched, waits_allowed():
        time.sleep(0.6)  # This line.
    (found,) = [f for f in watched.findings if f.place.code == "time.sleep(0.6)  # This line."]
    assert found.lost
    assert found.allowed


def test_the_thread_that_feeds_the_device_is_charged_and_not_who_waits_for_it():
    def learn():
        for _ in range(60):
            time.sleep(0.012)  # Reads.
            float(unready(work().matrix, work().links(0.003))[1])

    float(unready(work().matrix, work().links(0.003))[1])
    learner = threading.Thread(target=learn, name="learner")
    with watch() as watched:
        learner.start()
        learner.join()
    losing = [finding for finding in watched.findings if watched.loss(finding)]
    assert losing[0].place.code == "time.sleep(0.012)  # Reads."
    assert {finding.thread for finding in losing} == {"learner"}


# --- Whom it leaves alone -------------------------------------------------------------------------


def test_local_variables_stay_as_they_are():
    def train(rate=0.1, rows=32):
        wait = time.sleep
        kept = locals()
        for _ in range(5):
            wait(0.02)
        return kept

    with watch(0.001):
        kept = train()
    assert {"rate", "rows", "wait"} <= kept.keys()


def fail(frame):
    raise RuntimeError("no stack")


def test_what_fails_while_it_looks_is_told_where_the_block_ends(monkeypatch):
    monkeypatch.setattr("d2lpar._watch.sampler.sample_stack", fail)
    with pytest.raises(D2lparError, match="ended early") as raised, watch(0.001):
        assert Watcher._running._ended.wait(60)
    assert "no stack" in str(raised.value.__cause__)


def test_whoever_interrupts_its_end_can_watch_again(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    watcher = Watcher()
    watcher.start()
    monkeypatch.setattr(watcher._ended, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        watcher.stop()
    with watch():
        pass


def test_a_number_of_a_thread_that_is_in_use_again_does_not_keep_the_end_waiting(monkeypatch):
    answers = iter([True] * 100)  # Of the system: there is a thread with this number.
    monkeypatch.setattr("d2lpar._watch.sampler.sample_stack", fail)
    monkeypatch.setattr("os.path.exists", lambda path: not path.endswith("/0") and next(answers))
    watcher = Watcher(0.001)
    watcher.start()
    watcher._ended.wait()
    watcher.stop()


def test_while_two_threads_fork_nobody_samples_until_both_have():
    watcher = Watcher(0.001)
    watcher.start()
    watcher.pause()
    watcher.pause()
    watcher.resume()
    assert watcher._ended.is_set()
    watcher.resume()
    wait_for_samples(watcher.watched)
    watcher.stop()


def test_a_forked_child_can_watch_itself_and_a_grandchild_starts_no_sampler(run_python):
    program = """
import os, sys, _thread
from d2lpar import waits_allowed, watch
from d2lpar._watch.sampler import Watcher

def fork_and_wait(run):
    if not os.fork():
        started.clear()
        run()
        os._exit(bool(started))
    assert not os.wait()[1]

def run_in_child():
    fork_and_wait(lambda: None)
    assert not started
    with watch() as watched:
        pass
    assert watched.seconds > 0
    started.clear()

started, start = [], _thread.start_new_thread
_thread.start_new_thread = lambda *args: started.append(start(*args)) or started[-1]
outer = Watcher(gives_way=True)
outer.start()
with watch():
    pid = os.getpid()
    fork_and_wait(run_in_child)
    if not os.fork():
        started.clear()
if os.getpid() != pid:  # The child has left the block as well.
    os._exit(bool(started))
assert not os.wait()[1]
outer.stop()
"""
    run_python(program)


def test_jax_and_the_interpreter_are_left_as_they_were():
    from jax._src.lib import _profiler

    before = _profiler.ProfilerSession, sys.getswitchinterval(), logging.root.handlers[:]
    with watch():
        jax.jit(lambda x: x - 17)(jnp.ones(3)).block_until_ready()
        time.sleep(0.1)
    assert (_profiler.ProfilerSession, sys.getswitchinterval(), logging.root.handlers) == before


def test_an_error_ends_the_watch_and_keeps_what_was_seen():
    with pytest.raises(ZeroDivisionError), watch() as watched:
        1 / 0  # noqa: B018
    assert watched.seconds > 0


def test_a_script_that_watches_itself_has_the_way_of_the_command():
    command = Watcher(gives_way=True)
    command.start()
    with watch(0.001) as inner:
        wait_for_samples(inner)
    looks = inner.looks
    wait_for_samples(command.watched)
    command.stop()
    assert inner.looks == looks


def wait_for_samples(watched):
    before = watched.looks
    while watched.looks < before + 3:
        time.sleep(0.001)


def test_who_watches_twice_is_told():
    with watch(), pytest.raises(D2lparError, match="already"), watch():
        pass
