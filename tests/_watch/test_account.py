import dis
import linecache
import sys
import threading
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

from d2lpar._jax.requests import Request
from d2lpar._jax.stack import CodePosition, StackSample
from d2lpar._watch import sampler
from d2lpar._watch.attribution import OUTSIDE
from d2lpar._watch.recompilations import Compiled
from d2lpar._watch.report import Watched
from d2lpar._watch.sampler import Unseen
from d2lpar._watch.shares import FEWEST
from d2lpar._watch.windows import Collection, Events, Sample, ThreadSample, Window, merged

NAMES = "MainThread", "logger"
SOURCE = "read()\nstep()\nwait()\nlog()\ncollect()\n"
TRAIN = compile(SOURCE, "/home/me/train.py", "exec")


@pytest.fixture(autouse=True)
def _source(monkeypatch):
    # The programs of these tests say themselves whether they are compiled again.
    monkeypatch.setattr("d2lpar._watch.account.find_again", lambda programs: None)
    monkeypatch.setattr("d2lpar._watch.account.why", lambda programs: ("shape", "Another shape."))
    linecache.cache["/home/me/train.py"] = (len(SOURCE), None, SOURCE.splitlines(True), "")


def at(line, activity):
    """Return the stack of a thread that is at a line of the program above."""
    number = SOURCE.splitlines().index(line) + 1
    calls = [i for i in dis.get_instructions(TRAIN) if i.positions.lineno == number]
    position = CodePosition(TRAIN, calls[-1].offset)
    return StackSample((0, 0, 0), position, position, (), activity)


def window(*threads, busy, moves=None, may_wait=False, collections=(), functions=()):
    """Return a window: the stacks of each thread, every hundredth of a second, and busy spans."""
    return SimpleNamespace(**locals())


def account(
    *windows, after=0.0, collectives=(), unseen=None, seconds=None, programs=(), planned=None
):
    """Return the report on windows, one a second, whose losses add up to the idle time.

    Each stands for the second in which it ends.
    """
    closed, collections = [], []
    for second, given in enumerate(windows):
        samples = [
            Sample(
                start := second + n / 100,
                start + 0.01,
                start,
                {
                    threading.main_thread().ident + i: ThreadSample(
                        NAMES[i],
                        stack,
                        NAMES[i] == given.moves,
                        stack.activity in ("jax", "python"),
                        given.may_wait,
                    )
                    for i, stack in enumerate(stacks)
                    if stack
                },
                0.0,
            )
            for n, stacks in enumerate(zip(*given.threads, strict=True))
        ]
        over = samples[-1].end
        length = planned or over - second
        collections += [Collection(second + a, second + b, p) for a, b, p in given.collections]
        since = min(over - 1, second)
        closed.append(Window(second, over, samples, None, since, second, length))
        closed[-1].events = Events(
            {name: merged(spans, second) for name, spans in given.busy.items()},
            {"CPU 0": merged(collectives, second)},
            [(second, second + 1e-5)],
            [],
            [*given.functions],
        )
    watched = Watched(seconds=seconds or len(windows))
    watcher = SimpleNamespace(
        began=0.0,
        after=after,
        watched=watched,
        compilations=SimpleNamespace(done=programs),
        unseen={0: unseen} if unseen else {},
        collections=collections,
        times=Counter(),
        callers=defaultdict(Counter),
        windows=SimpleNamespace(closed=closed, due=len(windows), could_begin=0.0),
    )
    sampler.fill(watched, watcher)
    return watched


READ, STEP, WAIT = at("read()", "python"), at("step()", "jax"), at("wait()", "value")
LOG = at("log()", "value")


def test_the_losses_of_all_lines_add_up_to_the_idle_time_of_the_device():
    one = window([READ] * 4 + [STEP] + [WAIT] * 5, busy={"CPU 0": [(0.045, 0.095)]})
    watched = account(one, one)
    assert sum(map(watched.loss, watched.findings)) == pytest.approx(0.5)
    assert watched.idle_seconds / watched.judged_seconds == pytest.approx(0.5)
    by_line = {f.place.code: watched.loss(f) for f in watched.findings}
    assert by_line["read()"] == pytest.approx(0.4)
    assert by_line["wait()"] == pytest.approx(0.05)


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


def test_shares_are_of_what_comes_after_the_start():
    idle, busy = (window([READ] * 10, busy=each) for each in ({}, {"CPU 0": [(0.0, 0.1)]}))
    watched = account(idle, busy, busy, after=1.0)
    assert watched.start_seconds == 1.0
    assert watched.idle_seconds == 0.0


def test_few_windows_say_little_and_many_that_agree_say_much():
    half = window([READ] * 5 + [STEP] * 5, busy={"CPU 0": [(0.05, 0.1)]})
    few = account(*[half] * (FEWEST - 1))
    assert few.losses() == []
    assert "too few windows to say more" in str(few)
    many = account(*[half] * 20)
    assert len(many.losses(0.05)) == 1
    low, high = many.interval
    assert 0.4 < low < 0.5 < high < 0.6


def program(began, over, thread=None, line="step()", name="step", again=False):
    """Return a program that a thread, the main one unless said otherwise, compiled at a line."""
    thread = thread or threading.main_thread().ident
    callers = (at(line, "jax").position,)
    compiled = Compiled(name, thread, thread, began, over, over - began, True, callers)
    compiled.again, compiled.request = again, Request(of_library=False)
    return compiled


