"""Check a reader's answer by its behaviour, and say where to look."""

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar.answers import (
    Rejection,
    call_answer,
    require_array,
    require_arrays,
    require_number,
    require_truth,
    shown,
)
from d2lpar.barriers import block, wait_all
from d2lpar.calls import CallLog
from d2lpar.claims import VERDICT_COLOURS, verdict_box
from d2lpar.devices import cpu, device_name, two_devices
from d2lpar.errors import DeviceError, TraceError
from d2lpar.measurement import compare, measure
from d2lpar.trace import PYTHON, Event, Timeline, record_trace
from d2lpar.units import format_seconds
from d2lpar.workloads import chain

MIME_TYPE = "application/vnd.d2lpar.exercise+json"
"""The type under which a notebook keeps a report for the tests."""

_LINKS = 2000  # Some ten milliseconds for one core: long beside a wake-up of Python.

_VERDICTS = {
    "accepted": ("accepted", VERDICT_COLOURS["holds"]),
    "not yet": ("not yet", VERDICT_COLOURS["inconclusive"]),
    "untestable": ("cannot be checked here", VERDICT_COLOURS["untestable"]),
}


@dataclass(frozen=True, repr=False)
class Report:
    """What a check has found.

    Attributes:
        exercise: Such as `"X2"`.
        verdict: `"accepted"`, `"not yet"`, or `"untestable"` where this machine cannot tell.
        saw: What the check saw the answer do.
        look: Where to look; empty if it is accepted.
    """

    exercise: str
    verdict: str
    saw: str
    look: str = ""

    def __repr__(self):
        head = f"Exercise {self.exercise}: {_VERDICTS[self.verdict][0]}"
        return "\n  ".join(filter(None, (head, self.saw, self.look)))

    def _repr_mimebundle_(self, include=None, exclude=None):
        words, colour = _VERDICTS[self.verdict]
        title, lines = f"Exercise {self.exercise}", [self.look] if self.look else []
        box = verdict_box("exercise", self.verdict, title, words, colour, self.saw, lines)
        return {
            "text/plain": repr(self),
            "text/html": box,
            MIME_TYPE: {"exercise": self.exercise, "verdict": self.verdict, "saw": self.saw},
        }


def _exercise(name: str):
    """Let a check return what it saw, or say by an exception what is wrong with the answer."""

    def decorate(check: Callable[..., str]) -> Callable[..., Report]:
        @functools.wraps(check)
        def checked(*args, **kwargs) -> Report:
            try:
                return Report(name, "accepted", check(*args, **kwargs))
            except Rejection as rejection:
                return Report(name, "not yet", rejection.saw, rejection.look)
            except (_Untestable, DeviceError, TraceError) as missing:
                return Report(name, "untestable", str(missing))

        return checked

    return decorate


# --- What the checks of several exercises need ------------------------------------------------


class _Untestable(Exception):
    """This machine cannot show what the check looks for."""


@jax.jit
def _work(x: jax.Array) -> jax.Array:
    """Keep one core busy for a while; the result tells its inputs and their order apart."""
    return 0.9 * x + chain(x, _LINKS)


def _inputs(count: int, device: jax.Device, seed: int = 0) -> list[jax.Array]:
    draws = np.random.default_rng(seed).standard_normal((count, 64, 64), dtype=np.float32)
    return block([jax.device_put(draw, device) for draw in draws])


def _require_asynchrony() -> None:
    x = _inputs(1, cpu())[0]
    block(_work(x))
    if all(_ready_at_once(_work, x) for _ in range(3)):
        raise _Untestable(
            "Calls are not dispatched asynchronously here: each is done when it returns. Restart "
            "Python without jax_cpu_enable_async_dispatch=False."
        )


def _ready_at_once(function: Callable, x: jax.Array) -> bool:
    result = function(x)
    ready = result.is_ready()
    block(result)
    return ready


# --- Asynchronous computation -----------------------------------------------------------------


