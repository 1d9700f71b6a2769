import ast
import functools
import inspect
import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import jupytext
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from d2lpar import InFlight, block, cpu, wait_all
from d2lpar.book import exercises
from d2lpar.book.exercises import MIME_TYPE, Report
from d2lpar.book.exercises.answers import SHOWN, call_answer
from d2lpar.timeline import Event, Timeline

BOOK = Path(__file__).parent.parent / "book"
CHAPTERS = {
    "X": BOOK / "asynchronous-computation.md",
    "Y": BOOK / "automatic-parallelism.md",
}
NAMES = [chapter + number for chapter in CHAPTERS for number in "12345"]
BEHAVIOUR = ["X2", "X4", "X5", "Y1", "Y3", "Y5"]


def check(exercise, *answers):
    return getattr(exercises, f"check_{exercise.lower()}")(*answers)


# --- Answers that are right -------------------------------------------------------------------


def formula(t1, t2, t3, turns):
    return t1 + t2 + t3 + (turns - 1) * max(t1, t2)


def back_end_is_slower(t1, t2, turns):
    return t2 >= t1


def window_of(limit):
    def my_epoch(step, parameters, batches):
        with InFlight(limit) as window:
            for batch in batches:
                parameters = window.submit(step, parameters, batch)
        return parameters

    return my_epoch


def wait_for_the_one_before(step, parameters, batches):
    for batch in batches:
        before, parameters = parameters, step(parameters, batch)
        block(before)
    return parameters


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


def second_result(start):
    return block(start()[1])


def everything_by_a_sentinel(start):
    results = start()
    wait_all()
    return results


def everything_by_hand(start):
    results = start()
    block(jax.jit(lambda x: x + 1)(jnp.float32(0)))
    return tuple(block(results))


def little_arithmetic(function, x):
    return (function.lower(x).compile().cost_analysis().get("flops") or 0) < 1000


def ready_at_once(function, x):
    # Once would do on an idle machine; a busy one may come back late.
    block(function(x))
    found = []
    for _ in range(7):
        y = function(x)
        found.append(y.is_ready())
        block(y)
    return all(found)


def on_a_pool(multiply, matrices):
    with ThreadPoolExecutor() as pool:
        return list(pool.map(multiply, matrices))


