"""Y, the exercises of Automatic Parallelism: what one device and two do at the same time."""

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from d2lpar._jax.devices import cpu, device_name, two_devices
from d2lpar._measure.comparison import compare
from d2lpar._plain.errors import D2lparError
from d2lpar._plain.format import plural
from d2lpar._timeline.recording import record_trace
from d2lpar._timeline.timeline import PYTHON, Event, Timeline
from d2lpar.book.automatic_parallelism import meetings
from d2lpar.book.exercises.checking import (
    LINKS,
    CallLog,
    Rejection,
    Report,
    call_answer,
    exercise,
    inputs,
    kind_of,
    require_array,
    require_arrays,
    require_asynchrony,
    require_called,
    require_number,
    right_results,
    shown,
    work,
)

# --- Y1. One device, many calls ---------------------------------------------------------------


@exercise("Y1", "my_products")
def check_y1(products: Callable) -> Report:
    """Check whether independent calls on one device ran at the same time."""
    require_asynchrony()
    device = cpu()
    matrices = inputs(6, device)
    right = right_results(6, device)
    log = CallLog()
    # The exercise names the argument `matrix`, and a reader may pass it by this name.
    multiply = log.watch("multiply()", lambda matrix: work(matrix))
    usage = "my_products(multiply, matrices)"

    def require_results(results):
        require_called(
            "multiply()",
            log.calls,
            "your function got its results in some other way",
            "Call it for each matrix: the check watches nothing else.",
        )
        require_arrays(results, right, "a result for each matrix")

    # The first call compiles other functions that the answer may use; the second is recorded.
    (results,) = call_answer(products, [(multiply, list(matrices))], usage)
    require_results(results)
    log.calls.clear()
    case = (products, multiply, list(matrices))
    ((results, timeline),) = call_answer(record_trace, [case], usage)
    require_results(results)
    log.require_count("multiply()", len(matrices))
    look = "With two devices it is easy. Can the one that has the matrices do it as well?"
    log.require_device("multiply()", "matrix", device, look)
    runs = [e for e in timeline.programs.row(device_name(device)) if e.program == work.__name__]
    if not runs:
        raise D2lparError("JAX's profiler shows no run of multiply() here.")
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
            "Each product was dispatched when the one before it was done, so they ran one after "
            "the other.",
            "What in your function waits before it calls multiply() again?",
        )
    threads = len({call.thread for call in log.calls})
    raise Rejection(
        f"The products were dispatched without waiting, by {plural(threads, 'Python thread')}, and "
        f"yet the timeline shows their runs on {device_name(device)} one after the other.",
        "A queue works in order. Does the device have one queue, or one for each thread?",
    )


# --- Y2. Many small operators -----------------------------------------------------------------


@exercise("Y2", "my_many")
def check_y2(many: Callable) -> Report:
    """Check whether many small operators became faster than one call for each."""
    draws = np.random.default_rng(0).standard_normal((100, 16, 16), dtype=np.float32)
    xs = jax.block_until_ready(jax.device_put(draws, cpu()))

    def loop(operator=_operator, xs=xs):
        return jnp.stack([operator(x) for x in xs])

    usage = "my_many(operator)(xs)"
    for operator in (jnp.sort, _operator):  # Not only one operator, one n, and the same numbers.
        faster = _function_from(many, (operator,), "my_many(operator)", "matrices")
        for matrices in (xs[:7], xs, -xs):
            (results,) = call_answer(faster, [(matrices,)], usage)
            require_array(results, loop(operator, matrices), f"The result of {usage}")
    arms = {"yours": lambda: faster(xs), "loop": loop}
    (times,) = call_answer(lambda: compare(arms, repeats=15, warmup=2), [()], usage)
    # Compare the fastest rounds: a busy machine can only add to a time.
    fastest = {arm: min(measured.total.samples) for arm, measured in times.items()}
    ratio = fastest["loop"] / fastest["yours"]
    if ratio < 2:
        words = "about as fast as" if ratio > 0.7 else "slower than"
        raise Rejection(
            f"The results are right, but it is {words} a loop of one call for each matrix (the "
            f"loop takes {ratio:.2f} times as long).",
            "How many calls does Python make, and how much work is in each? What can do all of it "
            "in one call?",
        )
    return f"The results are right; a loop takes {ratio:.1f} times as long."


