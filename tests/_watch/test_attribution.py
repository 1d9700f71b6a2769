import sys
import threading
from types import SimpleNamespace

import pytest
from windows import IDLE, LOG, READ, STEP, WAIT, account, at, program, window

from d2lpar._watch.attribution import OUTSIDE


def test_who_waits_while_the_device_works_loses_nothing():
    watched = account(window([STEP] + [WAIT] * 9, busy={"CPU 0": [(0.0, 0.1)]}))
    (found,) = [f for f in watched.findings if f.place.code == "wait()"]
    assert (found.kind, watched.loss(found)) == ("value", 0.0)
    assert watched.advice(found) == "Nothing is lost here: the device worked meanwhile."
    assert watched.losses() == []


def test_what_a_device_does_together_with_others_is_counted_also_where_it_is_not_seen(monkeypatch):
    one = window([READ] * 2 + [STEP] + [WAIT] * 17, busy={"CPU 0": [(0.03, 0.05)]})
    assert account(one, collectives=[(0.04, 0.05)]).collective_seconds == pytest.approx(0.05)
    several = SimpleNamespace(global_state=SimpleNamespace(num_processes=2))
    monkeypatch.setitem(sys.modules, "jax._src.distributed", several)
    assert account(one, collectives=[(0.04, 0.05)]).collective_seconds == pytest.approx(0.6)


def test_a_thread_that_feeds_no_device_loses_nothing():
    threads = [READ] * 5 + [STEP] * 5, [None] * 5 + [LOG] * 5
    watched = account(window(*threads, busy={"CPU 0": [(0.05, 0.1)]}))
    assert {f.place.code for f in watched.losses(-1)} == {"read()"}


def test_a_window_in_which_no_call_was_seen_does_not_say_who_calls():
    threads = [READ] * 10, [at("log()", "python")] * 10
    windows = [
        window(*threads, busy={"CPU 0": [(0.05, 0.1)]}, moves=name)
        for name in ("MainThread", "logger", "MainThread")
    ]
    assert {f.thread for f in account(*windows).losses(-1)} == {"MainThread"}


def test_time_in_a_callback_is_no_work_of_the_device():
    threads = [STEP] * 10, [at("log()", "callback")] * 8 + [None] * 2
    watched = account(window(*threads, busy={"CPU 0": [(0.0, 0.1)]}))
    assert watched.devices["CPU 0"] == pytest.approx(0.8)
    assert watched.findings[0].kind == "callback"


def test_an_operator_that_is_longer_than_a_window_is_no_idle_time():
    busy = {"CPU 0": [(0.0, 0.1)]}
    watched = account(window([WAIT] * 10, busy={}), window([STEP] * 10, busy=busy))
    assert watched.devices["CPU 0"] == pytest.approx(0.0)


def test_between_two_operators_a_device_is_idle_also_while_somebody_waits():
    watched = account(window([WAIT] * 10, busy={"CPU 0": [(0.0, 0.02), (0.08, 0.1)]}))
    assert watched.devices["CPU 0"] == pytest.approx(0.6)


def test_a_device_that_works_while_python_compiles_loses_nothing_by_it():
    lower = window([STEP] * 10, busy={"CPU 0": [(0.0, 0.1)]})
    watched = account(lower, lower, programs=[program(0, 0.1), program(1, 1.1, again=True)])
    (found,) = watched.findings
    assert (found.kind, found.lost) == ("compilation", 0.0)
    assert found.times == 1  # The first of the two is no repetition.


def test_another_thread_that_compiles_meanwhile_loses_nothing():
    prepare = threading.main_thread().ident + 1
    threads = [STEP] + [WAIT] * 9, [at("log()", "compiles")] * 10
    compiles = window(*threads, busy={"CPU 0": [(0.0, 0.09)]})
    watched = account(compiles, seconds=0.1, programs=[program(0, 0.1, prepare, "log()")])
    lost = {f.place.code: f.lost for f in watched.findings}
    assert lost["log()"] == 0.0
    assert sum(lost.values()) == pytest.approx(0.01)


def test_what_is_compiled_goes_to_the_line_that_called_it_and_the_inner_of_two_programs_counts():
    outer, inner = program(0.0, 0.1), program(0.02, 0.05, line="log()")
    watched = account(IDLE, seconds=0.1, programs=[inner, outer])
    lost = {f.place.code: watched.loss(f) for f in watched.findings}
    assert lost == {"step()": pytest.approx(0.7), "log()": pytest.approx(0.3)}


def test_a_collection_of_garbage_is_charged_to_the_collector_or_to_the_line_that_called_it():
    collections = [(0.04, 0.07, READ.position), (0.07, 0.1, at("collect()", "call").position)]
    threads = [STEP] * 5 + [READ] * 5
    collecting = window(threads, busy={"CPU 0": [(0.0, 0.06)]}, collections=collections)
    watched = account(collecting, collecting)
    lines = {f.place.code: f for f in watched.findings}
    assert {lines[code].kind for code in ("", "collect()")} == {"collection"}
    # A window stands for no collections but its own.
    assert (lines[""].seconds, lines[""].lost) == pytest.approx((0.06, 0.02))
    assert "This took 3.0% of the time (60 ms, at least 2 times)" in str(watched)
    assert (lines["collect()"].seconds, lines["collect()"].lost) == pytest.approx((0.06, 0.06))
    assert "Mostly at /home/me/train.py:1." in str(watched)


def test_idle_time_without_a_thread_in_the_user_s_code_is_told_as_such():
    watched = account(window([None] * 10, [None] * 10, busy={}))
    assert [(f.place, f.lost) for f in watched.findings] == [(OUTSIDE, pytest.approx(1.0))]


def test_a_call_in_which_the_device_was_idle_does_not_say_that_it_worked():
    calls = at("step()", "call")
    watched = account(window([calls] * 6 + [STEP] * 4, busy={"CPU 0": [(0.0, 0.06)]}))
    assert [(f.kind, f.place.code) for f in watched.findings] == [("dispatch", "step()")]


def test_a_collection_during_a_callback_takes_no_more_of_the_idle_time_than_its_own():
    threads = [STEP] * 10, [at("log()", "callback")] * 10
    striking = window(*threads, busy={"CPU 0": [(0.0, 0.1)]}, collections=[(0.02, 0.06, None)])
    lost = {f.kind: f.lost for f in account(striking).findings if f.lost}
    assert lost == {"collection": pytest.approx(0.04), "callback": pytest.approx(0.96)}


@pytest.mark.parametrize(
    ("line", "busy", "kind"),
    [
        ("memoryview(y)", 0.02, "value"),
        ("np.load(f)", 0.02, "device idle"),
        ("np.load(f)", 0.1, "value"),  # As `np.sum(y)` would be.
    ],
)
def test_a_call_that_only_reads_waits_for_the_device_unless_it_may_be_a_file(line, busy, kind):
    watched = account(window([at(line, "call")] * 10, busy={"CPU 0": [(0.0, busy)]}))
    assert [finding.kind for finding in watched.findings] == [kind]
