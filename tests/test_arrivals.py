import itertools

import jax
import jax.numpy as jnp
from recorded import FIRST, SECOND, work

from d2lpar import block, cpu
from d2lpar._arrivals import Result, rows_of
from d2lpar.timeline import COPY, COPY_CALL, PYTHON, Event
from d2lpar.trace import record_trace


def names(events, operator):
    return [event.program for event in events if event.operator == operator]


# --- Made by hand, in nanoseconds -------------------------------------------------------------


def result(device, ready, seen=True, source_ready=None):
    return Result(device, ready, seen, source_ready)


def asked(start, end):
    """Return Python's call that asks for a copy."""
    return Event(PYTHON, *COPY_CALL, 0, start, end - start)


def rows(results, *calls, devices=("CPU 0",)):
    """Return start and end of each result, and whether it is a copy."""
    found = rows_of(results, set(devices), calls)
    return [(event.device, event.start, event.end, event.operator == COPY) for event in found]


def test_results_of_a_device_follow_one_another_from_the_beginning_on():
    found = rows([result("CPU 0", 30), result("CPU 0", 10)])
    assert found == [("CPU 0", 0, 10, False), ("CPU 0", 10, 30, False)]


def test_each_device_has_a_row_of_its_own_and_others_have_none():
    results = [result("CPU 0", 10), result("CPU 1", 15), result("CPU 2", 20)]
    assert rows(results, devices=("CPU 0", "CPU 1")) == [
        ("CPU 0", 0, 10, False),
        ("CPU 1", 0, 15, False),
    ]


def test_a_copy_starts_when_it_was_asked_for_and_its_array_was_ready():
    copies = [result("CPU 0", 50, source_ready=20), result("CPU 0", 90, source_ready=55)]
    calls = [asked(30, 31), asked(40, 41)]
    assert rows(copies, *calls) == [("CPU 0", 30, 50, True), ("CPU 0", 55, 90, True)]


def test_a_copy_that_nobody_saw_become_ready_is_drawn_as_its_call():
    copy = result("CPU 0", 200, seen=False, source_ready=0)
    assert rows([copy], asked(30, 45)) == [("CPU 0", 30, 45, True)]


def test_where_not_each_copy_has_its_call_none_is_believed():
    copies = [result("CPU 0", 50, source_ready=20)]
    assert rows(copies, asked(30, 31), asked(35, 36)) == [("CPU 0", 20, 50, True)]


def test_nothing_ends_before_it_starts():
    assert rows([result("CPU 0", 10, source_ready=0)], asked(30, 31)) == [("CPU 0", 10, 10, True)]


# --- Recorded ---------------------------------------------------------------------------------


def test_copies_to_another_cpu_device_are_seen_by_watching():
    def copied_work():
        results = [work(FIRST, 2000) for _ in range(4)]
        return [(result, jax.device_put(result, cpu(1))) for result in results]

    block(copied_work())
    result, run = record_trace(copied_work)
    assert run.rows == (PYTHON, "CPU 0", "CPU 1")
    assert run.watched == {"CPU 1"}
    assert run.source.endswith("; CPU 1 from watching when results were ready")
    assert all((of == copy).all() for of, copy in jax.device_get(result))

    sources, copies = run.programs.row("CPU 0"), run.row("CPU 1")
    assert names(copies, "memory copy") == ["device_put"] * 4
    assert all(of.end <= copy.start for of, copy in zip(sources, copies, strict=True))
    assert all(one.end <= other.start for one, other in itertools.pairwise(copies))


def test_a_copy_starts_when_python_asks_for_it_if_its_source_was_there_before():
    def function():
        source = block(work(FIRST))
        block(work(FIRST))
        copy = jax.device_put(source, cpu(1))
        block(work(FIRST))
        return source, copy

    _, run = record_trace(function)
    (asked,) = (event for event in run.row(PYTHON) if event.program == "device_put")
    (copy,) = run.row("CPU 1")
    _, before, _ = run.programs.row("CPU 0")
    assert before.end < asked.start == copy.start


def test_a_copy_that_outlasts_the_function_starts_when_python_asks_for_it():
    large = block(jax.device_put(jnp.ones((2000, 2000)), cpu(0)))
    _, run = record_trace(lambda: (large, jax.device_put(large, cpu(1))))
    (asked,) = (event for event in run.row(PYTHON) if event.program == "device_put")
    (copy,) = run.row("CPU 1")
    assert copy.start == asked.start


def test_a_copy_that_the_function_itself_waits_for_is_drawn_as_the_call_that_asked_for_it():
    def function():
        source = work(FIRST, 2000)
        copy = jax.device_put(source, cpu(1))
        return block((source, copy))

    block(function())
    _, run = record_trace(function)
    (copy,) = run.row("CPU 1")
    (asked,) = [event for event in run.row(PYTHON) if event.program == "device_put"]
    assert (copy.start, copy.end) == (asked.start, asked.end)


def test_a_result_that_was_donated_away_is_no_problem():
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def function():
        result = work(FIRST)
        return result, add(result)

    block(function()[1])
    (gone, kept), run = record_trace(function)
    assert gone.is_deleted()
    assert kept.is_ready()
    assert len(run.programs.row("CPU 0")) == 2


def test_without_a_reader_in_jax_all_devices_are_watched(monkeypatch):
    monkeypatch.delattr(jax.profiler, "ProfileData")
    _, run = record_trace(lambda: ((work(FIRST), work(FIRST)), work(SECOND)))
    assert run.rows == ("CPU 0", "CPU 1")
    assert run.source == "from watching when results were ready"
    first, second = run.row("CPU 0")
    assert [first.program, second.program] == ["result", "result"]  # Neither is a copy.
    assert 0 == first.start < first.end <= second.start
