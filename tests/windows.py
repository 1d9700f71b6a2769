"""Windows and watchers made by hand, and the reports on them."""

import dis
import linecache
import threading
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

from d2lpar._jax.compile_requests import Request
from d2lpar._jax.stack import CodePosition, StackSample
from d2lpar._watch import sampler
from d2lpar._watch.recompilations import Compiled
from d2lpar._watch.sampler import Unseen
from d2lpar._watch.windows import Collection, Events, Sample, ThreadSample, Window, merged

NAMES = "MainThread", "logger"
SOURCE = "read()\nstep()\nwait()\nlog()\ncollect()\nnp.load(f)\nmemoryview(y)\n"
TRAIN = compile(SOURCE, "/home/me/train.py", "exec")
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
    *windows,
    after=0.0,
    collectives=(),
    unseen=None,
    early=None,
    seconds=None,
    programs=(),
    planned=None,
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
        stands_for = [(min(over - 1, second), second)]
        is_cut = over - second < 0.5 * length
        closed.append(Window(second, over, samples, None, stands_for, length, is_cut))
        busy = {name: merged(spans, second) for name, spans in given.busy.items()}
        together = {"CPU 0": merged(collectives, second)}
        calls = [(second, second + 1e-5)]
        closed[-1].events = Events(busy, together, calls, [], [*given.functions])
    watcher = sampler.Watcher(after=after)
    watcher.began, watcher.collections = 0.0, collections
    watcher.compilations = SimpleNamespace(done=programs)
    watcher.unseen |= {0: unseen} if unseen else {}
    watcher.early |= {0: early} if early else {}
    watcher.windows.closed, watcher.windows.could_begin = closed, 0.0
    watcher.windows.obstacle = lambda: ""
    watched = watcher.watched
    watched.seconds = seconds or len(windows)
    watcher.windows.due = min(len(windows), watched.seconds)
    with pytest.MonkeyPatch.context() as patched:
        # The programs say themselves whether they are compiled again.
        patched.setattr("d2lpar._watch.findings.find_again", lambda programs: None)
        patched.setattr("d2lpar._watch.findings.why", lambda programs: ("shape", "Another shape."))
        sampler.fill(watched, watcher)
    return watched


def program(began, over, thread=None, line="step()", name="step", **fields):
    """Return a program that a thread, the main one unless said otherwise, compiled at a line."""
    thread = thread or threading.main_thread().ident
    fields = {"compiled": True, "request": Request(of_library=False)} | fields
    callers = (at(line, "jax").position,)
    return Compiled(name, thread, thread, began, over, over - began, callers=callers, **fields)


def unseen(seconds, **reasons):
    """Return samples from time that no window stands for: at `wait()`, and at `read()`."""
    positions = {(s.position, s.activity): seconds / 2 for s in (WAIT, READ)}
    names = defaultdict(set, {s.position: {"MainThread"} for s in (WAIT, READ)})
    return Unseen(Counter(reasons), Counter(positions), names)


READ, STEP, WAIT = at("read()", "python"), at("step()", "jax"), at("wait()", "value")
LOG = at("log()", "value")
IDLE = window([READ] * 10, busy={})
BUSY = window([READ] * 10, busy={"CPU 0": [(0.0, 0.1)]})