@_exercise("X1")
def check_x1(total: Callable, enough: Callable) -> Report:
    """Check a formula for the time of a loop without barriers, and when t1 + N t2 + t3 is it.

    Both are compared with a simulation of the two ends, over many cases.

    Args:
        total: `total(t1, t2, t3, turns)` returns the seconds that the loop takes until Python
            knows the last result.
        enough: `enough(t1, t2, turns)` says whether `t1 + turns * t2 + t3` is exactly that.

    Returns:
        A report.

    Example:
        >>> check_x1(lambda t1, t2, t3, n: t1 + n * t2 + t3, lambda t1, t2, n: True).verdict
        'not yet'
    """
    times = (0.5, 1.0, 1.25, 4.0)
    cases = [
        (t1, t2, t3, turns)
        for turns, t1, t2, t3 in itertools.product((4, 2, 1, 30), times, times, (0.5, 3.0))
    ]
    cases.sort(key=lambda case: case[0] > case[1])  # First those that the book has met.
    found = call_answer(total, cases, "my_total(t1, t2, t3, turns)")
    _require_formula(found, cases)
    gaps = [(t1, t2, turns) for turns in (2, 4, 30) for t1 in times for t2 in times]
    gaps += [(1.0, 0.875, turns) for turns in (2, 4, 6)]
    found = call_answer(enough, gaps, "my_condition(t1, t2, turns)")
    for (t1, t2, turns), said in zip(gaps, found, strict=True):
        simple, right = t1 + turns * t2, _pipeline(t1, t2, 0.0, turns)
        if require_truth(said) != (simple == right):
            yours = "is the time" if said else "is not the time"
            raise Rejection(
                f"The formula is right. But for t1 = {t1:g}, t2 = {t2:g} and {turns} turns your "
                f"condition says that t1 + N t2 + t3 {yours}: it gives {simple:g} + t3, and the "
                f"simulation ends at {right:g} + t3.",
                "For which t1 and t2 does the back end never wait for the front end, after the "
                "first call?",
            )
    return f"Formula and condition agree with a simulation in {len(cases) + len(gaps)} cases."


def _pipeline(t1: float, t2: float, t3: float, turns: int) -> float:
    """Simulate a loop without barriers: call by call, who is waiting for whom."""
    dispatched = computed = 0.0
    for _ in range(turns):
        dispatched += t1
        computed = max(dispatched, computed) + t2
    return computed + t3


def _require_formula(found: list, cases: list[tuple]) -> None:
    wrong = []
    for (t1, t2, t3, turns), seconds in zip(cases, found, strict=True):
        seconds = require_number(seconds)
        right = _pipeline(t1, t2, t3, turns)
        if not abs(seconds - right) <= 1e-4 * right:  # NaN as well.
            wrong.append((t1, t2, t3, turns, seconds, right))
    if not wrong:
        return
    if all(t1 > t2 for t1, t2, *_ in wrong):
        look = (
            "It is right wherever the back end is the slower one. If the front end is slower, "
            "when does the last call begin to be computed?"
        )
    elif all(turns > 1 for *_, turns, _, _ in wrong):
        look = "It is right for a single turn. What can happen at the same time in two?"
    else:
        look = "A single turn cannot overlap with anything. Is it right for that?"
    t1, t2, t3, turns, seconds, right = wrong[0]
    raise Rejection(
        f"For t1 = {t1:g}, t2 = {t2:g}, t3 = {t3:g} and {turns} turn{'s' * (turns > 1)} your "
        f"function says {seconds:g}; simulated call by call, the loop takes {right:g}. "
        f"{len(wrong)} of {len(cases)} cases differ.",
        look,
    )


@_exercise("X2")
def check_x2(epoch: Callable) -> Report:
    """Check an epoch in which one step may overlap with the next, and no more.

    Args:
        epoch: `epoch(step, parameters, batches)` calls `step(parameters, batch)` for each batch
            in order, each time with the parameters that the step before has returned, and returns
            the last ones. Before it dispatches step t + 2, step t has finished.

    Returns:
        A report.

    Example:
        >>> def epoch(step, parameters, batches):
        ...     for batch in batches:
        ...         parameters = jax.block_until_ready(step(parameters, batch))
        ...     return parameters
        >>> print(check_x2(epoch))
        Exercise X2: not yet
          No step was dispatched while the one before it was running.
          The device is idle from the end of a step until the next is dispatched. Which step does \
your loop wait for, and does it have to be that one?
    """
    _require_asynchrony()
    parameters, *batches = _inputs(13, cpu())

    @jax.jit
    def step(parameters, batch):
        return _work(parameters) + batch

    right = parameters
    for batch in batches:
        right = step(right, batch)
    block(right)
    log = CallLog()
    case = (log.watch("step()", step), parameters, list(batches))
    (found,) = call_answer(epoch, [case], "my_epoch(step, parameters, batches)")
    log.require_count("step()", len(batches))
    for call in log.calls:
        if len(call.unfinished) > 1:
            steps = " and ".join(str(other.number) for other in call.unfinished)
            raise Rejection(
                f"Step {call.number} was dispatched while steps {steps} were unfinished: at that "
                "moment, at most one may be.",
                "Before you dispatch a step, whose result must be there?",
            )
    overlapping = sum(len(call.unfinished) == 1 for call in log.calls)
    if overlapping == 0:
        raise Rejection(
            "No step was dispatched while the one before it was running.",
            "The device is idle from the end of a step until the next is dispatched. Which step "
            "does your loop wait for, and does it have to be that one?",
        )
    if overlapping <= len(batches) / 2:
        raise Rejection(
            f"Only {overlapping} of {len(batches)} steps were dispatched while the one before was "
            "running.",
            "Does each turn of your loop do the same, also the later ones?",
        )
    require_array(found, right, "What your function returned")
    return (
        f"{overlapping} of {len(batches)} steps were dispatched while the one before was running, "
        "and none while more than one was unfinished."
    )


