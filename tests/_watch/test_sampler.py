import ast
import contextlib
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


@functools.cache
def work():
    return Work()


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


def assign(y, s, i):
    filled = np.empty(y.shape, y.dtype)
    filled[:] = y


READS = NEED_A_VALUE | {
    "memoryview(y)": lambda y, s, i: memoryview(y),
    "np.from_dlpack(y)": lambda y, s, i: np.from_dlpack(y),
    "filled[:] = y": assign,
    "jax.block_until_ready([y, s])": lambda y, s, i: jax.block_until_ready([y, {"s": s}]),
}


@pytest.mark.parametrize("name", READS)
def test_each_wait_for_a_value_is_found_on_its_line(name):
    def ask(*arrays):
        READS[name](*arrays)  # This line.

    lines = found_in(ask, "barrier" if "block_until_ready" in name else "value")
    assert lines
    assert all(line == "READS[name](*arrays)  # This line." or name in line for line in lines)


@pytest.mark.parametrize(
    "other",
    [
        *NEED_NONE.values(),
        lambda *arrays: time.sleep(0.02),
        lambda *arrays: threading.Event().wait(0.02),
    ],
    ids=[*NEED_NONE, "sleep", "event"],
)
def test_what_needs_no_value_is_not_said_to_wait(other):
    def ask(*arrays):
        for _ in range(5):
            other(*arrays)

    assert found_in(ask, "value", "barrier", seconds=0.03, attempts=1) == set()


def test_a_full_queue_is_no_wait():
    step = jax.jit(lambda x: chain(x, work().links(0.01)))

    def run_ahead(y, s, i):
        x = work().matrix
        for _ in range(60):
            x = step(x)

    # While other processes have the cores, the device is idle for part of these calls.
    assert found_in(run_ahead, "queue", "dispatch", "device idle") == {"x = step(x)"}
    assert found_in(run_ahead, "value", "barrier", attempts=1) == set()


def sleep(x):
    time.sleep(0.01)  # In the callback.


@pytest.mark.parametrize(
    ("step", "kinds", "code"),
    [
        (functools.partial(operator.add, 1), {"dispatch"}, "This line."),
        (jax.jit(lambda x: x + 1), {"dispatch"}, "This line."),
        (jax.jit(lambda x: io_callback(sleep, None, x) or x + 1), {"callback"}, "In the callback."),
        (
            jax.jit(lambda x: jax.debug.callback(len, x) or x + 1),
            {"callback", "slow dispatch"},
            "This line.",
        ),
    ],
    ids=["frames of JAX", "no frame of JAX", "a callback that waits", "a callback"],
)
def test_the_line_comes_first_that_keeps_a_device_waiting(step, kinds, code):
    x = jax.block_until_ready(step(jnp.ones(2)))
    for _ in range(5):  # Another process may have the core.
        with watch() as watched:
            end = time.perf_counter() + 0.4
            while time.perf_counter() < end:
                x = step(x)  # This line.
            jax.block_until_ready(x)
            jax.effects_barrier()
        found = watched.findings[0]
        if found.kind in kinds and watched.loss(found) > 0.3:
            break
    assert found.kind in kinds
    assert found.place.code.endswith(f"# {code}")
    assert watched.loss(found) > 0.3


def test_a_collection_by_hand_is_charged_to_its_line_and_known_without_a_window():
    with watch() as watched:
        for _ in range(5):
            gc.collect()  # This line.
    (found,) = [f for f in watched.findings if f.kind == "collection" and f.place.line]
    assert found.place.code == "gc.collect()  # This line."
    assert watched.share(found) > 0.5


def test_a_collection_that_the_samples_bring_about_is_of_watch():
    watcher = Watcher()
    for watcher._ident in (0, threading.get_ident()):
        watcher._collecting_since = time.perf_counter() - 1.0
        watcher._note_collection("stop", {})
    assert [each.place.file for each in watcher.collections] == [
        "Python's garbage collector",
        "watch itself",
    ]


def test_a_collection_that_goes_on_is_no_time_that_a_call_kept_the_lock():
    watcher, now = Watcher(), time.perf_counter()
    watcher.began, watcher.windows.due, watcher._collecting_since = now - 10, now - 5, now - 4
    watcher._note_unseen(now, now - 5, {})
    ((_, unseen),) = watcher.unseen.items()
    assert unseen.reasons.total() == pytest.approx(1.0)


def test_samples_that_are_slow_come_rarely_and_a_single_one_changes_nothing():
    watcher = Watcher(0.01)
    pauses = [watcher._pause_after(spent) for spent in (1e-4, 0.05, 1e-4, 0.05, 0.05)]
    assert pauses == pytest.approx([0.01, 0.01, 0.01, 0.01, 1.0])


def test_a_collection_may_interrupt_a_program_that_parses():
    source = "x = [" + ", ".join(f"f({n})" for n in range(3000)) + "]"
    before = gc.get_threshold()
    with watch():
        gc.set_threshold(100, 1, 1)
        try:
            for _ in range(3):
                ast.parse(source)
        finally:
            gc.set_threshold(*before)


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
    losing = [finding for finding in watched.findings if watched.loss(finding) > 0.1]
    assert {finding.thread for finding in losing} == {"learner"}
    idle = {finding.place.code for finding in losing if finding.kind == "device idle"}
    assert idle == {"time.sleep(0.012)  # Reads."}


def test_local_variables_stay_as_they_are():
    rate = 0.1
    kept = locals()
    kept["rate"] = 0.2  # A frame's `f_locals`, if read, would put the old value back.
    with watch(0.001) as watched:
        wait_for_samples(watched)
    assert kept["rate"] == 0.2


def test_what_fails_while_it_looks_is_told_where_the_block_ends(monkeypatch):
    def fail(frame):
        raise RuntimeError("no stack")

    monkeypatch.setattr("d2lpar._watch.sampler.sample_stack", fail)
    answers = iter([True] * 100)  # The system has given the number of its thread to another.
    monkeypatch.setattr("os.path.exists", lambda path: not path.endswith("/0") and next(answers))
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


def test_a_fork_finds_one_thread_and_a_child_can_watch_itself_but_does_not_go_on(run_python):
    program = """
import os, sys, _thread
os.register_at_fork(before=lambda: sys.platform == "linux" and threads.update(os.listdir(TASKS)))
from d2lpar import watch
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

TASKS, threads = "/proc/self/task", set()
started, start = [], _thread.start_new_thread
_thread.start_new_thread = lambda *args: started.append(start(*args)) or started[-1]
outer = Watcher(gives_way=True)
outer.start()
with watch(1e-3) as watched:
    pid = os.getpid()
    fork_and_wait(run_in_child)
    for _ in range(30):
        before = watched.looks
        while watched.looks < before + 3:
            pass
        fork_and_wait(lambda: None)
    if not os.fork():
        started.clear()
if os.getpid() != pid:  # The child has left the block as well.
    os._exit(bool(started))
assert not os.wait()[1]
outer.stop()
assert threads <= {str(pid)}
"""
    run_python(program)


def test_an_error_ends_the_watch_which_leaves_jax_and_the_interpreter_as_they_were():
    from jax._src.lib import _profiler

    before = _profiler.ProfilerSession, sys.getswitchinterval(), logging.root.handlers[:]
    with contextlib.suppress(ZeroDivisionError), watch() as watched:
        jax.jit(lambda x: x - 17)(jnp.ones(3)).block_until_ready()
        time.sleep(0.1)
        1 / 0  # noqa: B018
    assert watched.seconds > 0.1
    assert (_profiler.ProfilerSession, sys.getswitchinterval(), logging.root.handlers) == before


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
