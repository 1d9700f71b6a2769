"""What a process of `Workers` does with a request; that it ends is tested with test_processes."""

import functools
import linecache
import os
import pickle
import sys

import pytest

from d2lpar import _worker
from d2lpar._workers import Kept, _pickled


class FakeConnection:
    """Keeps what is sent."""

    def send_bytes(self, message):
        self.sent = pickle.loads(message)


def request(function, *args, keep=None):
    return pickle.dumps((*_pickled((function, args, {})), keep))


def test_what_is_kept_stays_and_stands_in_for_an_argument():
    kept = {}
    assert pickle.loads(_worker.serve(request(lambda: 7, keep=Kept(0, 1)), kept)) is None
    assert kept == {1: 7}
    result = _worker.serve(request(lambda x, y: x + y, Kept(0, 1), 3), kept)
    assert pickle.loads(result) == 10
    kept[2] = abs
    assert pickle.loads(_worker.serve(request(Kept(0, 2), -3), kept)) == 3


def test_an_error_is_sent_from_the_line_of_the_function_on():
    def fail():
        raise KeyError("weights")

    connection = FakeConnection()
    _worker.answer(connection, functools.partial(_worker.serve, request(fail), {}))
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
    _worker.answer(connection, functools.partial(_worker.serve, request(sys.exit, code), {}))
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
    _worker.answer(connection, functools.partial(_worker.serve, asked, {}))
    assert connection.sent[1].splitlines()[:2] == [
        '  File "cell 3", line 2, in fail',
        "    raise KeyError",
    ]


# --- Joining ----------------------------------------------------------------------------------

SETTINGS = {"address": "127.0.0.1:5", "count": 4, "number": 2, "gpus": False}


def joined(*args, gpus=False, **kwargs):
    """Return what `jax.distributed.initialize` would be given."""
    given = {}

    def initialize(
        coordinator_address=None,
        num_processes=None,
        process_id=None,
        local_device_ids=None,
        cluster_detection_method=None,
        initialization_timeout=300,
        coordinator_bind_address=None,
    ):
        given.update(locals(), proxies=[name for name in os.environ if "_proxy" in name])
        del given["given"]

    _worker.joining(initialize, SETTINGS | {"gpus": gpus})(*args, **kwargs)
    return given


def test_what_initialize_is_not_given_is_filled_in(monkeypatch):
    monkeypatch.setenv("http_proxy", "proxy")
    assert joined(initialization_timeout=7) == {
        "coordinator_address": "127.0.0.1:5",
        "num_processes": 4,
        "process_id": 2,
        "local_device_ids": None,
        "cluster_detection_method": "deactivate",
        "initialization_timeout": 7,
        "coordinator_bind_address": "127.0.0.1:5",
        "proxies": [],
    }
    assert os.environ["http_proxy"] == "proxy"
    assert joined(gpus=True)["local_device_ids"] == [2]


def test_what_initialize_is_given_is_left_alone():
    given = joined("host:7", 4, process_id=2, local_device_ids=[0, 1])
    assert given["coordinator_address"] == "host:7"
    assert given["coordinator_bind_address"] is None
    assert given["local_device_ids"] == [0, 1]


def test_a_number_that_cannot_be_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"process_id=0 in process 2 of 4.*RANK and WORLD_SIZE"):
        joined(process_id=0)
    with pytest.raises(ValueError, match="num_processes=3"):
        joined(num_processes=3)


def test_a_module_is_changed_when_somebody_imports_it(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    hook = _worker.AtImport("imported_later", lambda module: setattr(module, "value", 2))
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    import imported_later

    assert imported_later.value == 2
    assert hook not in sys.meta_path