def _function_from(answer: Callable, args: tuple, usage: str, argument: str) -> Callable:
    (function,) = call_answer(answer, [args], usage)
    if not callable(function):
        raise Rejection(
            f"{usage} returned {kind_of(function)}, not a function.",
            f"It has to return a function of the {argument}, as jit and vmap do.",
        )
    return function


@jax.jit
def _operator(x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ x.T)


# --- Y3. Computing on both, and copying -------------------------------------------------------


@exercise("Y3", "my_exchange")
def check_y3(exchange: Callable) -> Report:
    """Check whether two devices compute while they send each other what they have computed."""
    devices = two_devices("cpu+cpu")
    require_asynchrony()
    n = 6
    given = [inputs(n, device, seed) for seed, device in enumerate(devices)]
    right = [right_results(n, device, seed) for seed, device in enumerate(devices)]
    log = CallLog()
    labels = ("make(0, i)", "make(1, i)")
    makers = [log.watch(label, work) for label in labels]

    def make(device, i):
        if device not in (0, 1) or i not in range(n):
            raise Rejection(
                f"make({device!r}, {i!r}) was called; the devices are 0 and 1, and i is 0 to "
                f"{n - 1}.",
                "The first argument is the device, the second the number of the array.",
            )
        return makers[device](given[device][i])

    def send(array):
        if not isinstance(array, jax.Array):
            raise Rejection(
                f"send() was given {kind_of(array)}, not a JAX array.",
                "Send what make() returned, unchanged.",
            )
        return jax.device_put(array, devices[1] if array.devices() == {devices[0]} else devices[0])

    case = (make, log.watch("send()", send), n)
    (lists,) = call_answer(exchange, [case], "my_exchange(make, send, n)")
    for device, label in enumerate(labels):
        require_called(
            label,
            log.of(label),
            f"device {device} has made nothing",
            "The first argument of make() is the device, and both devices have work to do.",
        )
    require_called(
        "send()",
        log.of("send()"),
        "nothing was copied",
        "How does an array get from one device to the other?",
    )
    for label, count in zip((*labels, "send()"), (n, n, 2 * n), strict=True):
        log.require_count(label, count)
    if not isinstance(lists, list | tuple) or len(lists) != 2:
        raise Rejection(
            f"Your function returned {kind_of(lists)}, not two lists.",
            "Return the copies of the arrays of device 0, and those of device 1.",
        )
    for device, copies in enumerate(lists):
        require_arrays(copies, right[device], f"copies of the arrays of device {device}")
        if any(copy.devices() != {devices[1 - device]} for copy in copies):
            raise Rejection(
                f"Not all copies of the arrays of device {device} are on the other device.",
                "Return what send() returned, not what it was given.",
            )
    makes = log.of(labels[0]) + log.of(labels[1])
    together = sum(call.found_busy(labels[call.label == labels[0]]) for call in makes)
    if together < n / 2:
        raise Rejection(
            f"{together} of {len(makes)} arrays were dispatched while the other device was "
            "computing: the devices take turns.",
            "Where does Python wait before both devices have work?",
        )
    sends = log.of("send()")
    meanwhile = sum(all(map(call.found_busy, labels)) for call in sends)
    if meanwhile < n / 2:
        raise Rejection(
            f"Both devices compute at the same time, but {meanwhile} of {len(sends)} copies were "
            "dispatched while both were still computing.",
            "Does an array have to be ready before you may send it?",
        )
    later = [call for call in makes if call.number > 0]
    supplied = sum(call.found_busy(call.label) for call in later)
    if supplied <= len(later) / 2:
        raise Rejection(
            f"Only {supplied} of {len(later)} later arrays were dispatched while their own device "
            "was still busy with the one before: each device is idle until its copy has arrived.",
            "Which array does Python wait for before it calls make() again?",
        )
    return (
        f"{together} of {len(makes)} arrays were dispatched while the other device was computing, "
        f"and {meanwhile} of {len(sends)} copies while both were."
    )


# --- Y4. Reading a profile --------------------------------------------------------------------


