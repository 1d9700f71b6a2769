"""Several processes: their results, the message when one fails, and that none is left.

The functions that run in them are defined here, and sent to them.
"""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Pipe

import psutil
import pytest

from d2lpar import WorkerError, Workers
from d2lpar._processes import workers as workers_module
from d2lpar._processes.hang import SharedState


@pytest.fixture(scope="module")
def shared():
    """Two workers, for all tests that leave them as they were."""
    with Workers(2) as workers:
        yield workers


def number():
    import jax

    return jax.process_index()


def initialized():
    import jax

    jax.distributed.initialize()
    return jax.process_count()


def spanning(value):
    import jax
    import numpy as np

    cut = jax.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), "all"), jax.P("all"))
    return jax.make_array_from_process_local_data(cut, np.full(1000, value, np.float32))


def sum_over_all(value):
    import jax

    return float(jax.jit(lambda x: x.sum())(spanning(value)))


def test_each_result_comes_back_in_the_order_of_the_processes(shared):
    assert shared.run(number) == [0, 1]
    assert shared.run(lambda base, more=0: base + more + number(), 5, more=10) == [15, 16]
    assert shared.run(lambda: sum_over_all(number() + 1)) == [3000, 3000]


def test_what_is_kept_is_passed_to_later_calls_and_never_sent(shared):
    locks = shared.keep(__import__("threading").Lock)  # Cannot be sent.
    assert shared.run(lambda lock: lock.acquire(False), locks) == [True, True]
    assert shared.run(lambda lock: lock.locked(), lock=locks) == [True, True]
    assert shared.run(lambda same: same, same=shared.keep(number, timeout=9)) == [0, 1]
    assert shared.run(shared.keep(lambda: abs), -3) == [3, 3]  # A function may be kept too.
    with pytest.raises(ValueError, match="kept by other workers"):
        shared.run(abs, workers_module.Kept(-1, 1))


def test_what_they_print_is_shown_with_their_number_however_much(shared, capfd):
    shared.run(lambda: print("a line\n" * 100_000 + "one without an end", end=""))
    shown = capfd.readouterr().out.splitlines()
    for process in "01":
        own = [line[4:] for line in shown if line.startswith(f"[{process}]")]
        assert own == ["a line"] * 100_000 + ["one without an end"]


def fail_in_one():
    if number() == 1:
        print("about to fail")
        raise ValueError("no such file")
    return "fine"


def test_an_error_names_the_process_and_its_line_and_its_last_output(shared):
    with pytest.raises(WorkerError, match=r"^Process 1 failed:") as raised:
        shared.run(fail_in_one)
    message = str(raised.value)
    assert f'File "{__file__}"' in message
    assert message.endswith("The last lines it printed:\n  about to fail")
    assert raised.value.worker == 1
    fine, failed = shared.run(fail_in_one, return_exceptions=True)  # The workers go on.
    assert (fine, str(failed)) == ("fine", message)


def test_of_errors_of_all_processes_the_first_is_raised_and_the_others_are_named(shared):
    with pytest.raises(WorkerError, match=r"Process [01] failed") as raised:
        shared.run(lambda: 1 / 0)
    assert f"process {1 - raised.value.worker} failed" in raised.value.__notes__[0]
    late, early = WorkerError("late", 0, ended=2.0), WorkerError("early", 1, ended=1.0)
    with pytest.raises(WorkerError, match="early"):
        shared._check([late, early], "run")


def test_a_result_that_cannot_be_sent_is_refused_with_the_way_out(shared):
    refused = (
        r"ArrayImpl cannot be sent, the result of <lambda> \(.*test_workers\.py:\d+\): .*[^.]\. "
    )
    with pytest.raises(WorkerError, match=refused) as raised:
        shared.run(lambda: spanning(1))
    assert "addressable_data(0)" in str(raised.value)
    assert re.search(r"workers\.keep\(\.\.\.\)\.$", str(raised.value))


def test_a_result_that_cannot_be_read_fails_in_its_process_and_the_others_go_on(shared):
    class Broken:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(WorkerError, match=r"^Process [01] has sent a result .*: 'no number'\."):
        shared.run(Broken)
    assert shared.run(number) == [0, 1]


def test_the_variable_or_argument_that_cannot_be_sent_is_named_with_its_function(shared):
    lock = threading.Lock()

    def locks(depth, guard=None):
        return locks(depth - 1) if depth else lock

    place = rf"locks \({re.escape(__file__)}:{locks.__code__.co_firstlineno}\)"
    for call, name in [
        (lambda: shared.run(lambda: locks(3)), f"The variable 'lock' in {place}"),
        (lambda: shared.run(locks, 0, lock), f"The argument 'guard' of {place}"),
    ]:
        with pytest.raises(TypeError, match=f"^{name} cannot be sent: .*lock' object. Make it"):
            call()


def test_programs_that_a_worker_starts_get_the_path_of_the_user(shared):
    assert shared.run(lambda: os.environ.get("PYTHONPATH")) == [os.environ.get("PYTHONPATH")] * 2


def leave_a_child():
    if number() == 1 and os.fork():  # The child holds this process's files open, and stays.
        os._exit(7)
    time.sleep(600)