@_exercise("X3")
def check_x3(total: Callable) -> Report:
    """Check how long two devices take that are fed in one loop, for three ways of waiting.

    It is compared with a simulation of the loop, over many cases.

    Args:
        total: `total(first, second, barrier)` returns the seconds until both devices are done.
            `first` and `second` list how long each minibatch takes on each device; `barrier` is
            `"each minibatch"`, `"each device"` or `"none"`.

    Returns:
        A report.

    Example:
        >>> check_x3(lambda first, second, barrier: sum(first) + sum(second)).verdict
        'not yet'
    """
    rng = np.random.default_rng(0)
    kinds = ("none", "each minibatch", "each device")
    lists = [([2, 2, 2], [1, 1, 1]), ([3, 1, 3, 1], [1, 3, 1, 3]), ([4], [7])]
    lists += [rng.integers(1, 9, (2, turns)).tolist() for turns in (2, 3, 5, 8) for _ in range(5)]
    cases = [(first, second, barrier) for barrier in kinds for first, second in lists]
    copies = [(list(first), list(second), barrier) for first, second, barrier in cases]
    found = call_answer(total, copies, "my_loop_time(first, second, barrier)")
    for (first, second, barrier), seconds in zip(cases, found, strict=True):
        seconds, right = require_number(seconds), _two_queues(first, second, barrier)
        if not abs(seconds - right) <= 1e-4 * right:
            look = {
                "none": "Nobody waits before the end. When is each device done with its own list?",
                "each minibatch": "In each turn Python waits for both. How long is such a turn?",
                "each device": "There is one Python thread. While it waits for one device, who "
                "hands the other its next minibatch?",
            }[barrier]
            raise Rejection(
                f"With first = {first}, second = {second} and the barrier {barrier!r} your "
                f"function says {seconds:g}; the simulated loop takes {right:g}.",
                look,
            )
    return f"Your function agrees with a simulation in {len(cases)} cases."


def _two_queues(first: Sequence[float], second: Sequence[float], barrier: str) -> float:
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


@_exercise("X4")
def check_x4(second: Callable, everything: Callable) -> Report:
    """Check two ways of waiting: for the second result, and for everything.

    Args:
        second: `second(start)` calls `start()`, which dispatches chains and returns a list of
            results, waits until the second of them is ready, and returns it.
        everything: `everything(start)` calls `start()` too, waits until all that it has
            dispatched is done, also what it does not return, and returns the list.

    Returns:
        A report.

    Example:
        >>> check_x4(lambda start: block(start()[1]), lambda start: block(start())).verdict
        'not yet'
    """
    _require_asynchrony()
    x = _inputs(1, cpu())[0]
    started: list[list[jax.Array]] = []
    counts: list[int] = []  # How many there were after each call.

    def starting(dependent):
        def start():
            results = [_work(x)]
            for _ in range(5):
                results.append(_work(results[-1] if dependent else x))
            _work(_work(_work(x)))  # Nobody keeps these; on a busy core Python wakes up late.
            started.append(results)
            return list(results)

        return start

    cases = [(starting(dependent),) for dependent in (False, True, False)]

    # How long one of them takes. What my_second leaves says less: it may come back late.
    one = min(measure(_work, x, repeats=3).total.samples)

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


