import pytest
from timelines import COMPUTE, FROM_HOST, TO_HOST, on_cpu, on_gpu, serialized, spans

from d2lpar import read_trace
from d2lpar._timeline import PYTHON


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
            ("d2lpar.wait", 80, 120, {}),
            ("ParseArguments", 130, 140, {}),
        ],
        worker=[on_cpu(0, "outer", "dot", 40, 100)],
    )
    calls = [(event.program, event.operator, event.start, event.end) for event in run.row(PYTHON)]
    assert calls == [
        ("outer", "dispatch", 0, 50),
        ("device_put", "dispatch", 60, 70),
        ("block", "wait", 80, 120),
    ]


def test_the_thread_that_was_recorded_is_python_and_others_that_call_are_numbered(read):
    run = read(
        helper=[("PjitFunction(g)", 130, 140, {})],
        watcher=[("d2lpar.wait", 110, 190, {})],
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
