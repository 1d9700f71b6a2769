import functools
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from fakes import crowded_in
from jax.profiler import TraceAnnotation
from timelines import COMPUTE, FROM_HOST, TO_HOST, on_cpu, on_gpu, serialized, spans

from d2lpar import CompilationError, Event, cpu, read_trace, record_trace, record_typical, watch
from d2lpar._plain.errors import D2lparError
from d2lpar._timeline import recording
from d2lpar._timeline.recording import Result, rows_of, watch_results
from d2lpar._timeline.timeline import PYTHON
from d2lpar.book.workloads import chain

FIRST, SECOND = (jax.device_put(np.eye(64, dtype=np.float32), cpu(index)) for index in (0, 1))


@functools.partial(jax.jit, static_argnums=1)
def work(matrix, length=300):
    return chain(matrix, length)


@pytest.fixture(autouse=True)
def compiled():
    """Compile before each test: in a run of all tests, JAX once dropped the compiled programs."""
    jax.block_until_ready([work(FIRST), work(SECOND)])


SMALL = {"/device:GPU:0": {COMPUTE: [on_gpu("f", "dot", 0, 10)]}}
OTHER = {"/device:GPU:1": {COMPUTE: [on_gpu("g", "dot", 0, 20)]}}


def test_of_several_traces_in_a_folder_the_newest_is_read(tmp_path):
    for age, name, planes in ((9, "z", SMALL), (1, "b", OTHER), (5, "a", SMALL)):
        path = tmp_path / name / "x.xplane.pb"
        path.parent.mkdir()
        path.write_bytes(serialized(planes))
        os.utime(path, (1e9 - age, 1e9 - age))
    assert read_trace(tmp_path) == read_trace(str(tmp_path / "b" / "x.xplane.pb"))
    assert read_trace(tmp_path).rows == ("GPU 1",)


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_place_without_a_trace_is_an_error_that_says_what_to_name(tmp_path, name):
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(D2lparError, match=r"There is no trace at .*name an \.xplane\.pb file"):
        read_trace(tmp_path / name)


def test_a_file_cut_off_or_of_another_kind_is_no_trace_unless_its_planes_are_whole(tmp_path):
    path, first = tmp_path / "x.xplane.pb", serialized(SMALL)
    both = first + serialized(OTHER)
    cut_off = [both[:length] for length in range(len(both)) if length != len(first)]
    others = [b'{"traceEvents": []}', b"\n  Text that begins with an empty line.\n"]
    for content in cut_off + others:
        path.write_bytes(content)
        with pytest.raises(D2lparError, match=r"not a complete trace: it is.*Record it again"):
            read_trace(path)
    for content, rows in ((first, ("GPU 0",)), (both, ("GPU 0", "GPU 1"))):
        path.write_bytes(content)
        assert read_trace(path).rows == rows


@pytest.mark.parametrize(
    "planes",
    [{"/device:GPU:0": {COMPUTE: []}}, {"/host:CPU": {"python": [("PjitFunction(f)", 0, 10, {})]}}],
    ids=["gpu", "python"],
)
def test_a_trace_without_work_of_a_device_is_an_error_with_a_way_out(read, planes):
    with pytest.raises(D2lparError, match=r"no device events.*jax\.block_until_ready"):
        read(planes)


def names(events, operator):
    return [event.program for event in events if event.operator == operator]


def recording_works():
    _, run = record_trace(work, FIRST)
    return names(run.programs.row("CPU 0"), "") == ["work"]


nameless = jax.jit(lambda matrix, more: matrix @ matrix + more)


@pytest.mark.parametrize(("matrix", "row"), [(FIRST, "CPU 0"), (SECOND, "CPU 1")])
@pytest.mark.parametrize("function", [work, nameless], ids=["work", "lambda"])
def test_work_is_in_the_row_of_its_device_under_its_name(function, matrix, row):
    jax.block_until_ready(function(matrix, 300))
    _, run = record_trace(function, matrix, 300)
    name = function.__name__
    assert run.rows == (PYTHON, row)
    assert names(run.programs.row(row), "") == [name]
    assert names(run.row(PYTHON), "dispatch") == [name]
    assert run.watched == frozenset()
    assert run.busy(row) < run.seconds


