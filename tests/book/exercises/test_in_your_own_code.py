"""The checks of Z1 to Z3: right answers, and wrong ones that a reader may well give."""

import itertools
import math
import operator
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

import jax
import numpy as np
import pytest
from attempts import both_tests
from fakes import FAST, SLOW, run_of

from d2lpar._jax.stack import Place
from d2lpar._watch.report import Finding, Watched
from d2lpar.book.exercises import check_own_script, check_z1, check_z2, check_z3

pytestmark = pytest.mark.timed  # The verdict depends on who else is at work.

RIGHT, WRONG = {}, {}


def training(lag, as_number=float, drain=True):
    def my_training(step, parameters, batches, log):
        pending = deque()
        for number, batch in enumerate(batches):
            parameters, loss = step(parameters, batch)
            pending.append((number, loss))
            if len(pending) > lag:
                then, loss = pending.popleft()
                log(then, as_number(loss))
        while drain and pending:
            then, loss = pending.popleft()
            log(then, as_number(loss))
        return parameters

    return my_training


def waits_for(every, step, parameters, batches, log):
    numbers = itertools.count(1)

    def step_and_wait(parameters, batch):
        new = step(parameters, batch)
        return new if next(numbers) % every else jax.block_until_ready(new)

    return training(2)(step_and_wait, parameters, batches, log)


def logs_another_loss(step, parameters, batches, log):
    losses = []

    def note(parameters, batch):
        parameters, loss = step(parameters, batch)
        losses.append(loss)
        return parameters, losses[0]

    return training(1)(note, parameters, batches, log)


RIGHT[check_z1] = {
    "one later": training(1),
    "three later": training(3),
    "a number of NumPy": training(1, as_number=lambda loss: np.float32(loss)),
}
WRONG[check_z1] = {
    "at once": (training(0), "11 of 12 were that early"),
    "all at the end": (training(12), "losses pile up"),
    "never the last": (training(1, drain=False), r"steps \[0, 1, .* 10\];"),
    "arrays": (training(1, as_number=lambda loss: loss), "as a JAX array"),
    "arrays of NumPy": (training(1, as_number=np.asarray), "a NumPy ndarray, not as a number"),
    "nan": (training(1, as_number=lambda loss: math.nan), "is not the loss of that step"),
    "another loss": (logs_another_loss, "is not the loss of that step"),
    "waits all the same": (partial(waits_for, 1), "Only . of 12 calls"),
    "waits for each third": (partial(waits_for, 3), r"each of 5 runs, call 3 of step\(\) was made"),
}


def asks_behind_the_yield(read, count, readers):
    with ThreadPoolExecutor(readers) as pool:
        reads = (pool.submit(read, number) for number in range(count))
        pending = deque(islice(reads, readers))
        while pending:
            yield pending.popleft().result()
            pending.extend(islice(reads, 1))


def with_futures(threads=None, ahead=None, take=deque.popleft):
    def my_prefetch(read, count, readers):
        with ThreadPoolExecutor(threads or readers) as pool:
            reads = (pool.submit(read, number) for number in range(count))
            pending = deque(islice(reads, ahead or readers))
            while pending:
                batch = take(pending).result()
                pending.extend(islice(reads, 1))
                yield batch

    return my_prefetch


def take_when_all_are_read(pending):
    for each in pending:
        each.result()
    return pending.popleft()


def drops_the_error(read, count, readers):
    def careful(number):
        try:
            return read(number)
        except OSError:
            return -1

    return with_futures()(careful, count, readers)


NEVER_READ = r"read\(\) was never called: nothing came from the disk.\n.*Where does your generator"
RIGHT[check_z2] = {"futures": with_futures()}
WRONG[check_z2] = {
    "in the loop": (lambda read, n, readers: map(read, range(n)), "in the thread of the loop"),
    "without reading": (lambda read, count, readers: iter(range(count)), NEVER_READ),
    "one reader": (with_futures(threads=1), "No more than 1 of 3 readers"),
    "three readers for any number": (
        lambda read, count, readers: with_futures()(read, count, 3),
        "No more than 3 of 5 readers",
    ),
    "all at once": (with_futures(ahead=12), "batch 0 had been taken, .*more than 3 ahead"),
    "behind the yield": (asks_behind_the_yield, "batch 0 had been taken, 3 had been requested"),
    "as they come": (with_futures(take=deque.pop), "not as 0 to 11"),
    "drops the error": (drops_the_error, "your generator continued, and the loop got 12"),
    "error too soon": (with_futures(take=take_when_all_are_read), "The error has to wait its turn"),
    "no loop": (lambda read, count, readers: 5, "returned 5, which a loop cannot iterate over"),
    "one argument": (lambda read: [], "but your function takes"),
}


