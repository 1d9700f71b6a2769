"""X, the exercises of Asynchronous Computation: loops, barriers, and where asynchrony ends."""

import copy
import functools
import itertools
import re
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._jax.devices import cpu
from d2lpar._measure.comparison import measure
from d2lpar._measure.waiting import blocks_host, wait_all
from d2lpar._plain.format import format_seconds, plural
from d2lpar.book.exercises.checking import (
    LINKS,
    STEPS,
    CallLog,
    Rejection,
    Report,
    call_answer,
    exercise,
    inputs,
    ready_at_once,
    require_all_steps,
    require_array,
    require_arrays,
    require_asynchrony,
    require_called,
    require_number,
    require_overlap_in_all,
    require_truth,
    right_parameters,
    shown,
    training_loss,
    training_step,
    work,
)
from d2lpar.book.workloads import chain, host_batch

# --- X1. When is the shorter formula right? ---------------------------------------------------


@exercise("X1", "my_total", "my_condition")
def check_x1(total: Callable, enough: Callable) -> Report:
    """Check a formula for the time of a loop without barriers, and when t1 + N t2 + t3 is exact.

    Both are compared with a simulation of front end and back end, over many cases.
    `total(t1, t2, t3, iterations)` returns the seconds until Python knows the last result;
    `enough(t1, t2, iterations)` says whether the short formula is exact.
    """
    times = (0.5, 1.0, 1.25, 4.0)
    cases = [
        (t1, t2, t3, iterations)
        for iterations, t1, t2, t3 in itertools.product((4, 2, 1, 30), times, times, (0.5, 3.0))
    ]
    cases.sort(key=lambda case: case[0] > case[1])  # The book's cases come first.
    _require_formula(call_answer(total, cases, "my_total(t1, t2, t3, iterations)"), cases)
    gaps = [(t1, t2, iterations) for iterations in (2, 4, 30) for t1 in times for t2 in times]
    gaps += [(1.0, t2, iterations) for iterations in (2, 4, 6, 30) for t2 in (0.875, 1 - 2**-10)]
    conditions = call_answer(enough, gaps, "my_condition(t1, t2, iterations)")
    for (t1, t2, iterations), condition in zip(gaps, conditions, strict=True):
        simple, right = t1 + iterations * t2, _loop_time(t1, t2, 0.0, iterations)
        if require_truth(condition) != (simple == right):
            claim = "is the time" if condition else "is not the time"
            raise Rejection(
                f"The formula is right. But for t1 = {t1:g}, t2 = {t2:g} and {iterations} "
                f"iterations your condition says that t1 + N t2 + t3 {claim}: this gives "
                f"{simple:g} + t3, and the simulation ends at {right:g} + t3.",
                "For which t1 and t2 does the back end never wait for the front end, after the "
                "first call?",
            )
    return f"Formula and condition agree with a simulation in {len(cases) + len(gaps)} cases."


def _loop_time(t1: float, t2: float, t3: float, iterations: int) -> float:
    """Simulate a loop without barriers, call by call."""
    dispatched = computed = 0.0
    for _ in range(iterations):
        dispatched += t1
        computed = max(dispatched, computed) + t2
    return computed + t3


def _require_formula(times: list, cases: list[tuple]) -> None:
    wrong = []
    for (t1, t2, t3, iterations), seconds in zip(cases, times, strict=True):
        seconds = require_number(seconds)
        right = _loop_time(t1, t2, t3, iterations)
        if not abs(seconds - right) <= 1e-4 * right:  # NaN as well.
            wrong.append((t1, t2, t3, iterations, seconds, right))
    if not wrong:
        return
    if all(t1 > t2 for t1, t2, *_ in wrong):
        look = (
            "It is right wherever the back end is the slower one. If the front end is slower, "
            "when does the device begin to compute the last call?"
        )
    elif all(iterations > 1 for *_, iterations, _, _ in wrong):
        look = "It is right for a single iteration. What can happen at the same time in two?"
    else:
        look = "A single iteration cannot overlap with anything. Is your formula right for one?"
    t1, t2, t3, iterations, seconds, right = wrong[0]
    raise Rejection(
        f"For t1 = {t1:g}, t2 = {t2:g}, t3 = {t3:g} and {plural(iterations, 'iteration')} your "
        f"function says {seconds:g}; simulated call by call, the loop takes {right:g}. "
        f"{len(wrong)} of {len(cases)} cases differ.",
        look,
    )