def test_the_result_comes_back_ready_and_right_with_typed_keys_as_well():
    step = jax.jit(lambda x, *, key: {"weights": chain(x, 300), "key": jax.random.split(key)})
    key = jax.device_put(jax.random.key(0), cpu(0))
    expected = jax.block_until_ready(step(FIRST, key=key))
    result, run = record_trace(step, FIRST, key=key)
    assert result["weights"].is_ready()
    assert all((result[name] == expected[name]).all() for name in expected)
    assert "CPU 0" in run.rows
    jax.block_until_ready(jax.device_put(key, cpu(1)))
    _, run = record_trace(lambda: [(key, jax.device_put(key, cpu(1))), key, key])
    assert [event.operator for event in run.row("CPU 1")] == ["memory copy"]


def test_work_that_was_queued_before_is_not_part_of_it():
    jax.block_until_ready(chain(FIRST, 3000))
    for _ in range(10):
        chain(FIRST, 3000)
    assert recording_works()


def test_a_function_without_work_for_jax_leaves_an_empty_timeline():
    def function():
        return np.array([1.0]), np.asarray(2), np.array(object=3)  # Nothing waits for these.

    result, run = record_trace(function)
    assert result == (1.0, 2, 3)
    assert (run.rows, run.elapsed) == ((), 0)
    assert run.seconds > 0


def test_a_compilation_is_an_error_that_names_the_function_and_recording_goes_on():
    cold = jax.jit(lambda x: 2 * x)  # XLA has not seen it yet.
    with pytest.raises(CompilationError, match=r"jit\(<lambda>\) was compiled.*once before"):
        record_trace(cold, FIRST)
    _, run = record_trace(cold, FIRST)
    assert "CPU 0" in run.rows


def test_a_recording_inside_another_is_refused_and_the_outer_one_goes_on(tmp_path, monkeypatch):
    def outer():
        with pytest.raises(D2lparError, match=r"during another recording.*end the other"):
            record_trace(work, FIRST)
        return work(FIRST)

    monkeypatch.chdir(tmp_path)
    _, run = record_trace(outer)
    assert "work" in names(run.programs.row("CPU 0"), "")
    assert not list(tmp_path.iterdir())  # Only the program's own recording writes files.
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(outer())
    assert "work" in names(read_trace(tmp_path).programs.row("CPU 0"), "")


def test_a_program_that_is_watched_can_record():
    with watch(interval=1e-3):
        assert all(recording_works() for _ in range(40))


def test_a_recording_that_the_function_ends_itself_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Before 0.12, JAX writes files then.
    with pytest.raises(RuntimeError, match="No profile started"):
        record_trace(jax.profiler.stop_trace)
    assert recording_works()


def test_an_exception_on_a_device_reaches_the_caller_alone_and_ends_the_recording(run_python):
    # In a process of its own, since JAX remembers a failed callback forever.
    program = """
import threading, jax, jax.numpy as jnp
from d2lpar import record_trace
from d2lpar._jax.state import is_recording

threading.excepthook = lambda args: print("raised in a thread")
failing = jax.jit(lambda x: jax.pure_callback(lambda x: 1 // 0, x, x))
for call in (lambda f: jax.block_until_ready(f()), record_trace):  # The first compiles.
    try:
        call(lambda: failing(jnp.eye(64)))
    except Exception as error:
        print("division" in str(error), is_recording())
"""
    assert run_python(program, JAX_PLATFORMS="cpu").split() == ["True", "False"] * 2


