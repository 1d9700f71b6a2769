"""The outcomes of functions that exit or fail in a process of `Workers`."""

import linecache
import re
import sys

import pytest

from d2lpar import WorkerError, Workers


@pytest.fixture(scope="module")
def one():
    with Workers(1, initialize=False) as workers:
        yield workers


@pytest.mark.parametrize(("code", "status"), [(None, 0), (3, 3), ("no disk", 1)])
def test_a_function_that_exits_has_the_status_that_python_would_have(one, code, status, capfd):
    last = r" It last printed: no disk" * (status == 1)
    with pytest.raises(
        WorkerError, match=rf"^Process 0 ended with the exit status {status}\.{last}$"
    ):
        one.run(sys.exit, code)
    assert ("[0] no disk\n" in capfd.readouterr().out) == (status == 1)


def test_a_traceback_begins_in_the_function_and_has_the_source_of_a_notebook(one, monkeypatch):
    cell = "def fail():\n    raise KeyError\n"
    lines = (len(cell), None, cell.splitlines(True), "cell 3")
    monkeypatch.setitem(linecache.cache, "cell 3", lines)
    names = {}
    exec(compile(cell, "cell 3", "exec"), names)
    error = 'Process 0 failed:\n  File "cell 3", line 2, in fail\n    raise KeyError\nKeyError.'
    with pytest.raises(WorkerError, match=f"^{re.escape(error)}$"):
        one.run(names["fail"])


def test_a_function_that_closes_its_output_has_a_result(one):
    assert one.run(lambda: sys.stdout.close()) == [None]
    one.run(lambda: setattr(sys, "stdout", sys.stderr))


@pytest.mark.parametrize("ends", [int, sys.exit, lambda: 1 / 0])
def test_a_forked_child_ends_and_sends_no_outcome_in_the_place_of_its_parent(one, ends, capfd):
    def fork():
        import os

        if os.fork():
            os.wait()
            return "parent"
        print("child")
        return ends()

    assert one.run(fork) == one.run(fork) == ["parent"]
    shown = capfd.readouterr().out
    assert shown.count("child") == 2
    assert shown.count("ZeroDivisionError") == 2 * (ends not in (int, sys.exit))
