import os
import statistics
from types import SimpleNamespace

import pytest

from d2lpar import free_cores, usable_cores
from d2lpar._plain.cores import crowding
from d2lpar.book.one_core import can_confine, on_one_core


@pytest.fixture
def one_core():
    if not can_confine():
        pytest.skip("there is no affinity here")
    with on_one_core():
        yield


def test_cores_that_the_process_may_not_use_do_not_count(one_core):
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("count", "quota", "usable"),
    [
        (None, None, 1),  # The system does not know.
        (7, "max 100000", 7),
        (7, "300000 100000", 3),
        (7, "150000 100000", 1),
        (7, "50000 100000", 1),
    ],
)
def test_without_affinity_all_cores_count_up_to_the_whole_cores_of_a_quota(
    monkeypatch, tmp_path, count, quota, usable
):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    monkeypatch.setattr("d2lpar._plain.cores._QUOTA", tmp_path / "cpu.max")
    if quota:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores() == usable


@pytest.mark.parametrize(
    ("probes", "result"), [((1.1,), 1.1), ((1.9, 1.0), 1.0), ((1.9, 1.7), 1.7), ((1.4, 1.9), 1.4)]
)
def test_free_cores_probe_once_more_before_they_drop_a_round(monkeypatch, probes, result):
    probes = iter(probes)
    monkeypatch.setattr("d2lpar._plain.cores.crowding", lambda threads: next(probes))
    control = free_cores(2)
    assert (control.probe(), control.needs) == (result, "2 free CPU cores")
    assert next(probes, None) is None


@pytest.mark.parametrize(
    ("used", "ratio"), [((0, 2, 2, 6), 3.5), ((0, 4, 4, 6), 3.5), ((0, 0, 0, 6), 7 / 1e-9)]
)
def test_crowding_is_the_time_of_all_over_the_least_processor_time(monkeypatch, used, ratio):
    used, passed = iter(used), iter([10, 17])
    clocks = SimpleNamespace(thread_time=lambda: next(used), perf_counter=lambda: next(passed))
    monkeypatch.setattr("d2lpar._plain.cores.time", clocks)
    assert crowding(1) == ratio


@pytest.mark.timed
def test_one_thread_takes_no_less_than_its_processor_time():
    # It would if the first thread also had to make the pages of what both hash.
    assert statistics.median(crowding(1) for _ in range(9)) > 0.9


@pytest.mark.timed
def test_two_threads_on_one_core_are_crowded(one_core):
    assert statistics.median(crowding(2) for _ in range(9)) > 1.5
