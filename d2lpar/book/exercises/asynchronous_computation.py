"""X, the exercises of Asynchronous Computation: loops, barriers, and where asynchrony ends."""

import itertools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._jax.devices import cpu
from d2lpar._measure.comparison import measure
from d2lpar._measure.waiting import wait_all
from d2lpar._plain.format import format_seconds, plural
from d2lpar.book.exercises.checking import (
    STEPS,
    CallLog,
    Rejection,
    Report,
    call_answer,
    exercise,
    inputs,
    ready_at_once,
    require_array,
    require_arrays,
    require_asynchrony,
    require_called,
    require_number,
    require_truth,
    right_parameters,
    training_step,
    work,
)

# --- X1. When is the shorter formula right? ---------------------------------------------------


@exercise("X1")
def check_x1(total: Callable, enough: Callable) -> Report:
    """Check a formula for the time of a loop without barriers, and when t1 + N t2 + t3 is it.

    Both are compared with a simulation of the two ends, over many cases.
    `total(t1, t2, t3, iterations)` returns seconds, until Python knows the last result;
    `enough(t1, t2, iterations)` says whether the short formula is exact.
    """
    times = (0.5, 1.0, 1.25, 4.0)
    cases = [
        (t1, t2, t3, iterations)
        for iterations, t1, t2, t3 in itertools.product((4, 2, 1, 30), times, times, (0.5, 3.0))
    ]
    cases.sort(key=lambda case: case[0] > case[1])  # First those that the book has met.
    found = call_answer(total, cases, "my_total(t1, t2, t3, iterations)")
    _require_formula(found, cases)
    gaps = [(t1, t2, iterations) for iterations in (2, 4, 30) for t1 in times for t2 in times]
    gaps += [(1.0, 0.875, iterations) for iterations in (2, 4, 6)]
    found = call_answer(enough, gaps, "my_condition(t1, t2, iterations)")
    for (t1, t2, iterations), said in zip(gaps, found, strict=True):
        simple, right = t1 + iterations * t2, _loop_time(t1, t2, 0.0, iterations)
        if require_truth(said) != (simple == right):
            yours = "is the time" if said else "is not the time"
            raise Rejection(
                f"The formula is right. But for t1 = {t1:g}, t2 = {t2:g} and {iterations} "
                f"iterations your condition says that t1 + N t2 + t3 {yours}: it gives {simple:g} "
                f"+ t3, and the simulation ends at {right:g} + t3.",
                "For which t1 and t2 does the back end never wait for the front end, after the "
                "first call?",
            )
    return f"Formula and condition agree with a simulation in {len(cases) + len(gaps)} cases."


def _loop_time(t1: float, t2: float, t3: float, iterations: int) -> float:
    """Simulate a loop without barriers: call by call, who is waiting for whom."""
    dispatched = computed = 0.0
    for _ in range(iterations):
        dispatched += t1
        computed = max(dispatched, computed) + t2
    return computed + t3


def _require_formula(found: list, cases: list[tuple]) -> None:
    wrong = []
    for (t1, t2, t3, iterations), seconds in zip(cases, found, strict=True):
        seconds = require_number(seconds)
        right = _loop_time(t1, t2, t3, iterations)
        if not abs(seconds - right) <= 1e-4 * right:  # NaN as well.
            wrong.append((t1, t2, t3, iterations, seconds, right))
    if not wrong:
        return
    if all(t1 > t2 for t1, t2, *_ in wrong):
        look = (
            "It is right wherever the back end is the slower one. If the front end is slower, "
            "when does the last call begin to be computed?"
        )
    elif all(iterations > 1 for *_, iterations, _, _ in wrong):
        look = "It is right for a single iteration. What can happen at the same time in two?"
    else:
        look = "A single iteration cannot overlap with anything. Is it right for that?"
    t1, t2, t3, iterations, seconds, right = wrong[0]
    raise Rejection(
        f"For t1 = {t1:g}, t2 = {t2:g}, t3 = {t3:g} and {plural(iterations, 'iteration')} your "
        f"function says {seconds:g}; simulated call by call, the loop takes {right:g}. "
        f"{len(wrong)} of {len(cases)} cases differ.",
        look,
    )


# --- X2. One step ahead -----------------------------------------------------------------------