@_exercise("X5")
def check_x5(runs_inline: Callable) -> Report:
    """Check whether an answer can tell which programs run inside the call on a CPU.

    Args:
        runs_inline: `runs_inline(function, x)` says whether the call `function(x)` computes
            everything before it returns. The function is jitted, and `x` is on the CPU and ready.

    Returns:
        A report.

    Example:
        >>> check_x5(lambda function, x: False).verdict
        'not yet'
    """
    _require_asynchrony()
    cases = _programs()
    truth = {}
    for name, (function, x) in cases.items():
        block(function(x))
        truth[name] = all(_ready_at_once(function, x) for _ in range(5))
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


def _programs() -> dict[str, tuple[Callable, jax.Array]]:
    """Return programs that take some milliseconds or more, each with an argument."""

    def loop(x):
        return jax.lax.fori_loop(0, 200_000, lambda _, c: 0.5 * c + x, x)

    def put(*shape):
        return jax.device_put(np.ones(shape, np.float32), cpu())

    large = put(8_000_000)
    return {
        "A product of two 1500x1500 matrices": (jax.jit(lambda x: x @ x), put(1500, 1500)),
        "exp(x) of eight million elements": (jax.jit(jnp.exp), large),
        "exp(x) + 1 of eight million elements": (jax.jit(lambda x: jnp.exp(x) + 1), large),
        "Reversing eight million elements": (jax.jit(lambda x: x[::-1]), large),
        "A loop of 200,000 turns over 100 elements": (jax.jit(loop), put(100)),
        "A loop of 200,000 turns over 1000 elements": (jax.jit(loop), put(1000)),
    }


# --- Automatic parallelism --------------------------------------------------------------------


@_exercise("Y1")
def check_y1(products: Callable) -> Report:
    """Check whether independent calls on one device ran at the same time.

    Args:
        products: `products(multiply, matrices)` calls `multiply(matrix)` for each of the matrices,
            all of which are on one CPU device, and returns the results in their order.

    Returns:
        A report.

    Example:
        >>> check_y1(lambda multiply, matrices: [multiply(m) for m in matrices]).verdict
        'not yet'
    """
    _require_asynchrony()
    device = cpu()
    matrices = _inputs(6, device)
    right = block([_work(matrix) for matrix in matrices])
    log = CallLog()
    # The argument is called as the exercise calls it, for readers who name it.
    multiply = log.watch("multiply()", lambda matrix: _work(matrix))
    usage = "my_products(multiply, matrices)"
    # The first call compiles whatever else it uses.
    (found,) = call_answer(products, [(multiply, list(matrices))], usage)
    require_arrays(found, right, "a result for each matrix")
    log.calls.clear()
    case = (products, multiply, list(matrices))
    ((found, timeline),) = call_answer(record_trace, [case], usage)
    require_arrays(found, right, "a result for each matrix")
    log.require_count("multiply()", len(matrices))
    for call in log.calls:
        if call.result.devices() != {device}:
            raise Rejection(
                f"Product {call.number} ran on {call.where}, but all are to run on "
                f"{device_name(device)}, where the matrices are.",
                "With two devices it is easy. Can one do it as well?",
            )
    runs = [e for e in timeline.programs.row(device_name(device)) if e.program == _work.__name__]
    if not runs:
        raise _Untestable("JAX's profiler shows no run of multiply() here.")
    end, overlapping = 0, 0
    for run in runs:
        overlapping += run.start < end
        end = max(end, run.end)
    if overlapping:
        return (
            f"Of {len(runs)} runs on {device_name(device)}, {overlapping} began while another was "
            "under way."
        )
    if not any(call.unfinished for call in log.calls):
        raise Rejection(
            "Each product was asked for when the one before it was done, so they ran one after "
            "the other.",
            "What in your function waits before it asks for the next?",
        )
    threads = len({call.thread for call in log.calls})
    raise Rejection(
        f"The products were asked for without waiting, by {threads} Python "
        f"thread{'s' * (threads > 1)}, and yet the timeline shows their runs on "
        f"{device_name(device)} one after the other.",
        "A queue works in order. Whose queue is it: the device's, whoever asks, or somebody "
        "else's as well?",
    )