def evaluation(add, fill=np.zeros, valid=len):
    def my_evaluation(count, examples, rows):
        total = 0
        for first in range(0, len(examples), rows):
            batch = examples[first : first + rows]
            even = np.concatenate([batch, fill((rows - len(batch), examples.shape[1]))])
            total = add(total, count(even.astype(np.float32), valid(batch)))
        return total

    return my_evaluation


def waits_for_every_third(count, examples, rows):
    numbers = itertools.count(1)

    def add(total, counted):
        return total + (counted if next(numbers) % 3 else int(counted))

    return evaluation(add)(count, examples, rows)


def uneven(count, examples, rows):
    batches = [examples[first : first + rows] for first in range(0, len(examples), rows)]
    return sum(count(batch, len(batch)) for batch in batches)


RIGHT[check_z3] = {
    "an array": evaluation(operator.add),
    "ones": evaluation(operator.add, fill=np.ones),
}
WRONG[check_z3] = {
    "a short last batch": (uneven, r"shapes \(64, 64\) and \(5, 64\)"),
    "one by one": (
        lambda count, examples, rows: evaluation(operator.add)(count, examples, 1),
        r"of the shape \(1, 64\)",
    ),
    "no array": (lambda count, examples, rows: count("rows", 1), "was given a str, not an array"),
    "never counted": (
        lambda count, examples, rows: int((examples.sum(axis=1) > 0).sum()),
        r"count\(\) was never called: your function got its sum in some other way.\n.*Which",
    ),
    "waits each": (evaluation(lambda total, n: total + int(n)), r"Only 0 of 8 calls of count\(\)"),
    "waits for every third": (waits_for_every_third, r"of 5 runs, call 3 of count\(\) was made"),
    "counts what is filled in": (
        evaluation(operator.add, fill=np.ones, valid=lambda batch: 64),
        "of 453 rows are right",
    ),
    "no number": (evaluation(lambda total, n: "many"), "which is not a number.\n.*Return the sum"),
}


test_right_answers_are_accepted, test_wrong_answers_are_told_why = both_tests(RIGHT, WRONG)


# --- The assignment ---------------------------------------------------------------------------


def watched(lost, idle, windows=40, interval=0.05, file="train.py", code="total += float(loss)"):
    place = Place(file, 12, code)
    return Watched(
        seconds=10.0,
        devices={"CPU 0": 10 * idle},
        interval=(idle - interval, idle + interval),
        findings=[Finding("value", place, "float(loss)", "MainThread", lost=10 * lost)],
        windows=windows,
    ).to_json()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, None),
        ({"times.json": run_of(before=SLOW, after=SLOW[::-1]).to_json()}, None),
        ({"after.json": watched(0.0, 0.05, code="log(loss)")}, None),
        ({"before.json": watched(0.0, 0.4)}, r"before.json has 0.0% of the time as lost"),
        ({"after.json": watched(0.0, 0.05, file="b.py")}, "after.json has no line of train.py"),
        ({"after.json": watched(0.2, 0.2)}, "20.0% of the time is still lost; before, 30.0%"),
        ({"after.json": watched(0.0, 0.36)}, "for 36% after, which may be chance: the intervals"),
        ({"after.json": watched(0.0, 0.0, windows=5)}, "with 5 windows of the profiler it is"),
        ({"after.json": "{}"}, "after.json: This is not a report of watch"),
        ({"times.json": run_of(before=FAST, after=SLOW).to_json()}, "times as long as before"),
        ({"times.json": run_of(f=FAST).to_json()}, "times.json has the times of f"),
        (
            {"times.json": run_of(before=SLOW, after=(3.0, 1.0) * 4 + (2.0,)).to_json()},
            "whether the loop is slower is open: ",
        ),
        ({"times.json": "nothing"}, "times.json: This text was not written by"),
    ],
)
def test_the_files_of_an_assignment_are_judged(files, message, tmp_path, monkeypatch):
    right = {"before.json": watched(0.3, 0.4), "after.json": watched(0.001, 0.05)}
    right["times.json"] = run_of(before=SLOW, after=FAST).to_json()
    monkeypatch.chdir(tmp_path)
    for name, text in (right | files).items():
        (tmp_path / name).write_text(text)
    report = check_own_script("float(loss)")
    assert report.verdict == ("not yet" if message else "accepted"), report
    assert re.search(message or "The device was idle for 40% of the time before", report.saw)