@exercise("Y4", "my_gaps")
def check_y4(gaps: Callable) -> Report:
    """Check an answer that reads a timeline: how much of it is idle, and the longest gap.

    The timelines are made by hand, but for one recording. Of two equally long gaps, either will do.
    """
    *by_hand, recorded = _timelines()
    cases = [(timeline, "CPU 0") for timeline in by_hand]
    cases += [(recorded, row) for row in recorded.rows]
    answers = call_answer(gaps, cases, "my_gaps(timeline, row)")
    for (timeline, row), answer in zip(cases, answers, strict=True):
        try:
            share, start, end = map(require_number, answer)
        except Exception:  # A generator may raise anything.
            raise Rejection(
                f"Your function returned {shown(answer)}, not three numbers.",
                "Return the idle share, and when the longest gap begins and ends, in seconds.",
            ) from None
        idle = _idle_spans(timeline, row)
        longest = max(b - a for a, b in idle)
        right_share = sum(b - a for a, b in idle) / timeline.elapsed
        close = 1e-4 * timeline.elapsed
        events = timeline.row(row)
        spans = [f"{event.start / 1e6:g} to {event.end / 1e6:g} ms" for event in events[:6]]
        where = (
            f"A recording lasts {timeline.elapsed * 1e3:g} ms; {row} has events from "
            f"{', '.join(spans)}{' and more' if len(events) > 6 else ''}"
        )
        if not abs(share - right_share) <= 1e-4:  # NaN as well.
            look = (
                "A share lies between 0 and 1. Events of a row may overlap, or lie within each "
                "other: is any moment counted twice?"
                if share < right_share or share > 1
                else "The elapsed time counts in full. Does your function leave out a moment when "
                "something was under way?"
            )
            raise Rejection(
                f"{where}. Your function says that {share:.3g} of it is idle; it is "
                f"{right_share:.3g}.",
                look,
            )
        if not any(abs(start - a) <= close and abs(end - b) <= close for a, b in idle):
            raise Rejection(
                f"{where}. The idle share is right, but {1e3 * start:.4g} ms to {1e3 * end:.4g} ms "
                "is not one of its gaps.",
                "Events are in nanoseconds; return gaps in seconds. A gap begins when all earlier "
                "events are over, and may also lie at either end of the recording.",
            )
        if abs((end - start) - longest) > close:
            gap = "a gap, but there is a longer one" if end - start > close else "no time at all"
            raise Rejection(
                f"{where}. {1e3 * start:.4g} ms to {1e3 * end:.4g} ms is {gap}.",
                "The row may be idle before its first event, and after its last one.",
            )
    return f"The share and the longest gap are right in {len(cases)} rows, some of them recorded."


def _timelines() -> list[Timeline]:
    """Return timelines with the traps of real ones: overlaps, nesting, and gaps at both ends."""

    def by_hand(*spans, until):
        ms = 1_000_000
        events = [
            Event("CPU 0", "work", "", number, start * ms, (end - start) * ms)
            for number, (start, end) in enumerate(spans)
        ]
        events.append(Event(PYTHON, "work", "wait", len(events), 0, until * ms))
        return Timeline(tuple(sorted(events, key=lambda event: event.start)))

    x = inputs(1, cpu())[0]
    jax.block_until_ready(work(x))

    def with_a_pause():
        jax.block_until_ready(work(x))
        time.sleep(0.02)  # The device is idle.
        return work(x)

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
    """Return the idle spans of a row in seconds; the last may be empty."""
    spans, end = [], 0
    for event in timeline.row(row):
        if event.start > end:
            spans.append((end / 1e9, event.start / 1e9))
        end = max(end, event.end)
    spans.append((end / 1e9, timeline.elapsed))
    return spans


# --- Y5. More than a list ---------------------------------------------------------------------


@exercise("Y5", "my_pipeline")
def check_y5(pipeline: Callable) -> Report:
    """Check a pipeline of two stages over two devices."""
    devices = two_devices("cpu+cpu")
    require_asynchrony()
    batches = inputs(8, devices[0])
    right = _right_of_both_stages(len(batches), devices)
    log = CallLog()
    stages = (log.watch("first()", work), log.watch("second()", _second_stage))
    case = (*stages, list(batches), devices)
    (results,) = call_answer(pipeline, [case], "my_pipeline(first, second, batches, devices)")
    for stage in ("first()", "second()"):
        require_called(
            stage,
            log.of(stage),
            "no batch went through this stage",
            "Which stages does a batch go through, before it is done?",
        )
        log.require_count(stage, len(batches))
    require_arrays(results, right, "a result for each batch")
    look = (
        "A jitted function runs where its arguments are. How does an array get to another device?"
    )
    for stage, device in zip(("first()", "second()"), devices, strict=True):
        log.require_device(stage, "batch", device, look)
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
            f"{turns} of {len(batches)} times, stage one was called when stage two had nothing "
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
            f"{late} of {len(batches)} times, stage two was called when all of stage one was "
            "done: the stages run one after the other.",
            "What does stage two of the first batch have to wait for?",
        )
    if len(beside) <= len(batches) / 2:
        raise Rejection(
            f"Only {len(beside)} of {len(batches)} batches were in stage one while an earlier one "
            "was in stage two.",
            "What does your loop wait for, and does anything need it?",
        )
    return (
        f"All {len(batches)} results are right, each stage ran on its device, and {len(beside)} "
        f"of {len(batches)} batches were in stage one while an earlier one was in stage two."
    )