@_exercise("Y2")
def check_y2(many: Callable) -> Report:
    """Check whether many small operators became faster than one call for each.

    Args:
        many: `many(operator)` returns a function of an array of shape `(n, 16, 16)` that applies
            `operator`, which takes a `(16, 16)` array, to each of its matrices, and returns the
            results as an array of the same shape.

    Returns:
        A report.

    Example:
        >>> def one_by_one(operator):
        ...     return lambda xs: jnp.stack([operator(x) for x in xs])
        >>> check_y2(one_by_one).verdict
        'not yet'
    """
    draws = np.random.default_rng(0).standard_normal((100, 16, 16), dtype=np.float32)
    xs = block(jax.device_put(draws, cpu()))
    operator = jax.jit(lambda x: jnp.tanh(x @ x.T))

    def loop():
        return jnp.stack([operator(x) for x in xs])

    right = loop()
    (faster,) = call_answer(many, [(operator,)], "my_many(operator)")
    if not callable(faster):
        raise Rejection(
            f"my_many(operator) returned {type(faster).__name__}, not a function.",
            "It is to return a function of the matrices, as jit and vmap do.",
        )
    usage = "my_many(operator)(xs)"
    (found,) = call_answer(faster, [(xs,)], usage)
    require_array(found, right, "What the function that my_many has made returned")
    arms = {"yours": lambda: faster(xs), "loop": loop}
    (times,) = call_answer(lambda: compare(arms, repeats=15, warmup=2), [()], usage)
    # The fastest round of each: a busy machine only ever adds to a time.
    fastest = {arm: min(measured.total.samples) for arm, measured in times.items()}
    ratio = fastest["loop"] / fastest["yours"]
    if ratio < 2:
        words = "about as fast as" if ratio > 0.7 else "slower than"
        raise Rejection(
            f"The results are right, but it is {words} a loop of one call for each matrix (the "
            f"loop takes {ratio:.2f} times as long).",
            "How many calls does Python make, and how much work is in each? What can hand all of "
            "it over at once?",
        )
    return f"The results are right; a loop takes {ratio:.1f} times as long."


@_exercise("Y3")
def check_y3(exchange: Callable) -> Report:
    """Check whether two devices compute while they send each other what they have computed.

    Args:
        exchange: `exchange(make, send, n)` calls `make(device, i)` for each `i` below `n`, which
            dispatches array `i` of device 0 or 1 and returns it, and `send(array)` for each array,
            which copies it to the other device and returns the copy. It returns two lists: the
            copies of the arrays of device 0, and of those of device 1.

    Returns:
        A report.

    Example:
        >>> def exchange(make, send, n):
        ...     made = block([[make(device, i) for i in range(n)] for device in (0, 1)])
        ...     return [[send(array) for array in arrays] for arrays in made]
        >>> check_y3(exchange).verdict in ("not yet", "untestable")
        True
    """
    devices = two_devices("cpu+cpu")
    _require_asynchrony()
    n = 6
    inputs = [_inputs(n, device, seed) for seed, device in enumerate(devices)]
    right = [block([_work(x) for x in xs]) for xs in inputs]
    log = CallLog()
    names = ("make(0, i)", "make(1, i)")
    making = [log.watch(name, _work) for name in names]

    def make(device, i):
        if device not in (0, 1) or i not in range(n):
            raise Rejection(
                f"make({device!r}, {i!r}) was called; the devices are 0 and 1, and i is 0 to "
                f"{n - 1}.",
                "The first argument is the device, the second the number of the array.",
            )
        return making[device](inputs[device][i])

    def send(array):
        if not isinstance(array, jax.Array):
            raise Rejection(
                f"send() was given {type(array).__name__}, not an array of JAX.",
                "Send what make() returned, as it is.",
            )
        return jax.device_put(array, devices[1] if array.devices() == {devices[0]} else devices[0])

    case = (make, log.watch("send()", send), n)
    (found,) = call_answer(exchange, [case], "my_exchange(make, send, n)")
    for device in (0, 1):
        log.require_count(names[device], n)
    log.require_count("send()", 2 * n)
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise Rejection(
            f"Your function returned {type(found).__name__}, not two lists.",
            "Return the copies of the arrays of device 0, and those of device 1.",
        )
    for device in (0, 1):
        require_arrays(found[device], right[device], f"copies of the arrays of device {device}")
        if any(copy.devices() != {devices[1 - device]} for copy in found[device]):
            raise Rejection(
                f"Not all copies of the arrays of device {device} lie on the other device.",
                "Return what send() returned, not what it was given.",
            )
    makes = [call for call in log.calls if call.label != "send()"]
    together = sum(call.found_busy(names[call.label == names[0]]) for call in makes)
    if together < n / 2:
        raise Rejection(
            f"{together} of {len(makes)} arrays were asked for while the other device was "
            "computing: the devices take turns.",
            "Where does Python stand still before it has given work to both?",
        )
    sends = log.of("send()")
    meanwhile = sum(all(map(call.found_busy, names)) for call in sends)
    if meanwhile < n / 2:
        raise Rejection(
            "Both devices compute at the same time, but "
            f"{meanwhile} of {len(sends)} copies were asked for while both were still computing.",
            "Does an array have to be ready before you may send it?",
        )
    later = [call for call in makes if call.number > 0]
    supplied = sum(call.found_busy(call.label) for call in later)
    if supplied <= len(later) / 2:
        raise Rejection(
            f"Only {supplied} of {len(later)} later arrays were asked for while their own device "
            "was still busy with the one before: each device rests until its copy is there.",
            "For which array does Python wait before it asks for the next?",
        )
    return (
        f"{together} of {len(makes)} arrays were asked for while the other device was computing, "
        f"and {meanwhile} of {len(sends)} copies while both were."
    )


