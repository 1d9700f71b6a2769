import functools
import itertools
import os
import random

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from d2lpar import block, cpu
from d2lpar.book.workloads import chain
from d2lpar.errors import ArgumentError, CompilationError, TraceError
from d2lpar.graph import computation_graph
from d2lpar.timeline import PYTHON, Event, Timeline
from d2lpar.trace import read_trace, record_trace

FIRST, SECOND = (jax.device_put(jnp.eye(64), cpu(index)) for index in (0, 1))


@functools.partial(jax.jit, static_argnums=1)
def work(matrix, length=300):
    return chain(matrix, length)


block([work(FIRST), work(SECOND)])  # Nothing compiles while it is recorded.


def new_function():
    """Return a jitted function that XLA has not seen yet."""
    return jax.jit(lambda x: 2 * x)


# --- Timelines made by hand, in nanoseconds ---------------------------------------------------


def event(row, start, end, program="f", operator="op", run=0):
    return Event(row, program, operator, run, start, end - start)


def timeline(*events, watched=()):
    return Timeline(tuple(sorted(events, key=lambda event: event.start)), frozenset(watched))


def spans(events):
    return [(event.program, event.start, event.end) for event in events]


def test_the_rows_are_python_and_the_devices_in_the_order_of_their_numbers():
    rows = ["GPU 10", "GPU 9", "CPU 1", "Python", "GPU 9 to host", "CPU 0"]
    assert timeline(*(event(row, 0, 1) for row in rows)).rows == (
        "Python",
        "CPU 0",
        "CPU 1",
        "GPU 9",
        "GPU 9 to host",
        "GPU 10",
    )


def test_an_operator_that_xla_calls_copy_is_a_part_of_its_program():
    operators = timeline(
        event("CPU 0", 0, 1, operator="copy"), event("CPU 0", 1, 9, operator="dot")
    )
    assert spans(operators.programs.events) == [("f", 0, 9)]


def random_rows(seed):
    """Return a timeline with two rows, and for each the nanoseconds in which it is busy."""
    chance = random.Random(seed)
    events, busy = [], {"CPU 0": set(), "CPU 1": set()}
    for row in busy:
        for _ in range(chance.randint(1, 8)):
            start, length = chance.randint(0, 60), chance.choice([0, 1, 3, 10, 30])
            events.append(event(row, start, start + length))
            busy[row] |= set(range(start, start + length))
    return timeline(*events), busy["CPU 0"], busy["CPU 1"]


@pytest.mark.parametrize("block_of_seeds", range(5))
def test_busy_idle_and_overlap_are_what_counting_nanoseconds_gives(block_of_seeds):
    for seed in range(200 * block_of_seeds, 200 * (block_of_seeds + 1)):
        run, first, second = random_rows(seed)
        end = max(event.end for event in run.events)
        assert run.elapsed == pytest.approx(end / 1e9)
        assert run.busy("CPU 0") == pytest.approx(len(first) / 1e9)
        assert run.idle("CPU 0") == pytest.approx((end - len(first)) / 1e9)
        assert run.overlap("CPU 0", "CPU 1") == pytest.approx(len(first & second) / 1e9)
        assert run.overlap("CPU 1", "CPU 0") == pytest.approx(len(first & second) / 1e9)


def test_the_operators_of_a_run_become_one_event_and_those_of_the_next_run_another():
    run = timeline(
        event("CPU 0", 0, 90, operator="while", run=4),
        event("CPU 0", 10, 20, operator="dot", run=4),  # inside the loop
        event("CPU 0", 100, 130, operator="while", run=5),
        event("CPU 0", 135, 140, operator="tanh", run=5),
        event("CPU 1", 5, 8, operator="while", run=4),
    )
    assert spans(run.programs.row("CPU 0")) == [("f", 0, 90), ("f", 100, 140)]
    assert spans(run.programs.row("CPU 1")) == [("f", 5, 8)]
    assert {event.operator for event in run.programs.events} == {""}


