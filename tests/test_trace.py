import itertools
import os
import random

import jax
import numpy as np
import pytest
from recorded import FIRST, SECOND, work
from timelines import COMPUTE, on_gpu, serialized

from d2lpar import CompilationError, D2lparError, read_trace, record_trace
from d2lpar._timeline import PYTHON
from d2lpar.book.workloads import chain

# --- Files that are no trace ------------------------------------------------------------------

SMALL = {"/device:GPU:0": {COMPUTE: [on_gpu("f", "dot", 0, 10)]}}
OTHER = {"/device:GPU:1": {COMPUTE: [on_gpu("g", "dot", 0, 20)]}}


def test_a_trace_can_be_read_by_its_own_name(tmp_path):
    path = tmp_path / "mine.xplane.pb"
    path.write_bytes(serialized(SMALL))
    assert read_trace(path) == read_trace(str(path)) == read_trace(tmp_path)


def test_of_several_traces_in_a_folder_the_newest_is_read(tmp_path):
    for age, name, planes in ((9, "z", SMALL), (1, "b", OTHER), (5, "a", SMALL)):
        path = tmp_path / name / "x.xplane.pb"
        path.parent.mkdir()
        path.write_bytes(serialized(planes))
        os.utime(path, (1e9 - age, 1e9 - age))
    assert read_trace(tmp_path).rows == ("GPU 1",)


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_place_without_a_trace_is_an_error_that_says_what_to_name(tmp_path, name):
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(D2lparError, match=r"There is no trace at .*name an \.xplane\.pb file"):
        read_trace(tmp_path / name)


def test_a_trace_cut_off_anywhere_is_an_error_unless_whole_planes_are_left(tmp_path):
    path, first = tmp_path / "x.xplane.pb", serialized(SMALL)
    whole = first + serialized(OTHER)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length == len(first):
            assert read_trace(path).rows == ("GPU 0",)
        else:
            with pytest.raises(D2lparError, match="no complete trace: it is cut off"):
                read_trace(path)
    path.write_bytes(whole)
    assert read_trace(path).rows == ("GPU 0", "GPU 1")