@_exercise("Y4")
def check_y4(gaps: Callable) -> Report:
    """Check what an answer reads from a timeline: how much is idle, and where the longest gap is.

    It is tried on timelines made by hand, and on a recording.

    Args:
        gaps: `gaps(timeline, row)` returns three numbers: which share of the recording, from 0 to
            1, the row has nothing under way, and the seconds at which the longest stretch of that
            begins and ends. A recording lasts from 0 to `timeline.elapsed`. If two gaps are equally
            long, either will do.

    Returns:
        A report.

    Example:
        >>> check_y4(lambda timeline, row: (0.0, 0.0, 0.0)).verdict
        'not yet'
    """
    *by_hand, recorded = _timelines()
    cases = [(timeline, "CPU 0") for timeline in by_hand]
    cases += [(recorded, row) for row in recorded.rows]
    found = call_answer(gaps, cases, "my_gaps(timeline, row)")
    for (timeline, row), answer in zip(cases, found, strict=True):
        try:
            share, start, end = map(require_number, answer)
        except Exception:  # Think of a generator that fails, or of a deleted array.
            raise Rejection(
                f"Your function returned {shown(answer)}, not three numbers.",
                "Return the idle share, and when the longest gap begins and ends, in seconds.",
            ) from None
        idle = _idle_spans(timeline, row)
        longest = max(b - a for a, b in idle)
        right_share = sum(b - a for a, b in idle) / timeline.elapsed
        close = 1e-4 * timeline.elapsed
        events = ", ".join(
            f"{event.start / 1e6:g} to {event.end / 1e6:g} ms" for event in timeline.row(row)[:6]
        )
        more = " and more" if len(timeline.row(row)) > 6 else ""
        where = (
            f"A recording lasts {timeline.elapsed * 1e3:g} ms; {row} has events from {events}{more}"
        )
        if not abs(share - right_share) <= 1e-4:  # NaN as well.
            look = (
                "A share lies between 0 and 1. Events of a row may overlap, or lie within each "
                "other: is any moment counted twice?"
                if share < right_share or share > 1
                else "The elapsed time counts in full. Is a moment missing in which something was "
                "under way?"
            )
            raise Rejection(
                f"{where}. Your function says that {share:.3g} of it is idle; it is "
                f"{right_share:.3g}.",
                look,
            )
        if not any(abs(start - a) <= close and abs(end - b) <= close for a, b in idle):
            raise Rejection(
                f"{where}. The idle share is right, but {start:.4g} s to {end:.4g} s is not one of "
                "its gaps.",
                "Events tell nanoseconds, gaps are asked for in seconds. A gap begins when all "
                "that began before is over, and the recording has two ends.",
            )
        if abs((end - start) - longest) > close:
            gap = "a gap, but there is a longer one" if end - start > close else "no time at all"
            raise Rejection(
                f"{where}. {start:.4g} s to {end:.4g} s is {gap}.",
                "The row may be idle before its first event, and after its last one.",
            )
    return f"Share and longest gap are right in {len(cases)} rows, some of them recorded."