def test_calls_waits_and_copies_stay_what_they_are():
    run = timeline(
        event(PYTHON, 0, 5, operator="dispatch", run=0),
        event(PYTHON, 5, 9, "block", "wait", 1),
        event("GPU 0 to host", 3, 7, "MemcpyD2H", "memory copy", 0),
        watched=["CPU 0"],
    )
    assert run.programs == run


def test_a_row_that_is_not_there_is_an_error_that_names_the_others():
    run = timeline(event("CPU 0", 0, 1), event(PYTHON, 0, 1))
    for ask in (run.row, run.busy, run.idle, lambda row: run.overlap("CPU 0", row)):
        with pytest.raises(ArgumentError, match="has no row 'CPU 1'; it has Python, CPU 0"):
            ask("CPU 1")
    with pytest.raises(ArgumentError, match="it has none"):
        timeline().row("CPU 1")


def test_the_overlap_of_a_row_with_itself_is_refused():
    with pytest.raises(ArgumentError, match=r"'CPU 0' with itself.*name two rows"):
        timeline(event("CPU 0", 0, 1)).overlap("CPU 0", "CPU 0")


@pytest.mark.parametrize(
    ("watched", "source"),
    [
        ([], "from JAX's profiler"),
        (["CPU 0", "CPU 1"], "from watching when results were ready"),
        (["CPU 1"], "from JAX's profiler; CPU 1 from watching when results were ready"),
    ],
)
def test_a_timeline_says_where_its_times_come_from(watched, source):
    run = timeline(event("CPU 0", 0, 1), event("CPU 1", 0, 1), watched=watched)
    assert run.source == source


def test_a_timeline_prints_each_row_with_its_runs():
    run = timeline(
        event(PYTHON, 0, 10, operator="dispatch", run=0),
        event(PYTHON, 10, 20, operator="dispatch", run=1),
        event(PYTHON, 50, 100, "block", "wait", 2),
        event(f"{PYTHON} 2", 0, 50, operator="dispatch", run=3),
        event("CPU 0", 20, 40, operator="a"),
        event("CPU 0", 30, 60, operator="b"),
    )
    assert repr(run).splitlines() == [
        "timeline of 100 ns, from JAX's profiler",
        "  Python      2 calls, 70 ns busy, 30 ns idle",
        "  Python 2    1 calls, 50 ns busy, 50 ns idle",
        "  CPU 0       1 runs, 40 ns busy, 60 ns idle",
    ]


# --- Timelines and graphs ---------------------------------------------------------------------


def graph_of(nodes, edges):
    """Return a graph with these pairs of an operator and a device."""
    graph = nx.DiGraph()
    for number, (operator, device) in enumerate(nodes):
        graph.add_node(number, operator=operator, device=device)
    graph.add_edges_from(edges)
    return graph


DIAMOND = graph_of(
    [
        ("input", None),
        ("f", "CPU 0"),
        ("g", "CPU 0"),
        ("f", "CPU 1"),
        ("f", "CPU 0"),
    ],
    [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)],
)
DIAMOND_RUN = timeline(
    event(PYTHON, 0, 70, "f", "dispatch"),
    event("CPU 0", 0, 10, "f", "a", run=0),
    event("CPU 0", 10, 25, "g", "a", run=1),
    event("CPU 0", 25, 40, "g", "b", run=1),
    event("CPU 1", 10, 30, "f", "a", run=0),
    event("CPU 0", 60, 65, "f", "a", run=2),
)


def test_each_operator_gets_the_time_of_its_own_run():
    found = DIAMOND_RUN.seconds_of(DIAMOND)
    assert found == pytest.approx({1: 10e-9, 2: 30e-9, 3: 20e-9, 4: 5e-9})


def test_an_operator_without_a_device_ran_on_the_only_one_of_its_program():
    graph = graph_of([("f", None), ("f", None), ("f", None)], [(0, 1), (1, 2)])
    dispatch = event(PYTHON, 0, 5, operator="dispatch")
    run = timeline(dispatch, event("GPU 0", 1, 8, run=0), event("GPU 0", 10, 12, run=1))
    assert run.seconds_of(graph) == pytest.approx({0: 7e-9, 1: 2e-9})