def a_thread_each(multiply, matrices):
    results = [None] * len(matrices)

    def work(i):
        results[i] = block(multiply(matrices[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(matrices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(results)


def vectorized(operator):
    return jax.jit(jax.vmap(operator))


def one_program(operator):
    return jax.jit(lambda xs: jax.lax.map(operator, xs))


def send_at_once(make, send, n):
    copies = [], []
    for i in range(n):
        for device in (0, 1):
            copies[device].append(send(make(device, i)))
    return copies


def make_all_and_send(make, send, n):
    made = [[make(device, i) for i in range(n)] for device in (0, 1)]
    return [[send(array) for array in arrays] for arrays in made]


def spans_of(timeline, row):
    spans, end = [], 0
    for event in [*timeline.row(row), None]:
        start = event.start if event else round(timeline.elapsed * 1e9)
        spans.append((start - end, end / 1e9, start / 1e9))
        end = max(end, event.end) if event else end
    return [span for span in spans if span[0] > 0] or [(0, 0, 0)]


def gaps_by_hand(timeline, row):
    spans = spans_of(timeline, row)
    return sum(span[0] for span in spans) / 1e9 / timeline.elapsed, *max(spans)[1:]


def gaps_by_the_timeline(timeline, row):
    return [np.float64(timeline.idle(row) / timeline.elapsed), *max(spans_of(timeline, row))[1:]]


def pipeline_at_once(first, second, batches, devices):
    return [second(jax.device_put(first(batch), devices[1])) for batch in batches]


def pipeline_by_stages(first, second, batches, devices):
    middle = [first(batch) for batch in batches]
    return tuple(second(jax.device_put(x, devices[1])) for x in middle)


def consuming(answer):
    """Return an answer that leaves nothing of the lists that it is given."""

    def my_answer(*args):
        found = answer(*args)
        for arg in args:
            if isinstance(arg, list):
                arg.clear()
        return found

    return my_answer


RIGHT = {
    "X1": [
        (formula, back_end_is_slower),
        (
            lambda t1, t2, t3, n: t1 + n * t2 + t3 if t1 <= t2 else n * t1 + t2 + t3,
            lambda t1, t2, n: np.bool_(t1 + n * t2 == formula(t1, t2, 0, n)),
        ),
    ],
    "X2": [(window_of(2),), (consuming(wait_for_the_one_before),)],
    "X3": [(loop_time,), (consuming(loop_time),)],
    "X4": [
        (second_result, everything_by_a_sentinel),
        (lambda start: start().pop(1).block_until_ready(), everything_by_hand),
    ],
    "X5": [(little_arithmetic,), (ready_at_once,)],
    "Y1": [(on_a_pool,), (consuming(a_thread_each),)],
    "Y2": [(vectorized,), (one_program,)],
    "Y3": [(send_at_once,), (make_all_and_send,)],
    "Y4": [(gaps_by_hand,), (gaps_by_the_timeline,)],
    "Y5": [(pipeline_at_once,), (consuming(pipeline_by_stages),)],
}


@pytest.mark.parametrize("way", [0, 1], ids=["one way", "another way"])
@pytest.mark.parametrize("exercise", NAMES)
def test_a_right_answer_is_accepted(exercise, way):
    report = check(exercise, *RIGHT[exercise][way])
    assert report.verdict == "accepted", report
    assert (report.exercise, report.look) == (exercise, "")
    assert report.saw.endswith(".")


# --- Answers that are wrong -------------------------------------------------------------------


def epoch(wait):
    """Return a loop over batches that waits as it is told to."""

    def my_epoch(step, parameters, batches):
        for number, batch in enumerate(batches):
            parameters = step(parameters, batch)
            wait(number, parameters)
        return parameters

    return my_epoch


def stale(step, parameters, batches):
    found = [parameters, parameters]
    for batch in batches:
        block(found[-2])
        found.append(step(found[-2], batch))
    return found[-1]


def without_the_last(step, parameters, batches):
    return wait_for_the_one_before(step, parameters, batches[:-1])


def scanned(step, parameters, batches):
    return jax.lax.scan(lambda p, b: (step(p, b), None), parameters, jnp.stack(batches))[0]


def after_waiting_for(index, then=1):
    def my_second(start):
        results = start()
        block(results[index])
        return results[then]

    return my_second


def twice(start):
    start()
    return block(start())


def elementwise(function, x):
    return little_arithmetic(function, x) if x.size < 5e6 else True


def no_arithmetic(function, x):
    return not function.lower(x).compile().cost_analysis().get("flops")


def anew(operator):
    return lambda xs: jax.jit(jax.vmap(lambda x: operator(x)))(xs)


def make_and_wait_for_each(make, send, n):
    return send_at_once(lambda device, i: block(make(device, i)), send, n)


def make_and_wait_for_all(make, send, n):
    made = block([[make(device, i) for i in range(n)] for device in (0, 1)])
    return [[send(array) for array in arrays] for arrays in made]


def keep_what_was_sent(make, send, n):
    made = [[make(device, i) for i in range(n)] for device in (0, 1)]
    for array in made[0] + made[1]:
        send(array)
    return made


def pair_by_pair(make, send, n):
    pairs = [block([send(make(0, i)), send(make(1, i))]) for i in range(n)]
    return [list(copies) for copies in zip(*pairs, strict=True)]


def without_the_last_array(make, send, n):
    return send_at_once(make, send, n - 1)


def counted_twice(timeline, row):
    busy = sum(event.duration for event in timeline.row(row)) / 1e9
    return 1 - busy / timeline.elapsed, *gaps_by_hand(timeline, row)[1:]


def between_neighbours(timeline, row):
    events = timeline.row(row)
    gaps = [(b.start - a.end, a.end / 1e9, b.start / 1e9) for a, b in pairwise(events)]
    return gaps_by_hand(timeline, row)[0], *max(gaps, default=(0, 0, 0))[1:]


def by_their_ends(timeline, row):
    events = sorted(timeline.row(row), key=lambda event: event.end)
    ends = [0, *(event.end for event in events)]
    starts = [*(event.start for event in events), round(timeline.elapsed * 1e9)]
    _, start, end = max((b - a, a, b) for a, b in zip(ends, starts, strict=True))
    return gaps_by_hand(timeline, row)[0], start / 1e9, end / 1e9


def in_percent(timeline, row):
    share, start, end = gaps_by_hand(timeline, row)
    return 100 * share, start, end


def in_nanoseconds(timeline, row):
    share, start, end = gaps_by_hand(timeline, row)
    return share, start * 1e9, end * 1e9


def first_gap(timeline, row):
    return gaps_by_hand(timeline, row)[0], *spans_of(timeline, row)[0][1:]


def empty_gap(timeline, row):
    return gaps_by_hand(timeline, row)[0], timeline.elapsed, timeline.elapsed


def busy_share(timeline, row):
    share, start, end = gaps_by_hand(timeline, row)
    return 1 - share, start, end


def batch_by_batch(first, second, batches, devices):
    return [block(pipeline_at_once(first, second, [batch], devices))[0] for batch in batches]


def stage_by_stage(first, second, batches, devices):
    middle = block([first(batch) for batch in batches])
    return [second(jax.device_put(x, devices[1])) for x in middle]


def half_by_half(first, second, batches, devices):
    halves = (batches[:4], batches[4:])
    return [x for half in halves for x in block(stage_by_stage(first, second, half, devices))]


def all_on_the_other(first, second, batches, devices):
    return [second(first(jax.device_put(batch, devices[1]))) for batch in batches]


def to_numpy(answer):
    def converting(*args):
        return jax.tree.map(np.asarray, answer(*args))

    return converting


# What is tried, and a part of what is said about it.
WRONG = {
    "X1": {
        "one after the other": (
            (lambda t1, t2, t3, n: n * (t1 + t2 + t3), back_end_is_slower),
            "right for a single turn. What can happen at the same time in two",
        ),
        "the printed formula": (
            (lambda t1, t2, t3, n: t1 + n * t2 + t3, back_end_is_slower),
            "36 of 128 cases differ.\n  It is right wherever the back end is the slower one",
        ),
        "once too often": (
            (lambda t1, t2, t3, n: t1 + t2 + t3 + n * max(t1, t2), back_end_is_slower),
            "A single turn cannot overlap with anything",
        ),
        "the last one forgotten": (
            (lambda t1, t2, t3, n: n * max(t1, t2) + t3, back_end_is_slower),
            "3 turns|4 turns",
        ),
        "nan": (
            (lambda t1, t2, t3, n: float("nan"), back_end_is_slower),
            "says nan;",
        ),
        "a word": ((lambda t1, t2, t3, n: "soon", back_end_is_slower), "is no number"),
        "the printed condition": (
            (formula, lambda t1, t2, n: n * t2 > (n - 1) * t1),
            "for t1 = 1.25, t2 = 1 and 2 turns your condition says that .* is the time",
        ),
        "strictly slower": (
            (formula, lambda t1, t2, n: t2 > t1),
            "for t1 = 0.5, t2 = 0.5 and 2 turns your condition says that .* is not the time",
        ),
        "always": ((formula, lambda t1, t2, n: True), "t1 = 1, t2 = 0.5 and 2 turns"),
        "nearly as slow": (
            (formula, lambda t1, t2, n: t2 > 0.8 * t1),
            "for t1 = 1, t2 = 0.875 and 2 turns your condition says",
        ),
    },
    "X2": {
        "window of three": ((window_of(3),), "while steps 0 and 1 were unfinished"),
        "each step": ((epoch(lambda _, p: block(p)),), "No step was dispatched while the one"),
        "once without": (
            (epoch(lambda i, p: None if i == 5 else block(p)),),
            "Only 1 of 12 steps.*\n.*also the later ones",
        ),
        "every second": (
            (epoch(lambda i, p: block(p) if i % 2 else None),),
            "Only 6 of 12 steps",
        ),
        "stale": ((stale,), "wrong: it differs from the right one"),
        "without the last": ((without_the_last,), "called 11 times; it takes 12 calls"),
        "to NumPy": ((to_numpy(wait_for_the_one_before),), r"NumPy's, not JAX's \(ndarray\)"),
        "scanned": ((scanned,), "while JAX was tracing, so all its calls became one program"),
    },
    "X3": {
        "one after the other": (
            (lambda first, second, barrier: sum(first) + sum(second),),
            "barrier 'none' .* says 9; the simulated loop takes 6.\n  Nobody waits before the end",
        ),
        "nobody waits": (
            (lambda first, second, barrier: max(sum(first), sum(second)),),
            "barrier 'each minibatch' .*\n  In each turn Python waits for both",
        ),
        "each device for itself": (
            (lambda a, b, barrier: loop_time(a, b, barrier.replace("each device", "none")),),
            "barrier 'each device' .*says 8; .* takes 10.\n  There is one Python thread",
        ),
        "each device like both": (
            (lambda a, b, barrier: loop_time(a, b, barrier.replace("device", "minibatch")),),
            "barrier 'each device' .*says 12; .* takes 10.\n",
        ),
        "nan": ((lambda first, second, barrier: float("nan"),), "says nan"),
        "a list": ((lambda first, second, barrier: [first, second],), "is no number"),
    },
    "X4": {
        "the first": (
            (after_waiting_for(0), everything_by_a_sentinel),
            "second result was not ready",
        ),
        "the third": (
            (after_waiting_for(2), everything_by_a_sentinel),
            "not only the second result was ready: the third was",
        ),
        "all for one": (
            (lambda start: block(start())[1], everything_by_a_sentinel),
            "not only the second result was ready: all of them were",
        ),
        "another one": ((after_waiting_for(1, 0), everything_by_a_sentinel), "my_second.*wrong"),
        "to NumPy": ((to_numpy(second_result), everything_by_a_sentinel), "my_second.*NumPy's"),
        "no start": (
            (lambda start: 1.0, everything_by_a_sentinel),
            r"my_second called start\(\) 0, 0, 0 times",
        ),
        "twice": ((second_result, twice), r"3 runs, my_everything called start\(\) 2, 2, 2 times"),
        "the list": (
            (second_result, lambda start: block(start())),
            "the device still had work for .* it does not return.\n.*no reference to a result",
        ),
        "all that lives": (
            (second_result, lambda start: (start(), jax.effects_barrier())[0]),
            "some of the results were not ready",
        ),
    },
    "X5": {
        "never": (
            (lambda function, x: False,),
            r"exp\(x\) of eight million elements runs inside .* says that it goes on after",
        ),
        "always": (
            (lambda function, x: True,),
            "1500x1500 matrices goes on after .* says that it runs inside the call",
        ),
        "whatever is elementwise": ((elementwise,), r"exp\(x\) \+ 1 of .* goes on after"),
        "whatever has no arithmetic": ((no_arithmetic,), "over 100 elements runs inside"),
    },
    "Y1": {
        "one thread": (
            (lambda multiply, matrices: [multiply(matrix) for matrix in matrices],),
            "without waiting, by 1 Python thread, and yet .* on CPU 0 one after the other",
        ),
        "a barrier": (
            (lambda multiply, matrices: [block(multiply(matrix)) for matrix in matrices],),
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
    },
    "Y2": {
        "the loop": (
            (lambda operator: lambda xs: jnp.stack([operator(x) for x in xs]),),
            "a loop of one call for each matrix",
        ),
        "anew": ((anew,), r"XLA compiles in each call of your function: jit\(<lambda>\)"),
        "the operator": ((lambda operator: operator,), "Your function raised"),
        "its result": (
            (lambda operator: operator(jnp.ones((16, 16))),),
            r"my_many\(operator\) returned ArrayImpl, not a function",
        ),
        "to NumPy": ((lambda operator: to_numpy(vectorized(operator)),), "NumPy's, not JAX's"),
        "another axis": (
            (lambda operator: jax.vmap(operator, in_axes=1, out_axes=1),),
            r"has the shape \(100, 16, 100\), but \(100, 16, 16\)",
        ),
        "transposed": (
            (lambda operator: jax.vmap(lambda x: operator(x.T)),),
            "What the function that my_many has made returned is wrong",
        ),
        "no result": (
            (lambda operator: lambda xs: None,),
            r"through my_many\(operator\)\(xs\) end",
        ),
    },
    "Y3": {
        "each array": (
            (make_and_wait_for_each,),
            "asked for while the other .*: the devices take turns",
        ),
        "all arrays": (
            (make_and_wait_for_all,),
            "Both devices compute at the same time, but 0 of 12 copies",
        ),
        "each pair": (
            (pair_by_pair,),
            "0 of 10 later arrays were asked for while their own device was still busy",
        ),
        "no copies": ((keep_what_was_sent,), "Not all copies of the arrays of device 0 lie on"),
        "one list": (
            (lambda *args: list(chain(*send_at_once(*args))),),
            "returned list, not two lists",
        ),
        "the last forgotten": (
            (without_the_last_array,),
            r"make\(0, i\) was called 5 times; it takes 6 calls",
        ),
        "arguments swapped": (
            (lambda make, send, n: [[send(make(i, d)) for i in range(n)] for d in (0, 1)],),
            r"make\(2, 0\) was called; the devices are 0 and 1",
        ),
        "a list sent": (
            (lambda make, send, n: [send([make(d, i) for i in range(n)]) for d in (0, 1)],),
            r"send\(\) was given list, not an array of JAX",
        ),
        "to NumPy": ((to_numpy(send_at_once),), "Item 0 .* is NumPy's"),
    },
    "Y4": {
        "counted twice": ((counted_twice,), "2 to 6 ms.* says that 0 of it is idle; it is 0.2.\n"),
        "between neighbours": ((between_neighbours,), "0.002 s to 0.009 s is not one of its gaps"),
        "in the order of their ends": ((by_their_ends,), "0.001 s to 0.005 s is not one of"),
        "percent": ((in_percent,), "says that 30 of it is idle.*\n  A share lies between 0 and 1"),
        "nanoseconds": ((in_nanoseconds,), "4e[+]06 s to 6e[+]06 s is not one of"),
        "the first": ((first_gap,), "is a gap, but there is a longer one"),
        "an empty one": ((empty_gap,), "0.01 s to 0.01 s is no time at all"),
        "busy": ((busy_share,), "says that 0.7 of it is idle; it is 0.3.\n.*counts in full"),
        "two numbers": ((lambda *args: gaps_by_hand(*args)[1:],), "not three numbers"),
    },
    "Y5": {
        "one device": (
            (lambda f, g, batches, devices: [g(f(batch)) for batch in batches],),
            r"second\(\) of batch 0 ran on CPU 0, but this stage is to run on CPU 1",
        ),
        "the other device": ((all_on_the_other,), r"first\(\) of batch 0 ran on CPU 1, but"),
        "each batch": (
            (batch_by_batch,),
            "stage one was asked for when stage two had nothing left to do: the stages take turns",
        ),
        "half by half": (
            (half_by_half,),
            "Only 0 of 8 batches were in stage one while an earlier one was in stage two",
        ),
        "stage by stage": ((stage_by_stage,), "when all of stage one was done: the stages run one"),
        "another order": (
            (lambda *args: pipeline_at_once(*args)[::-1],),
            "Item 0 of what your function returned is wrong",
        ),
        "the last forgotten": (
            (lambda f, g, batches, devices: pipeline_at_once(f, g, batches[1:], devices),),
            r"first\(\) was called 7 times; it takes 8 calls",
        ),
    },
}


@functools.cache
def report_of(exercise, name):
    answers, _ = WRONG[exercise][name]
    return check(exercise, *answers)


@pytest.mark.parametrize(
    ("exercise", "name"), [(exercise, name) for exercise in NAMES for name in WRONG[exercise]]
)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(exercise, name):
    report = report_of(exercise, name)
    assert (report.exercise, report.verdict) == (exercise, "not yet"), report
    assert re.search(WRONG[exercise][name][1], f"{report.saw}\n  {report.look}"), report
    assert report.look.endswith((".", "?"))


@pytest.mark.parametrize("exercise", NAMES)
def test_no_two_wrong_answers_are_told_the_same(exercise):
    told = [(r.saw, r.look) for r in (report_of(exercise, name) for name in WRONG[exercise])]
    assert len(told) >= 3
    assert len(set(told)) == len(told)


@pytest.mark.parametrize("exercise", NAMES)
def test_the_cell_of_the_book_runs_and_is_not_right_yet(exercise):
    call = f"exercises.check_{exercise.lower()}("
    cells = [cell.source for cell in jupytext.read(CHAPTERS[exercise[0]]).cells]
    (source,) = [cell for cell in cells if call in cell and not cell.startswith("#")]
    *definitions, last = ast.parse(source).body
    names = {"jax": jax, "jnp": jnp, "block": block, "exercises": exercises}
    exec(compile(ast.Module(definitions, []), "<cell>", "exec"), names)
    report = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    assert (report.exercise, report.verdict) == (exercise, "not yet"), report
    assert "raised" not in report.saw


# --- What is no answer at all -----------------------------------------------------------------


def silent(*args):
    return None


def numpy_instead(*args):
    return np.ones((64, 64))


def dividing(*args):
    print("x" * 50 * SHOWN)
    return 1 / 0


NO_ANSWERS = {
    "not callable": (3, "was given an int, which cannot be called"),
    "another arity": (lambda: 0, r"The check calls my_\w+\(\w.*\), but your function takes \(\)"),
    "none": (silent, "returned None"),
    "numpy": (numpy_instead, ""),
    "prints and raises": (dividing, "raised ZeroDivisionError: .*, at `return 1 / 0`"),
}
# In X1 and X4 there are two functions to get wrong.
PLACES = [(name, place) for name in NAMES for place in range(len(RIGHT[name][0]))]


@pytest.mark.parametrize("kind", NO_ANSWERS)
@pytest.mark.parametrize(("exercise", "place"), PLACES)
def test_what_is_no_answer_is_not_yet_right_and_no_exception(exercise, place, kind, capsys):
    answers = list(RIGHT[exercise][0])
    answers[place], phrase = NO_ANSWERS[kind]
    report = check(exercise, *answers)
    assert (report.exercise, report.verdict) == (exercise, "not yet"), report
    assert re.search(phrase, report.saw), report
    assert report.look
    if answers[place] is dividing:
        assert f"and {49 * SHOWN + 1} more characters" in capsys.readouterr().out


def endless(*args):
    while True:
        pass


@pytest.mark.parametrize("exercise", ["X2", "X3", "Y4"])
def test_an_endless_loop_is_stopped_and_said(exercise, monkeypatch):
    short = functools.partial(call_answer, limit=0.2)
    monkeypatch.setattr(exercises, "call_answer", short)
    running = threading.active_count()
    report = check(exercise, endless)
    assert report.verdict == "not yet"
    assert "did not return within 0.2 seconds" in report.saw
    assert threading.active_count() <= running


def test_a_pool_that_never_ends_is_stopped_too_and_disturbs_no_later_check(monkeypatch):
    def my_products(multiply, matrices):
        def forever(matrix):
            while True:
                multiply(matrix)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(forever, matrices))

    running = threading.active_count()
    with monkeypatch.context() as patched:
        patched.setattr(exercises, "call_answer", functools.partial(call_answer, limit=0.5))
        assert "did not return within 0.5 seconds" in check("Y1", my_products).saw
    assert threading.active_count() <= running
    assert check("X4", *RIGHT["X4"][0]).verdict == "accepted"


def test_where_the_profiler_shows_no_run_y1_does_not_judge(monkeypatch):
    def record_without_runs(function, *args):
        return function(*args), Timeline((Event("CPU 0", "result", "", 0, 0, 1),))

    monkeypatch.setattr(exercises, "record_trace", record_without_runs)
    report = check("Y1", *RIGHT["Y1"][0])
    assert report.verdict == "untestable"
    assert "shows no run of multiply()" in report.saw


def test_inside_a_recording_of_the_reader_what_needs_one_cannot_be_checked(tmp_path):
    with jax.profiler.trace(tmp_path):
        reports = [check(name, *RIGHT[name][0]) for name in ("Y1", "Y4")]
    assert [report.verdict for report in reports] == ["untestable"] * 2
    assert all("a recording is under way" in report.saw for report in reports)


def test_in_a_pipeline_stage_two_may_be_asked_for_before_stage_one_of_the_next():
    def in_lock_step(first, second, batches, devices):
        results, middle = [], None
        for batch in [*batches, None]:
            ticks = []
            if middle is not None:
                results.append(second(jax.device_put(middle, devices[1])))
                ticks.append(results[-1])
            middle = None if batch is None else first(batch)
            block([*ticks, middle])
        return results

    assert check("Y5", in_lock_step).verdict == "accepted"


def test_a_copy_beside_one_device_that_computes_is_not_beside_both():
    def my_exchange(make, send, n):
        made = [[make(0, i) for i in range(n)], [make(1, i) for i in range(n // 2)]]
        block(made[0])
        made[1] += [make(1, i) for i in range(n // 2, n)]
        return [[send(array) for array in arrays] for arrays in made]

    report = check("Y3", my_exchange)
    assert report.verdict == "not yet"
    assert "of 12 copies were asked for while both were still computing" in report.saw


def no_start_at_first():
    """Return an answer to X4 that calls start three times in three runs, but not once in each."""
    runs = iter([0, 2, 1])

    def my_second(start):
        results = [start() for _ in range(next(runs))]
        return block(results[-1][1]) if results else 1.0

    return my_second


def deleting(multiply, matrices):
    results = block(on_a_pool(multiply, matrices))
    results[0].delete()
    return results


def spread(first, second, batches, devices):
    mesh = NamedSharding(Mesh(np.array(devices), "d"), PartitionSpec("d"))
    return [second(jax.device_put(first(batch), mesh)) for batch in batches]


def leaking(operator):
    traced = []
    leak = jax.jit(lambda xs: (traced.append(jax.vmap(operator)(xs)), xs)[1])
    return lambda xs: (leak(xs), traced[-1])[1]


def failing_later(multiply, matrices):
    def fail(x):
        raise ValueError("later")

    return [jax.pure_callback(fail, multiply(m), multiply(m)) for m in matrices]


def everywhere_else(multiply, matrices):
    return [multiply(jax.device_put(matrix, cpu(1))) for matrix in matrices]


@pytest.mark.parametrize(
    ("exercise", "answers"),
    [
        ("X4", (no_start_at_first(), everything_by_a_sentinel)),
        ("Y1", (deleting,)),
        ("Y1", (everywhere_else,)),
        ("Y1", (failing_later,)),
        ("Y2", (leaking,)),
        ("Y4", (lambda timeline, row: (1 / 0 for _ in range(3)),)),
        ("Y4", (lambda *a: (np.nan, *gaps_by_hand(*a)[1:]),)),
        ("Y4", (lambda *a: [10**400] * 3,)),
        ("Y5", (spread,)),
    ],
    ids=[
        "calls as it likes",
        "deletes",
        "another device",
        "fails later",
        "leaks",
        "fails as it is read",
        "nan",
        "huge",
        "both devices",
    ],
)
def test_an_odd_answer_is_not_yet_right_and_no_exception(exercise, answers):
    report = check(exercise, *answers)
    assert report.verdict == "not yet"
    assert report.look


def test_lists_of_the_wrong_device_are_not_taken_for_arrays_that_were_not_sent():
    report = check("Y3", lambda *args: send_at_once(*args)[::-1])
    assert "Item 0 of what your function returned is wrong" in report.saw


def test_whoever_deletes_a_result_does_not_end_python(run_python):
    program = """
from d2lpar import block
from d2lpar.book import exercises

def my_second(start):
    results = start()
    block(results[1])
    results[0].delete()
    return results[1]

print(exercises.check_x4(my_second, lambda start: block(start())).verdict)
"""
    assert run_python(program) == "not yet"


# --- What a machine cannot show ---------------------------------------------------------------


def test_without_asynchronous_dispatch_behaviour_cannot_be_checked(run_python):
    program = f"""
import jax
jax.config.update("jax_cpu_enable_async_dispatch", False)
from d2lpar.book import exercises
from d2lpar import use_cpu_devices
use_cpu_devices(2)
for name in {[name.lower() for name in BEHAVIOUR]}:
    check = getattr(exercises, "check_" + name)
    report = check(*[lambda *args: 1 / 0] * (2 if name == "x4" else 1))
    assert "Restart Python without jax_cpu_enable_async_dispatch=False" in report.saw, report
    assert report.look == ""
    print(report.exercise, report.verdict)
"""
    expected = [f"{name} untestable" for name in BEHAVIOUR]
    assert run_python(program).splitlines() == expected


def test_on_a_single_device_those_for_two_say_how_to_get_another(run_python):
    program = """
from d2lpar.book import exercises
for check in exercises.check_y3, exercises.check_y5:
    report = check(lambda *args: 1 / 0)
    assert "two CPU devices" in report.saw, report
    assert "Call d2lpar.use_cpu_devices(2) before anything else of JAX" in report.saw, report
    print(report.exercise, report.verdict)
"""
    printed = run_python(program, JAX_NUM_CPU_DEVICES="1")
    assert printed.splitlines() == ["Y3 untestable", "Y5 untestable"]


# --- Reports ----------------------------------------------------------------------------------

REPORTS = {
    "accepted": (Report("X2", "accepted", "It did."), "accepted"),
    "not yet": (Report("Y1", "not yet", "It did not.", "Why?"), "not yet"),
    "untestable": (Report("Y3", "untestable", "One device."), "cannot be checked here"),
}


def test_a_report_reads_as_lines_and_leaves_out_what_is_empty():
    assert [repr(report) for report, _ in REPORTS.values()] == [
        "Exercise X2: accepted\n  It did.",
        "Exercise Y1: not yet\n  It did not.\n  Why?",
        "Exercise Y3: cannot be checked here\n  One device.",
    ]


@pytest.mark.parametrize("verdict", REPORTS)
def test_a_notebook_gets_text_html_and_data_that_json_can_keep(verdict):
    report, words = REPORTS[verdict]
    bundle = report._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", MIME_TYPE}
    assert bundle["text/plain"] == repr(report)
    assert f'class="d2lpar-exercise" data-verdict="{verdict}"' in bundle["text/html"]
    for text in (f"Exercise {report.exercise}", f">{words}<", report.saw, report.look):
        assert text in bundle["text/html"]
    assert bundle["text/html"].count("<li>") == bool(report.look)
    assert json.loads(json.dumps(bundle[MIME_TYPE])) == {
        "exercise": report.exercise,
        "verdict": verdict,
        "saw": report.saw,
    }


def test_html_escapes_what_others_wrote_and_shows_code_as_code():
    report = Report("X1", "not yet", "raised <b> & `x < y`", '<script>"x"</script>')
    html = report._repr_mimebundle_()["text/html"]
    assert "raised &lt;b&gt; &amp; <code>x &lt; y</code>" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_a_check_still_has_its_name_and_its_help():
    for name in NAMES:
        function = getattr(exercises, f"check_{name.lower()}")
        assert function.__name__ == f"check_{name.lower()}"
        assert "Returns:\n    A report." in inspect.getdoc(function)


# --- What the checks compare with -------------------------------------------------------------


def test_the_simulated_loop_takes_what_the_formula_says():
    chance = random.Random(0)
    for _ in range(500):
        t1, t2, t3 = (chance.randint(0, 20) / 4 for _ in range(3))
        turns = chance.randint(1, 20)
        # The longest path: up to one turn the front end, from there on the back end.
        paths = [(turn + 1) * t1 + (turns - turn) * t2 + t3 for turn in range(turns)]
        assert exercises._pipeline(t1, t2, t3, turns) == max(paths)
        assert max(paths) == formula(t1, t2, t3, turns)


def tick_by_tick(first, second, barrier):
    """Let a thread and two devices go on by one tick at a time, and count the ticks."""
    todo = [(device, turn[device]) for turn in zip(first, second, strict=True) for device in (0, 1)]
    left, queued, ticks = [0, 0], [[], []], 0
    while True:
        while todo:
            device, seconds = todo[0]
            ends_turn = len(todo) % 2 == 0
            if barrier == "each device" and (left[device] or queued[device]):
                break
            if barrier == "each minibatch" and ends_turn and any([*left, *queued]):
                break
            queued[device].append(seconds)
            todo.pop(0)
            for free in (0, 1):
                if not left[free] and queued[free]:
                    left[free] = queued[free].pop(0)
        if not any([*todo, *left, *queued]):
            return ticks
        ticks += 1
        for device in (0, 1):
            left[device] = max(0, left[device] - 1)
            if not left[device] and queued[device]:
                left[device] = queued[device].pop(0)


@pytest.mark.parametrize("barrier", ["none", "each minibatch", "each device"])
def test_the_simulated_devices_are_done_when_they_are_tick_by_tick(barrier):
    chance = random.Random(0)
    for _ in range(300):
        turns = chance.randint(1, 7)
        lists = [[chance.randint(1, 9) for _ in range(turns)] for _ in (0, 1)]
        expected = tick_by_tick(*lists, barrier)
        assert exercises._two_queues(*lists, barrier) == expected, lists


def test_a_row_is_idle_in_the_moments_that_no_event_covers():
    chance = random.Random(0)
    for _ in range(300):
        events = [
            Event(chance.choice(["CPU 0", "CPU 1"]), "f", "", number, chance.randint(0, 40), length)
            for number, length in enumerate(chance.choices(range(1, 9), k=chance.randint(1, 8)))
        ]
        timeline = Timeline(tuple(sorted(events, key=lambda event: event.start)))
        row = chance.choice(timeline.rows)
        busy = {m for e in timeline.row(row) for m in range(e.start, e.end)}
        until = max(event.end for event in events)
        edges = [
            m for m in range(until + 1) if (m in busy or m == until) != (m - 1 in busy or not m)
        ]
        expected = list(zip(edges[::2], edges[1::2], strict=True))
        spans = [(round(a * 1e9), round(b * 1e9)) for a, b in exercises._idle_spans(timeline, row)]
        assert [span for span in spans if span[0] < span[1]] == expected
        assert sum(b - a for a, b in expected) == round(timeline.idle(row) * 1e9)


def test_a_row_that_never_rests_has_an_idle_span_of_no_length():
    timeline = Timeline((Event("CPU 0", "f", "", 0, 0, 10),))
    assert exercises._idle_spans(timeline, "CPU 0") == [(1e-8, 1e-8)]