@jax.jit
def _second_stage(x: jax.Array) -> jax.Array:
    return 1 + work(x)


@functools.cache
def _right_of_both_stages(count: int, devices: tuple[jax.Device, jax.Device]) -> list[jax.Array]:
    middle = right_results(count, devices[0])
    return jax.block_until_ready([_second_stage(jax.device_put(x, devices[1])) for x in middle])


# --- Y6. A loop for each device ---------------------------------------------------------------

_ROWS = 64  # On each device; work() needs a square.
_ITERATIONS = 40  # About so many do those rows need that need more than one.


@exercise("Y6", "my_loop")
def check_y6(loop: Callable) -> Report:
    """Check whether two devices run a loop each, and each only as long as its own rows need."""
    devices = two_devices("cpu+cpu")
    require_asynchrony()
    mesh = jax.make_mesh((2,), ("data",), devices=devices)
    draw = np.random.default_rng(0).uniform(0.95, 1.0, (_ROWS, _ROWS)).astype(np.float32)
    draw[0] *= 0.9  # It needs one iteration less than the other rows of its device.
    few, many = 1.05 * draw, 0.9**-_ITERATIONS * draw
    numbers = [np.concatenate(parts) for parts in ((few, many), (many, few))]
    split = NamedSharding(mesh, PartitionSpec("data"))
    rows = [jax.device_put(x, split) for x in numbers]
    right = [jax.jit(jax.vmap(_until_small))(jax.device_put(x, cpu())) for x in numbers]
    usage = "my_loop(solve, mesh)"
    solve_all = _function_from(loop, (_until_small, mesh), usage, "rows")
    usage = f"{usage}(rows)"
    results = call_answer(solve_all, [(x,) for x in rows], usage)
    for result, expected in zip(results, right, strict=True):
        require_array(result, expected, f"The result of {usage}")
        parts = {shard.device: len(shard.data) for shard in result.addressable_shards}
        if parts != dict.fromkeys(devices, _ROWS):
            places = [f"{count} rows on {device_name(d)}" for d, count in parts.items()]
            raise Rejection(
                f"The result has {' and '.join(places)}; it has to have {_ROWS} on each of two.",
                "The result has to be split like the rows. Which rows does its part need?",
            )

    def is_early(x, first, other):
        """Say whether one device has its rows and does other work before the other is done."""
        parts = {shard.device: shard.data for shard in solve_all(x).addressable_shards}
        jax.block_until_ready(work(jax.block_until_ready(parts[first])))
        early = not parts[other].is_ready()
        jax.block_until_ready(parts[other])
        return early

    for x, pair in zip(rows, (devices, devices[::-1]), strict=True):
        if sum(call_answer(is_early, [(x, *pair)] * 3, usage)) < 2:
            # One iteration each: the profiler has an event for each link.
            brief = jax.device_put(np.concatenate((few, few)), split)
            ((_, timeline),) = call_answer(record_trace, [(solve_all, brief)], usage)
            first, other = map(device_name, pair)
            look = "What makes both wait? Does Python wait, or does one device compute all rows?"
            if met := meetings(timeline):
                look = (
                    f"With one iteration on both, there are {plural(met, 'all-reduce')}. Which "
                    "rows does the condition of one loop over all rows need? The loop of a device "
                    "has to end when its own rows are done."
                )
            raise Rejection(
                f"The rows on {first} need one iteration of the loop and those on {other} "
                f"about {_ITERATIONS}, and yet both were ready at the same time.",
                look,
            )
    return (
        "Rows that need one iteration of the loop were ready long before those on the other "
        f"device, which need about {_ITERATIONS}."
    )


def _until_small(row: jax.Array) -> jax.Array:
    """Shrink a row by a tenth, slowly, until all of it is below one."""

    def shrink(row):
        return jax.lax.fori_loop(0, 5 * LINKS, lambda _, x: (1 - 0.021 / LINKS) * x, row)

    return jax.lax.while_loop(lambda row: jnp.max(row) > 1, shrink, row)
