"""Z, the exercises of In Your Own Code: a log, a reader and an evaluation that do not wait."""

import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._jax.devices import cpu
from d2lpar.book.exercises.checking import (
    STEPS,
    CallLog,
    Rejection,
    Report,
    call_answer,
    exercise,
    inputs,
    require_array,
    require_asynchrony,
    require_callable,
    require_called,
    require_number,
    right_parameters,
    shown,
    training_step,
    work,
)

# --- Z1. A log without waiting ----------------------------------------------------------------

_MOST_LATER = 3


@exercise("Z1")
def check_z1(training: Callable) -> Report:
    """Check a training loop that logs each loss without keeping the device waiting."""
    require_asynchrony()
    losses = [float(_loss(parameters)) for parameters in right_parameters()]
    parameters, *batches = inputs(1 + STEPS, cpu())
    calls = CallLog()
    watched = calls.watch("step()", training_step)
    logged: list[tuple[object, object, int]] = []  # Number, value, steps dispatched by then.

    def step(parameters, batch):
        new = watched(parameters, batch)
        return new, _loss(new)

    def log(number, value):
        logged.append((number, value, len(calls.calls)))

    case = (step, parameters, list(batches), log)
    (found,) = call_answer(training, [case], "my_training(step, parameters, batches, log)")
    calls.require_called(
        "step()", "no step was dispatched", "Who is to compute the new parameters from a batch?"
    )
    calls.require_count("step()", len(batches))
    require_called(
        "log()", len(logged), "no loss was logged", "What becomes of the loss of a step?"
    )
    _require_all_logged(logged, losses)
    early = [number for number, _, dispatched in logged[:-1] if dispatched < number + 2]
    if early:
        raise Rejection(
            f"Loss {early[0]} was logged before step {early[0] + 1} was dispatched, and so were "
            f"{len(early)} of {len(batches)}.",
            "A loss that is read at once is a barrier, and the device is idle until the next step "
            "is dispatched. Which loss is there already, and can be read instead?",
        )
    late = [number for number, _, made in logged if made > number + 1 + _MOST_LATER]
    if late:
        raise Rejection(
            f"Loss {late[0]} was logged after step {late[0] + 1 + _MOST_LATER} had been "
            "dispatched: losses pile up.",
            "How many of them do you have to keep, so that the device always has a step to do?",
        )
    overlapping = calls.require_overlap("Does something else in your loop need a value?")
    require_array(found, right_parameters()[-1], "What your function returned")
    return (
        f"All {len(batches)} losses were logged in order, each when the next step had been "
        f"dispatched; {overlapping} steps were dispatched while the one before was running."
    )


def _require_all_logged(logged: list, losses: list[float]) -> None:
    numbers = [number for number, *_ in logged]
    if numbers != list(range(len(losses))):
        raise Rejection(
            f"Logged were the steps {shown(numbers)}; there are {len(losses)}, from 0, and each is "
            "to be logged once, in order.",
            "What is left over when the loop ends?",
        )
    for (number, value, _), right in zip(logged, losses, strict=True):
        if isinstance(value, jax.Array):
            raise Rejection(
                f"Loss {number} was logged as an array of JAX.",
                "A log writes numbers: call float() on it, at the right moment.",
            )
        if not isinstance(value, int | float) or abs(value - right) > 1e-3:
            raise Rejection(
                f"Loss {number} was logged as {shown(value)}, which is not the loss of that step.",
                "Does each number go with the loss of its own step?",
            )


@jax.jit
def _loss(parameters: jax.Array) -> jax.Array:
    return jnp.mean(jnp.abs(parameters))


# --- Z2. Readers ahead ------------------------------------------------------------------------

_BATCHES = 12
_READERS = 3
# How long readers may take for what they are to do, and get to do what they must not.
_PATIENCE, _GRACE = 2.0, 0.05