def test_the_share_of_the_critical_path_is_its_time_by_the_elapsed_time():
    assert DIAMOND_RUN.critical_path_share(DIAMOND) == pytest.approx((10 + 30 + 5) / 70)


@pytest.mark.parametrize("run", [DIAMOND_RUN, timeline()], ids=["other", "empty"])
def test_the_graph_of_another_function_is_refused(run):
    with pytest.raises(ArgumentError, match="shows no operator of this graph: give the graph"):
        run.critical_path_share(graph_of([("input", None), ("mul", None)], [(0, 1)]))


# --- Traces made by hand ----------------------------------------------------------------------


def serialized(planes):
    """Return a trace: {plane: {line: [(event, start, end, {statistic: value})]}}, in ns."""
    return jax.profiler.ProfileData.text_proto_to_serialized_xspace(
        "".join(plane_text(name, lines) for name, lines in planes.items())
    )


def plane_text(plane, lines):
    events, statistics = {}, {}

    def number(of, name):
        return of.setdefault(name, len(of) + 1)

    def value(of):
        return f'str_value: "{of}"' if isinstance(of, str) else f"int64_value: {of}"

    text = f'planes {{ name: "{plane}"\n'
    for line, members in lines.items():
        text += f'lines {{ name: "{line}" timestamp_ns: 1000\n'
        for name, start, end, stats in members:
            text += f"events {{ metadata_id: {number(events, name)} "
            text += f"offset_ps: {start * 1000} duration_ps: {(end - start) * 1000}\n"
            for stat, of in stats.items():
                text += f"stats {{ metadata_id: {number(statistics, stat)} {value(of)} }}\n"
            text += "}\n"
        text += "}\n"
    for kind, named in (("event", events), ("stat", statistics)):
        for name, key in named.items():
            text += f'{kind}_metadata {{ key: {key} value {{ id: {key} name: "{name}" }} }}\n'
    return text + "}\n"


@pytest.fixture
def read(tmp_path):
    """A function that writes a trace and reads it back."""

    def read(planes):
        (tmp_path / "x.xplane.pb").write_bytes(serialized(planes))
        return read_trace(tmp_path)

    return read


def on_gpu(program, operator, start, end):
    return operator, start, end, {"hlo_module": f"jit_{program}", "hlo_op": operator}


def on_cpu(device, program, operator, start, end, run_id=7):
    stats = {"device_ordinal": device, "run_id": run_id}
    return operator, start, end, stats | {"hlo_module": f"jit_{program}", "hlo_op": operator}


COMPUTE, TO_HOST, FROM_HOST = (
    f"Stream #{number}({kind})"
    for number, kind in ((13, "Compute"), (14, "MemcpyD2H"), (15, "MemcpyH2D"))
)


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
        {
            "/host:CPU": {
                "worker/1": [on_cpu(0, "f", "dot", 0, 10), on_cpu(0, "f", "tanh", 10, 15)],
                "worker/2": [on_cpu(1, "g", "dot", 5, 25), on_cpu(1, "g", "dot", 30, 40, 8)],
            }
        }
    )
    assert run.rows == ("CPU 0", "CPU 1")
    assert spans(run.programs.row("CPU 0")) == [("f", 0, 15)]
    assert spans(run.programs.row("CPU 1")) == [("g", 5, 25), ("g", 30, 40)]


def test_a_program_that_waits_for_other_threads_is_still_under_way(read):
    waiting = {"device_ordinal": 0, "run_id": 7}
    name = "ThunkExecutor::Execute (wait for completion)"
    events = [(name, 10, 90, waiting), on_cpu(0, "f", "dot", 0, 10)]
    run = read({"/host:CPU": {"worker": events}})
    assert spans(run.programs.events) == [("f", 0, 90)]


