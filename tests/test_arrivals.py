import functools
import itertools

import jax
import jax.numpy as jnp

from d2lpar import block, cpu
from d2lpar.book.workloads import chain
from d2lpar.timeline import PYTHON
from d2lpar.trace import record_trace

FIRST, SECOND = (jax.device_put(jnp.eye(64), cpu(index)) for index in (0, 1))


@functools.partial(jax.jit, static_argnums=1)
def work(matrix, length=300):
    return chain(matrix, length)


block([work(FIRST), work(SECOND)])  # Nothing compiles while it is recorded.


def names(events, operator):
    return [event.program for event in events if event.operator == operator]


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
    _, before, after = run.programs.row("CPU 0")
    assert before.end < asked.start == copy.start
    assert copy.end <= after.start


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
