import time

import jax
import numpy as np
import pytest
from timelines import event, timeline

from d2lpar import cpu, exact
from d2lpar.book import copies
from d2lpar.book.automatic_parallelism import (
    COPIES,
    WAYS,
    CopyTimes,
    Way,
    copy_times,
    measure_ways,
    record_ways,
    table_of_ways,
)


@jax.jit
def double(x):
    return 2 * x


def make(index):
    return double(np.full((20, 20), index, np.float32))


def test_both_ways_make_the_same_calls_in_an_order_of_their_own():
    calls = []

    def noted(kind, value):
        calls.append(kind)
        return value

    copy_times(
        lambda index: noted("make", index), lambda made: noted("send", made), repeats=6, warmup=0
    )
    in_turn = ["make"] * COPIES + ["send"] * COPIES
    at_once = ["make", "send"] * COPIES
    assert calls == (in_turn + at_once + at_once + in_turn) * 3


def test_the_parts_of_the_run_in_turn_are_told_apart_and_nothing_overlaps_in_one_thread():
    times = copy_times(lambda _: time.sleep(0.002), lambda _: time.sleep(0.001), repeats=6)
    assert (times.computing > COPIES * 0.002).verdict == "holds"
    assert (times.copying > COPIES * 0.001).verdict == "holds"
    assert times.computing.median > times.copying.median
    assert times.score.median < 0.5


def test_what_is_to_be_decided_is_asked_of_the_times_so_far():
    seen = []

    def until(times):
        seen.append(type(times))
        return times.copying > 0

    copy_times(lambda _: time.sleep(0.0005), lambda _: time.sleep(0.0005), until=until)
    assert seen[0] is CopyTimes


def test_the_rows_are_those_that_editions_print():
    times = CopyTimes(*(exact(name, n, "s") for n, name in enumerate("abc", start=1)))
    assert [row.name for row in times.rows] == ["a", "b", "c"]
    assert times.score.median == 0


@pytest.mark.parametrize("name", WAYS)
def test_each_way_brings_the_numbers_to_the_host(name):
    send, arrive = WAYS[name]
    array = make(3)
    ((original, copy),) = arrive([(array, send(array))])
    assert original is array
    np.testing.assert_array_equal(np.asarray(copy), np.full((20, 20), 6))


def test_a_copy_on_the_cpu_is_committed_to_it_and_a_pinned_one_says_so():
    assert copies.put_on_cpu(make(0)).devices() == {cpu()}
    assert copies.pin(make(0)).sharding.memory_kind == "pinned_host"


def test_all_ways_are_recorded():
    recorded = record_ways(make)
    assert list(recorded) == list(WAYS)
    for found in recorded.values():
        assert any(event.program == "double" for event in found.events)


def test_recordings_of_ways_are_as_long_as_the_shortest(monkeypatch):
    found = iter(timeline(event("Python", 0, end)) for end in (3000, 1000, 2000))
    monkeypatch.setattr(copies, "record_trace", lambda function: (function(), next(found)))
    assert [recorded.elapsed for recorded in record_ways(make).values()] == [1e-6] * 3


def test_all_ways_are_measured_and_stand_in_a_table():
    found = measure_ways(make)
    assert list(found) == list(WAYS)
    assert all(isinstance(way, Way) and way.alone > 0 for way in found.values())
    header, line, *rows = table_of_ways(found).splitlines()
    assert {text.count("|") for text in (header, line, *rows)} == {6}
    assert len(rows) == 3


def test_without_a_gpu_there_is_a_sentence_in_place_of_the_table():
    assert "no GPU" in table_of_ways({})
