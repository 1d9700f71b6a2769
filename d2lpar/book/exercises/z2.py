"""Exercise Z2: readers ahead."""

import functools
import threading
from collections.abc import Callable, Iterator

from d2lpar.book.exercises.answers import Rejection, call_answer
from d2lpar.book.exercises.report import Report, exercise

_BATCHES = 12
_READERS = 3
# How long readers may take for what they are to do, and get to do what they must not.
_PATIENCE, _GRACE = 2.0, 0.05


@exercise("Z2")
def check_z2(prefetch: Callable) -> Report:
    """Check a generator that reads ahead with several threads.

    Args:
        prefetch: `prefetch(read, count, readers)` yields `read(0)`, `read(1)` and so on, `count` of
            them, in order. Threads call `read`, as many at the same time as there are to be
            readers. When n batches were taken, no more than n + readers were asked for. An error
            of reading comes after the batches before it.

    Returns:
        A report.

    Example:
        >>> def prefetch(read, count, readers):
        ...     for number in range(count):
        ...         yield read(number)
        >>> print(check_z2(prefetch))
        Exercise Z2: not yet
          read(0) was called in the thread of the loop.
          While the loop reads, it cannot dispatch. Who else could?
    """

    def judged(read, count, readers):
        return _judge(prefetch)

    # With the reader's signature, so that it is judged like any other answer.
    answer = functools.wraps(prefetch)(judged) if callable(prefetch) else prefetch
    case = (_Disk().read, _BATCHES, _READERS)
    (saw,) = call_answer(answer, [case], "my_prefetch(read, count, readers)")
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
    if found != list(range(_BATCHES)):
        raise Rejection(
            f"The batches came as {found}, not as 0 to {_BATCHES - 1}.",
            "Do they leave your generator in the order of their numbers, to the last?",
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
