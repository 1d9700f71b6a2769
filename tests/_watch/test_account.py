import dis
import linecache
import sys
import threading
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

from d2lpar._jax.stack import CodePosition, StackSample
from d2lpar._watch.account import fill
from d2lpar._watch.attribution import COLLECTOR, OUTSIDE
from d2lpar._watch.report import Watched
from d2lpar._watch.windows import Events, Sample, ThreadSample, Window, merged

NAMES = "MainThread", "logger"
SOURCE = "read()\nstep()\nwait()\nlog()\n"
TRAIN = compile(SOURCE, "/home/me/train.py", "exec")


@pytest.fixture(autouse=True)
def _source():
    linecache.cache["/home/me/train.py"] = (len(SOURCE), None, SOURCE.splitlines(True), "")


def at(line, activity):
    """Return the stack of a thread that is at a line of the program above."""
    number = SOURCE.splitlines().index(line) + 1
    calls = [i for i in dis.get_instructions(TRAIN) if i.positions.lineno == number]
    position = CodePosition(TRAIN, calls[-1].offset)
    return StackSample((0, 0, 0), position, position, (), activity)


def window(*threads, busy, moves=None, collections=()):
    """Return a window: the stacks of each thread, every hundredth of a second, and busy spans."""
    return threads, busy, moves, collections


def account(*windows, after=0.0, collectives=(), unseen=None, seconds=None, programs=()):
    """Return the report on windows, one a second, whose losses add up to the idle time."""
    closed = []
    for second, (threads, busy, moves, collections) in enumerate(windows):
        samples = [
            Sample(
                start := second + n / 100,
                start + 0.01,
                start,
                {
                    threading.main_thread().ident + i: ThreadSample(
                        NAMES[i], stack, NAMES[i] == moves, stack.activity in ("jax", "python")
                    )
                    for i, stack in enumerate(stacks)
                    if stack
                },
                0.0,
            )
            for n, stacks in enumerate(zip(*threads, strict=True))
        ]
        over = samples[-1].end
        collections = merged(collections, second)
        closed.append(Window(second, over, samples, None, 1.0, over - second, collections))
        closed[-1].events = Events(
            {name: merged(spans, second) for name, spans in busy.items()},
            {"CPU 0": merged(collectives, second)},
            [(second, second + 1e-5)],
            [],
            [],
        )
    watched = Watched(seconds=seconds or len(windows))
    watcher = SimpleNamespace(
        began=0.0,
        after=after,
        watched=watched,
        compilations=SimpleNamespace(done=programs),
        unseen={0: unseen} if unseen else {},
        times=Counter(),
        callers=defaultdict(Counter),
        windows=SimpleNamespace(closed=closed, due=len(windows)),
    )
    fill(watched, watcher)
    assert sum(finding.lost for finding in watched.findings) == pytest.approx(watched.idle_seconds)
    assert all(watched.share(finding) <= 1.0 + 1e-9 for finding in watched.findings)
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


def test_threads_at_one_line_are_told_apart_and_those_that_lose_most_come_first():
    threads = [READ] * 3 + [STEP] + [LOG] * 6, [None] * 3 + [LOG] * 7
    watched = account(window(*threads, busy={"CPU 0": [(0.03, 0.1)]}))
    assert [(f.thread, f.place.code) for f in watched.findings if f.place.code != "step()"] == [
        ("MainThread", "read()"),
        ("logger", "log()"),
        ("MainThread", "log()"),
    ]


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


def test_one_window_says_little_and_many_that_agree_say_much():
    half = window([READ] * 5 + [STEP] * 5, busy={"CPU 0": [(0.05, 0.1)]})
    assert account(half).losses(0.05) == []
    many = account(*[half] * 20)
    assert len(many.losses(0.05)) == 1
    low, high = many.interval
    assert 0.4 < low < 0.5 < high < 0.6