def print_for_ever():
    while True:
        print("x" * 70)


NOT_REACHED = (
    r"(?s)Process 0 has not ended after 4 s\.\n\[0\] waiting for a value.*test_workers.*float\(.*"
    "Process 1 has not reached what process 0 is waiting for"
)


@pytest.mark.parametrize(
    ("function", "timeout", "error"),
    [
        (leave_a_child, 60, "Process 1 has died: exit status 7"),
        (lambda: sum_over_all(1) if number() == 0 else 1 / 0, 60, "Process 1 failed"),
        (print_for_ever, 1, "Processes 0 and 1 have not ended after 1 s"),
        (lambda: sum_over_all(1) if number() == 0 else None, 4, NOT_REACHED),
    ],
)
def test_all_are_ended_if_one_dies_or_fails_or_takes_too_long_and_the_cause_is_named(
    monkeypatch, function, timeout, error
):
    monkeypatch.setattr(workers_module, "GRACE", 0.5)
    with Workers(2) as two:
        with pytest.raises(WorkerError, match=error):
            two.run(function, timeout=timeout)
        assert repr(two) == "<2 workers, ended>"
        with pytest.raises(WorkerError, match="These workers have ended"):
            two.run(number)


def test_more_processes_than_cores_get_a_note_and_are_not_refused(monkeypatch, capsys):
    monkeypatch.setattr(workers_module, "usable_cores", lambda: 1)
    with Workers(2, pin=True, devices=2) as workers:
        assert workers.run(lambda: __import__("jax").local_device_count()) == [2, 2]
    assert "2 processes share 1 CPU core." in capsys.readouterr().out


def test_nobody_else_gets_the_port_at_which_the_processes_meet():
    def take_it():
        socket.create_server(address).close()  # This accepts TIME_WAIT.

    with Workers(1, initialize=False) as workers:  # Nobody listens there yet.
        address = workers._port.getsockname()
        with pytest.raises(OSError, match="in use"):
            take_it()
        assert workers.run(initialized) == [1]
        with pytest.raises(OSError, match="in use"):
            take_it()
    take_it()  # It is free at once.


def test_two_threads_that_ask_at_once_get_each_its_own_answers(shared):
    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(lambda given: shared.run(lambda: given), range(10))
    assert list(answers) == [[given] * 2 for given in range(10)]


@pytest.fixture
def sleeping(monkeypatch):
    """A worker whose process does nothing, and the end of the connection that is the worker's."""
    monkeypatch.setattr(workers_module, "GRACE", 0.1)
    connection, workers_end = Pipe()
    process = subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE)
    worker = workers_module._Worker(0, process, connection, SharedState())
    yield worker, workers_end
    process.kill()
    process.wait()
    workers_end.close()
    worker.close()


def test_a_worker_that_lives_but_has_closed_its_connection_is_not_waited_for(sleeping):
    worker, workers_end = sleeping
    workers_end.close()
    assert "Process 0 has closed its connection" in str(worker.receive(1.0))


def test_a_worker_that_is_stopped_or_dead_is_reported_as_such(sleeping):
    worker, _ = sleeping
    assert worker.status({}).fate == ""
    worker.process.send_signal(signal.SIGSTOP)
    while psutil.Process(worker.process.pid).status() != psutil.STATUS_STOPPED:
        pass
    assert worker.status({}).fate.startswith("is stopped (SIGSTOP)")
    worker.process.kill()
    worker.process.wait()
    assert worker.status({}).fate == "has died: SIGKILL"
    worker.ended = time.monotonic() - 60
    assert worker.status({0: None}).fate == "has finished 60 s ago"
    assert worker.status({0: WorkerError("no disk")}).fate == "has failed 60 s ago"


def test_a_message_that_never_ends_counts_as_none(sleeping):
    worker, workers_end = sleeping
    os.write(workers_end.fileno(), struct.pack("!i", 100) + b"begun")
    with pytest.raises(TimeoutError):
        worker.receive(0.1)


def test_a_forked_child_that_ends_leaves_the_workers_of_its_parent_alone(run_python):
    program = """
import os, sys
from d2lpar import Workers

with Workers(1) as workers:
    if os.fork() == 0:
        sys.exit()
    os.wait()
    print(workers.run(abs, -1))
"""
    assert run_python(program) == "[1]"


PROGRAM = """
import os, subprocess, sys, time
from d2lpar import Workers

def child():
    daemon = {"start_new_session": True, "env": {"PATH": os.environ["PATH"]}}
    return os.getpid(), subprocess.Popen(["sleep", "600"], **daemon).pid

workers = Workers(int(sys.argv[1]) if sys.argv[1:] else 1)
print(*[pid for both in workers.run(child) for pid in both], flush=True)
"""


@pytest.mark.parametrize("sent", [None, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_after_the_end_of_the_program_or_a_signal(sent, left_of):
    last = "workers.run(time.sleep, 600, timeout=600)" if sent else ""
    command = [sys.executable, "-c", PROGRAM + last, "2" if sent == signal.SIGKILL else "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 * int(command[-1])
        if sent:
            parent.send_signal(sent)
    assert not left_of(pids)
