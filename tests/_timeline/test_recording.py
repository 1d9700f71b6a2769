import contextlib
import itertools
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.profiler import TraceAnnotation
from recorded import FIRST, SECOND, work
from timelines import COMPUTE, FROM_HOST, TO_HOST, on_cpu, on_gpu, serialized, spans

from d2lpar import (
    CompilationError,
    Control,
    D2lparError,
    cpu,
    read_trace,
    record_trace,
    record_typical,
)
from d2lpar._timeline import recording
from d2lpar._timeline.timeline import PYTHON
from d2lpar.book.workloads import chain


@pytest.fixture(autouse=True)
def compiled():
    """Compile before each test: in a run of all, JAX had once forgotten what an import compiled."""
    jax.block_until_ready([work(FIRST), work(SECOND)])


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


def test_a_trace_of_jax_s_own_profiler_can_be_read(tmp_path):
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready([work(FIRST), work(SECOND)])
    run = read_trace(tmp_path)
    assert [event.program for event in run.programs.row("CPU 0")] == ["work"]
    assert [event.program for event in run.programs.row("CPU 1")] == ["work"]
    assert [event.program for event in run.row(PYTHON)][:2] == ["work", "work"]
    assert min(event.start for event in run.events) == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"traceEvents": []}',
        b"\n  Some text that begins with an empty line.\n",
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
    monkeypatch.setattr(jax.profiler, "ProfileData", None)  # As jax 0.7.0 has it.
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


def test_a_timeline_knows_how_long_the_recorded_call_took_until_its_results_were_ready():
    _, run = record_trace(work, FIRST)
    assert run.busy("CPU 0") < run.seconds
    assert record_trace(lambda: None)[1].seconds > 0


def test_results_may_be_typed_keys():
    step = jax.jit(lambda x, key: {"weights": chain(x, 300), "key": jax.random.split(key)})
    key = jax.random.key(0)
    expected = jax.block_until_ready(step(FIRST, key))
    result, run = record_trace(step, FIRST, key)
    assert "CPU 0" in run.rows
    assert (result["key"] == expected["key"]).all()
    keys, _ = record_trace(lambda: [result["key"], result["key"]])
    assert keys[0] is result["key"]


def test_a_copy_of_a_typed_key_is_a_copy():
    key = jax.device_put(jax.random.key(0), cpu(0))
    jax.block_until_ready(jax.device_put(key, cpu(1)))
    _, run = record_trace(lambda: (key, jax.device_put(key, cpu(1))))
    assert [event.operator for event in run.row("CPU 1")] == ["memory copy"]


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


# --- A typical recording ------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch):
    """A function that has the recordings to come take so many seconds, and counts them."""

    def recorded(*seconds):
        lengths, made = iter(seconds), []

        def record(function, *args, **kwargs):
            made.append(next(lengths))
            return recording._Recording(function(*args, **kwargs), (), b"", made[-1])

        monkeypatch.setattr(recording, "_record", record)
        return made

    return recorded


def held(*rounds):
    """Return a control that holds in these rounds."""
    count = itertools.count()
    return Control(lambda: float(next(count) not in rounds), 0.5, "two free cores")


@pytest.mark.parametrize(
    ("seconds", "control", "median"),
    [
        ([9, 2, 1, 3, 4], None, 3),
        ([4, 2, 1, 3], None, 2),
        ([7], None, 7),
        ([9, 2, 1, 3, 4], held(1, 2), 1),
        ([9, 2, 1, 3, 4], held(0), 9),
        ([9, 2, 1, 3, 4], held(), 3),
    ],
)
def test_of_several_recordings_that_count_the_one_of_median_length_is_returned(
    recorded, seconds, control, median
):
    made = recorded(*seconds)
    (result, x, y), run = record_typical(
        lambda x, y: (len(made), x, y), 5, y=6, times=len(seconds), control=control
    )
    assert run.seconds == median
    assert seconds[result - 1] == median  # The result is that of the same recording.
    assert (x, y, len(made)) == (5, 6, len(seconds))


# --- What Python's row shows -------------------------------------------------------------------


def until_value(array):
    if array > 0:
        return 1


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
    "bool of a condition": until_value,
}
corner = jax.jit(lambda matrix: chain(matrix, 2000)[0, 0])


@pytest.mark.parametrize(("name", "wait"), WAITS.items(), ids=WAITS)
def test_a_wait_for_a_value_is_in_python_s_row_under_the_name_of_what_waits(name, wait):
    def call():
        wait(corner(FIRST))

    call()
    _, run = record_trace(call)
    assert names(run.row(PYTHON), "wait") == [name.split()[0], "block_until_ready"]  # Ours is last.


def test_a_value_that_no_device_has_computed_is_no_wait():
    _, run = record_trace(lambda: (np.array([1.0]), np.asarray(2), np.array(object=3)))
    assert run.rows == ()


def test_what_python_does_has_the_name_that_the_recorded_function_gives_it_in_each_thread():
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


