import queue
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest
from attempts import require_accepted, require_not_yet, require_told

from d2lpar.book.exercises import check_z2


def with_futures(threads=None, ahead=None):
    def my_prefetch(read, count, readers):
        with ThreadPoolExecutor(threads or readers) as pool:
            reads = (pool.submit(read, number) for number in range(count))
            pending = deque(islice(reads, ahead or readers))
            while pending:
                batch = pending.popleft().result()
                pending.extend(islice(reads, 1))
                yield batch

    return my_prefetch


def with_queues(read, count, readers):
    places = [queue.Queue() for _ in range(count)]
    may_read = threading.Semaphore(readers)
    numbers, lock, closed = iter(range(count)), threading.Lock(), threading.Event()

    def run():
        while True:
            may_read.acquire()
            with lock:
                number = next(numbers, None)
            if number is None or closed.is_set():
                return
            try:
                places[number].put((read(number), None))
            except OSError as error:
                places[number].put((None, error))

    threads = [threading.Thread(target=run) for _ in range(readers)]
    for thread in threads:
        thread.start()
    try:
        for place in places:
            batch, error = place.get()
            if error is not None:
                raise error
            may_read.release()
            yield batch
    finally:
        closed.set()
        for _ in threads:
            may_read.release()


RIGHT = {"futures": with_futures(), "queues": with_queues}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted(name):
    require_accepted(check_z2(RIGHT[name]))


def in_the_loop(read, count, readers):
    yield from map(read, range(count))


def as_they_come(read, count, readers):
    with ThreadPoolExecutor(readers) as pool:
        pending = deque(pool.submit(read, number) for number in range(readers))
        for number in range(readers, count):
            last = pending.pop().result()
            pending.append(pool.submit(read, number))
            yield last
        while pending:
            yield pending.pop().result()


def drops_the_error(read, count, readers):
    def careful(number):
        try:
            return read(number)
        except OSError:
            return -1

    return with_futures()(careful, count, readers)


def error_at_once(read, count, readers):
    with ThreadPoolExecutor(readers) as pool:
        reads = [pool.submit(read, number) for number in range(readers)]
        for first in range(0, count, readers):
            batches = [each.result() for each in reads]
            numbers = range(first + readers, min(first + 2 * readers, count))
            for position, batch in enumerate(batches):
                if position == len(batches) - 1:
                    reads = [pool.submit(read, number) for number in numbers]
                yield batch


WRONG = {
    "in the loop": (in_the_loop, "in the thread of the loop"),
    "one reader": (with_futures(threads=1), "No more than 1 of 3 readers"),
    "all at once": (with_futures(ahead=12), "more than 3 ahead"),
    "as they come": (as_they_come, "not as 0 to 11"),
    "drops the error": (drops_the_error, "your generator went on, and the loop got 12"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    require_told(check_z2(WRONG[name][0]), name, WRONG)


def test_an_error_that_comes_too_early_is_told_to_wait():
    require_not_yet(check_z2(error_at_once), "Let the error stand in line like a batch")


def test_what_is_no_function_or_cannot_be_looped_over_is_not_yet_right():
    require_not_yet(check_z2(3), "was given an int, which cannot be called")
    require_not_yet(check_z2(lambda read, count, readers: 5), "which one cannot loop over")
    require_not_yet(check_z2(lambda read: []), "but your function takes")
