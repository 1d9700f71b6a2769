"""The checks of Y1 to Y6: right answers, and wrong ones that a reader may well give."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attempts import both_tests, consuming
from fakes import raising

from d2lpar import Event, Timeline, cpu
from d2lpar.book.exercises import check_y1, check_y2, check_y3, check_y4, check_y5, check_y6

pytestmark = pytest.mark.timed  # The verdict depends on who else is at work.

RECORD_TRACE = "d2lpar.book.exercises.automatic_parallelism.record_trace"
RIGHT, WRONG = {}, {}


def on_a_pool(multiply, matrices):
    with ThreadPoolExecutor() as pool:
        return list(pool.map(multiply, matrices))


def failing_later(multiply, matrices):
    fail = raising(ValueError("later"))
    return [jax.pure_callback(fail, multiply(m), multiply(m)) for m in matrices]


RIGHT[check_y1] = {"a pool": consuming(on_a_pool)}
WRONG[check_y1] = {
    "one thread": (
        lambda multiply, matrices: [multiply(matrix) for matrix in matrices],
        "without waiting, by 1 Python thread, and yet .* on CPU 0 one after the other",
    ),
    "a barrier": (
        lambda multiply, matrices: [jax.block_until_ready(multiply(matrix)) for matrix in matrices],
        "dispatched when the one before it was done",
    ),
    "the last forgotten": (
        lambda multiply, matrices: on_a_pool(multiply, matrices[:-1]),
        "returned a list of 5; the exercise asks for a list of 6: a result for each matrix",
    ),
    "without it": (
        lambda multiply, matrices: [matrix @ matrix for matrix in matrices],
        r"multiply\(\) was never called: your function got .*\n.*for each matrix",
    ),
    "fails later": (failing_later, "raised .*CpuCallback error"),
    "another device": (
        lambda multiply, matrices: [multiply(jax.device_put(m, cpu(1))) for m in matrices],
        "of matrix 0 ran on CPU 1, but has to run on CPU 0",
    ),
}


def recording(*events):
    """Return a `record_trace` that shows these events, without the profiler."""
    return lambda function, *args: (function(*args), Timeline(events))


def test_where_the_profiler_shows_no_run_y1_does_not_judge(monkeypatch):
    record = recording(Event("CPU 0", "result", "", 0, 0, 1))
    monkeypatch.setattr(RECORD_TRACE, record)
    report = check_y1(on_a_pool)
    assert report.verdict == "untestable"
    assert "shows no run of multiply()" in report.saw


def vectorized(operator):
    return jax.jit(jax.vmap(operator))


def one_program(operator):
    return jax.jit(lambda xs: jax.lax.map(operator, xs))


def anew(operator):
    return lambda xs: jax.jit(jax.vmap(lambda x: operator(x)))(xs)


def leaking(operator):
    traced = []
    leak = jax.jit(lambda xs: (traced.append(jax.vmap(operator)(xs)), xs)[1])
    return lambda xs: (leak(xs), traced[-1])[1]


def keeping_its_result(operator):
    kept = []

    def many(xs):
        if not kept:
            kept.append(jax.vmap(operator)(xs))
        return kept[0]

    return many


RIGHT[check_y2] = {"vectorized": vectorized, "one program": one_program}
WRONG[check_y2] = {
    "the loop": (
        lambda operator: lambda xs: jnp.stack([operator(x) for x in xs]),
        "a loop of one call for each matrix",
    ),
    "anew": (anew, r"XLA compiles in each call of your function: jit\(<lambda>\)"),
    "its result": (
        lambda operator: operator(jnp.ones((16, 16))),
        r"my_many\(operator\) returned a JAX array, not a function",
    ),
    "transposed": (lambda op: jax.vmap(lambda x: op(x.T)), r"my_many\(operator\)\(xs\) is wrong"),
    "one operator": (
        lambda operator: jax.vmap(lambda x: jnp.tanh(x @ x.T)),
        r"my_many\(operator\)\(xs\) is wrong",
    ),
    "one result": (keeping_its_result, r"my_many\(operator\)\(xs\) has the shape"),
    "one n": (
        lambda operator: lambda xs: jnp.stack([operator(xs[i]) for i in range(100)]),
        r"my_many\(operator\)\(xs\) has the shape",
    ),
    "no result": (lambda operator: lambda xs: None, r"through my_many\(operator\)\(xs\) end"),
    "leaks": (leaking, "is a tracer, which stands for an array while JAX traces"),
}


def send_at_once(make, send, n):
    copies = [], []
    for i in range(n):
        for device in (0, 1):
            copies[device].append(send(make(device, i)))
    return copies


def make_all_and_send(make, send, n):
    made = [[make(device, i) for i in range(n)] for device in (0, 1)]
    return [[send(array) for array in arrays] for arrays in made]


def make_and_wait_for_each(make, send, n):
    return send_at_once(lambda device, i: jax.block_until_ready(make(device, i)), send, n)


def make_and_wait_for_one_device(make, send, n):
    made = [[make(0, i) for i in range(n)], [make(1, i) for i in range(n // 2)]]
    jax.block_until_ready(made[0])
    made[1] += [make(1, i) for i in range(n // 2, n)]
    return [[send(array) for array in arrays] for arrays in made]


def pair_by_pair(make, send, n):
    pairs = [jax.block_until_ready([send(make(0, i)), send(make(1, i))]) for i in range(n)]
    return [list(copies) for copies in zip(*pairs, strict=True)]


RIGHT[check_y3] = {"send at once": send_at_once, "make all, then send": make_all_and_send}
WRONG[check_y3] = {
    "each array": (make_and_wait_for_each, "dispatched while the other .*: the devices take turns"),
    "one device's arrays": (make_and_wait_for_one_device, "of 12 copies were dispatched while"),
    "each pair": (
        pair_by_pair,
        r"Only \d of 10 later arrays were dispatched while their own device was still busy",
    ),
    "no copies": (
        lambda make, send, n: send_at_once(make, lambda array: (send(array), array)[1], n),
        "Not all copies of the arrays of device 0 are on",
    ),
    "one list": (lambda *args: list(chain(*send_at_once(*args))), "returned a list, not two lists"),
    "arguments swapped": (
        lambda make, send, n: [[send(make(i, d)) for i in range(n)] for d in (0, 1)],
        r"make\(2, 0\) was called; the devices are 0 and 1",
    ),
    "a list sent": (
        lambda make, send, n: [send([make(d, i) for i in range(n)]) for d in (0, 1)],
        r"send\(\) was given a list, not a JAX array",
    ),
    "the wrong device's": (
        lambda *args: send_at_once(*args)[::-1],
        "Item 0 of your function's result is wrong",
    ),
}


def spans_of(timeline, row):
    spans, end = [], 0
    for event in [*timeline.row(row), None]:
        start = event.start if event else round(timeline.elapsed * 1e9)
        spans.append((start - end, end / 1e9, start / 1e9))
        end = max(end, event.end) if event else end
    return [span for span in spans if span[0] > 0] or [(0, 0, 0)]


def gaps_by_hand(timeline, row, gap=None):
    spans = spans_of(timeline, row)
    return sum(span[0] for span in spans) / 1e9 / timeline.elapsed, *(gap or max(spans)[1:])


def gaps_by_the_timeline(timeline, row):
    return [np.float64(timeline.idle(row) / timeline.elapsed), *max(spans_of(timeline, row))[1:]]


def counted_twice(timeline, row):
    busy = sum(event.duration for event in timeline.row(row)) / 1e9
    return 1 - busy / timeline.elapsed, *gaps_by_hand(timeline, row)[1:]


def between_neighbors(timeline, row):
    events = timeline.row(row)
    gaps = [(b.start - a.end, a.end / 1e9, b.start / 1e9) for a, b in pairwise(events)]
    return gaps_by_hand(timeline, row, max(gaps, default=(0, 0, 0))[1:])


def changed(change):
    return lambda timeline, row: change(*gaps_by_hand(timeline, row))


RIGHT[check_y4] = {"by hand": gaps_by_hand, "by the timeline": gaps_by_the_timeline}
WRONG[check_y4] = {
    "counted twice": (counted_twice, "2 to 6 ms.* says that 0 of it is idle; it is 0.2.\n"),
    "between neighbors": (between_neighbors, "2 ms to 9 ms is not one of its gaps"),
    "percent": (
        changed(lambda share, start, end: (100 * share, start, end)),
        "says that 30 of it is idle.*\n  A share lies between 0 and 1",
    ),
    "the first": (
        lambda timeline, row: gaps_by_hand(timeline, row, spans_of(timeline, row)[0][1:]),
        "is a gap, but there is a longer one",
    ),
    "an empty one": (
        lambda timeline, row: gaps_by_hand(timeline, row, (timeline.elapsed, timeline.elapsed)),
        "10 ms to 10 ms is no time at all",
    ),
    "busy": (
        changed(lambda share, start, end: (1 - share, start, end)),
        "says that 0.7 of it is idle; it is 0.3.\n.*counts in full",
    ),
    "as they are read": (
        lambda timeline, row: (1 / 0 for _ in range(3)),
        "returned <generator .*, not three numbers",
    ),
    "nan": (changed(lambda share, start, end: (np.nan, start, end)), "says that nan of it is idle"),
    "huge": (lambda *args: [10**400] * 3, r"returned \[10000.*\.\.\., not three numbers"),
}


def pipeline_at_once(first, second, batches, devices):
    return [second(jax.device_put(first(batch), devices[1])) for batch in batches]


def in_lock_step(first, second, batches, devices):
    results, middle = [], None
    for batch in [*batches, None]:
        ticks = []
        if middle is not None:
            results.append(second(jax.device_put(middle, devices[1])))
            ticks.append(results[-1])
        middle = None if batch is None else first(batch)
        jax.block_until_ready([*ticks, middle])
    return results


def batch_by_batch(first, second, batches, devices):
    return [
        jax.block_until_ready(pipeline_at_once(first, second, [batch], devices))[0]
        for batch in batches
    ]


def stage_by_stage(first, second, batches, devices, wait=jax.block_until_ready):
    middle = wait([first(batch) for batch in batches])
    return [second(jax.device_put(x, devices[1])) for x in middle]


def half_by_half(first, second, batches, devices):
    half = jax.block_until_ready(stage_by_stage(first, second, batches[:4], devices))
    return half + stage_by_stage(first, second, batches[4:], devices)


def spread(first, second, batches, devices):
    both = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), "d"), jax.P("d"))
    return [second(jax.device_put(first(batch), both)) for batch in batches]


RIGHT[check_y5] = {
    "at once": pipeline_at_once,
    "stage by stage": consuming(partial(stage_by_stage, wait=list)),
    "in lock step": in_lock_step,
}
WRONG[check_y5] = {
    "one device": (
        lambda f, g, batches, devices: [g(f(batch)) for batch in batches],
        r"second\(\) of batch 0 ran on CPU 0, but",
    ),
    "each batch": (
        batch_by_batch,
        "stage one was called when stage two had nothing left to do: the stages take turns",
    ),
    "half by half": (
        half_by_half,
        "Only 0 of 8 batches were in stage one while an earlier one was in stage two",
    ),
    "stage by stage": (stage_by_stage, "when all of stage one was done: the stages run one"),
    "another order": (
        lambda *args: pipeline_at_once(*args)[::-1],
        "Item 0 of your function's result is wrong",
    ),
    "the last forgotten": (
        lambda f, g, batches, devices: pipeline_at_once(f, g, batches[1:], devices),
        r"first\(\) was called 7 times; it takes 8 calls",
    ),
    "both devices": (spread, r"second\(\) of batch 0 ran on CPU 0 and CPU 1, but"),
}


def mapped_by_shards(solve, mesh, each=jax.vmap):
    rows = jax.P("data")
    return jax.shard_map(each(solve), mesh=mesh, in_specs=rows, out_specs=rows)


def call_for_each(solve, mesh, wait=lambda part: part):
    solve_part = jax.jit(jax.vmap(solve))

    def solve_all(rows):
        parts = [wait(solve_part(shard.data)) for shard in rows.addressable_shards]
        return jax.make_array_from_single_device_arrays(rows.shape, rows.sharding, parts)

    return solve_all


def on_one_device(solve, mesh):
    solve_all = jax.jit(jax.vmap(solve))
    return lambda rows: solve_all(jax.device_put(np.asarray(rows), mesh.devices[0]))


RIGHT[check_y6] = {
    "shard_map": lambda *args: jax.jit(mapped_by_shards(*args)),
    "a call for each": call_for_each,
}
WRONG[check_y6] = {
    "one loop": (
        lambda solve, mesh: jax.jit(jax.vmap(solve)),
        r"about 40, and yet both were ready at the same time.\n.*there are 2 all-reduces",
    ),
    "a barrier": (
        partial(call_for_each, wait=jax.block_until_ready),
        r"both were ready at the same time.\n.*What makes both wait",
    ),
    "one device": (on_one_device, "has 128 rows on CPU 0; it has to have 64 on each of two"),
    "not jitted": (mapped_by_shards, "XLA compiles in each call of your function"),
    "a device as one row": (
        lambda solve, mesh: jax.jit(mapped_by_shards(solve, mesh, each=lambda solve: solve)),
        r"The result of my_loop\(solve, mesh\)\(rows\) is wrong",
    ),
    "one turn": (
        lambda solve, mesh: jax.jit(lambda rows: 0.9 * rows),
        r"The result of my_loop\(solve, mesh\)\(rows\) is wrong",
    ),
}


@pytest.fixture
def one_after_the_other(request, monkeypatch):
    if request.node.callspec.params["check"] is check_y6:  # It counts the all-reduces.
        return
    # test_book.py has a real recording of calls that take turns, by the starter of Y1.
    runs = (Event("CPU 0", "work", "dot", number, number, 1) for number in range(6))
    monkeypatch.setattr(RECORD_TRACE, recording(*runs))


test_right_answers_are_accepted, tells = both_tests(RIGHT, WRONG)
test_wrong_answers_are_told_why = pytest.mark.usefixtures("one_after_the_other")(tells)