def everything_replaced():
    arrays, annotation = vars(type(FIRST)), vars(TraceAnnotation)
    return dict(arrays), dict(annotation), jax.block_until_ready, np.asarray, np.array


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_jax_and_numpy_are_left_as_they_were(error):
    def function():
        assert everything_replaced() != before
        if error:
            raise error

    before = everything_replaced()
    with pytest.raises(error) if error else contextlib.nullcontext():
        record_trace(function)
    assert everything_replaced() == before


def test_where_the_class_of_arrays_has_no_such_method_only_its_waits_are_not_shown(monkeypatch):
    monkeypatch.setattr(recording, "_WAITS", ("gone",))
    _, run = record_trace(lambda: work(FIRST).block_until_ready().devices())
    assert len(names(run.row(PYTHON), "wait")) == 1  # That of the recording.
    assert not hasattr(FIRST, "gone")


# --- When results become ready ----------------------------------------------------------------


def test_copies_to_another_cpu_device_are_seen_by_watching():
    def copied_work():
        results = [work(FIRST, 2000) for _ in range(4)]
        return [(result, jax.device_put(result, cpu(1))) for result in results]

    jax.block_until_ready(copied_work())
    result, run = record_trace(copied_work)
    assert run.rows == (PYTHON, "CPU 0", "CPU 1")
    assert run.watched == {"CPU 1"}
    assert run.source.endswith("; CPU 1 from watching when results were ready")
    assert all((of == copy).all() for of, copy in jax.device_get(result))

    sources, copies = run.programs.row("CPU 0"), run.row("CPU 1")
    assert names(copies, "memory copy") == ["device_put"] * 4
    assert all(of.end <= copy.start for of, copy in zip(sources, copies, strict=True))
    assert all(one.end <= other.start for one, other in itertools.pairwise(copies))


def test_a_copy_that_outlasts_the_function_starts_when_python_asks_for_it():
    large = jax.block_until_ready(jax.device_put(jnp.ones((2000, 2000)), cpu(0)))
    _, run = record_trace(lambda: (large, jax.device_put(large, cpu(1))))
    (asked,) = (event for event in run.row(PYTHON) if event.program == "device_put")
    (copy,) = run.row("CPU 1")
    assert copy.start == asked.start


def test_a_copy_that_the_function_itself_waits_for_is_drawn_as_the_call_that_asked_for_it():
    def function():
        source = work(FIRST, 2000)
        copy = jax.device_put(source, cpu(1))
        return jax.block_until_ready((source, copy))

    jax.block_until_ready(function())
    _, run = record_trace(function)
    (copy,) = run.row("CPU 1")
    (asked,) = [event for event in run.row(PYTHON) if event.program == "device_put"]
    assert (copy.start, copy.end) == (asked.start, asked.end)


def test_where_not_each_copy_comes_back_no_call_is_taken_for_its_own():
    def function():
        source = jax.block_until_ready(work(FIRST))
        jax.block_until_ready(jax.device_put(source, cpu(1)))
        return source, jax.device_put(source, cpu(1))

    _, run = record_trace(function)
    assert run.row("CPU 1")[0].start == 0


def test_a_result_that_was_donated_away_is_no_problem():
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def function():
        result = work(FIRST)
        return result, add(result)

    jax.block_until_ready(function()[1])
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


# --- Reading a trace ----------------------------------------------------------------------------


@pytest.fixture
def read(tmp_path):
    """A function that writes a trace, of planes or of lines of the CPU's, and reads it back."""

    def read(planes=None, **cpu):
        planes = planes or {"/host:CPU": cpu}
        (tmp_path / "x.xplane.pb").write_bytes(serialized(planes))
        return read_trace(tmp_path)

    return read


def test_the_streams_of_a_gpu_become_a_row_for_its_programs_and_one_for_each_way_to_copy(read):
    run = read(
        {
            "/device:GPU:0": {
                COMPUTE: [on_gpu("f", "dot", 100, 200)],
                TO_HOST: [("MemcpyD2H", 210, 260, {})],
                FROM_HOST: [("MemcpyH2D", 50, 90, {})],
            },
            "/device:GPU:1": {COMPUTE: [on_gpu("g", "dot", 150, 250)]},
        }
    )
    assert run.rows == ("GPU 0", "GPU 0 from host", "GPU 0 to host", "GPU 1")
    (of_f,) = run.row("GPU 0")
    assert (of_f.program, of_f.operator, of_f.start, of_f.duration) == ("f", "dot", 50, 100)
    assert spans(run.row("GPU 0 from host")) == [("MemcpyH2D", 0, 40)]
    assert spans(run.row("GPU 0 to host")) == [("MemcpyD2H", 160, 210)]
    assert spans(run.row("GPU 1")) == [("g", 100, 200)]
    assert run.source == "from JAX's profiler"