def test_a_device_that_works_while_python_compiles_loses_nothing_by_it():
    lower = window([STEP] * 10, busy={"CPU 0": [(0.0, 0.1)]})
    watched = account(lower, lower, programs=[program(0, 0.1), program(1, 1.1, again=True)])
    (found,) = watched.findings
    assert (found.kind, found.lost) == ("compilation", 0.0)
    assert found.times == 1  # The first of the two is no repetition.


def test_another_thread_that_compiles_meanwhile_loses_nothing():
    prepare = threading.main_thread().ident + 1
    threads = [STEP] + [WAIT] * 9, [at("log()", "compiles")] * 10
    programs = [program(n, n + 0.1, prepare, "log()") for n in range(2)]
    one = window(*threads, busy={"CPU 0": [(0.0, 0.09)]})
    lost = {f.place.code: f.lost for f in account(one, one, programs=programs).findings}
    assert lost["log()"] == 0.0
    assert sum(lost.values()) == pytest.approx(0.2)


def test_what_is_compiled_goes_to_the_line_that_called_it_and_the_inner_of_two_programs_counts():
    outer, inner = program(0.0, 0.1), program(0.02, 0.05, line="log()")
    watched = account(window([READ] * 10, busy={}), programs=[inner, outer])
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
    assert (lines["collect()"].seconds, lines["collect()"].lost) == pytest.approx((0.06, 0.06))
    assert "It struck at /home/me/train.py:1." in str(watched)


def test_idle_time_without_a_thread_in_the_user_s_code_is_told_as_such():
    watched = account(window([None] * 10, [None] * 10, busy={}))
    assert [(f.place, f.lost) for f in watched.findings] == [(OUTSIDE, pytest.approx(1.0))]


def test_a_call_in_which_the_device_was_idle_does_not_say_that_it_worked():
    calls = at("step()", "call")
    watched = account(window([calls] * 6 + [STEP] * 4, busy={"CPU 0": [(0.0, 0.06)]}))
    assert [(f.kind, f.place.code) for f in watched.findings] == [("dispatch", "step()")]


def test_lines_that_take_too_little_time_are_summed():
    source = "\n".join(f"f{n}()" for n in range(300))
    linecache.cache["/home/me/many.py"] = (len(source), None, source.splitlines(True), "")
    code = compile(source, "/home/me/many.py", "exec")
    calls = [i for i in dis.get_instructions(code) if i.opname.startswith("CALL")]
    positions = {p.place.line: p for p in (CodePosition(code, i.offset) for i in calls)}
    stacks = [StackSample((0, 0, 0), p, p, (), "python") for p in positions.values()]
    (other,) = account(window(stacks, busy={}), seconds=3.0).findings
    assert (other.kind, other.lost) == ("other", pytest.approx(3.0))


def unseen(seconds, **reasons):
    """Return samples from time that no window stands for: at `wait()`, and at `read()`."""
    positions = {(s.position, s.activity): seconds / 2 for s in (WAIT, READ)}
    names = defaultdict(set, {s.position: {"MainThread"} for s in (WAIT, READ)})
    return Unseen(Counter(reasons), Counter(positions), names)


def test_what_nobody_saw_is_told_as_such_and_loses_nothing():
    watched = account(seconds=2.0, unseen=unseen(2.0, profiler=2.0))
    assert (watched.devices, watched.unseen_seconds, watched.losses(-1)) == ({}, 2.0, [])
    assert {(f.kind, f.place.code, f.unseen) for f in watched.findings} == {
        ("value", "wait()", 1.0),
        ("unseen", "read()", 1.0),
    }
    assert "For 100% of that, it is unknown what the devices did: profiler." in str(watched)
    assert "not seen  /home/me/train.py:3  wait()" in str(watched)
    for words in ("Nothing is lost", "keeps the device idle", "worked meanwhile"):
        assert words not in watched.report(everything=True)


def test_time_that_was_not_seen_is_not_spread_over_the_lines_that_were():
    idle = window([READ] * 10, busy={})
    watched = account(*[idle] * 6, seconds=12.0, unseen=unseen(6.0))
    assert watched.idle_seconds == pytest.approx(6.0)
    low, high = watched.interval
    assert low < 0.5
    assert high == pytest.approx(1.0)  # The device may have been idle all along.


def test_a_window_that_was_cut_short_stands_for_nothing():
    watched = account(window([READ] * 10, busy={}), seconds=1.0, planned=0.5)
    assert (watched.devices, watched.unseen_seconds) == ({}, 1.0)


def test_a_line_in_a_block_of_waits_allowed_is_named_and_no_reason_to_fail():
    reads = window([READ] * 10, busy={}, may_wait=True)
    watched = account(*[reads] * 10)
    (found,) = watched.findings
    assert (found.allowed, watched.loss(found)) == (True, pytest.approx(1.0))
    assert watched.losses() == []


def test_the_start_ends_with_the_first_repetition():
    many = [program(0.1 * n, 0.1 * n + 0.05, line="read()", name=str(n)) for n in range(9)]
    idle = window([READ] * 10, busy={})
    assert account(idle, after=None, programs=many).start_seconds == pytest.approx(0.85)
    again = [*many[:5], program(0.5, 0.55, again=True), *many[6:]]
    assert account(idle, after=None, programs=again).start_seconds == pytest.approx(0.45)
    calls = window([READ] * 10, busy={}, functions=[("3", 0.06), ("3", 0.07), ("3", 0.08)])
    assert account(calls, after=None, programs=many).start_seconds == pytest.approx(0.05)
