import dis
import linecache
import sys
import threading
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

from d2lpar._jax.stack import CodePosition, StackSample
from d2lpar._watch.attribution import Account
from d2lpar._watch.report import Watched
from d2lpar._watch.windows import Look, Seen, Window

SOURCE = "read()\nstep()\nwait()\nlog()\n"
TRAIN = compile(SOURCE, "/home/me/train.py", "exec")
LINES = ("read()", "step()", "wait()", "log()")


@pytest.fixture(autouse=True)
def _source():
    linecache.cache["/home/me/train.py"] = (len(SOURCE), None, SOURCE.splitlines(True), "")


def seen(line, doing, number=0):
    """Return a thread that is at a line of the program above."""
    number = LINES.index(line) + 1
    calls = [i for i in dis.get_instructions(TRAIN) if i.positions.lineno == number]
    position = CodePosition(TRAIN, calls[-1].offset)
    return StackSample((0, 0, 0), position, position, (), doing)


def looks(*threads, every=0.01):
    """Return looks of one window, each of a hundredth of a second: what each thread is at."""
    names = ("MainThread", "logger")
    return [
        Look(
            n * every,
            (n + 1) * every,
            n * every,
            {
                threading.main_thread().ident + i: Seen(
                    names[i], sample, False, sample.activity in ("jax", "python")
                )
                for i, sample in enumerate(at)
                if sample
            },
            0.0,
        )
        for n, at in enumerate(zip(*threads, strict=True))
    ]


def account(*windows, compiled=(), after=0.0, over=None, collectives=()):
    """Reckon with windows, one a second: what was looked at, and when each device was busy."""

    closed = []
    for number, (seen_there, busy) in enumerate(windows):
        shift = float(number)
        there = [
            x._replace(start=x.start + shift, end=x.end + shift, at=x.at + shift)
            for x in seen_there
        ]
        window = Window(shift, there[-1].end, there)
        window.events = (
            {name: [(a + shift, b + shift) for a, b in spans] for name, spans in busy.items()},
            [(there[0].start, there[0].start + 1e-5)],
            {"CPU 0": [(a + shift, b + shift) for a, b in collectives]},
        )
        closed.append(window)
    watcher = SimpleNamespace(
        began=0.0,
        after=after,
        compilations=SimpleNamespace(done=compiled),
        outside=Counter(),
        times=Counter(),
        callers=defaultdict(Counter),
        windows=SimpleNamespace(closed=closed, why_none="none"),
    )
    watcher.watched = watched = Watched(seconds=over or len(windows))
    Account(watcher).fill(watched)
    return watched


READ, STEP, WAIT = seen("read()", "python"), seen("step()", "jax"), seen("wait()", "value")


def test_the_losses_of_all_lines_add_up_to_the_idle_time_of_the_device():
    one = looks([READ] * 4 + [STEP] + [WAIT] * 5)
    watched = account((one, {"CPU 0": [(0.045, 0.095)]}), (one, {"CPU 0": [(0.045, 0.095)]}))
    assert sum(map(watched.loss, watched.findings)) == pytest.approx(0.5)
    assert watched.idle_seconds / watched.judged_seconds == pytest.approx(0.5)
    by_line = {f.place.code: watched.loss(f) for f in watched.findings}
    assert by_line["read()"] == pytest.approx(0.4)
    assert by_line["wait()"] == pytest.approx(0.05)


def test_who_waits_while_the_device_works_loses_nothing():
    watched = account((looks([STEP] + [WAIT] * 9), {"CPU 0": [(0.0, 0.1)]}))
    (found,) = [f for f in watched.findings if f.place.code == "wait()"]
    assert (found.kind, watched.loss(found)) == ("value", 0.0)
    assert watched.advice(found) == "Nothing is lost here: the device worked meanwhile."
    assert watched.losses() == []