def test_runs_on_a_gpu_begin_with_the_first_operator_again_or_with_another_program(read):
    operators = [("f", "a"), ("f", "b"), ("f", "a"), ("f", "b"), ("g", "a"), ("g", "a"), ("f", "a")]
    events = [on_gpu(*of, 10 * n, 10 * n + 5) for n, of in enumerate(operators)]
    run = read({"/device:GPU:0": {COMPUTE: events}})
    assert spans(run.programs.row("GPU 0")) == [
        ("f", 0, 15),
        ("f", 20, 35),
        ("g", 40, 45),
        ("g", 50, 55),
        ("f", 60, 65),
    ]


def test_a_copy_beside_a_program_of_a_gpu_does_not_cut_it_in_two(read):
    operators = [on_gpu("f", name, start, start + 8) for name, start in (("a", 0), ("b", 10))]
    again = [on_gpu("f", name, start, start + 8) for name, start in (("a", 20), ("b", 30))]
    copy = ("MemcpyD2H", 5, 25, {})
    run = read({"/device:GPU:0": {COMPUTE: operators + again, TO_HOST: [copy]}})
    assert spans(run.programs.row("GPU 0")) == [("f", 0, 18), ("f", 20, 38)]


def test_a_line_that_repeats_what_the_streams_did_is_not_counted_again(read):
    operators = [on_gpu("f", "a", 0, 10)]
    run = read({"/device:GPU:0": {COMPUTE: operators, "XLA Ops": operators, "XLA Modules": []}})
    assert len(run.events) == 1


def test_two_cpu_devices_that_share_the_number_of_a_run_have_a_row_each(read):
    run = read(
        first=[on_cpu(0, "f", "dot", 0, 10), on_cpu(0, "f", "tanh", 10, 15)],
        second=[on_cpu(1, "g", "dot", 5, 25), on_cpu(1, "g", "dot", 30, 40, 8)],
    )
    assert run.rows == ("CPU 0", "CPU 1")
    assert spans(run.programs.row("CPU 0")) == [("f", 0, 15)]
    assert spans(run.programs.row("CPU 1")) == [("g", 5, 25), ("g", 30, 40)]


def test_a_program_that_waits_for_other_threads_is_still_under_way(read):
    waiting = {"device_ordinal": 0, "run_id": 7}
    name = "ThunkExecutor::Execute (wait for completion)"
    run = read(worker=[(name, 10, 90, waiting), on_cpu(0, "f", "dot", 0, 10)])
    assert spans(run.programs.events) == [("f", 0, 90)]


def test_markers_and_the_waits_of_unknown_runs_are_no_work(read):
    end, *of = on_cpu(0, "f", "dot", 20, 30)
    run = read(
        worker=[
            on_cpu(0, "f", "dot", 0, 10),
            (f"end: {end}", *of),
            ("ThreadpoolListener::StartRegion", *of),
            ("wait for completion", 40, 50, {"device_ordinal": 0, "run_id": 99}),
        ]
    )
    assert spans(run.events) == [("f", 0, 10)]


def test_python_s_row_shows_the_outermost_calls_only(read):
    run = read(
        python=[
            ("PjitFunction(outer)", 0, 50, {}),
            ("PjitFunction(outer)", 1, 49, {}),
            ("PjitFunction(inner)", 10, 20, {}),
            ("DevicePutWithSharding", 60, 70, {}),
            ("d2lpar.wait float", 80, 120, {}),
            ("np.asarray(jax.Array)", 85, 115, {}),
            ("ParseArguments", 130, 140, {}),
        ],
        worker=[on_cpu(0, "outer", "dot", 40, 100)],
    )
    calls = [(event.program, event.operator, event.start, event.end) for event in run.row(PYTHON)]
    assert calls == [
        ("outer", "dispatch", 0, 50),
        ("device_put", "dispatch", 60, 70),
        ("float", "wait", 80, 120),
    ]


def test_annotations_are_all_shown_and_hide_no_call_inside_them(read):
    run = read(
        python=[
            ("d2lpar.annotation step", 0, 90, {}),
            ("d2lpar.annotation read #1", 10, 30, {}),
            ("PjitFunction(f)", 20, 40, {}),
            ("np.asarray(jax.Array)", 50, 80, {}),
        ],
        worker=[on_cpu(0, "f", "dot", 30, 70)],
    )
    calls = [(event.program, event.operator, event.start, event.end) for event in run.row(PYTHON)]
    assert calls == [
        ("step", "annotation", 0, 90),
        ("read #1", "annotation", 10, 30),
        ("f", "dispatch", 20, 40),
        ("asarray", "wait", 50, 80),
    ]
    assert set(run.row(PYTHON)) <= set(run.programs.events)


def test_the_thread_that_was_recorded_is_python_and_others_that_call_are_numbered(read):
    run = read(
        # The thread that watches the results may get the number of one that has ended.
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


def test_what_began_before_or_after_the_recorded_call_is_left_out(read):
    work = [on_cpu(0, "f", "dot", start, start + 5, start) for start in (90, 100, 150, 200)]
    run = read(python=[("d2lpar.record_trace", 100, 200, {})], worker=work)
    assert spans(run.events) == [("f", 0, 5), ("f", 50, 55)]
