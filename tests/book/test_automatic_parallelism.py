import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from timelines import event, timeline

from d2lpar import cpu
from d2lpar._timeline.timeline import COPY, COPY_CALL
from d2lpar.book import automatic_parallelism as page
from d2lpar.book.recorded import times_on_gpu


@jax.jit
def double(x):
    return 2 * x


def taking(monkeypatch, seconds_of):
    """Let a call take as long as a function says of its argument."""

    def measure(function, x, **options):
        return SimpleNamespace(total=SimpleNamespace(median=seconds_of(x)))

    monkeypatch.setattr(page, "measure", measure)


@pytest.mark.parametrize(
    ("jax_version", "seconds_of", "size"),
    [
        ((0, 10, 2), lambda x: len(x) / 1e5, 500),
        ((0, 10, 2), lambda x: 1.0, 250),
        ((0, 7, 2), lambda x: 1.0, 1000),
    ],
)
def test_a_matrix_is_halved_until_ten_calls_are_fast_enough_but_stays_worth_a_call(
    monkeypatch, jax_version, seconds_of, size
):
    monkeypatch.setattr(jax.version, "__version_info__", jax_version)
    taking(monkeypatch, seconds_of)
    x, seconds = page.fair_matrix(double, cpu(), 2000)
    assert (x.shape, seconds) == ((size, size), seconds_of(x))


def test_devices_of_one_kind_get_equal_calls_on_equal_matrices():
    first, second = page.fair_calls(double, (cpu(0), cpu(1)), (500, 500))
    assert (str(first), str(second)) == ("CPU 0: 10 times 500 x 500", "CPU 1: 10 times 500 x 500")
    np.testing.assert_array_equal(first.argument, second.argument)
    assert [(result == 2 * first.argument).all() for result in first()] == [True] * 10


@pytest.mark.parametrize(("slower", "counts"), [(1.5, [10, 15]), (9, [10, 30])])
def test_a_faster_device_gets_more_calls_but_not_so_many_that_python_has_to_wait(
    monkeypatch, slower, counts
):
    taking(monkeypatch, lambda x: 1e-3 * (slower if len(x) == 400 else 1))
    made = page.fair_calls(double, (cpu(), cpu()), (400, 300))
    assert [calls.count for calls in made] == counts


def test_sleeping_keeps_no_core_busy_and_counting_keeps_one():
    assert page.cores_busy(lambda: time.sleep(0.02), times=2) < 0.5

    def count():
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass

    # On a busy machine, the loop shares its core, but never gets more than that one.
    assert 0.05 < page.cores_busy(count, times=2) < 1.5


def make(index):
    return double(np.full((20, 20), index, np.float32))


def test_both_ways_make_the_same_calls_in_an_order_of_their_own():
    calls = []
    ways = (lambda _: calls.append("make")), (lambda _: calls.append("send"))
    page.copy_times(*ways, repeats=6, warmup=0)
    in_turn = ["make"] * page.COPIES + ["send"] * page.COPIES
    at_once = ["make", "send"] * page.COPIES
    assert calls == (in_turn + at_once + at_once + in_turn) * 3


@pytest.mark.parametrize("name", page.WAYS)
def test_each_way_brings_the_numbers_to_the_host(name):
    send, arrive = page.WAYS[name]
    array = make(3)
    ((original, copy),) = arrive([(array, send(array))])
    assert original is array
    np.testing.assert_array_equal(np.asarray(copy), np.full((20, 20), 6))


def test_a_copy_on_the_cpu_is_committed_to_it_and_a_pinned_one_says_so():
    assert page.put_on_cpu(make(0)).devices() == {cpu()}
    assert page.pin(make(0)).sharding.memory_kind == "pinned_host"


def bars(axes):
    return [bar.get_width() for bar in axes.patches]


def test_all_ways_are_measured_kept_and_drawn(monkeypatch):
    shown = []
    monkeypatch.setattr(page, "show_in_notebook", shown.append)
    found = page.measure_ways(make)
    page.keep_times(found)
    assert shown == [(name, way.times.at_once) for name, way in found.items()]
    assert list(found) == list(page.WAYS)
    assert all(isinstance(way, page.Way) and 0 < way.held.median <= 1 for way in found.values())
    axes = page.plot_ways_to_copy(found)
    assert bars(axes) == [way.times.at_once.median for way in found.values()]
    assert "this machine" in axes.get_xlabel()