@exercise("Z2")
def check_z2(prefetch: Callable) -> Report:
    """Check a generator that reads ahead with several threads."""
    usage = "my_prefetch(read, count, readers)"
    require_callable(prefetch, [(_Disk().read, _BATCHES, _READERS)], usage)
    (saw,) = call_answer(lambda: _judge(prefetch), [()], usage)
    return saw


class _Disk:
    """What a check reads from: it notes who reads, and goes on when all readers are there."""

    def __init__(self, fails_at: int | None = None):
        self._fails_at = fails_at
        self._loop = threading.get_ident()
        self._changed = threading.Condition()
        self._reading = 0
        self._patience = _PATIENCE
        self.asked = 0
        self.most_at_once = 0

    def read(self, number: int) -> int:
        if threading.get_ident() == self._loop:
            raise Rejection(
                f"read({number}) was called in the thread of the loop.",
                "While the loop reads, it cannot dispatch. Who else could?",
            )
        with self._changed:
            self.asked += 1
            self._reading += 1
            self.most_at_once = max(self.most_at_once, self._reading)
            self._changed.notify_all()
            if not self._changed.wait_for(self._all_have_come, self._patience):
                self._patience = 0.0  # They never will.
            self._reading -= 1
        if number == self._fails_at:
            raise OSError("the disk is gone")
        return number

    def _all_have_come(self) -> bool:
        return self.most_at_once >= _READERS

    def is_asked_for(self, count: int) -> bool:
        """Say whether it is asked for so many batches, or soon is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.asked >= count, _GRACE)


def _judge(prefetch: Callable) -> str:
    _require_order_and_bound(prefetch)
    _require_error_in_its_place(prefetch)
    _require_end(prefetch)
    return (
        f"All {_BATCHES} batches came in order, {_READERS} were read at a time and no more than "
        f"{_READERS} ahead; an error came in its place, and an early end was the end of reading."
    )


def _batches_of(prefetch: Callable, disk: _Disk) -> Iterator:
    taken = prefetch(disk.read, _BATCHES, _READERS)
    try:
        return iter(taken)
    except TypeError:
        raise Rejection(
            f"Your function returned {type(taken).__name__}, which one cannot loop over.",
            "With a `yield` in it, it is a generator.",
        ) from None


def _require_order_and_bound(prefetch: Callable) -> None:
    disk = _Disk()
    found = []
    for number, batch in enumerate(_batches_of(prefetch, disk)):
        found.append(batch)
        _require_reading(disk)
        if disk.most_at_once < _READERS:
            raise Rejection(
                f"No more than {disk.most_at_once} of {_READERS} readers were at work at the same "
                "time.",
                "Does somebody wait for one read to end before the next one begins?",
            )
        if number + 1 + _READERS < _BATCHES and disk.is_asked_for(number + 2 + _READERS):
            raise Rejection(
                f"When batch {number} had been taken, {disk.asked} had been asked for: more than "
                f"{_READERS} ahead, and each is in memory.",
                "When is the next one to be asked for: at the start, or when one is taken?",
            )
    _require_reading(disk)
    if found != list(range(_BATCHES)):
        raise Rejection(
            f"The batches came as {found}, not as 0 to {_BATCHES - 1}.",
            "Do they leave your generator in the order of their numbers, to the last?",
        )


def _require_reading(disk: _Disk) -> None:
    require_called(
        "read()",
        disk.is_asked_for(1),
        "nothing came from the disk",
        "Where do the batches come from that your generator yields?",
    )


def _require_error_in_its_place(prefetch: Callable) -> None:
    found = []
    try:
        for batch in _batches_of(prefetch, _Disk(fails_at=4)):
            found.append(batch)
    except OSError:
        pass
    else:
        raise Rejection(
            f"Reading batch 4 failed; your generator went on, and the loop got {len(found)}.",
            "An exception in a thread is not seen by others. How does it get to the loop?",
        )
    if found != [0, 1, 2, 3]:
        raise Rejection(
            f"Reading batch 4 failed, and the loop got {found} before the error.",
            "Let the error stand in line like a batch.",
        )


def _require_end(prefetch: Callable) -> None:
    disk = _Disk()
    batches = _batches_of(prefetch, disk)
    next(batches)
    if close := getattr(batches, "close", None):  # As Python does when a loop drops a generator.
        close()
    if disk.is_asked_for(2 + _READERS):
        raise Rejection(
            f"The loop ended after one batch, and {disk.asked} had been asked for soon after.",
            "When a generator is closed, `yield` raises GeneratorExit. How does a thread hear of "
            "that?",
        )


# --- Z3. An evaluation that waits once --------------------------------------------------------

_ROWS = 64
_EXAMPLES = 7 * _ROWS + 5


@exercise("Z3")
def check_z3(evaluation: Callable) -> Report:
    """Check an evaluation that compiles once and waits once."""
    require_asynchrony()
    examples = np.random.default_rng(3).standard_normal((_EXAMPLES, _ROWS), dtype=np.float32)
    right = sum(
        int(_count(jnp.asarray(np.pad(batch, [(0, _ROWS - len(batch)), (0, 0)])), len(batch)))
        for batch in (examples[first : first + _ROWS] for first in range(0, _EXAMPLES, _ROWS))
    )
    calls = CallLog()
    watched = calls.watch("count()", _count)
    shapes: list[tuple[int, ...]] = []

    def count(batch, valid):
        shapes.append(_shape_of(batch))
        if shapes[-1] != (_ROWS, _ROWS):  # Long work on few rows would be work of another kind.
            return jnp.sum(_is_right(jnp.asarray(batch))[:valid])
        return watched(jnp.asarray(batch), valid)

    case = (count, examples.copy(), _ROWS)
    (found,) = call_answer(evaluation, [case], "my_evaluation(count, examples, rows)")
    require_called(
        "count()",
        len(shapes),
        "your function came by its sum in another way",
        "Who says how many rows of a batch are right?",
    )
    _require_one_shape(shapes)
    if (value := require_number(found, "Return the sum of the counts.")) != right:
        raise Rejection(
            f"Your function returned {value:g}, but {right} of {_EXAMPLES} rows are right.",
            "Is each example in one batch, and is `valid` the number of those that count?",
        )
    needed = -(-_EXAMPLES // _ROWS)
    calls.require_count("count()", needed)
    waited = [call.number for call in calls.calls[1:] if not call.unfinished]
    if len(waited) > needed / 2:
        raise Rejection(
            f"{len(waited)} of {needed} calls were made when the one before was done.",
            "Adding arrays gives an array, and needs no value. Which line of your loop needs one?",
        )
    return (
        f"{right} of {_EXAMPLES} are right; {needed} calls with one shape, and "
        f"{needed - 1 - len(waited)} of them were made while the one before was running."
    )


def _shape_of(batch: object) -> tuple[int, ...]:
    try:
        return tuple(np.shape(batch))
    except Exception:
        raise Rejection(
            "count() was given something that is no array.", "Hand it the rows of a batch."
        ) from None


def _require_one_shape(shapes: list[tuple[int, ...]]) -> None:
    different = list(dict.fromkeys(shapes))
    if len(different) > 1:
        raise Rejection(
            f"count() was given batches of the shapes {' and '.join(map(str, different[:3]))}, and "
            "each shape is compiled by itself.",
            "What can stand in the rows that the last batch lacks, so that they do not count?",
        )
    if different != [(_ROWS, _ROWS)]:
        raise Rejection(
            f"count() was given batches of the shape {different[0]}; with rows={_ROWS} it is "
            f"{(_ROWS, _ROWS)}.",
            "How many examples does the exercise ask for at a time?",
        )


def _is_right(batch: jax.Array) -> jax.Array:
    return batch.sum(axis=1) > 0


@jax.jit
def _count(batch: jax.Array, valid: int) -> jax.Array:
    # What the work gives is not used, but must be there before the count is.
    nothing = jnp.isnan(work(batch)).sum()
    return jnp.sum(_is_right(batch) & (jnp.arange(len(batch)) < valid)) + nothing