@pytest.mark.parametrize(
    ("seconds", "control", "median"),
    [
        ([9, 2, 1, 3, 4], None, 3),
        ([4, 2, 1, 3], None, 2),
        ([9, 2, 1, 3, 4], crowded_in({0, 3, 4}), 1),
        ([9, 2, 1, 3, 4], crowded_in(range(5)), 3),
    ],
)
def test_of_several_recordings_that_count_the_one_of_median_length_is_returned(
    monkeypatch, seconds, control, median
):
    lengths = iter(seconds)

    def record(function, *args, **kwargs):
        length = next(lengths)
        return recording._Recording((length, *function(*args, **kwargs)), (), b"", length)

    monkeypatch.setattr(recording, "_record", record)
    result, run = record_typical(lambda x, y: (x, y), 5, y=6, times=len(seconds), control=control)
    assert (result, run.seconds) == ((median, 5, 6), median)
    assert next(lengths, None) is None


WAITS = {
    "block_until_ready": lambda array: jax.block_until_ready(array),
    "block_until_ready of an array": lambda array: array.block_until_ready(),
    "float": float,
    "int": int,
    "bool": bool,
    "item": lambda array: array.item(),
    "tolist": lambda array: array.tolist(),
    "asarray": lambda array: np.asarray(array),
    "array": lambda array: np.array(array),
    "asarray of JAX": jax.device_get,
}
corner = jax.jit(lambda matrix: chain(matrix, 2000)[0, 0])


@pytest.mark.parametrize(("name", "wait"), WAITS.items(), ids=WAITS)
def test_a_wait_for_a_value_is_in_python_s_row_under_the_name_of_the_waiting_function(name, wait):
    def call():
        wait(corner(FIRST))

    call()
    _, run = record_trace(call)
    assert names(run.row(PYTHON), "wait") == [name.split()[0], "block_until_ready"]  # Ours is last.


def test_annotations_of_the_recorded_function_are_shown_in_the_row_of_their_thread():
    named = jax.profiler.annotate_function(lambda: work(SECOND), name="in a function")

    def read():
        with jax.profiler.TraceAnnotation("read #1"):
            work(FIRST)

    def function():
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()
        with TraceAnnotation("outer", size=3), jax.profiler.StepTraceAnnotation("step", step_num=1):
            result = named()
        float(result[0, 0])  # JAX annotates this by itself.
        return result

    jax.block_until_ready(function())
    _, run = record_trace(function)
    assert names(run.row(PYTHON), "annotation") == ["outer", "step", "in a function"]
    assert names(run.row(f"{PYTHON} 2"), "annotation") == ["read #1"]
    assert names(run.row(f"{PYTHON} 2"), "dispatch") == ["work"]
    assert names(run.row(f"{PYTHON} 2"), "wait") == []
    assert names(run.row(PYTHON), "dispatch")[0] == "work"


def test_the_row_of_a_thread_has_the_name_that_the_program_gave_it():
    def read(_):
        with TraceAnnotation("read #1"):
            ready.wait()  # Both threads have to be there.

    def function():
        with ThreadPoolExecutor(2, "reader") as readers:
            list(readers.map(read, range(2)))

    ready = threading.Barrier(2)
    _, run = record_trace(function)
    assert run.rows == (f"{PYTHON} reader 0", f"{PYTHON} reader 1")
    assert names(run.events, "annotation") == ["read #1", "read #1"]


def everything_replaced():
    arrays, annotation = vars(type(FIRST)), vars(TraceAnnotation)
    return dict(arrays), dict(annotation), jax.block_until_ready, np.asarray, np.array


def test_jax_and_numpy_are_left_as_they_were_also_by_a_function_that_raises():
    def function():
        assert everything_replaced() != before
        raise ZeroDivisionError

    before = everything_replaced()
    with pytest.raises(ZeroDivisionError):
        record_trace(function)
    assert everything_replaced() == before
    assert recording_works()


def test_copies_to_another_cpu_device_are_seen_by_watching():
    def copied_work():
        results = [work(FIRST, 2000) for _ in range(4)]
        return [(result, jax.device_put(result, cpu(1))) for result in results]

    jax.block_until_ready(copied_work())
    _, run = record_trace(copied_work)
    assert run.watched == {"CPU 1"}
    sources, copies = run.programs.row("CPU 0"), run.row("CPU 1")
    assert names(copies, "memory copy") == ["device_put"] * 4
    assert all(run.end <= copy.start for run, copy in zip(sources, copies, strict=True))
    assert all(copy.end <= following.start for copy, following in itertools.pairwise(copies))


