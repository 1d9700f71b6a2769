"""What a process of `Workers` does with a request; that it ends is tested with test_processes."""

import functools
import pickle

import cloudpickle

from d2lpar import _worker
from d2lpar._workers import Kept


class FakeConnection:
    """Keeps what is sent."""

    def send_bytes(self, message):
        self.sent = pickle.loads(message)


def request(function, *args, keep=None):
    return pickle.dumps((cloudpickle.dumps((function, args)), keep))


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
    kind, frames, text = connection.sent
    assert (kind, text) == ("error", "KeyError: 'weights'\n")
    assert [name for _, _, name in frames] == ["fail"]
