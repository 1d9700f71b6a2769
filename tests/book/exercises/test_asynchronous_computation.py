"""The checks of X1 to X7: right answers, and wrong ones that a reader may well give."""

import functools
import re
import time
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attempts import both_tests, consuming
from run_notebook import ROOT

from d2lpar import InFlight, measure, wait_all
from d2lpar.book.exercises import (
    check_x1,
    check_x2,
    check_x3,
    check_x4,
    check_x5,
    check_x6,
    check_x7,
)
from d2lpar.book.exercises.checking import ready_at_once, training_step

pytestmark = pytest.mark.timed  # The verdict depends on who else is at work.

RIGHT, WRONG = {}, {}


def formula(t1, t2, t3, turns):
    return t1 + t2 + t3 + (turns - 1) * max(t1, t2)


def back_end_is_slower(t1, t2, turns):
    return t2 >= t1


RIGHT[check_x1] = {
    "one formula": (formula, back_end_is_slower),
    "by cases": (
        lambda t1, t2, t3, n: t1 + n * t2 + t3 if t1 <= t2 else n * t1 + t2 + t3,
        lambda t1, t2, n: np.bool_(t1 + n * t2 == formula(t1, t2, 0, n)),
    ),
}
WRONG[check_x1] = {
    "one after the other": (
        (lambda t1, t2, t3, n: n * (t1 + t2 + t3), back_end_is_slower),
        "right for a single iteration. What can happen at the same time in two",
    ),
    "the printed formula": (
        (lambda t1, t2, t3, n: t1 + n * t2 + t3, back_end_is_slower),
        "36 of 128 cases differ.\n  It is right wherever the back end is the slower one",
    ),
    "once too often": (
        (lambda t1, t2, t3, n: t1 + t2 + t3 + n * max(t1, t2), back_end_is_slower),
        r"says 3\.5; .* takes 3\.",
    ),
    "nan": ((lambda t1, t2, t3, n: float("nan"), back_end_is_slower), "says nan;"),
    "nearly": ((formula, lambda t1, t2, n: t2 > 0.9 * t1), "t2 = 0.999023 and 2 iterations"),
    "the printed condition": (
        (formula, lambda t1, t2, n: n * t2 > (n - 1) * t1),
        "for t1 = 1.25, t2 = 1 and 2 iterations your condition says that .* is the time",
    ),
    "strictly slower": (
        (formula, lambda t1, t2, n: t2 > t1),
        "for t1 = 0.5, t2 = 0.5 and 2 iterations your condition says that .* is not the time",
    ),
    "nearly as slow": (
        (formula, lambda t1, t2, n: t2 > 0.8 * t1),
        "for t1 = 1, t2 = 0.875 and 2 iterations your condition says",
    ),
    "no formula": ((3, back_end_is_slower), "given an int, which cannot be .*\n.*, my_total, not"),
}


def in_a_window(step, parameters, batches, limit=2):
    with InFlight(limit) as window:
        for batch in batches:
            parameters = window.submit(step, parameters, batch)
    return parameters


def waiting_for(choose):
    def my_epoch(step, parameters, batches):
        for number, batch in enumerate(batches, 1):
            before, parameters = parameters, step(parameters, batch)
            jax.block_until_ready(choose(number, before, parameters))
        return parameters

    return my_epoch


def paused(step, parameters, batches):
    # Twice as long as the first step: a pause that is long enough for most.
    seconds = measure(training_step, parameters, batches[0]).total.median
    return waiting_for(lambda *_: time.sleep(2 * seconds))(step, parameters, batches)


def stale(step, parameters, batches):
    before = parameters
    for batch in batches:
        before, parameters = parameters, step(jax.block_until_ready(before), batch)
    return parameters


def scanned(step, parameters, batches):
    return jax.lax.scan(lambda p, b: (step(p, b), None), parameters, jnp.stack(batches))[0]


RIGHT[check_x2] = {
    "a window": in_a_window,
    "the one before": consuming(waiting_for(lambda number, before, new: before)),
}
WRONG[check_x2] = {
    "window of three": (
        functools.partial(in_a_window, limit=3),
        "while steps 0 and 1 were unfinished",
    ),
    "each step": (
        waiting_for(lambda number, before, new: new),
        "Only 0 of 12 calls.*\n.*have to be that one",
    ),
    "a pause": (paused, r"while steps 3 and 4 were unfinished.*\n.*Steps differ in length"),
    "once without": (
        waiting_for(lambda number, before, new: None if number == 6 else new),
        "Only 1 of 12 calls.*\n.*each of its iterations",
    ),
    "each fourth": (
        waiting_for(lambda number, before, new: before if number % 4 else new),
        r"each of 5 runs, call 4 of step\(\) was made when",
    ),
    "stale": (stale, "wrong: it differs from the right one"),
    "without a step": (
        lambda step, parameters, batches: sum(batches, parameters),
        r"step\(\) was never called: no step was dispatched.\n.*the new parameters",
    ),
    "scanned": (scanned, "while JAX was tracing, so all its calls became one program"),
}


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