def _timelines() -> list[Timeline]:
    """Return timelines with the traps of real ones: overlaps, nesting, and gaps at both ends."""

    def by_hand(*spans, until):
        ms = 1_000_000
        rows = [("CPU 0", *span) for span in spans] + [(PYTHON, 0, until)]
        events = [
            Event(
                row, "work", "" if row != PYTHON else "wait", number, start * ms, (end - start) * ms
            )
            for number, (row, start, end) in enumerate(rows)
        ]
        return Timeline(tuple(sorted(events, key=lambda event: event.start)))

    x = _inputs(1, cpu())[0]
    block(_work(x))

    def with_a_pause():
        block(_work(x))
        time.sleep(0.02)  # The device has nothing to do meanwhile.
        return _work(x)

    return [
        by_hand((0, 2), (3, 4), (6, 10), until=10),
        by_hand((0, 4), (2, 6), (8, 10), until=10),
        by_hand((0, 7), (1, 2), (9, 10), until=10),
        by_hand((5, 6), (7, 10), until=10),
        by_hand((0, 1), (1, 7), (5, 6), (8, 10), until=10),
        by_hand((0, 1), (2, 3), until=12),
        record_trace(with_a_pause)[1],
    ]


def _idle_spans(timeline: Timeline, row: str) -> list[tuple[float, float]]:
    """Return when a row has nothing under way, in seconds; one of no length if it never rests."""
    spans, end = [], 0
    for event in timeline.row(row):
        if event.start > end:
            spans.append((end / 1e9, event.start / 1e9))
        end = max(end, event.end)
    spans.append((end / 1e9, timeline.elapsed))
    return spans


@_exercise("Y5")
def check_y5(pipeline: Callable) -> Report:
    """Check a pipeline of two stages over two devices.

    Args:
        pipeline: `pipeline(first, second, batches, devices)` returns `second(first(batch))` for
            each batch, in order. The batches lie on the first of the two devices, where all of
            stage one is to run; stage two is to run on the other one.

    Returns:
        A report.

    Example:
        >>> def one_device(first, second, batches, devices):
        ...     return [second(first(batch)) for batch in batches]
        >>> check_y5(one_device).verdict in ("not yet", "untestable")
        True
    """
    devices = two_devices("cpu+cpu")
    _require_asynchrony()
    batches = _inputs(8, devices[0])

    @jax.jit
    def second_stage(x):
        return 1 + _work(x)

    middle = [_work(batch) for batch in batches]
    right = block([second_stage(jax.device_put(x, devices[1])) for x in middle])
    log = CallLog()
    stages = (log.watch("first()", _work), log.watch("second()", second_stage))
    case = (*stages, list(batches), devices)
    (found,) = call_answer(pipeline, [case], "my_pipeline(first, second, batches, devices)")
    for stage in ("first()", "second()"):
        log.require_count(stage, len(batches))
    require_arrays(found, right, "a result for each batch")
    for stage, device in zip(("first()", "second()"), devices, strict=True):
        for call in log.of(stage):
            if call.result.devices() != {device}:
                raise Rejection(
                    f"{stage} of batch {call.number} ran on {call.where}, but this stage is to run "
                    f"on {device_name(device)}.",
                    "A jitted function runs where its arguments are. How does an array get to "
                    "another device?",
                )
    beside = {
        call.number
        for call in log.of("first()")
        if call.found_busy("second()")
        or any(c.number < call.number and call in c.unfinished for c in log.of("second()"))
    }
    turns = sum(
        any(c.label == "second()" for c in call.earlier) and call.number not in beside
        for call in log.of("first()")
    )
    if turns > len(batches) / 2:
        raise Rejection(
            f"{turns} of {len(batches)} times, stage one was asked for when stage two had nothing "
            "left to do: the stages take turns.",
            "Batch i + 1 does not need batch i. What makes Python wait for it?",
        )
    late = sum(
        sum(c.label == "first()" for c in call.earlier) == len(batches)
        and not call.found_busy("first()")
        for call in log.of("second()")
    )
    if late > len(batches) / 2:
        raise Rejection(
            f"{late} of {len(batches)} times, stage two was asked for when all of stage one was "
            "done: the stages run one after the other.",
            "What does stage two of the first batch have to wait for?",
        )
    if len(beside) <= len(batches) / 2:
        raise Rejection(
            f"Only {len(beside)} of {len(batches)} batches were in stage one while an earlier one "
            "was in stage two.",
            "For what does your loop wait, and does anything need that?",
        )
    return (
        f"All {len(batches)} results are right, each stage ran on its device, and {len(beside)} "
        f"of {len(batches)} batches were in stage one while an earlier one was in stage two."
    )
