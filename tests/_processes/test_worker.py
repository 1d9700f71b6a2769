"""What a process of `Workers` does with a request; that it ends is tested with test_processes."""

import functools
import linecache
import pickle
import sys

import pytest

from d2lpar._processes import worker
from d2lpar._processes.workers import Kept, _pickled


class FakeConnection:
    """Keeps what is sent."""

    def send_bytes(self, message):
        self.sent = pickle.loads(message)


def request(function, *args, keep=None):
    return pickle.dumps((*_pickled((function, args, {})), keep))


def test_what_is_kept_stays_and_stands_in_for_an_argument():
    kept = {}
    assert pickle.loads(worker.serve(request(lambda: 7, keep=Kept(0, 1)), kept)) is None
    assert kept == {1: 7}
    result = worker.serve(request(lambda x, y: x + y, Kept(0, 1), 3), kept)
    assert pickle.loads(result) == 10
    kept[2] = abs
    assert pickle.loads(worker.serve(request(Kept(0, 2), -3), kept)) == 3


def test_an_error_is_sent_from_the_line_of_the_function_on():
    def fail():
        raise KeyError("weights")

    connection = FakeConnection()
    worker.answer(connection, functools.partial(worker.serve, request(fail), {}))
    kind, text = connection.sent
    assert kind == "error"
    first, *_, last = text.splitlines()
    assert first.endswith("in fail")
    assert __file__ in first
    assert last == "KeyError: 'weights'"


@pytest.mark.parametrize(
    ("code", "status", "said"), [(None, 0, ""), (3, 3, ""), ("no disk", 1, "no disk\n")]
)
def test_who_exits_has_that_status(code, status, said, capsys):
    connection = FakeConnection()
    worker.answer(connection, functools.partial(worker.serve, request(sys.exit, code), {}))
    assert connection.sent == ("exit", status)
    assert capsys.readouterr().err == said


def test_the_source_of_a_notebook_comes_along(monkeypatch):
    cell = "def fail():\n    raise KeyError\n"
    monkeypatch.setitem(
        linecache.cache, "cell 3", (len(cell), None, cell.splitlines(True), "cell 3")
    )
    names = {}
    exec(compile(cell, "cell 3", "exec"), names)
    asked = request(names["fail"])
    linecache.cache.pop("cell 3")
    connection = FakeConnection()
    worker.answer(connection, functools.partial(worker.serve, asked, {}))
    assert connection.sent[1].splitlines()[:2] == [
        '  File "cell 3", line 2, in fail',
        "    raise KeyError",
    ]


# --- Joining ----------------------------------------------------------------------------------
