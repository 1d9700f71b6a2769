import hashlib
import itertools
import os
import statistics
import threading
from types import SimpleNamespace

import pytest

from d2lpar import control, free_cores
from d2lpar._control import crowding


def test_free_cores_ask_how_crowded_so_many_cores_are(monkeypatch):
    monkeypatch.setattr(control, "crowding", lambda threads: 100.0 + threads)
    asked = free_cores(3)
    assert asked.probe() == 103
    assert asked.needs == "3 free CPU cores"


def test_crowding_hashes_alone_first_and_then_on_all_threads_at_once(monkeypatch):
    together, sha512, lengths = threading.Barrier(3, timeout=60), hashlib.sha512, []

    def hash_together(data):
        lengths.append(len(data))
        if len(lengths) > 1:
            together.wait()
        return sha512(data)

    monkeypatch.setattr(hashlib, "sha512", hash_together)
    crowding(3)
    assert lengths == [10_000_000] * 4


def test_crowding_is_the_time_of_all_over_the_processor_time_of_the_one(monkeypatch):
    used = itertools.count(step=2)  # Each thread uses two seconds, however long it has to wait.
    passed = iter([10, 17])
    clocks = SimpleNamespace(thread_time=lambda: next(used), perf_counter=lambda: next(passed))
    monkeypatch.setattr(control, "time", clocks)
    assert crowding(1) == 3.5


@pytest.mark.timed
def test_one_thread_takes_no_less_than_its_processor_time():
    # It would if the first thread also had to make the pages of what both hash.
    assert statistics.median(crowding(1) for _ in range(9)) > 0.9


@pytest.mark.timed
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity here")
def test_two_threads_on_one_core_are_crowded():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # The threads inherit it.
    try:
        assert statistics.median(crowding(2) for _ in range(9)) > 1.5
    finally:
        os.sched_setaffinity(0, allowed)