@exercise("X2")
def check_x2(epoch: Callable) -> Report:
    """Check an epoch in which one step may overlap with the next, and no more."""
    require_asynchrony()
    right = right_parameters()[-1]  # Which compiles the step as well.
    parameters, *batches = inputs(1 + STEPS, cpu())
    log = CallLog()
    case = (log.watch("step()", training_step), parameters, list(batches))
    (found,) = call_answer(epoch, [case], "my_epoch(step, parameters, batches)")
    log.require_called(
        "step()", "no step was dispatched", "Who is to compute the new parameters from a batch?"
    )
    log.require_count("step()", len(batches))
    for call in log.calls:
        if len(call.unfinished) > 1:
            steps = " and ".join(str(other.number) for other in call.unfinished)
            raise Rejection(
                f"Step {call.number} was dispatched while steps {steps} were unfinished: at that "
                "moment, at most one may be.",
                "Before you dispatch a step, whose result must be there?",
            )
    if not any(call.unfinished for call in log.calls):
        raise Rejection(
            "No step was dispatched while the one before it was running.",
            "The device is idle from the end of a step until the next is dispatched. Which step "
            "does your loop wait for, and does it have to be that one?",
        )
    overlapping = log.require_overlap(
        "Does each iteration of your loop do the same, also the later ones?"
    )
    require_array(found, right, "What your function returned")
    return (
        f"{overlapping} of {len(batches)} steps were dispatched while the one before was running, "
        "and none while more than one was unfinished."
    )


# --- X3. One loop, two devices ----------------------------------------------------------------


@exercise("X3")
def check_x3(total: Callable) -> Report:
    """Check how long two devices take that are fed in one loop, for three ways of waiting.

    It is compared with a simulation of the loop, over many cases.
    """
    rng = np.random.default_rng(0)
    kinds = ("none", "each minibatch", "each device")
    lists = [([2, 2, 2], [1, 1, 1]), ([3, 1, 3, 1], [1, 3, 1, 3]), ([4], [7])]
    lists += [
        rng.integers(1, 9, (2, iterations)).tolist()
        for iterations in (2, 3, 5, 8)
        for _ in range(5)
    ]
    cases = [(first, second, barrier) for barrier in kinds for first, second in lists]
    copies = [(list(first), list(second), barrier) for first, second, barrier in cases]
    found = call_answer(total, copies, "my_loop_time(first, second, barrier)")
    for (first, second, barrier), seconds in zip(cases, found, strict=True):
        seconds, right = require_number(seconds), _two_devices_time(first, second, barrier)
        if not abs(seconds - right) <= 1e-4 * right:
            look = {
                "none": "Nobody waits before the end. When is each device done with its own list?",
                "each minibatch": "In each iteration Python waits for both. How long does it take?",
                "each device": "There is one Python thread. While it waits for one device, who "
                "dispatches the next minibatch to the other?",
            }[barrier]
            raise Rejection(
                f"With first = {first}, second = {second} and the barrier {barrier!r} your "
                f"function says {seconds:g}; the simulated loop takes {right:g}.",
                look,
            )
    return f"Your function agrees with a simulation in {len(cases)} cases."


def _two_devices_time(first: Sequence[float], second: Sequence[float], barrier: str) -> float:
    """Simulate one Python thread that hands each minibatch to two devices in turn."""
    now, done = 0.0, [0.0, 0.0]
    for turn in zip(first, second, strict=True):
        for device, seconds in enumerate(turn):
            if barrier == "each device":  # Wait for the minibatch that this device has.
                now = max(now, done[device])
            done[device] = max(now, done[device]) + seconds
        if barrier == "each minibatch":
            now = max(done)
    return max(done)


# --- X4. Waiting for one or for all -----------------------------------------------------------