# --- X2. One step ahead -----------------------------------------------------------------------


_LONG_STEP = 3  # No pause of a fixed length fits both this step and the others.
_LONG_LINKS = 10 * LINKS


@exercise("X2", "my_epoch")
def check_x2(epoch: Callable) -> Report:
    """Check an epoch that overlaps one step with the next, and no more."""
    require_asynchrony()
    right = right_parameters()[-1]  # This compiles the step as well.
    parameters, *batches = inputs(1 + STEPS, cpu())
    jax.block_until_ready(training_step(parameters, batches[0], _LONG_LINKS))

    def run():
        log = CallLog()

        def step(parameters, batch):
            links = _LONG_LINKS if len(log.calls) == _LONG_STEP else LINKS
            return training_step(parameters, batch, links)

        case = (log.watch("step()", step), parameters, list(batches))
        (result,) = call_answer(epoch, [case], "my_epoch(step, parameters, batches)")
        require_all_steps(log)
        for call in log.calls:
            if len(call.unfinished) > 1:
                steps = " and ".join(str(other.number) for other in call.unfinished)
                raise Rejection(
                    f"Step {call.number} was dispatched while steps {steps} were unfinished; at "
                    "most one may be.",
                    "Steps differ in length. Before you dispatch one, which result must be ready?",
                )
        require_array(result, right, "Your function's result")
        return log

    overlapping = require_overlap_in_all(
        run,
        "The device is idle from the end of a step until the next is dispatched. Which step does "
        "your loop wait for in each of its iterations, and does it have to be that one?",
    )
    return (
        f"{overlapping} of {len(batches)} steps were dispatched while the one before was running, "
        "and none while more than one was unfinished."
    )


# --- X3. One loop, two devices ----------------------------------------------------------------