RIGHT[check_x3] = {"at once": loop_time, "with lists of its own": consuming(loop_time)}
WRONG[check_x3] = {
    "one after the other": (
        lambda first, second, barrier: sum(first) + sum(second),
        "barrier 'none' .* says 9; the simulated loop takes 6.\n  Python waits only at the end",
    ),
    "nobody waits": (
        lambda first, second, barrier: max(sum(first), sum(second)),
        "barrier 'each minibatch' .*\n  In each iteration Python waits for both",
    ),
    "each device for itself": (
        lambda a, b, barrier: loop_time(a, b, barrier.replace("each device", "none")),
        "barrier 'each device' .*says 8; .* takes 10.\n  There is one Python thread",
    ),
    "nan": (lambda first, second, barrier: float("nan"), "says nan"),
}


def everything_by_a_sentinel(start):
    results = start()
    wait_all()
    return results


def everything_by_hand(start):
    results = start()
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.float32(0)))
    return tuple(jax.block_until_ready(results))


def after_waiting_for(index, then=1):
    def my_second(start):
        results = start()
        jax.block_until_ready(results[index])
        return results[then]

    return my_second


second_result = after_waiting_for(1)


def after_a_pause(start, wait=lambda results: results):
    results = wait(start())
    time.sleep(1.0)
    return results


RIGHT[check_x4] = {
    "a sentinel": (second_result, everything_by_a_sentinel),
    "by hand": (lambda start: start().pop(1).block_until_ready(), everything_by_hand),
}
WRONG_SECOND = {
    "the first": (after_waiting_for(0), "second result was not ready"),
    "the third": (after_waiting_for(2), "second result was ready, but so was the third"),
    "another one": (after_waiting_for(1, 0), "my_second.*wrong"),
    "to NumPy": (lambda start: np.asarray(second_result(start)), "my_second is a NumPy ndarray"),
    "a pause": (
        lambda start: after_a_pause(start)[1],
        "my_second returned too early in the last of three runs only",
    ),
}
TOO_EARLY = r"my_everything returned too early in the last of three runs only.*\n.*A pause that"
WRONG_EVERYTHING = {
    "twice": (
        lambda start: start() and start(),
        r"3 runs, my_everything called start\(\) 2, 2, 2 times",
    ),
    "the list": (
        lambda start: jax.block_until_ready(start()),
        "the device still had work for .* it does not return.\n.*no reference to a result",
    ),
    "a pause": (after_a_pause, TOO_EARLY),
    "the list and a pause": (lambda start: after_a_pause(start, jax.block_until_ready), TOO_EARLY),
    "all that lives": (
        lambda start: (start(), jax.effects_barrier())[0],
        "some of the results were not ready",
    ),
}
WRONG[check_x4] = {
    **{name: ((f, everything_by_a_sentinel), said) for name, (f, said) in WRONG_SECOND.items()},
    **{name: ((second_result, f), said) for name, (f, said) in WRONG_EVERYTHING.items()},
}


def fewer_operations_than(bound, function, x):
    return (function.lower(x).compile().cost_analysis().get("flops") or 0) < bound


def by_trying(function, x):
    # Once is enough on an idle machine; a busy one may come back late.
    return all(ready_at_once(function, x) for _ in range(3))


little_arithmetic = functools.partial(fewer_operations_than, 1000)


def elementwise(function, x):
    return little_arithmetic(function, x) if x.size < 5e6 else True


def leaving_its_call_in_the_queue(function, x):
    function(x).block_until_ready()
    return function(x).is_ready()


RIGHT[check_x5] = {
    "by the program": little_arithmetic,
    "by trying": by_trying,
    "by one look": leaving_its_call_in_the_queue,
}
WRONG[check_x5] = {
    "never": (
        lambda function, x: False,
        r"exp\(x\) of eight million elements runs inside .* says that it continues after",
    ),
    "always": (
        lambda function, x: True,
        "1500x1500 matrices continues after .* says that it runs inside the call",
    ),
    "whatever is elementwise": (elementwise, r"exp\(x\) \+ 1 of .* continues after"),
    "whatever has no arithmetic": (
        functools.partial(fewer_operations_than, 1),
        "iterations over 100 elements runs inside",
    ),
    "a bound too low": (functools.partial(fewer_operations_than, 250), "over 480 elements runs"),
    "a bound too high": (functools.partial(fewer_operations_than, 1999), "over 520 elements cont"),
    "whatever is small": (
        lambda f, x: x.size < 500 or (x.size > 5e6 and "add" not in f.lower(x).as_text()),
        "of twenty sums each, over 100 elements continues",
    ),
}