@pytest.mark.parametrize(
    ("copies", "bars"),
    [
        # Where the function returns before the array and the copy, before the copy, or after both.
        ([Result("CPU 1", 90, True, 50)], [(50, 90)]),
        ([Result("CPU 1", 90, True, 0)], [(20, 90)]),
        ([Result("CPU 1", 90, False, 50)], [(20, 30)]),
        # No call is taken for a copy's own where not each copy comes back.
        ([Result("CPU 1", 60, True, 0), Result("CPU 1", 90, True, 0)], [(0, 60), (60, 90)]),
    ],
)
def test_a_copy_begins_when_python_asks_for_it_and_the_array_is_ready(copies, bars):
    call = Event(PYTHON, "device_put", "dispatch", 0, 20, 10)
    assert [(bar.start, bar.end) for bar in rows_of(copies, {"CPU 1"}, [call])] == bars


def test_what_was_ready_when_the_function_returned_is_not_late():
    (array, copy), _ = watch_results((FIRST, SECOND), began=0)
    assert (array.late, array.source_ready) == (False, None)
    assert (copy.late, copy.source_ready) == (False, 0)


def test_a_result_that_was_donated_away_is_no_problem():
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def function():
        result = work(FIRST)
        return result, add(result)

    jax.block_until_ready(function()[1])
    (gone, kept), _ = record_trace(function)
    assert (gone.is_deleted(), kept.is_ready()) == (True, True)


def test_on_a_back_end_without_a_profiler_all_devices_are_watched(monkeypatch):
    monkeypatch.setattr(recording, "read_events", lambda data: ())
    _, run = record_trace(lambda: ((work(FIRST), work(FIRST)), work(SECOND)))
    assert run.rows == ("CPU 0", "CPU 1")
    assert run.source == "from watching when results were ready"
    first, second = run.row("CPU 0")
    assert [first.program, second.program] == ["result", "result"]  # Neither is a copy.
    assert 0 == first.start < first.end <= second.start


@pytest.fixture
def read(tmp_path):
    """A function that writes a trace, of planes or of lines of the CPU's, and reads it back."""

    def read(planes=None, **cpu):
        planes = planes or {"/host:CPU": cpu}
        (tmp_path / "x.xplane.pb").write_bytes(serialized(planes))
        return read_trace(tmp_path)

    return read


def test_the_streams_of_a_gpu_become_a_row_for_its_programs_and_one_for_each_way_to_copy(read):
    operators = [on_gpu("f", "dot", 100, 200)]
    run = read(
        {
            "/device:GPU:0": {
                COMPUTE: operators,
                TO_HOST: [("MemcpyD2H", 210, 260, {})],
                FROM_HOST: [("MemcpyH2D", 50, 90, {})],
                "XLA Ops": operators,  # Repeats the streams.
                "XLA Modules": [],
            },
            "/device:GPU:1": {COMPUTE: [on_gpu("g", "dot", 150, 250)]},
        }
    )
    assert run.events == (
        Event("GPU 0 from host", "MemcpyH2D", "memory copy", 1, 0, 40),
        Event("GPU 0", "f", "dot", 0, 50, 100),
        Event("GPU 1", "g", "dot", 0, 100, 100),
        Event("GPU 0 to host", "MemcpyD2H", "memory copy", 2, 160, 50),
    )
    assert run.source == "from JAX's profiler"


def test_runs_on_a_gpu_begin_with_the_first_operator_again_or_with_another_program(read):
    operators = [("f", "a"), ("f", "b"), ("f", "a"), ("f", "b"), ("g", "a"), ("g", "a"), ("f", "a")]
    events = [on_gpu(*operator, 10 * n, 10 * n + 5) for n, operator in enumerate(operators)]
    run = read({"/device:GPU:0": {COMPUTE: events, TO_HOST: [("MemcpyD2H", 6, 25, {})]}})
    runs = [("f", 0, 15), ("f", 20, 35), ("g", 40, 45), ("g", 50, 55), ("f", 60, 65)]
    assert spans(run.programs.row("GPU 0")) == runs