@exercise("X3", "my_loop_time")
def check_x3(total: Callable) -> Report:
    """Check the time of two devices that one loop feeds, for three ways of waiting.

    The answer is compared with a simulation of the loop, over many cases.
    """
    rng = np.random.default_rng(0)
    barriers = ("none", "each minibatch", "each device")
    pairs = [([2, 2, 2], [1, 1, 1]), ([3, 1, 3, 1], [1, 3, 1, 3]), ([4], [7])]
    pairs += [rng.integers(1, 9, (2, count)).tolist() for count in (2, 3, 5, 8) for _ in range(5)]
    cases = [(first, second, barrier) for barrier in barriers for first, second in pairs]
    copies = [(list(first), list(second), barrier) for first, second, barrier in cases]
    times = call_answer(total, copies, "my_loop_time(first, second, barrier)")
    for (first, second, barrier), seconds in zip(cases, times, strict=True):
        seconds, right = require_number(seconds), _two_devices_time(first, second, barrier)
        if not abs(seconds - right) <= 1e-4 * right:
            look = {
                "none": "Python waits only at the end. When is each device done with its own list?",
                "each minibatch": "In each iteration Python waits for both. How long does it take?",
                "each device": "There is one Python thread. While it waits for one device, what "
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
            if barrier == "each device":  # Wait for the minibatch on this device.
                now = max(now, done[device])
            done[device] = max(now, done[device]) + seconds
        if barrier == "each minibatch":
            now = max(done)
    return max(done)


# --- X4. Waiting for one or for all -----------------------------------------------------------


@exercise("X4", "my_second", "my_everything")
def check_x4(second: Callable, everything: Callable) -> Report:
    """Check two ways of waiting: for the second result, and for everything."""
    require_asynchrony()
    x = inputs(1, cpu())[0]
    # Of each call: the results of start(), how often start() had been called by then, which of
    # its results were ready, how many seconds of work were left on the device, when start()
    # returned, and how many seconds later the answer did.
    started, counts, readiness, left, began, held = [], [], [], [], [], []

    opening: list[float] = []  # When the queue goes on.

    def stand_still():
        time.sleep(max(0.0, opening.pop(0) - time.perf_counter()) if opening else 0.0)
        return np.float32(0)

    @jax.jit  # Runs inside the call unless its argument is still being computed.
    def held_up(x):
        return x + jax.pure_callback(stand_still, jax.ShapeDtypeStruct((), np.float32))

    jax.block_until_ready(held_up(work(x)))

    def starting(dependent):
        def start():
            # In the last run the queue stands still, by the clock, for longer than the answer has
            # taken so far, and once more behind the list: a pause of any length is too short.
            if len(held) == 2:
                opening[:] = (time.perf_counter() + times * max(held) for times in (1.5, 4))
            results = [held_up(work(x))]
            for _ in range(5):
                results.append(work(results[-1] if dependent else x))
            # Dropped results; three, as Python wakes up late on a busy core.
            work(work(work(held_up(work(x)))))
            started.append(results)
            began.append(time.perf_counter())
            return list(results)

        return start

    cases = [(starting(dependent),) for dependent in (False, True, False)]

    # Compare with the time of one piece of work: my_second may return late and leave less.
    one = min(measure(work, x, repeats=3).total.samples)

    def probe():
        counts.append(len(started))
        last = started[-1] if started else []
        # is_ready() of a deleted array crashes Python (jax < 0.11.2).
        readiness.append([not array.is_deleted() and array.is_ready() for array in last])
        returned_at = time.perf_counter()
        if began:
            held.append(returned_at - began[-1])
        wait_all([cpu()])
        left.append(time.perf_counter() - returned_at)

    def run(name, function):
        for observations in (started, counts, readiness, left, began, held):
            observations.clear()
        returned = call_answer(function, cases, f"my_{name}(start)", probe=probe)
        look = "Call it once, and wait for what it returns."
        require_called("start()", started, f"my_{name} had nothing to wait for", look)
        if counts != [1, 2, 3]:
            raise Rejection(
                f"In {len(cases)} runs, my_{name} called start() "
                f"{', '.join(str(b - a) for a, b in itertools.pairwise([0, *counts]))} times.",
                look,
            )
        return returned

    def require_waiting(name, enough):
        if enough == [True, True, False]:
            raise Rejection(
                f"my_{name} returned too early in the last of three runs only, in which the "
                "device took longer.",
                "A pause that is long enough for one start() is too short for another. What tells "
                "Python that the device has come so far?",
            )

    returned = run("second", second)
    require_waiting("second", [ready[1] for ready in readiness])
    if not all(ready[1] for ready in readiness):
        raise Rejection(
            "When my_second returned, the second result was not ready.",
            "Which of the results do you wait for, and how? Indices begin with 0.",
        )
    if all(ready[2] for ready in readiness):
        others = "were all the others" if all(map(all, readiness)) else "was the third"
        raise Rejection(
            f"When my_second returned, the second result was ready, but so {others}.",
            "What else do you wait for? An index is a call, too, queued behind the rest.",
        )
    for array, results in zip(returned, started, strict=True):
        require_array(array, results[1], "The result of my_second")
    returned = run("everything", everything)
    require_waiting("everything", list(map(all, readiness)))
    if not all(map(all, readiness)):
        raise Rejection(
            "When my_everything returned, some of the results were not ready.",
            "Which of them do you wait for, and how?",
        )
    if min(left) > one:
        raise Rejection(
            "When my_everything returned, all results in the list were ready, but the device "
            f"still had work for {format_seconds(min(left))}: start() has dispatched something "
            "that it does not return.",
            "What can Python wait for, if it has no reference to a result? A queue works in order.",
        )
    require_waiting("everything", [seconds <= max(held[:2]) for seconds in left])
    for arrays, results in zip(returned, started, strict=True):
        require_arrays(arrays, results, "all results")
    return (
        "When my_second returned, the second result was there and later ones were not; when "
        "my_everything returned, the device had nothing left to do."
    )


# --- X5. Where asynchrony ends ----------------------------------------------------------------


def _long_loop(x: jax.Array, times: int = 1) -> jax.Array:
    def body(_, c):
        for _ in range(times):
            c = 0.5 * c + x
        return c

    return jax.lax.fori_loop(0, 200_000 // times, body, x)


# Each takes milliseconds or more for an argument of this shape.
_PROGRAMS = {
    "A product of two 1500x1500 matrices": (jax.jit(lambda x: x @ x), (1500, 1500)),
    "exp(x) of eight million elements": (jax.jit(jnp.exp), (8_000_000,)),
    "exp(x) + 1 of eight million elements": (jax.jit(lambda x: jnp.exp(x) + 1), (8_000_000,)),
    "Reversing eight million elements": (jax.jit(lambda x: x[::-1]), (8_000_000,)),
    "A loop of 200,000 iterations over 100 elements": (jax.jit(_long_loop), (100,)),
    "A loop of 200,000 iterations over 480 elements": (jax.jit(_long_loop), (480,)),
    "A loop of 200,000 iterations over 520 elements": (jax.jit(_long_loop), (520,)),
    "A loop of 200,000 iterations over 1000 elements": (jax.jit(_long_loop), (1000,)),
    "A loop of 10,000 iterations, of twenty sums each, over 100 elements": (
        jax.jit(functools.partial(_long_loop, times=20)),
        (100,),
    ),
}


@exercise("X5", "my_runs_inline")
def check_x5(runs_inline: Callable) -> Report:
    """Check whether an answer can tell which programs run inside the call on a CPU."""
    require_asynchrony()
    shapes = {shape for _, shape in _PROGRAMS.values()}
    arrays = {shape: jax.device_put(np.ones(shape, np.float32), cpu()) for shape in shapes}
    cases = [(function, arrays[shape]) for function, shape in _PROGRAMS.values()]
    truth = []
    for function, x in cases:
        jax.block_until_ready(function(x))
        truth.append(all(ready_at_once(function, x) for _ in range(5)))
    calls = [case for case in cases for _ in range(3)]
    usage = "my_runs_inline(function, x)"
    # An answer may leave its call in the queue, behind which the next would not run inline.
    answers = iter(call_answer(runs_inline, calls, usage, probe=lambda: wait_all([cpu()])))
    for name, inline in zip(_PROGRAMS, truth, strict=True):
        wrong = [require_truth(next(answers)) != inline for _ in range(3)]
        if sum(wrong) > 1:  # A noisy machine may fool one measurement of three.
            inside, later = "runs inside the call", "continues after the call has returned"
            does, says = (inside, later) if inline else (later, inside)
            raise Rejection(
                f"{name} {does}; your function says that it {says}.",
                "The size of the array does not decide. Time the call, and the time until the "
                "result is ready, after one call that compiles. What do the programs that run "
                "inside the call have in common?",
            )
    return f"Your function is right about {len(truth)} programs."


# --- X6. The reused buffer --------------------------------------------------------------------

# What a step was given, and where to look if its loss is wrong.
_GIVEN = {
    "the loader's buffer": "A step reads its batch when its turn comes, and not in the call. What "
    "has the loader done to the buffer by then?",
    "a JAX array": "JAX may read a buffer later, or take its memory for the array, whatever you "
    "ask JAX for. What else can copy numbers, and has done so when Python goes on?",
    "the numbers of another batch": "Which batch is in the buffer when you copy it?",
    "the numbers of its batch": "Do they stay as they are until the turn of the step comes? And "
    "does each loss stand in its place?",
}


@exercise("X6", "my_losses")
def check_x6(training: Callable) -> Report:
    """Check a loop whose loader refills one buffer: its losses are right, and it does not wait."""
    require_asynchrony()
    right = [float(training_loss(parameters)) for parameters in right_parameters()]
    parameters, *batches = map(np.asarray, inputs(1 + STEPS, cpu()))
    log, given, refilled = CallLog(), [], []
    read: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # By step: its memory, its batch.
    watched = log.watch("step()", training_step)
    # The memory begins with a page, so JAX uses it in place: a step reads what is there later.
    buffer = host_batch(parameters)

    def loader():
        for batch in batches:
            buffer[...] = batch
            yield buffer

    def step(parameters, batch):
        if isinstance(batch, jax.Array):
            given.append("a JAX array")
        elif np.may_share_memory(batch, buffer):
            given.append("the loader's buffer")
        else:
            its = batches[len(given) % STEPS]
            same = np.array_equal(batch, its)
            if same:
                read[len(given)] = batch, its
            given.append(f"the numbers of {'its' if same else 'another'} batch")
        new = watched(parameters, batch)
        for call in log.calls[-1].unfinished:
            if call.number in read and not np.array_equal(*read[call.number]):
                refilled.append(call.number)
        return new, training_loss(new)

    case = (step, jax.device_put(parameters, cpu()), loader())
    (losses,) = call_answer(training, [case], "my_losses(step, parameters, loader)")
    require_all_steps(log)
    if not isinstance(losses, list | tuple) or len(losses) != STEPS:
        raise Rejection(
            f"Your function returned {shown(losses)}, not a list of {STEPS} losses.",
            "step() returns new parameters and a loss. What becomes of each?",
        )
    if refilled:  # JAX uses an array in place, or copies it at once, depending on its address.
        raise Rejection(
            f"The memory of batch {refilled[0]} was refilled before step {refilled[0]} was "
            "done. At some addresses, the loss of that step is then wrong.",
            "Which step must be done before you fill its memory with another batch?",
        )
    wrong = [
        number
        for number, (loss, expected) in enumerate(zip(losses, right, strict=True))
        if not abs(require_number(loss, "Return losses.") - expected) <= 1e-4  # NaN as well.
    ]
    if wrong:
        what = given[wrong[0]]
        raise Rejection(
            f"{len(wrong)} of {STEPS} losses are wrong. The first is that of step {wrong[0]}, "
            f"which was given {what}.",
            _GIVEN[what],
        )
    overlapping = log.require_overlap(
        "The losses are right. Does Python have to wait for a step before the loader goes on?"
    )
    return (
        f"All {STEPS} losses are right, and {overlapping} steps were dispatched while the one "
        "before was running."
    )


# --- X7. Which lines wait? --------------------------------------------------------------------


@jax.jit
def _predictions(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = chain(x, LINKS)
    return y, training_loss(y)


_LINES = """
history.append(loss)
mean = sum(history) / len(history)
mean = np.mean(history)
print(f"the loss is {loss:.3f}")
print(f"the loss has the shape {loss.shape}")
if number % 100 == 0: best = loss
if loss < best: best = loss
best = jnp.minimum(loss, best)
best = min(loss, best)
rate = jnp.where(loss < best, rate, rate / 2)
first = y[jnp.arange(8)]
large = y[y > 0.5]
large = jnp.where(y > 0.5, y, 0)
classes = jnp.unique(labels)
right = (y.argmax(axis=1) == labels).sum()
noisy = y + np.random.normal(size=y.shape)
norm = jnp.linalg.norm(y)
norm = np.linalg.norm(y)
saved = copy.deepcopy(y)
saved = jax.device_get(y)
"""


@exercise("X7", "my_program")
def check_x7(program: str) -> Report:
    """Check whether a program marks the lines that wait: each line runs on unfinished arrays."""
    require_asynchrony()
    lines = [line for line in str(program).splitlines() if line.strip()]
    given = _LINES.strip().splitlines()
    missing = [line for line in given if not any(own.strip().startswith(line) for own in lines)]
    if missing:
        raise Rejection(
            f"Your program lacks {len(missing)} of the twenty lines, such as `{missing[0]}`.",
            "Leave each line as it is, and write `# waits` behind it if it waits.",
        )
    waiting = 0
    for number, line in enumerate(lines, 1):
        code = re.sub(r"#\s*waits\W*$", "", line, flags=re.IGNORECASE).strip()
        waits = _waits(number, code)
        if waits != (code != line.strip()):
            does, says = ("waits", "returns") if waits else ("returns", "waits")
            raise Rejection(
                f"Line {number}, `{code}`, {does}; your program says that it {says}.",
                "Which number, or which shape, has to be known before the line can end?"
                if waits
                else "Does it need a number, or a shape, that only the device can tell?",
            )
        waiting += waits
    return f"Your program is right about {len(lines)} lines, of which {waiting} wait."


def _waits(number: int, code: str) -> bool:
    """Say whether a line of a program needs the value of an unfinished `y` or `loss`."""
    x, labels = inputs(1, cpu())[0], jax.device_put(np.arange(64) % 10, cpu())

    def run(y, loss):
        known = {"history": [loss], "best": 1.0, "rate": 0.1, "number": number, "labels": labels}
        known |= {"copy": copy, "jax": jax, "jnp": jnp, "np": np}
        known["print"] = lambda *values: list(map(str, values))
        exec(code, known | {"y": y, "loss": loss})

    try:
        with jax.default_device(cpu()):
            return blocks_host(run, lambda: _predictions(x))
    except Exception as error:
        raise Rejection(
            f"Line {number}, `{code}`, raises {type(error).__name__}: {error}.",
            "Leave each line as it is, and write `# waits` behind it if it waits.",
        ) from None
