import gc
import mmap
import threading
import weakref
from types import SimpleNamespace

import pytest

from d2lpar import PeakMemory, cpu, device_memory, host_memory


def test_a_peak_inside_the_block_is_seen_though_memory_is_back_at_its_end():
    memory = PeakMemory(lambda: probe(), interval=1e-4)
    for _ in range(2):
        readings, read_all = iter([10, 30, 90]), threading.Event()

        def probe(readings=readings, read_all=read_all):
            reading = next(readings, 20)
            if reading == 20:
                read_all.set()
            return reading

        with memory:
            assert read_all.wait(timeout=30)
        assert (memory.before, memory.peak, memory.increase) == (10, 90, 80)
        assert memory.samples[-1][1] == 20


def test_a_block_shorter_than_the_interval_ends_in_a_sample_and_each_use_begins_anew():
    readings = iter([10, 90, 20, 5])
    memory = PeakMemory(lambda: next(readings), interval=1000)
    for counts, increase in (([10, 90], 80), ([20, 5], 0)):
        with memory:
            pass
        assert [count for _, count in memory.samples] == counts
        assert memory.samples[0][0] == 0 < memory.samples[1][0]
        assert (memory.before, memory.increase) == (counts[0], increase)


def test_garbage_of_an_earlier_run_is_not_counted():
    cycle = threading.Event()  # Any object that may be in a cycle.
    cycle.itself = cycle
    alive = weakref.ref(cycle)
    gc.disable()
    try:
        del cycle
        with PeakMemory(lambda: 0 if alive() is None else 100, interval=1000) as memory:
            pass
    finally:
        gc.enable()
    assert memory.before == 0


def test_an_exception_in_the_block_stops_the_sampling_and_is_not_masked_by_one_of_the_probe():
    before = set(threading.enumerate())
    readings = iter([10])  # One for the beginning, none for the end.
    with pytest.raises(KeyError), PeakMemory(lambda: next(readings), interval=1000):
        raise KeyError
    assert set(threading.enumerate()) <= before


def test_host_memory_grows_by_what_is_held_and_used():
    before = host_memory()
    # Not `np.ones`: malloc may serve it from memory that this process already holds.
    with mmap.mmap(-1, 50_000_000) as held:
        held.write(bytes(50_000_000))
        assert host_memory() - before > 0.9 * len(held)


def test_a_gpu_says_how_many_bytes_are_in_use_and_a_cpu_does_not():
    statistics = {"bytes_in_use": 7, "peak_bytes_in_use": 9}
    assert device_memory(SimpleNamespace(platform="gpu", memory_stats=lambda: statistics)) == 7
    assert device_memory(cpu()) is None


def test_a_probe_that_fails_while_the_block_runs_is_not_passed_over():
    failed = threading.Event()

    def probe():
        if threading.current_thread() is threading.main_thread():
            return 10
        failed.set()
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"), PeakMemory(probe, interval=1e-4):
        assert failed.wait(60)


def test_the_second_of_two_blocks_needs_as_much_as_the_first(run_python):
    # Small pieces of memory: the C library never gives them back by itself.
    program = """
from d2lpar import PeakMemory, release_freed_memory
risen = []
for _ in range(5):
    with PeakMemory() as memory:
        blocks = [bytearray(1000) for _ in range(20_000)]
    risen.append(memory.increase)
    blocks = [blocks[-1]]  # The last one keeps the end of the heap in place.
print(not release_freed_memory() or min(risen) > 1e7)
"""
    assert run_python(program) == "True"