def test_two_cpu_devices_that_share_the_number_of_a_run_have_a_row_each(read):
    run = read(
        first=[on_cpu(0, "f", "dot", 0, 10), on_cpu(0, "f", "tanh", 10, 15)],
        second=[on_cpu(1, "g", "dot", 5, 25), on_cpu(1, "g", "dot", 30, 40, 8)],
    )
    assert run.rows == ("CPU 0", "CPU 1")
    assert spans(run.programs.row("CPU 0")) == [("f", 0, 15)]
    assert spans(run.programs.row("CPU 1")) == [("g", 5, 25), ("g", 30, 40)]


def test_a_run_is_under_way_while_it_waits_for_other_threads_but_markers_are_no_work(read):
    waiting = {"device_ordinal": 0, "run_id": 7}
    marker = on_cpu(0, "f", "dot", 200, 300)[1:]
    run = read(
        worker=[
            ("ThunkExecutor::Execute (wait for completion)", 10, 90, waiting),
            on_cpu(0, "f", "dot", 0, 10),
            ("end: dot", *marker),
            ("ThreadpoolListener::StartRegion", *marker),
            ("wait for completion", 400, 500, waiting | {"run_id": 99}),  # Of an unknown run.
        ]
    )
    assert spans(run.programs.events) == [("f", 0, 90)]


def test_python_s_row_shows_the_outermost_calls_and_all_annotations(read):
    run = read(
        python=[
            ("PjitFunction(outer)", 0, 50, {}),
            ("PjitFunction(outer)", 1, 49, {}),
            ("PjitFunction(inner)", 10, 20, {}),
            ("DevicePutWithSharding", 60, 70, {}),
            ("d2lpar.wait float", 80, 120, {}),
            ("np.asarray(jax.Array)", 85, 115, {}),
            ("ParseArguments", 130, 140, {}),
            ("d2lpar.annotation step", 200, 290, {}),
            ("d2lpar.annotation read #1", 210, 230, {}),
            ("PjitFunction(outer)", 220, 240, {}),
            ("np.asarray(jax.Array)", 250, 280, {}),
        ],
        worker=[on_cpu(0, "outer", "dot", 40, 100)],
    )
    calls = run.programs.row(PYTHON)
    assert [(call.program, call.operator, call.start, call.end) for call in calls] == [
        ("outer", "dispatch", 0, 50),
        ("device_put", "dispatch", 60, 70),
        ("float", "wait", 80, 120),
        ("step", "annotation", 200, 290),
        ("read #1", "annotation", 210, 230),
        ("outer", "dispatch", 220, 240),
        ("asarray", "wait", 250, 280),
    ]


def test_the_thread_that_was_recorded_is_python_and_others_that_call_are_numbered(read):
    run = read(
        # A watching thread may have the line of a thread that has ended.
        helper=[
            ("PjitFunction(g)", 130, 140, {}),
            ("d2lpar.watch_results", 150, 190, {}),
            ("d2lpar.wait block_until_ready", 151, 189, {}),
        ],
        watcher=[("d2lpar.wait block_until_ready", 110, 190, {})],
        python=[("PjitFunction(f)", 110, 120, {}), ("d2lpar.record_trace", 100, 200, {})],
        worker=[on_cpu(0, "f", "dot", 120, 150)],
    )
    assert set(run.rows) == {"Python", "Python 2", "CPU 0"}
    assert spans(run.row("Python")) == [("f", 10, 20)]
    assert spans(run.row("Python 2")) == [("g", 30, 40)]


def test_events_that_began_before_or_after_the_recorded_call_are_left_out(read):
    work = [on_cpu(0, "f", "dot", start, start + 5, start) for start in (90, 100, 150, 200)]
    run = read(python=[("d2lpar.record_trace", 100, 200, {})], worker=work)
    assert spans(run.events) == [("f", 0, 5), ("f", 50, 55)]
