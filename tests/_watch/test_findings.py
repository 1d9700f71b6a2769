import dis
import linecache
from types import SimpleNamespace

import pytest
from windows import BUSY, IDLE, LOG, READ, STEP, WAIT, account, program, unseen, window

from d2lpar._jax.stack import CodePosition, StackSample
from d2lpar._measure.mean_share import FEWEST


def test_threads_at_one_line_are_one_finding_that_counts_them():
    threads = [READ] * 3 + [STEP] + [LOG] * 6, [None] * 3 + [LOG] * 7
    watched = account(window(*threads, busy={"CPU 0": [(0.03, 0.1)]}))
    (found,) = [f for f in watched.findings if f.place.code == "log()"]
    assert (found.thread, watched.share(found)) == ("2 threads", pytest.approx(0.7))


def test_each_device_is_idle_by_itself():
    busy = {"CPU 0": [(0.0, 0.06)], "CPU 1": [(0.06, 0.1)]}
    watched = account(window([STEP] + [WAIT] * 9, busy=busy))
    assert watched.devices == {"CPU 0": pytest.approx(0.4), "CPU 1": pytest.approx(0.6)}
    assert watched.idle_seconds == pytest.approx(0.4)
    assert watched.loss(watched.findings[0]) == pytest.approx(0.4)


def test_shares_are_of_what_comes_after_the_start():
    watched = account(IDLE, BUSY, BUSY, after=1.0)
    assert watched.start_seconds == 1.0
    assert watched.idle_seconds == 0.0


def test_few_windows_say_little_and_many_that_agree_say_much():
    half = window([READ] * 5 + [STEP] * 5, busy={"CPU 0": [(0.05, 0.1)]})
    few = account(*[half] * (FEWEST - 1))
    assert few.losses() == []
    assert "too few windows for an interval" in str(few)
    many = account(*[half] * 20)
    assert len(many.losses(0.05)) == 1
    low, high = many.interval
    assert 0.4 < low < 0.5 < high < 0.6


def test_lines_that_take_too_little_time_are_summed():
    source = "\n".join(f"f{n}()" for n in range(300))
    linecache.cache["/home/me/many.py"] = (len(source), None, source.splitlines(True), "")
    code = compile(source, "/home/me/many.py", "exec")
    calls = [i for i in dis.get_instructions(code) if i.opname.startswith("CALL")]
    positions = {p.place.line: p for p in (CodePosition(code, i.offset) for i in calls)}
    stacks = [StackSample((0, 0, 0), p, p, (), "python") for p in positions.values()]
    (other,) = account(window(stacks, busy={}), seconds=3.0).findings
    assert (other.kind, other.lost) == ("other", pytest.approx(3.0))


def test_what_nobody_saw_is_told_as_such_and_loses_nothing():
    watched = account(seconds=2.0, unseen=unseen(2.0, profiler=2.0))
    assert (watched.devices, watched.unseen_seconds, watched.losses(-1)) == ({}, 2.0, [])
    assert {(f.kind, f.place.code, f.unseen) for f in watched.findings} == {
        ("value", "wait()", 1.0),
        ("unseen", "read()", 1.0),
    }
    assert "it is unknown what the devices did: profiler." in str(watched)
    assert "not seen  /home/me/train.py:3  wait()" in str(watched)
    for words in ("Nothing is lost", "keeps the device idle", "worked meanwhile"):
        assert words not in watched.report(everything=True)


def test_time_that_was_not_seen_is_not_spread_over_the_lines_that_were():
    watched = account(*[IDLE] * 6, seconds=12.0, unseen=unseen(6.0))
    assert watched.idle_seconds == pytest.approx(6.0)
    low, high = watched.interval
    assert low < 0.5
    assert high == pytest.approx(1.0)  # The device may have been idle all along.


