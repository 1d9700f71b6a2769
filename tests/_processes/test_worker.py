"""The outcomes that a process of `Workers` sends; how it ends is tested with workers."""

import functools
import linecache
import pickle
import sys

import pytest

from d2lpar._processes import worker
from d2lpar._processes.workers import _pickled


class FakeConnection:
    """Keeps what is sent."""

    def send_bytes(self, message):
        self.outcome = pickle.loads(message)


def outcome_of(request):
    connection = FakeConnection()
    worker.send_outcome(connection, functools.partial(worker.serve, request, {}))
    return connection.outcome


def request(function, *args):
    return pickle.dumps((*_pickled((function, args, {})), None))


@pytest.mark.parametrize(
    ("code", "status", "printed"), [(None, 0, ""), (3, 3, ""), ("no disk", 1, "no disk\n")]
)
def test_a_function_that_exits_has_the_status_that_python_would_have(code, status, printed, capsys):
    assert outcome_of(request(sys.exit, code)) == ("exit", status)
    assert capsys.readouterr().err == printed


def test_the_traceback_begins_in_the_function_with_the_source_of_a_notebook(monkeypatch):
    cell = "def fail():\n    raise KeyError\n"
    lines = (len(cell), None, cell.splitlines(True), "cell 3")
    monkeypatch.setitem(linecache.cache, "cell 3", lines)
    names = {}
    exec(compile(cell, "cell 3", "exec"), names)
    of_notebook = request(names["fail"])
    linecache.cache.pop("cell 3")
    assert outcome_of(of_notebook)[1].splitlines() == [
        '  File "cell 3", line 2, in fail',
        "    raise KeyError",
        "KeyError",
    ]
