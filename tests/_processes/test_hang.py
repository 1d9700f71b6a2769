"""Where the processes of a hanging program stand, and which one is missing."""

import queue
import threading

import jax
import pytest

from d2lpar._processes.hang import ProcessStatus, Sampler, SharedState, diagnosis, stalled_since
from d2lpar._processes.workers import stalls

NOW = 100.0


def at(line):
    return ["train.py", line, f"line {line}"]


def thread(activity, line=1, since=NOW - 9, **more):
    own = {"name": "MainThread", "callers": []}
    return own | {"activity": activity, "line": at(line), "since": since} | more


def process(number, *threads, fate="", printed="", **more):
    state = {"sampled": NOW, "last_in_jax": None, "last_dispatch": 0.0, "step": None, "cores": 0.0}
    return ProcessStatus(number, state | {"threads": threads} | more, fate, printed)


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


def test_a_thread_stands_at_its_line_since_it_came_there(clock):
    items = queue.Queue()

    def load():
        items.get()
        items.get()  # Another line.

    threading.Thread(target=load, name="loader", daemon=True).start()
    shared = SharedState()
    sampler = Sampler(shared.write, clock)

    def sample_until(condition):
        while True:
            clock.advance(1)
            sampler.sample()
            (loader,) = (t for t in shared.read()["threads"] if t["name"] == "loader")
            if condition(loader):
                return loader

    first = sample_until(lambda loader: loader["since"] == clock.now - 2)
    assert first["line"][::2] == [__file__, "items.get()"]
    assert first["activity"] == "locks"
    items.put(None)
    second = sample_until(lambda loader: loader["line"] != first["line"])
    assert second["since"] == clock.now
    items.put(None)
    shared.close()


def waiting_at(*lines, steps=(None,) * 4, callers=((),) * 4):
    return [
        process(number, thread("value", line=line, callers=list(map(at, callers))), step=step)
        for number, (line, step, callers) in enumerate(zip(lines, steps, callers, strict=False))
    ]


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
        (waiting_at(5, 5, steps=(4, 4)), "at the same line: one may be an iteration behind"),
        (waiting_at(5, 5, steps=(4, None)), "at the same line: one may be an iteration behind"),
        (
            waiting_at(5, 5, 5, steps=(118, 118, 117)),
            "at the same line. They are at different steps: process 2 at 117, the others at 118.",
        ),
        (waiting_at(6, 7, steps=(4, 5)), "takes long. They are at different steps: process 0 at 4"),
        # In one helper.
        (
            waiting_at(5, 5, 5, callers=([8], [9], [9])),
            "not at the same line: process 0 at train.py:5, called from train.py:8. One of them",
        ),
        ([process(0, thread("sleeps")), process(1)], "No process was seen waiting in JAX"),
        ([process(0), ProcessStatus(1)], "No verdict: no process was seen at a line"),
        ([], "All processes have ended."),
    ],
)
def test_the_verdict_names_the_processes_that_are_missing_where_others_wait(processes, verdict):
    assert verdict in diagnosis(processes, NOW).splitlines()[-1]


def test_each_process_is_shown_with_what_its_threads_do_for_how_long_and_their_callers():
    loader = thread("locks", line=9, name="loader")
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
        "[2] does not respond: it has run no Python for 8 s; C++ code holds the GIL, or the "
        "process is stopped or gets no core",
        "    last seen at train.py:3  line 3",
        "[3] has not started",
        "Processes 1, 2 and 3 have not reached what process 0 is waiting for.",
    ]


def test_a_stall_begins_with_the_last_dispatch_of_all_and_only_if_one_waits():
    waits = process(0, thread("value"), last_dispatch=NOW - 9)
    polls = process(1, thread("call", since=NOW), last_dispatch=NOW - 7)
    assert stalled_since([waits, polls, ProcessStatus(2)], NOW) == NOW - 7
    assert stalled_since([polls, ProcessStatus(2)], NOW) is None


def test_a_stall_is_told_once_and_only_if_a_second_look_confirms_it(clock):
    waits, told = [], []
    stall_is_new = stalls(5.0, lambda: waits, clock)
    for clock.now, began in [(6, 0), (6.2, 0), (7, 0), (8, 0), (9, 4), (13, 4), (14, 4)]:
        waits[:] = [process(0, thread("value", since=0.0), last_dispatch=began)]
        told.append(next(stall_is_new))
    assert told == [False, False, True, False, False, True, False]


def test_a_function_is_announced_before_it_runs_and_the_step_of_the_program_is_published(clock):
    shared = SharedState()
    sampler = Sampler(shared.write, clock)
    sampler.announce(at)
    (announced,) = shared.read()["threads"]
    assert announced["line"][::2] == [__file__, "def at(line):"]
    sampler.sample()
    with jax.profiler.StepTraceAnnotation("train", step_num=7):
        sampler.sample()
    assert shared.read()["step"] == 7
    shared.close()