def test_without_a_gpu_what_a_machine_with_one_has_recorded_is_drawn():
    axes = page.plot_ways_to_copy({})
    machine, times = times_on_gpu()
    assert bars(axes) == [times[name].median for name in page.WAYS]
    assert machine in axes.get_xlabel()


CHAINS = [event("CPU 0", start, start + 10, "chain", "", run) for run, start in ((1, 0), (2, 20))]


def copies(*spans):
    return [
        event("CPU 1", start, end, "device_put", COPY, run)
        for run, (start, end) in enumerate(spans)
    ]


def test_the_lead_is_from_the_first_end_of_the_one_to_the_last_end_of_the_other():
    events = (
        event("Python", 0, 1, "update", "dispatch", 1),
        event("CPU 0", 3_000, 4_000, "update", "", 1),
        event("CPU 0", 8_000, 9_000, "update", "", 2),
        event("CPU 1", 1_000, 3_500, "backward1", "", 1),
        event("CPU 2", 1_000, 7_000, "backward1", "", 2),
    )
    assert page.lead(timeline(*events), "update", "backward1") == pytest.approx(3e-6)
    assert page.lead(timeline(*events), "backward1", "update") == pytest.approx(5.5e-6)
    assert page.lead(timeline(*events[:4]), "update", "backward1") == pytest.approx(-0.5e-6)
    with pytest.raises(ValueError, match="no run of 'update' on a device"):
        page.lead(timeline(events[0], *events[3:]), "update", "backward1")


def test_a_picture_of_all_reduces_tells_them_from_what_runs_between_them():
    computing = [
        event(f"CPU {i}", 100 * n, 100 * n + 40, "step", "dot", 1) for n in range(9) for i in (0, 1)
    ]
    sums = [  # One device arrives at each and leaves it before the other.
        event(f"CPU {i}", 100 * n + start, 100 * n + end, "step", "all-reduce.1", 1)
        for n in range(9)
        for i, start, end in ((0, -2, 95), (1, 40, 100))
    ]
    loop = computing[0]._replace(duration=900, operator="while.5")
    axes = page.plot_all_reduces(timeline(*computing, *sums, loop), count=3)
    bars = [[path.get_extents() for path in bars.get_paths()] for bars in axes.collections]
    widths = [[round(1e9 * box.width) for box in boxes] for boxes in bars]
    assert widths == [[295], [60, 60, 55], [295], [95, 97, 97]]
    assert not page.plot_all_reduces(timeline(*computing)).collections


def test_copies_that_arrive_together_share_a_bar_that_says_which_they_are():
    spans = (0, 1000), (2000, 5000), (5000, 5002), (5002, 5100), (6000, 6001), (7000, 9000)
    shown = page.numbered(timeline(*copies(*spans)))
    assert [(e.program, e.start, e.end) for e in shown.row("CPU 1")] == [
        ("1", 0, 1000),
        ("2-4", 2000, 5100),
        ("5", 6000, 6001),
        ("6", 7000, 9000),
    ]


@pytest.mark.parametrize(
    ("requests", "seen", "shown"),
    [
        ((2, 3), [(18, 32), (35, 36)], [(10, 32), (32, 36)]),
        ((40, 41), [(45, 50), (52, 54)], [(40, 50), (50, 54)]),
    ],
    ids=["seen late", "requested late"],
)
def test_a_watched_copy_starts_at_its_request_after_its_run_and_after_the_copy_before(
    requests, seen, shown
):
    calls = [event("Python", start, start + 1, *COPY_CALL, start) for start in requests]
    events = *calls, *CHAINS, *copies(*seen)
    watched = page.numbered(timeline(*events, watched=["CPU 1"]))
    assert [(e.start, e.end) for e in watched.row("CPU 1")] == shown
    assert watched.watched == {"CPU 1"}
    by_profiler = page.numbered(timeline(*events))
    assert [(e.start, e.end) for e in by_profiler.row("CPU 1")] == seen


def test_of_several_recordings_one_with_most_copies_below_runs_is_shown_the_least_disturbed(
    monkeypatch,
):
    recordings = [
        timeline(*CHAINS, *copies((20, 25), (30, 90))),  # Seen late.
        timeline(*CHAINS, *copies((20, 25), (30, 35))),
        timeline(*CHAINS, *copies((20, 25), (95, 100))),  # Begun late.
        timeline(*CHAINS, *copies((30, 31), (31, 32))),
    ]
    recorded = iter(recordings)
    monkeypatch.setattr(page, "record_trace", lambda function: (None, next(recorded)))
    assert page.record_copies(print, times=4) == page.numbered(recordings[1])