def losses_with(hand_over, wait=lambda loss: loss):
    def my_losses(step, parameters, loader):
        losses = []
        for batch in loader:
            parameters, loss = step(parameters, hand_over(batch))
            losses.append(wait(loss))
        return losses

    return my_losses


def two_buffers(step, parameters, loader, wait=jax.block_until_ready):
    buffers, losses = [np.empty((64, 64), np.float32) for _ in range(2)], []
    for number, batch in enumerate(loader):
        wait(losses[-2:-1])  # The step that has read this buffer.
        buffers[number % 2][...] = batch
        parameters, loss = step(parameters, buffers[number % 2])
        losses.append(loss)
    return losses


def copied_too_late(step, parameters, loader):
    losses = []
    for batch, _ in pairwise([*loader, None]):
        parameters, loss = step(parameters, batch.copy())
        losses.append(loss)
    return losses


RIGHT[check_x6] = {
    "a copy": losses_with(lambda batch: batch.copy()),
    "a copy, then JAX": losses_with(lambda batch: jnp.asarray(np.array(batch))),
    "numbers at the end": lambda *args: list(map(float, losses_with(np.array)(*args))),
    "two buffers": two_buffers,
}
A_JAX_ARRAY = "losses are wrong. .* was given a JAX array.\n.*whatever you ask JAX for"
WRONG[check_x6] = {
    "as it is": (
        losses_with(lambda batch: batch),
        r"1\d of 12 losses are wrong. .* step \d, which was given the loader's buffer",
    ),
    "asarray": (losses_with(jnp.asarray), A_JAX_ARRAY),
    "device_put": (losses_with(jax.device_put), A_JAX_ARRAY),
    "never alias": (losses_with(lambda b: jax.device_put(b, may_alias=False)), A_JAX_ARRAY),
    "a barrier": (
        losses_with(lambda b: b, jax.block_until_ready),
        "Only 0 of 12 calls.*\n.*are right",
    ),
    "two buffers, refilled at once": (
        functools.partial(two_buffers, wait=lambda losses: losses),
        "The memory of batch 0 was refilled before step 0 was done",
    ),
    "copied too late": (copied_too_late, "of step 0, which was given the numbers of another batch"),
    "the last forgotten": (
        lambda *args: losses_with(np.array)(*args)[:-1],
        r"returned \[Array.*, not a list of 12 losses",
    ),
    "the sum so far": (
        lambda *args: list(np.cumsum(losses_with(np.array)(*args))),
        "the numbers of its batch.\n.*stand in its place",
    ),
}


# --- X7. Which lines wait? --------------------------------------------------------------------

SOLUTION = ROOT / "book" / "solutions" / "asynchronous-computation.md"
(SOLVED,) = re.findall('my_program = """\n(.*?)"""', SOLUTION.read_text(), re.DOTALL)

RIGHT[check_x7] = {
    "the solution": SOLVED,
    "a capital": SOLVED.replace("# waits", "# Waits"),
    "a comment of the reader's own": SOLVED.replace("append(loss)", "append(loss)  # returns"),
    "lines of the reader's own": SOLVED + 'print("#", loss)  # waits\n\nlen(y)  # A shape.',
}
WRONG[check_x7] = {
    "one forgotten": (SOLVED.replace("  # waits", "", 1), "Line 3, .*, waits; .* that it returns"),
    "one too many": (SOLVED + "y + 1  # waits", "Line 21, .*, returns; your .* that it waits"),
    "a value of its own": (
        SOLVED + "jnp.unique(labels)",
        "Line 21, .*, waits;.*\n.*number, or which shape, has to be known",
    ),
    "a comment on waiting": (SOLVED + "y  # never waits?\nnp.asarray(y)  # it waits", "Line 22"),
    "no line": ("", "lacks 20 of the twenty lines, such as `history.append"),
    "idle lines": ("pass\n" * 20, "lacks 20 of the twenty lines, such as `history.append"),
    "one left out": (SOLVED.replace("saved = copy.deepcopy(y)\n", ""), "lacks 1 of .*deepcopy"),
    "no Python": (SOLVED + "if y", "Line 21, `if y`, raises SyntaxError"),
    "another name": (SOLVED + "x + 1", "Line 21, .* raises NameError: name 'x'"),
}


test_right_answers_are_accepted, test_wrong_answers_are_told_why = both_tests(RIGHT, WRONG)
