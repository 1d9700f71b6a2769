"""Where the processes of a hanging program stand, and which one is missing."""

import queue
import threading

import pytest
from fakes import FakeClock

from d2lpar._processes.hang import ProcessStatus, Sampler, SharedState, diagnosis

NOW = 100.0


def at(line):
    return ["train.py", line, f"line {line}"]


def thread(activity, line=1, since=NOW - 9, **more):
    own = {"name": "MainThread", "dispatches": True, "callers": []}
    return own | {"activity": activity, "line": at(line), "since": since} | more


def process(number, *threads, sampled=NOW, last_in_jax=None, cores=0.0, **more):
    state = {"sampled": sampled, "threads": threads, "last_in_jax": last_in_jax, "cores": cores}
    return ProcessStatus(number, state, **more)


# --- The shared memory ------------------------------------------------------------------------


def test_while_a_state_is_written_the_previous_one_can_be_read():
    writer, read = SharedState(), []
    reader = SharedState(writer.file.fileno())
    assert reader.read() is None

    class SlowMemory:
        """Memory that is read after each step of a write."""

        def __getitem__(self, index):
            return reader._memory[index]

        def __setitem__(self, index, value):
            reader._memory[index] = value
            read.append(reader.read()["number"])

    writer.write({"threads": [], "number": 1})
    memory, writer._memory = writer._memory, SlowMemory()
    for number in (2, 3):
        writer.write({"threads": [], "number": number})
    writer._memory = memory
    assert read == [1, 2, 2, 3]
    writer.close()
    reader.close()


def test_a_state_that_is_too_long_keeps_its_first_threads():
    shared = SharedState()
    shared.write({"threads": [thread("call", name=str(n)) for n in range(400)], "sampled": 3})
    state = shared.read()
    assert state["sampled"] == 3
    assert state["threads"][0]["name"] == "0"
    assert 50 < len(state["threads"]) < 400
    shared.close()


# --- The samples ------------------------------------------------------------------------------


def test_a_thread_stands_at_its_line_since_it_came_there():
    items = queue.Queue()

    def load():
        items.get()
        items.get()  # Another line.

    threading.Thread(target=load, name="loader", daemon=True).start()
    shared, clock = SharedState(), FakeClock()
    sampler = Sampler(shared, clock)

    def sample_until(condition):
        while True:
            clock.advance(1)
            sampler.sample()
            (loader,) = (t for t in shared.read()["threads"] if t["name"] == "loader")
            if condition(loader):
                return loader

    first = sample_until(lambda loader: loader["since"] == clock.now - 2)
    assert first["line"][::2] == [__file__, "items.get()"]
    assert (first["activity"], first["dispatches"]) == ("locks", False)
    items.put(None)
    second = sample_until(lambda loader: loader["line"] != first["line"])
    assert second["since"] == clock.now
    items.put(None)
    shared.close()


# --- The verdict ------------------------------------------------------------------------------


def waiting_at(*lines):
    return [process(number, thread("value", line=line)) for number, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("processes", "verdict"),
    [
        (
            [*waiting_at(1, 1), process(2, thread("sleeps")), process(3)],
            "Processes 2 and 3 have not reached what processes 0 and 1 are waiting for.",
        ),
        # A call into JAX that does not return waits as well.
        (
            [process(0, thread("jax", since=NOW - 0.1)), process(1, thread("perhaps jax"))],
            "Process 0 has not reached what process 1 is waiting for.",
        ),
        (waiting_at(5, 5, 7, 5), "not at the same line: process 2 at train.py:7. One of them has"),
        (waiting_at(6, 7), "same line: process 0 at train.py:6; process 1 at train.py:7. One of"),
        (waiting_at(5, 5), "All are waiting at the same line: one may be an iteration behind"),
        ([process(0, thread("sleeps")), process(1)], "No process was seen waiting in JAX"),
        ([process(0), ProcessStatus(1)], "No verdict: no process was seen at a line"),
        ([], "All processes have ended."),
    ],
)
def test_the_verdict_names_the_processes_that_are_missing_where_others_wait(processes, verdict):
    assert verdict in diagnosis(processes, NOW).splitlines()[-1]


NO_SAMPLE = "C++ code holds the GIL, or the process is stopped or gets no core"


def test_each_process_is_shown_with_what_its_threads_do_for_how_long_and_their_callers():
    loader = thread("locks", line=9, name="loader", dispatches=False)
    busy = process(0, thread("value", line=5, callers=[at(6), at(7)]), loader, cores=1.04)
    ended = process(1, last_in_jax=[NOW - 2, at(8)], fate="has ended", printed="done")
    unresponsive = process(2, thread("value", line=3), sampled=NOW - 8)
    assert diagnosis([busy, ended, unresponsive, ProcessStatus(3)], NOW).splitlines() == [
        "[0] waiting for a value for 9 s at train.py:5  line 5",
        "    called from train.py:6, train.py:7",
        "    in loader: waiting for another thread or process for 9 s at train.py:9  line 9",
        "    using 1.0 CPU cores",
        "[1] has ended",
        "    last seen in JAX 2 s ago at train.py:8  line 8",
        "    last printed: done",
        f"[2] does not respond: it has run no Python for 8 s; {NO_SAMPLE}",
        "    last seen at train.py:3  line 3",
        "[3] has not started",
        "Processes 1, 2 and 3 have not reached what process 0 is waiting for.",
    ]


def test_compiling_is_progress_and_a_thread_that_never_dispatched_makes_none():
    loader = thread("sleeps", since=NOW, dispatches=False)
    assert process(0, thread("value"), loader).last_progress() == NOW - 9
    assert process(0, thread("compiles")).last_progress() == NOW
    assert ProcessStatus(0).last_progress() == 0