@exercise("X4")
def check_x4(second: Callable, everything: Callable) -> Report:
    """Check two ways of waiting: for the second result, and for everything."""
    require_asynchrony()
    x = inputs(1, cpu())[0]
    started: list[list[jax.Array]] = []
    counts: list[int] = []  # How many there were after each call.

    def starting(dependent):
        def start():
            results = [work(x)]
            for _ in range(5):
                results.append(work(results[-1] if dependent else x))
            work(work(work(x)))  # Nobody keeps these; on a busy core Python wakes up late.
            started.append(results)
            return list(results)

        return start

    cases = [(starting(dependent),) for dependent in (False, True, False)]

    # How long one of them takes. What my_second leaves says less: it may come back late.
    one = min(measure(work, x, repeats=3).total.samples)

    def what_is_left():
        counts.append(len(started))
        last = started[-1] if started else []
        # A deleted one must not be asked (jax < 0.11.2).
        ready = [not array.is_deleted() and array.is_ready() for array in last]
        began = time.perf_counter()
        wait_all([cpu()])
        return ready, time.perf_counter() - began

    def tries(name, function):
        started.clear()
        counts.clear()
        found = call_answer(function, cases, f"my_{name}(start)", probe=what_is_left)
        require_called(
            "start()",
            len(started),
            f"my_{name} had nothing to wait for",
            "Call it once, and wait for what it returns.",
        )
        if counts != [1, 2, 3]:
            raise Rejection(
                f"In {len(cases)} runs, my_{name} called start() "
                f"{', '.join(str(b - a) for a, b in itertools.pairwise([0, *counts]))} times.",
                "Call it once, and wait for what it returns.",
            )
        returned, left = zip(*found, strict=True)
        return returned, [ready for ready, _ in left], min(seconds for _, seconds in left)

    returned, readies, _ = tries("second", second)
    if not all(ready[1] for ready in readies):
        raise Rejection(
            "When my_second returned, the second result was not ready.",
            "Which of the results do you wait for, and with what? Lists begin with 0.",
        )
    if all(ready[2] for ready in readies):
        others = "all of them were" if all(ready[-1] for ready in readies) else "the third was"
        raise Rejection(
            f"When my_second returned, not only the second result was ready: {others}.",
            "What else do you wait for?",
        )
    for answer, results in zip(returned, started, strict=True):
        require_array(answer, results[1], "What my_second returned")
    returned, readies, left = tries("everything", everything)
    if not all(all(ready) for ready in readies):
        raise Rejection(
            "When my_everything returned, some of the results were not ready.",
            "Which of them do you wait for, and with what?",
        )
    if left > one:
        raise Rejection(
            "When my_everything returned, all results in the list were ready, but the device "
            f"still had work for {format_seconds(left)}: start() has dispatched something that it "
            "does not return.",
            "What can Python wait for, if it has no reference to a result? A queue works in order.",
        )
    for answer, results in zip(returned, started, strict=True):
        require_arrays(answer, results, "all results")
    return (
        "When my_second returned, the second result was there and later ones were not; when "
        "my_everything returned, the device had nothing left to do."
    )


# --- X5. Where asynchrony ends ----------------------------------------------------------------


def _long_loop(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 200_000, lambda _, c: 0.5 * c + x, x)


# Each takes some milliseconds or more of an argument of this shape.
_PROGRAMS = {
    "A product of two 1500x1500 matrices": (jax.jit(lambda x: x @ x), (1500, 1500)),
    "exp(x) of eight million elements": (jax.jit(jnp.exp), (8_000_000,)),
    "exp(x) + 1 of eight million elements": (jax.jit(lambda x: jnp.exp(x) + 1), (8_000_000,)),
    "Reversing eight million elements": (jax.jit(lambda x: x[::-1]), (8_000_000,)),
    "A loop of 200,000 iterations over 100 elements": (jax.jit(_long_loop), (100,)),
    "A loop of 200,000 iterations over 1000 elements": (jax.jit(_long_loop), (1000,)),
}


@exercise("X5")
def check_x5(runs_inline: Callable) -> Report:
    """Check whether an answer can tell which programs run inside the call on a CPU."""
    require_asynchrony()
    shapes = {shape for _, shape in _PROGRAMS.values()}
    array = {shape: jax.device_put(np.ones(shape, np.float32), cpu()) for shape in shapes}
    cases = {name: (function, array[shape]) for name, (function, shape) in _PROGRAMS.items()}
    truth = {}
    for name, (function, x) in cases.items():
        jax.block_until_ready(function(x))
        truth[name] = all(ready_at_once(function, x) for _ in range(5))
    calls = [case for case in cases.values() for _ in range(3)]
    found = call_answer(runs_inline, calls, "my_runs_inline(function, x)")
    for number, (name, inline) in enumerate(truth.items()):
        said = found[3 * number : 3 * number + 3]
        # One time in three, a noisy machine may fool a measurement.
        if sum(require_truth(answer) != inline for answer in said) > 1:
            does = "runs inside the call" if inline else "goes on after the call has returned"
            says = "goes on after the call" if inline else "runs inside the call"
            raise Rejection(
                f"{name} {does}; your function says that it {says}.",
                "It is not the size of the array that decides. Time the call, and time until the "
                "result is ready, after one call that compiles. What do the programs that run "
                "inside the call have in common?",
            )
    return f"Your function is right about {len(truth)} programs."
