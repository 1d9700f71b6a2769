"""What is said of processes that hang: where each stands, and who is missing."""

import queue
import threading

import pytest
from fakes import FakeClock

from d2lpar._processes.hang import Board, Process, Recorder, diagnosis

NOW = 100.0


def at(line):
    return ["train.py", line, f"line {line}"]


def thread(doing, line=1, since=NOW - 9, **more):
    own = {"name": "MainThread", "leads": True, "callers": []}
    return own | {"doing": doing, "at": at(line), "since": since} | more


def process(number, *threads, looked=NOW, in_jax=None, cores=0.0, **more):
    state = {"looked": looked, "threads": threads, "in_jax": in_jax, "cores": cores}
    return Process(number, state, **more)


def verdict(*processes):
    return diagnosis(processes, NOW).splitlines()[-1]


# --- What is shared ---------------------------------------------------------------------------


def test_the_last_state_is_read_also_through_the_file_alone():
    board = Board()
    other = Board(board.file.fileno())
    assert board.read() is None
    for number in range(3):
        other.write({"threads": [], "number": number})
        assert board.read()["number"] == number
    board.close()
    other.close()


def test_while_a_state_is_written_the_one_before_can_be_read():
    board, seen = Board(), []
    other = Board(board.file.fileno())

    class Slow:
        """The memory, which somebody reads after each part that is written."""

        def __getitem__(self, at):
            return other._memory[at]

        def __setitem__(self, at, value):
            other._memory[at] = value
            seen.append(other.read()["number"])

    board.write({"threads": [], "number": 1})
    memory, board._memory = board._memory, Slow()
    board.write({"threads": [], "number": 2})
    board._memory = memory
    assert seen == [1, 2]
    board.close()
    other.close()


def test_of_a_state_that_is_too_long_the_first_threads_are_kept():
    board = Board()
    board.write({"threads": [thread("call", name=str(n)) for n in range(2000)], "looked": 3})
    kept = board.read()
    assert kept["looked"] == 3
    assert kept["threads"][0]["name"] == "0"
    assert 50 < len(kept["threads"]) < 2000
    board.close()


# --- What is written down ---------------------------------------------------------------------


@pytest.fixture
def loader():
    """A thread that waits for something, and a queue to put that in."""
    given = queue.Queue()

    def load():
        given.get()
        given.get()  # Another line.

    thread = threading.Thread(target=load, name="loader")
    thread.start()
    yield given
    for _ in range(2):
        given.put(None)
    thread.join()


def test_a_thread_stands_at_its_line_since_it_came_there(loader):
    board, clock = Board(), FakeClock()
    recorder = Recorder(board, clock)

    def look():
        clock.advance(1)
        recorder.look()
        return next(t for t in board.read()["threads"] if t["name"] == "loader")

    def look_until_it_stands():
        while (seen := look())["since"] == clock.now:
            pass
        return seen

    seen = look_until_it_stands()
    assert seen["at"][0] == __file__
    assert seen["at"][2] == "given.get()"
    assert (seen["doing"], seen["leads"]) == ("locks", False)
    assert look()["since"] == seen["since"]
    loader.put(None)
    while look()["at"] == seen["at"]:
        pass
    assert look_until_it_stands()["since"] > seen["since"]
    board.close()


# --- What is said of it -----------------------------------------------------------------------


def test_who_does_not_wait_has_not_come():
    waits, sleeps = thread("value"), thread("sleeps")
    assert verdict(process(0, waits), process(1, sleeps), process(2, waits)) == (
        "Process 1 has not reached what processes 0 and 2 are waiting for."
    )
    assert verdict(process(0, waits), process(1), process(2, fate="has ended")) == (
        "Processes 1 and 2 have not reached what process 0 is waiting for."
    )


def test_a_call_that_does_not_return_waits_as_well():
    enters, stands = thread("jax", since=NOW - 0.1), thread("perhaps jax")
    assert verdict(process(0, enters), process(1, stands)) == (
        "Process 0 has not reached what process 1 is waiting for."
    )


def test_who_waits_at_another_line_than_most_is_named():
    said = verdict(*(process(n, thread("value", line=7 if n == 2 else 5)) for n in range(4)))
    assert "line: process 2 at train.py:7. Somebody has left out" in said


def test_of_two_that_wait_at_different_lines_both_are_named():
    said = verdict(*(process(n, thread("value", line=n)) for n in range(2)))
    assert "line: process 0 at train.py:0; process 1 at train.py:1. Somebody" in said
    assert said.endswith("or one of them computes by itself, and takes long.")


def test_who_waits_at_the_same_line_may_be_a_turn_behind():
    assert "a turn behind" in verdict(*(process(n, thread("barrier")) for n in range(2)))


def test_where_nobody_waits_for_a_device_nobody_is_accused():
    assert verdict(process(0, thread("sleeps")), process(1)) == (
        "None of them is seen to wait for a device, or for another process by JAX."
    )
    assert verdict(process(0), Process(1)).startswith("Nothing can be said")
    assert verdict() == "They have ended."


def test_a_process_that_looks_no_more_cannot_be_asked_and_its_last_line_is_told():
    deaf = process(1, thread("call", line=3), looked=NOW - 8)
    first, second, last = diagnosis([process(0, thread("value")), deaf], NOW).splitlines()[1:]
    assert first.startswith("[1] cannot be asked: Python has not run there for 8 s;")
    assert second == "    last seen at train.py:3  line 3"
    assert last == "Process 1 has not reached what process 0 is waiting for."


def test_each_process_is_told_with_what_it_does_for_how_long_and_who_called_it():
    ended = process(1, in_jax=[NOW - 2, at(8)], fate="has ended", printed="done")
    loader = thread("locks", line=9, name="loader", leads=False)
    busy = process(0, thread("value", line=5, callers=[at(6), at(7)]), loader, cores=1.04)
    assert diagnosis([busy, ended, Process(2)], NOW).splitlines()[:-1] == [
        "[0] waiting for a value for 9 s at train.py:5  line 5",
        "    called from train.py:6, train.py:7",
        "    in loader: waiting for another thread or process for 9 s at train.py:9  line 9",
        "    using 1.0 CPU cores",
        "[1] has ended",
        "    last seen in JAX 2 s ago at train.py:8  line 8",
        "    last printed: done",
        "[2] not begun",
    ]


def test_what_compiles_moves_and_a_thread_that_never_dispatched_does_not_count():
    assert process(0, thread("value"), thread("sleeps", since=NOW, leads=False)).moved() == NOW - 9
    assert process(0, thread("compiles")).moved() == NOW
    assert Process(0).moved() == 0
