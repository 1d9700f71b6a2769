"""All threads of this process on one core during a block."""

import os
import threading

import pytest

from d2lpar.book.one_core import can_confine, on_one_core


@pytest.mark.skipif(not can_confine(), reason="threads can be confined to a core on Linux only")
def test_all_threads_have_one_core_in_the_block_and_their_own_again_behind_it():
    def cores_of(thread):
        return os.sched_getaffinity(thread.native_id)

    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    before = cores_of(other)
    try:
        with on_one_core():
            assert len(cores_of(other)) == len(os.sched_getaffinity(0)) == 1
        assert cores_of(other) == os.sched_getaffinity(0) == before
    finally:
        stop.set()
        other.join()


def test_where_threads_cannot_be_confined_the_block_runs_as_it_is(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert not can_confine()
    with on_one_core():
        pass