def test_markers_and_the_waits_of_unknown_runs_are_no_work(read):
    end, *of = on_cpu(0, "f", "dot", 20, 30)
    stray = {"device_ordinal": 0, "run_id": 99}
    run = read(
        {
            "/host:CPU": {
                "worker": [
                    on_cpu(0, "f", "dot", 0, 10),
                    (f"end: {end}", *of),
                    ("ThreadpoolListener::StartRegion", *of),
                    ("wait for completion", 40, 50, stray),
                ]
            }
        }
    )
    assert spans(run.events) == [("f", 0, 10)]


def test_python_s_row_shows_the_outermost_calls_only(read):
    python = [
        ("PjitFunction(outer)", 0, 50, {}),
        ("PjitFunction(outer)", 1, 49, {}),
        ("PjitFunction(inner)", 10, 20, {}),
        ("DevicePutWithSharding", 60, 70, {}),
        ("d2lpar.block", 80, 120, {}),
        ("ParseArguments", 130, 140, {}),
    ]
    run = read({"/host:CPU": {"python": python, "worker": [on_cpu(0, "outer", "dot", 40, 100)]}})
    calls = [(event.program, event.operator, event.start, event.end) for event in run.row(PYTHON)]
    assert calls == [
        ("outer", "dispatch", 0, 50),
        ("device_put", "dispatch", 60, 70),
        ("block", "wait", 80, 120),
    ]


def test_the_thread_that_was_recorded_is_python_and_others_that_call_are_numbered(read):
    run = read(
        {
            "/host:CPU": {
                "helper": [("PjitFunction(g)", 130, 140, {})],
                "watcher": [("d2lpar.block", 110, 190, {})],
                "python": [
                    ("PjitFunction(f)", 110, 120, {}),
                    ("d2lpar.record_trace", 100, 200, {}),
                ],
                "worker": [on_cpu(0, "f", "dot", 120, 150)],
            }
        }
    )
    assert set(run.rows) == {"Python", "Python 2", "CPU 0"}
    assert spans(run.row("Python")) == [("f", 10, 20)]
    assert spans(run.row("Python 2")) == [("g", 30, 40)]


def test_what_began_before_or_after_the_recorded_call_is_left_out(read):
    events = [on_cpu(0, "f", "dot", start, start + 5, start) for start in (90, 100, 150, 200)]
    call = ("d2lpar.record_trace", 100, 200, {})
    run = read({"/host:CPU": {"python": [call], "worker": events}})
    assert spans(run.events) == [("f", 0, 5), ("f", 50, 55)]


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
    with pytest.raises(TraceError, match=r"There is no trace at .*name an \.xplane\.pb file"):
        read_trace(tmp_path / name)


def test_a_trace_cut_off_anywhere_is_an_error_unless_whole_planes_are_left(tmp_path):
    path, first = tmp_path / "x.xplane.pb", serialized(SMALL)
    whole = first + serialized(OTHER)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length == len(first):
            assert read_trace(path).rows == ("GPU 0",)
        else:
            with pytest.raises(TraceError, match="no complete trace: it is cut off"):
                read_trace(path)
    path.write_bytes(whole)
    assert read_trace(path).rows == ("GPU 0", "GPU 1")