@pytest.fixture
def recorded(tmp_path):
    """The trace that JAX's profiler has written of some work, as a file."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(tmp_path, profiler_options=options)
    jax.block_until_ready([work(FIRST), work(SECOND)])
    jax.profiler.stop_trace()
    return next(tmp_path.rglob("*.xplane.pb"))


def test_a_trace_of_jax_s_own_profiler_can_be_read(recorded):
    run = read_trace(recorded)
    assert [event.program for event in run.programs.row("CPU 0")] == ["work"]
    assert [event.program for event in run.programs.row("CPU 1")] == ["work"]
    assert [event.program for event in run.row(PYTHON)][:2] == ["work", "work"]
    assert min(event.start for event in run.events) == 0


def test_a_recorded_trace_cut_off_anywhere_does_not_end_the_process(recorded):
    whole, chance, refused = recorded.read_bytes(), random.Random(0), 0
    lengths = [len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(40))]
    for length in lengths:
        recorded.write_bytes(whole[:length])
        try:
            read_trace(recorded)  # Between two planes it may be readable.
        except D2lparError:
            refused += 1
    assert refused > 35


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b'{"traceEvents": []}',
        b"\n  Some text that begins with an empty line.\n",
        b"Some other text.",
        *(random.Random(seed).randbytes(1000) for seed in range(5)),
        b"\x1f\x8b" + bytes(100),
    ],
)
def test_a_file_of_another_kind_is_no_trace(tmp_path, content):
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(D2lparError, match=r"is no complete trace.*Record it again"):
        read_trace(path)


@pytest.mark.parametrize(
    "planes",
    [
        {"/host:metadata": {}},
        {"/device:GPU:0": {COMPUTE: []}},
        {"/host:CPU": {"python": [("PjitFunction(f)", 0, 10, {})]}},
    ],
    ids=["nothing", "gpu", "python"],
)
def test_a_trace_without_work_of_a_device_is_an_error_with_a_way_out(tmp_path, planes):
    (tmp_path / "x.xplane.pb").write_bytes(serialized(planes))
    with pytest.raises(D2lparError, match=r"no event of a device.*jax\.block_until_ready"):
        read_trace(tmp_path)


def test_without_a_reader_in_jax_a_trace_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "x.xplane.pb").write_bytes(serialized(SMALL))
    monkeypatch.delattr(jax.profiler, "ProfileData")
    with pytest.raises(D2lparError, match=f"jax {jax.__version__} cannot read traces"):
        read_trace(tmp_path)


# --- Recording --------------------------------------------------------------------------------


def names(events, operator):
    return [event.program for event in events if event.operator == operator]


def recording_works():
    _, run = record_trace(work, FIRST)
    return names(run.programs.row("CPU 0"), "") == ["work"]


def test_the_result_comes_back_ready_and_right():
    expected = work(2 * FIRST)
    result, _ = record_trace(lambda matrix, *, more: [work(more * matrix)], FIRST, more=2)
    assert result[0].is_ready()
    assert (result[0] == expected).all()


nameless = jax.jit(lambda matrix, more: matrix @ matrix + more)


@pytest.mark.parametrize(("matrix", "row"), [(FIRST, "CPU 0"), (SECOND, "CPU 1")])
@pytest.mark.parametrize("function", [work, chain, nameless], ids=["work", "chain", "lambda"])
def test_work_is_in_the_row_of_its_device_under_its_name(function, matrix, row):
    jax.block_until_ready(function(matrix, 300))
    _, run = record_trace(function, matrix, 300)
    name = function.__name__
    assert run.rows == (PYTHON, row)
    assert names(run.programs.row(row), "") == [name]
    assert names(run.row(PYTHON), "dispatch") == [name]
    assert "wait" in {event.operator for event in run.row(PYTHON)}
    assert run.watched == frozenset()


def test_calls_on_one_device_take_turns_and_no_run_starts_before_its_dispatch():
    _, run = record_trace(lambda: [work(FIRST) for _ in range(5)])
    runs = run.programs.row("CPU 0")
    dispatches = [event for event in run.row(PYTHON) if event.operator == "dispatch"]
    assert len(runs) == len(dispatches) == 5
    assert all(one.end <= other.start for one, other in itertools.pairwise(runs))
    assert all(of.start <= one.start for of, one in zip(dispatches, runs, strict=True))


def test_work_that_was_queued_before_is_not_part_of_it():
    earlier = jax.jit(lambda matrix: chain(matrix, 3000))
    jax.block_until_ready(earlier(FIRST))
    for _ in range(10):
        earlier(FIRST)
    _, run = record_trace(work, FIRST)
    assert names(run.programs.row("CPU 0"), "") == ["work"]


@pytest.mark.parametrize("result", [None, 3, np.ones(3)])
def test_a_function_without_work_for_jax_leaves_an_empty_timeline(result):
    returned, run = record_trace(lambda: result)
    assert returned is result
    assert (run.rows, run.elapsed) == ((), 0)
    assert repr(run) == "timeline of 0 s, from JAX's profiler"


def test_a_compilation_is_an_error_that_names_the_function_and_recording_goes_on():
    cold = jax.jit(lambda x: 2 * x)  # XLA has not seen it yet.
    with pytest.raises(CompilationError, match=r"jit\(<lambda>\) was compiled.*once before"):
        record_trace(cold, FIRST)
    _, run = record_trace(cold, FIRST)
    assert "CPU 0" in run.rows


def test_a_recording_inside_another_is_refused_and_the_outer_one_goes_on():
    def outer():
        with pytest.raises(D2lparError, match=r"a recording is under way.*end the other one first"):
            record_trace(work, FIRST)
        return work(FIRST)

    _, run = record_trace(outer)
    assert "work" in names(run.programs.row("CPU 0"), "")
    assert recording_works()


def test_a_recording_inside_that_of_jax_is_refused_and_that_one_goes_on(tmp_path):
    with jax.profiler.trace(tmp_path):
        with pytest.raises(D2lparError, match="JAX has one profiler"):
            record_trace(work, FIRST)
        jax.block_until_ready(work(FIRST))
    assert "work" in names(read_trace(tmp_path).programs.row("CPU 0"), "")
    assert recording_works()


def test_an_exception_passes_through_and_recording_goes_on():
    with pytest.raises(ZeroDivisionError):
        record_trace(lambda: (work(FIRST), 1 // 0))
    assert recording_works()


def test_an_exception_on_a_device_reaches_the_caller_alone_and_ends_the_recording(run_python):
    # In a process of its own, since JAX remembers a failed callback for ever.
    program = """
import tempfile, threading, jax, jax.numpy as jnp
from d2lpar import record_trace
from d2lpar.book.workloads import chain

def fail(x):
    raise ValueError("lost")

threading.excepthook = lambda of: print("raised in a thread")
failing = jax.jit(lambda x: jax.pure_callback(fail, x, x))
for call in (lambda f: jax.block_until_ready(f()), record_trace):  # The first compiles.
    try:
        call(lambda: failing(chain(jnp.eye(64), 2000)))
    except Exception as error:
        print("lost" in str(error))
with tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):
    print("free")
"""
    assert run_python(program, JAX_PLATFORMS="cpu").split() == ["True", "True", "free"]