def test_a_window_that_was_cut_short_stands_for_nothing():
    watched = account(IDLE, seconds=1.0, planned=0.5, early=unseen(1.0))
    assert (watched.windows, watched.devices, watched.unseen_seconds) == (0, {}, 1.0)
    assert {f.place.code: f.unseen for f in watched.findings} == {"wait()": 0.5, "read()": 0.5}
    assert "no window of the profiler fell into it" in str(watched)


def test_a_line_in_a_block_of_waits_allowed_is_named_and_no_reason_to_fail():
    reads = window([READ] * 10, busy={}, may_wait=True)
    watched = account(*[reads] * 10)
    (found,) = watched.findings
    assert (found.allowed, watched.loss(found)) == (True, pytest.approx(1.0))
    assert watched.losses() == []


def test_the_start_ends_with_the_first_repetition():
    many = [program(0.1 * n, 0.1 * n + 0.05, line="read()", name=str(n)) for n in range(9)]
    assert account(IDLE, after=None, programs=many).start_seconds == pytest.approx(0.85)
    again = [*many[:5], program(0.5, 0.55, again=True), *many[6:]]
    assert account(IDLE, after=None, programs=again).start_seconds == pytest.approx(0.45)
    calls = window([READ] * 10, busy={}, functions=[("3", 0.06), ("3", 0.07), ("3", 0.08)])
    assert account(calls, after=None, programs=many).start_seconds == pytest.approx(0.05)


@pytest.mark.parametrize(("compiled", "kind"), [(0.04, "first compilation"), (0.01, "value")])
def test_a_line_that_waits_and_compiles_is_told_by_the_compilation_if_that_is_long(compiled, kind):
    waits = window([WAIT] * 10, busy={"CPU 0": [(compiled, 0.1)]})
    watched = account(waits, seconds=0.1, programs=[program(0, compiled, line="wait()")])
    assert [finding.kind for finding in watched.findings] == [kind]


def test_a_line_that_works_beside_a_busy_device_does_not_keep_it_idle_where_it_was_not_seen():
    findings = account(BUSY, seconds=2.0, unseen=unseen(1.0)).findings
    assert {f.place.code: f.kind for f in findings} == {"read()": "unseen", "wait()": "value"}
    seen = account(BUSY)
    assert "read()" not in str(seen)
    assert "Nothing is lost here: the device worked" in seen.report(everything=True)


def test_a_run_that_was_all_start_has_nothing_that_was_not_seen():
    first, *_ = account(after=2.0, seconds=1.0).notes
    assert first == "Nothing came after the start."


@pytest.mark.parametrize(("compiled", "phase"), [(True, "Compiling"), (False, "Tracing")])
def test_a_compilation_that_no_window_met_is_known_and_was_not_seen(compiled, phase):
    missed = program(0.5, 0.9, line="log()", compiled=compiled)
    (found,) = [f for f in account(IDLE, programs=[missed]).findings if f.unseen]
    assert (found.place.code, found.unseen) == ("log()", pytest.approx(0.4))
    assert found.detail == f"{phase} took 400 ms."


def test_several_threads_that_compile_at_a_line_are_counted_where_few_were_sampled():
    programs = [program(0, 0.1), program(0.2, 0.3, thread=7)]
    (found,) = account(window([STEP] * 10, busy={}), programs=programs).findings
    assert found.thread == "2 threads"


def test_what_was_not_seen_of_the_start_does_not_count():
    watched = account(IDLE, IDLE, after=None, unseen=unseen(1.0), programs=[program(0.1, 0.5)])
    assert (watched.start_seconds, [f for f in watched.findings if f.unseen]) == (0.5, [])


def test_a_profiler_that_missed_the_devices_saw_nothing_but_calls_during_compilations_are_none():
    idle = [IDLE] * 21
    assert account(*idle).windows == 0
    assert account(*idle, programs=[program(n, n + 0.1) for n in range(21)]).windows == 21


def test_child_processes_that_have_computed_are_not_watched(monkeypatch):
    times = SimpleNamespace(children_user=0.5, children_system=0.0)
    monkeypatch.setattr("os.times", lambda: times)
    assert "Child processes did some of the work." in str(account(IDLE))