@pytest.fixture
def recorded(tmp_path):
    """The trace that JAX's profiler has written of some work, as a file."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(tmp_path, profiler_options=options)
    block([work(FIRST), work(SECOND)])
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
        except TraceError:
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
    with pytest.raises(TraceError, match=r"is no complete trace.*Record it again"):
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
def test_a_trace_without_work_of_a_device_is_an_error_with_a_way_out(read, planes):
    with pytest.raises(TraceError, match=r"no event of a device.*jax\.block_until_ready"):
        read(planes)


def test_without_a_reader_in_jax_a_trace_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "x.xplane.pb").write_bytes(serialized(SMALL))
    monkeypatch.delattr(jax.profiler, "ProfileData")
    with pytest.raises(TraceError, match=f"jax {jax.__version__} cannot read traces"):
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


@pytest.mark.parametrize(("matrix", "row"), [(FIRST, "CPU 0"), (SECOND, "CPU 1")])
@pytest.mark.parametrize("function", [work, chain], ids=["work", "chain"])
def test_work_is_in_the_row_of_its_device_under_its_name(function, matrix, row):
    block(function(matrix, 300))
    _, run = record_trace(function, matrix, 300)
    name = function.__name__
    assert run.rows == (PYTHON, row)
    assert names(run.programs.row(row), "") == [name]
    assert names(run.row(PYTHON), "dispatch") == [name]
    assert "wait" in {event.operator for event in run.row(PYTHON)}
    assert run.watched == frozenset()


def test_a_function_without_a_name_is_a_lambda_wherever_it_shows():
    product = jax.jit(lambda x: x @ x)
    block(product(FIRST))
    _, run = record_trace(product, FIRST)
    assert names(run.row(PYTHON), "dispatch") == ["<lambda>"]
    assert names(run.programs.row("CPU 0"), "") == ["<lambda>"]
    assert len(run.seconds_of(computation_graph(lambda x: product(x), FIRST))) == 1


def test_calls_on_one_device_take_turns_and_no_run_starts_before_its_dispatch():
    _, run = record_trace(lambda: [work(FIRST) for _ in range(5)])
    runs = run.programs.row("CPU 0")
    dispatches = [event for event in run.row(PYTHON) if event.operator == "dispatch"]
    assert len(runs) == len(dispatches) == 5
    assert all(one.end <= other.start for one, other in itertools.pairwise(runs))
    assert all(of.start <= one.start for of, one in zip(dispatches, runs, strict=True))


def test_two_devices_have_a_row_each():
    _, run = record_trace(lambda: (work(FIRST), work(SECOND), work(SECOND)))
    assert run.rows == (PYTHON, "CPU 0", "CPU 1")
    assert len(run.programs.row("CPU 0")) == 1
    assert len(run.programs.row("CPU 1")) == 2


def test_work_that_was_queued_before_is_not_part_of_it():
    earlier = jax.jit(lambda matrix: chain(matrix, 3000))
    block(earlier(FIRST))
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
    cold = new_function()
    with pytest.raises(CompilationError, match=r"jit\(<lambda>\) was compiled.*once before"):
        record_trace(cold, FIRST)
    _, run = record_trace(cold, FIRST)
    assert "CPU 0" in run.rows


def test_a_recording_inside_another_is_refused_and_the_outer_one_goes_on():
    def outer():
        with pytest.raises(TraceError, match=r"a recording is under way.*end the other one first"):
            record_trace(work, FIRST)
        return work(FIRST)

    _, run = record_trace(outer)
    assert "work" in names(run.programs.row("CPU 0"), "")
    assert recording_works()


def test_a_recording_inside_that_of_jax_is_refused_and_that_one_goes_on(tmp_path):
    with jax.profiler.trace(tmp_path):
        with pytest.raises(TraceError, match="JAX has one profiler"):
            record_trace(work, FIRST)
        block(work(FIRST))
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
from d2lpar import block
from d2lpar.trace import record_trace
from d2lpar.book.workloads import chain

def fail(x):
    raise ValueError("lost")

threading.excepthook = lambda of: print("raised in a thread")
failing = jax.jit(lambda x: jax.pure_callback(fail, x, x))
for call in (lambda function: block(function()), record_trace):  # The first compiles.
    try:
        call(lambda: failing(chain(jnp.eye(64), 2000)))
    except Exception as error:
        print("lost" in str(error))
with tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):
    print("free")
"""
    assert run_python(program, JAX_PLATFORMS="cpu").split() == ["True", "True", "free"]


def test_what_cannot_be_called_is_refused_with_a_way_out():
    with pytest.raises(ArgumentError, match=r"found float.*record_trace\(f, x\), not its result"):
        record_trace(3.5)


# --- Watching ---------------------------------------------------------------------------------


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


def test_a_recorded_function_s_graph_finds_its_runs_and_copies():
    def function(matrix):
        return work(jax.device_put(work(matrix), cpu(1)))

    block(function(FIRST))
    graph = computation_graph(function, FIRST)
    _, run = record_trace(function, FIRST)
    assert len(run.seconds_of(graph)) == 2  # The copy is not returned, so nobody sees it.
    assert 0 < run.critical_path_share(graph) <= 1
