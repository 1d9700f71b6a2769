"""Z, the exercises of In Your Own Code: a log, a reader, an evaluation, and one's own script."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._jax.devices import cpu
from d2lpar._measure.mean_share import FEWEST
from d2lpar._plain.format import plural
from d2lpar._versions.compare import read
from d2lpar._watch.report import SEEN, Watched
from d2lpar.book.exercises.checking import (
    STEPS,
    CallLog,
    Rejection,
    Report,
    call_answer,
    exercise,
    inputs,
    kind_of,
    require_all_steps,
    require_array,
    require_asynchrony,
    require_callable,
    require_called,
    require_number,
    require_overlap_in_all,
    right_parameters,
    shown,
    training_loss,
    training_step,
    work,
)

# --- Z1. A log without waiting ----------------------------------------------------------------

_MOST_LATER = 3


@exercise("Z1", "my_training")
def check_z1(training: Callable) -> Report:
    """Check a training loop that logs each loss without keeping the device waiting."""
    require_asynchrony()
    losses = [float(training_loss(parameters)) for parameters in right_parameters()]
    parameters, *batches = inputs(1 + STEPS, cpu())

    def run():
        calls = CallLog()
        watched = calls.watch("step()", training_step)
        logged: list[tuple[object, object, int]] = []  # Number, value, steps dispatched so far.

        def step(parameters, batch):
            new = watched(parameters, batch)
            return new, training_loss(new)

        def log(number, value):
            logged.append((number, value, len(calls.calls)))

        case = (step, parameters, list(batches), log)
        (result,) = call_answer(training, [case], "my_training(step, parameters, batches, log)")
        require_all_steps(calls)
        look = "What becomes of the loss of a step?"
        require_called("log()", logged, "no loss was logged", look)
        _require_all_logged(logged, losses)
        _require_next_dispatched(logged)
        require_array(result, right_parameters()[-1], "Your function's result")
        return calls

    overlapping = require_overlap_in_all(run, "Does something else in your loop need a value?")
    return (
        f"All {len(batches)} losses were logged in order, each when the next step had been "
        f"dispatched; {overlapping} steps were dispatched while the one before was running."
    )


def _require_next_dispatched(logged: list) -> None:
    early = [number for number, _, dispatched in logged[:-1] if dispatched < number + 2]
    if early:
        raise Rejection(
            f"Loss {early[0]} was logged before step {early[0] + 1} was dispatched; {len(early)} "
            f"of {len(logged)} were that early.",
            "A loss that is read at once is a barrier, and the device is idle until the next step "
            "is dispatched. Which loss is ready by then, and can be read instead?",
        )
    late = [number for number, _, dispatched in logged if dispatched > number + 1 + _MOST_LATER]
    if late:
        raise Rejection(
            f"Loss {late[0]} was logged after step {late[0] + 1 + _MOST_LATER} had been "
            "dispatched: losses pile up.",
            "How many of them do you have to keep, so that the device always has a step to do?",
        )


def _require_all_logged(logged: list, losses: list[float]) -> None:
    numbers = [number for number, *_ in logged]
    if numbers != list(range(len(losses))):
        raise Rejection(
            f"You logged the steps {shown(numbers)}; there are {len(losses)}, from 0, and each has "
            "to be logged once, in order.",
            "What is left over when the loop ends?",
        )
    for (number, value, _), right in zip(logged, losses, strict=True):
        if not isinstance(value, int | float | np.floating):
            raise Rejection(
                f"Loss {number} was logged as {kind_of(value)}, not as a number.",
                "A log writes numbers: call float() on it, at the right moment.",
            )
        if not abs(value - right) <= 1e-3:  # Also of a NaN.
            raise Rejection(
                f"Loss {number} was logged as {shown(value)}, which is not the loss of that step.",
                "Does each number go with the loss of its own step?",
            )


# --- Z2. Readers ahead ------------------------------------------------------------------------

_BATCHES = 12
_READERS, _MORE_READERS = 3, 5
_PATIENCE = 2.0  # Seconds that a read waits for the other readers to arrive.
_GRACE = 0.05  # Seconds that the check waits for a read that should not happen.
_PAUSED_AT = 3  # The batch at which the check waits longer than the readers may have slept.


@exercise("Z2", "my_prefetch")
def check_z2(prefetch: Callable) -> Report:
    """Check a generator that reads ahead with several threads."""
    usage = "my_prefetch(read, count, readers)"
    require_callable(prefetch, (_Disk().read, _BATCHES, _READERS), usage)

    def judge():
        for readers in (_READERS, _MORE_READERS):
            _require_order_and_bound(prefetch, readers)
        _require_error_in_its_place(prefetch)
        _require_end(prefetch)
        return True

    call_answer(judge, [()], usage)
    return (
        f"All {_BATCHES} batches came in order. With {_READERS} and with {_MORE_READERS} readers, "
        "as many were read at a time, and no more than that ahead. An error came in its place, and "
        "reading ended when the loop did."
    )


class _Disk:
    """Simulated disk: a read waits until all readers have arrived, and counts them."""

    def __init__(self, readers: int = _READERS, fails_at: int | None = None):
        self.readers = readers
        self._fails_at = fails_at
        self._loop = threading.get_ident()
        self._changed = threading.Condition()
        self._reading = 0
        self._patience = _PATIENCE
        self.requested = 0
        self.most_at_once = 0

    def read(self, number: int) -> int:
        if threading.get_ident() == self._loop:
            raise Rejection(
                f"read({number}) was called in the thread of the loop.",
                "While the loop reads, it cannot dispatch. Which thread could read instead?",
            )
        with self._changed:
            self.requested += 1
            self._reading += 1
            self.most_at_once = max(self.most_at_once, self._reading)
            self._changed.notify_all()
            if not self._changed.wait_for(
                lambda: self.most_at_once >= self.readers, self._patience
            ):
                self._patience = 0.0  # The others will never come.
            self._reading -= 1
        if number == self._fails_at:
            raise OSError("the disk is gone")
        return number

    def has_been_asked_for(self, count: int, grace: float = _GRACE) -> bool:
        """Say whether this many batches have been requested, or soon are."""
        with self._changed:
            return self._changed.wait_for(lambda: self.requested >= count, grace)


def _batches_of(prefetch: Callable, disk: _Disk) -> Iterator:
    batches = prefetch(disk.read, _BATCHES, disk.readers)
    try:
        return iter(batches)
    except TypeError:
        raise Rejection(
            f"Your function returned {shown(batches)}, which a loop cannot iterate over.",
            "With a `yield` in it, it is a generator.",
        ) from None


def _require_order_and_bound(prefetch: Callable, readers: int) -> None:
    disk = _Disk(readers)
    batches = []
    began = time.perf_counter()
    for number, batch in enumerate(_batches_of(prefetch, disk)):
        batches.append(batch)
        _require_reading(disk)
        if disk.most_at_once < readers:
            raise Rejection(
                f"No more than {disk.most_at_once} of {readers} readers were at work at the same "
                "time.",
                "Does a thread wait for one read to end before the next one begins?",
            )
        under_way = min(number + 1 + readers, _BATCHES)
        if not disk.has_been_asked_for(under_way, _PATIENCE):
            raise Rejection(
                f"When batch {number} had been taken, {disk.requested} had been requested. While "
                f"the loop works on a batch, {readers} others are to be read.",
                "Does your generator ask for the next batch before it yields this one, or after?",
            )
        grace = 3 * (time.perf_counter() - began) if number == _PAUSED_AT else _GRACE
        too_many = number + 2 + readers
        if too_many <= _BATCHES and disk.has_been_asked_for(too_many, grace):
            raise Rejection(
                f"When batch {number} had been taken, {disk.requested} had been requested: more "
                f"than {readers} ahead, and each is in memory.",
                "When should the next read begin: at the start, or when a batch is taken?",
            )
    _require_reading(disk)
    if batches != list(range(_BATCHES)):
        raise Rejection(
            f"The batches came as {batches}, not as 0 to {_BATCHES - 1}.",
            "Does your generator yield them in the order of their numbers, to the last?",
        )


def _require_reading(disk: _Disk) -> None:
    require_called(
        "read()",
        disk.has_been_asked_for(1),
        "nothing came from the disk",
        "Where does your generator get the batches that it yields?",
    )


def _require_error_in_its_place(prefetch: Callable) -> None:
    batches = []
    try:
        for batch in _batches_of(prefetch, _Disk(fails_at=4)):
            batches.append(batch)
    except OSError:
        pass
    else:
        raise Rejection(
            f"Reading batch 4 failed; your generator continued, and the loop got {len(batches)}.",
            "Other threads do not see an exception in a thread. How does it get to the loop?",
        )
    if batches != [0, 1, 2, 3]:
        raise Rejection(
            f"Reading batch 4 failed, and the loop got {batches} before the error.",
            "The error has to wait its turn, like a batch.",
        )


def _require_end(prefetch: Callable) -> None:
    disk = _Disk()
    batches = _batches_of(prefetch, disk)
    next(batches)
    if close := getattr(batches, "close", None):  # Python does this when a loop drops a generator.
        close()
    if disk.has_been_asked_for(2 + _READERS):
        raise Rejection(
            f"The loop ended after one batch, and {disk.requested} had been requested soon after.",
            "When a generator is closed, `yield` raises GeneratorExit. How do your threads learn "
            "of that?",
        )


# --- Z3. An evaluation that waits once --------------------------------------------------------

_ROWS = 64
_EXAMPLES = 7 * _ROWS + 5


@exercise("Z3", "my_evaluation")
def check_z3(evaluation: Callable) -> Report:
    """Check an evaluation that compiles once and waits once."""
    require_asynchrony()
    examples = np.random.default_rng(3).standard_normal((_EXAMPLES, _ROWS), dtype=np.float32)
    right = int(_is_right(examples).sum())
    needed = -(-_EXAMPLES // _ROWS)

    def run():
        calls = CallLog()
        watched = calls.watch("count()", _count)
        shapes: list[tuple[int, ...]] = []

        def count(batch, valid):
            try:
                batch = jnp.asarray(batch)
            except Exception:
                raise Rejection(
                    f"count() was given {kind_of(batch)}, not an array.",
                    "Give it the rows of a batch.",
                ) from None
            shapes.append(batch.shape)
            if batch.shape != (_ROWS, _ROWS):  # work() needs a square batch.
                return jnp.sum(_is_right(batch)[:valid])
            return watched(batch, valid)

        case = (count, examples.copy(), _ROWS)
        (total,) = call_answer(evaluation, [case], "my_evaluation(count, examples, rows)")
        require_called(
            "count()",
            shapes,
            "your function got its sum in some other way",
            "Which function says how many rows of a batch are right?",
        )
        _require_one_shape(shapes)
        if (value := require_number(total, "Return the sum of the counts.")) != right:
            raise Rejection(
                f"Your function returned {value:g}, but {right} of {_EXAMPLES} rows are right.",
                "Is each example in one batch, and is `valid` the number of those that count?",
            )
        calls.require_count("count()", needed)
        return calls

    overlapping = require_overlap_in_all(
        run, "Adding arrays gives an array, and needs no value. Which line of your loop needs one?"
    )
    return (
        f"{right} of {_EXAMPLES} are right; {needed} calls with one shape, and "
        f"{overlapping} of them were made while the one before was running."
    )


def _require_one_shape(shapes: list[tuple[int, ...]]) -> None:
    different = list(dict.fromkeys(shapes))
    if len(different) > 1:
        raise Rejection(
            f"count() was given batches of the shapes {' and '.join(map(str, different[:3]))}, and "
            "each shape is compiled separately.",
            "What can fill the missing rows of the last batch, without being counted?",
        )
    if different != [(_ROWS, _ROWS)]:
        raise Rejection(
            f"count() was given batches of the shape {different[0]}; with rows={_ROWS} it has to "
            f"be {(_ROWS, _ROWS)}.",
            "How many examples does the exercise ask for at a time?",
        )


def _is_right(batch: Any) -> Any:
    return batch.sum(axis=1) > 0


@jax.jit
def _count(batch: jax.Array, valid: int) -> jax.Array:
    # Adds zero, but makes the count wait for the work.
    zero = jnp.isnan(work(batch)).sum()
    return jnp.sum(_is_right(batch) & (jnp.arange(len(batch)) < valid)) + zero


# --- The assignment: a script of one's own ----------------------------------------------------


@exercise("assignment")
def check_own_script(
    planted: str,
    watched: tuple[str, str] = ("before.json", "after.json"),
    timed: str = "times.json",
) -> Report:
    """Check that a line of a script no longer keeps the device idle, and that nothing got slower.

    Args:
        planted: A piece of that line's code, such as `"float(loss)"`.
        watched: The reports that `watch --json` wrote of the script, before and after.
        timed: What `Comparison.to_json` returned, of the functions `"before"` and `"after"`.
    """
    before, after = (_of_file(_report_in, file) for file in watched)
    times = _of_file(read, timed)
    lines, left = (
        [line for line in report.findings if planted in line.place.code]
        for report in (before, after)
    )
    lost, still = sum(map(before.loss, lines)), sum(map(after.loss, left))
    if lost < SEEN:
        raise Rejection(
            f"At the lines with `{planted}`, {watched[0]} has {lost:.1%} of the time as lost.",
            "Give a piece of the code of a line that the report shows, as the report shows it.",
        )
    files, others = (
        {Path(line.place.file).name for line in report.findings} for report in (before, after)
    )
    if not files & others:
        raise Rejection(
            f"{watched[1]} has no line of {', '.join(sorted(files))}.", "Is it of the same script?"
        )
    if still >= SEEN:
        raise Rejection(
            f"At the lines with `{planted}`, {still:.1%} of the time is still lost; before, "
            f"{lost:.1%} was.",
            "Which recipe is for such a line?",
        )
    was, now = (report.idle_seconds / report.judged_seconds for report in (before, after))
    idle = f"The device was idle for {was:.0%} of the time before, and for {now:.0%} after"
    if now >= before.interval[0] or was <= after.interval[1]:
        raise Rejection(
            f"{idle}, which may be chance: the intervals are "
            f"{' and '.join('{:.0%} to {:.0%}'.format(*r.interval) for r in (before, after))}.",
            "Has another line taken over what was lost? If not, let the script run for longer: "
            "more windows give a narrower interval.",
        )
    if not {"before", "after"} <= times.keys():
        raise Rejection(f"{timed} has the times of {', '.join(times)}.", "Name them as asked for.")
    try:
        ratio = times.ratio("after", "before")
    except ValueError as error:
        raise Rejection(f"{timed}: {error}", "How does the assignment time them?") from None
    took = f"The loop takes {ratio.median:.2f} times as long as before"
    if (ratio > 1).holds:
        raise Rejection(f"{idle}. {took}: slower.", "What does it do that it did not do before?")
    if not (ratio < 1.25).holds:
        raise Rejection(
            f"{idle}. But whether the loop is slower is open: its time is {ratio} of that before.",
            "More repeats give a narrower interval.",
        )
    verdict = "faster" if (ratio < 1).holds else "undecided"
    return f"`{planted}` no longer keeps the device idle. {idle}. {took}: {verdict}."


def _of_file(read_from: Callable, file: str) -> Any:
    try:
        return read_from(Path(file))
    except (OSError, ValueError) as error:
        raise Rejection(f"{file}: {error}", "Which command of the assignment writes it?") from None


def _report_in(file: Path) -> Watched:
    report = Watched.from_json(file.read_text())
    if report.windows < FEWEST:
        raise ValueError(
            f"with {plural(report.windows, 'window')} of the profiler it is too short to judge."
        )
    return report