def test_what_a_device_does_together_with_others_is_counted_also_where_it_is_not_seen(monkeypatch):
    one = looks([READ] * 2 + [STEP] + [WAIT] * 17), {"CPU 0": [(0.03, 0.05)]}
    assert account(one, collectives=[(0.04, 0.05)]).collective_seconds == pytest.approx(0.05)
    several = SimpleNamespace(global_state=SimpleNamespace(num_processes=2))
    monkeypatch.setitem(sys.modules, "jax._src.distributed", several)
    assert account(one, collectives=[(0.04, 0.05)]).collective_seconds == pytest.approx(0.6)


def test_a_thread_that_feeds_no_device_loses_nothing():
    reads_values = [None] * 5 + [seen("log()", "value")] * 5
    one = looks([READ] * 5 + [STEP] * 5, reads_values)
    watched = account((one, {"CPU 0": [(0.05, 0.1)]}))
    assert {f.place.code for f in watched.losses(-1)} == {"read()"}


def test_a_window_in_which_no_call_was_seen_does_not_say_who_calls():
    def window(caller):
        threads = looks([READ] * 10, [seen("log()", "python")] * 10)
        return [
            look._replace(
                threads={i: s._replace(moved=s.name == caller) for i, s in look.threads.items()}
            )
            for look in threads
        ], {"CPU 0": [(0.05, 0.1)]}

    watched = account(window("MainThread"), window("logger"), window("MainThread"))
    assert {f.thread for f in watched.losses(-1)} == {"MainThread"}


def test_threads_at_one_line_are_told_apart_and_those_that_lose_most_come_first():
    reads = [seen("log()", "value")] * 10
    one = looks([READ] * 3 + [STEP] + reads[:6], [None] * 3 + reads[:7])
    watched = account((one, {"CPU 0": [(0.03, 0.1)]}))
    assert [(f.thread, f.place.code) for f in watched.findings if f.place.code != "step()"] == [
        ("MainThread", "read()"),
        ("logger", "log()"),
        ("MainThread", "log()"),
    ]


def test_each_device_is_idle_by_itself():
    one = looks([STEP] + [WAIT] * 9)
    watched = account((one, {"CPU 0": [(0.0, 0.06)], "CPU 1": [(0.06, 0.1)]}))
    assert watched.devices == {"CPU 0": pytest.approx(0.4), "CPU 1": pytest.approx(0.6)}
    assert watched.idle_seconds == pytest.approx(0.4)
    assert watched.loss(watched.findings[0]) == pytest.approx(0.4)


def test_time_in_a_callback_is_no_work_of_the_device():
    back = seen("log()", "callback")
    watched = account((looks([STEP] * 10, [back] * 8 + [None] * 2), {"CPU 0": [(0.0, 0.1)]}))
    assert watched.devices["CPU 0"] == pytest.approx(0.8)
    assert watched.findings[0].kind == "callback"


def test_an_operator_that_is_longer_than_a_window_is_no_idle_time():
    watched = account((looks([WAIT] * 10), {}), (looks([STEP] * 10), {"CPU 0": [(0.0, 0.1)]}))
    assert watched.devices["CPU 0"] == pytest.approx(0.0)


def test_between_two_operators_a_device_is_idle_also_while_somebody_waits():
    watched = account((looks([WAIT] * 10), {"CPU 0": [(0.0, 0.02), (0.08, 0.1)]}))
    assert watched.devices["CPU 0"] == pytest.approx(0.6)


def test_shares_are_of_what_comes_after_the_start():
    one, busy = looks([READ] * 10), {"CPU 0": [(0.0, 0.1)]}
    watched = account((one, {}), (one, busy), (one, busy), after=1.0)
    assert watched.start_seconds == 1.0
    assert watched.idle_seconds == 0.0


def test_one_window_says_little_and_many_that_agree_say_much():
    half = looks([READ] * 5 + [STEP] * 5), {"CPU 0": [(0.05, 0.1)]}
    assert account(half).losses(0.05) == []
    assert len(account(*[half] * 20).losses(0.05)) == 1
    low, high = account(*[half] * 20).interval
    assert (low, high) == (pytest.approx(0.5), pytest.approx(0.5))
