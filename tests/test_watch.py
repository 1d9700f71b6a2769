import dis
import functools
import json
import linecache
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from d2lpar import watch
from d2lpar.__main__ import main
from d2lpar._errors import D2lparError
from d2lpar._stack import Place, Sight, Site
from d2lpar._watch import KINDS, Finding, Watched, Watcher, _Account, _Look
from d2lpar._windows import Window
from d2lpar.book.asynchronous_computation import NEED_A_VALUE, NEED_NONE
from d2lpar.book.workloads import Work, chain

# --- What is found --------------------------------------------------------------------------------


WAITS = {"value", "barrier"}


@functools.cache
def work():
    return Work()


@pytest.fixture(autouse=True, scope="module")
def _measured_before():
    work()  # It waits, and so it would be found in whichever test comes first.


@jax.jit
def unready(matrix, links):
    # Their number is no static argument: nothing compiles while somebody watches.
    y = jax.lax.fori_loop(0, links, lambda _, y: chain(y, 1), matrix)
    return y, jnp.abs(y).sum(), jnp.argmax(y) % 2


def arrays(seconds=0.1):
    return unready(work().matrix, work().links(seconds))


def found_in(function, seconds=0.1, attempts=5, enough=bool):
    """Watch a function until enough is found: another process may have the core when we look."""
    function(*arrays(0.001))  # Compiles what it needs.
    for attempt in range(attempts):
        of = arrays(seconds * 2**attempt)
        with watch(0.001) as watched:
            function(*of)
        if enough(found := {(f.kind, f.place.code) for f in watched.findings}):
            break
    return found


def of_kind(found, kinds):
    return {code for kind, code in found if kind in kinds}


@pytest.mark.parametrize("name", NEED_A_VALUE)
def test_each_wait_for_a_value_is_found_on_its_line(name):
    def ask(*of):
        NEED_A_VALUE[name](*of)  # This line.

    found = found_in(ask, enough=lambda found: of_kind(found, WAITS))
    assert of_kind(found, WAITS) == {"NEED_A_VALUE[name](*of)  # This line."}


@pytest.mark.parametrize("name", NEED_NONE)
def test_what_needs_no_value_is_not_said_to_wait(name):
    def ask(*of):
        for _ in range(5):
            NEED_NONE[name](*of)

    assert of_kind(found_in(ask, seconds=0.03, attempts=1), WAITS) == set()


@pytest.mark.parametrize(
    "other",
    [
        lambda: time.sleep(0.02),
        lambda: threading.Event().wait(0.02),
        lambda: threading.Thread(target=time.sleep, args=[0.02]).run(),
    ],
    ids=["sleep", "event", "function that sleeps"],
)
def test_whoever_waits_for_something_else_does_not_wait_for_the_device(other):
    found = found_in(lambda *of: other(), seconds=0.1, attempts=1)
    assert of_kind(found, WAITS | {"queue"}) == set()


def test_numpy_reads_an_array_where_nothing_is_called():
    filled = np.zeros(work().matrix.shape, np.float32)

    def fill(y, s, i):
        filled[:] = y

    found = found_in(fill, enough=lambda found: of_kind(found, WAITS))
    assert of_kind(found, WAITS) == {"filled[:] = y"}


def test_a_barrier_is_told_from_a_value():
    def wait(y, s, i):
        jax.block_until_ready([y, {"s": s}])

    found = found_in(wait, enough=lambda found: of_kind(found, {"barrier"}))
    assert of_kind(found, WAITS) == {'jax.block_until_ready([y, {"s": s}])'}


def test_a_full_queue_is_no_loss():
    step = jax.jit(lambda x: chain(x, work().links(0.01)))

    def run_ahead(y, s, i):
        x = work().matrix
        for _ in range(60):
            x = step(x)

    found = found_in(run_ahead, enough=lambda found: of_kind(found, {"queue"}))
    assert of_kind(found, {"queue"}) == {"x = step(x)"}
    assert of_kind(found, WAITS) == set()


def test_a_device_that_has_nothing_to_do_is_found_with_what_python_does_meanwhile():
    def read(y, s, i):
        y.block_until_ready()
        time.sleep(0.6)  # Read.

    found = found_in(read, seconds=0.03, enough=lambda found: of_kind(found, {"device idle"}))
    assert "time.sleep(0.6)  # Read." in of_kind(found, {"device idle"})


def test_small_steps_cost_python_more_than_the_device():
    y = jnp.ones(2)
    y = y + 1
    with watch() as watched:
        end = time.perf_counter() + 0.4
        while time.perf_counter() < end:
            y = y + 1  # This line.
    found = watched.findings[0]
    assert (found.kind, found.place.code) == ("dispatch", "y = y + 1  # This line.")
    assert watched.loss(found) > 0.3


def test_a_program_that_calls_back_waits_at_the_line_of_the_callback():
    def log(x):
        time.sleep(0.01)  # This line.

    @jax.jit
    def step(x):
        io_callback(log, None, x.sum(), ordered=True)
        return x + 1

    x = jax.block_until_ready(step(jnp.ones(3)))
    with watch() as watched:
        for _ in range(40):
            x = step(x)
        jax.block_until_ready(x)
        jax.effects_barrier()
    found = watched.findings[0]
    assert (found.kind, found.place.code) == ("callback", "time.sleep(0.01)  # This line.")
    assert watched.loss(found) > 0.5


def test_the_thread_that_feeds_the_device_is_charged_and_not_who_waits_for_it():
    def learn():
        for _ in range(60):
            time.sleep(0.012)  # Reads.
            float(unready(work().matrix, work().links(0.003))[1])

    float(unready(work().matrix, work().links(0.003))[1])
    learner = threading.Thread(target=learn, name="learner")
    with watch() as watched:
        learner.start()
        learner.join()
    found = watched.losses()[0]
    assert (found.thread, found.place.code) == ("learner", "time.sleep(0.012)  # Reads.")
    assert {f.thread for f in watched.losses()} == {"learner"}


# --- What compiles --------------------------------------------------------------------------------


def compilations_in(function, *args):
    """Return the kind and the detail of what is said to compile, by its line."""
    # In a thread, since what runs the tests has loops of its own around them.
    thread = threading.Thread(target=function, args=args)
    with watch() as watched:
        thread.start()
        thread.join()
    of = [f for f in watched.findings if "compilation" in f.kind]
    return {f.place.code: (f.kind, f.detail) for f in of}


@pytest.fixture
def program():
    """A function that JAX has not seen yet, and that takes long enough to compile to be told."""

    def program(x):
        for _ in range(40):
            x = jnp.tanh(x @ x.T @ x)
        return x.sum()

    return program


@pytest.mark.parametrize("level", [logging.NOTSET, logging.CRITICAL])
def test_what_compiles_again_is_found_with_what_has_changed_whatever_is_logged(level, program):
    def train():
        step = jax.jit(program)
        for rows in range(3, 7):
            step(np.ones((rows, 5), np.float16))  # This line.

    before = logging.root.manager.disable
    logging.disable(level)
    try:
        found = compilations_in(train)
    finally:
        logging.disable(before)
    kind, detail = found["step(np.ones((rows, 5), np.float16))  # This line."]
    assert kind == "compilation"
    assert detail.startswith(
        "program was compiled 4 times, last for float16[6,5] after float16[5,5]. That took "
    )


def test_a_new_function_in_each_turn_is_told_from_a_new_shape(program):
    def train():
        for _ in range(4):
            jax.jit(lambda x: program(x))(np.ones((3, 5)))

    ((_, detail),) = compilations_in(train).values()
    assert "was compiled 4 times, last for the same shapes, but another function" in detail


def test_weak_types_and_devices_are_causes_as_well(program):
    step = jax.jit(lambda scale, x: (scale * jnp.float32(0.9), program(x)))
    evaluate = jax.jit(lambda x: program(2 * x))

    def train():
        scale, x = 0.1, np.ones((7, 5), np.float32)
        for turn in range(3):
            scale, _ = step(scale, x)
            evaluate(jax.device_put(x, jax.devices("cpu")[0]) if turn else jnp.asarray(x))

    details = {code: detail for code, (_, detail) in compilations_in(train).items()}
    assert (
        "a float32[] that is strongly typed after a weakly" in details["scale, _ = step(scale, x)"]
    )
    (of_device,) = [detail for code, detail in details.items() if code.startswith("evaluate")]
    assert "a float32[7,5] that is committed to" in of_device


def test_what_a_line_compiles_when_it_is_passed_once_is_not_compiled_again(program):
    step, first, second = jax.jit(program), np.ones((5, 3)), np.ones((6, 3))

    def initialize():
        key = jax.random.key(0)
        layers = [jax.random.laplace(key, (n, n + 1)) for n in (5, 6, 7)]
        weights = {"w": jnp.cosh(np.ones((3, 8))), "b": jnp.cosh(np.ones(8))}
        return layers, weights, list(map(step, (first, second)))

    found = compilations_in(initialize)  # On a line of its own: a comprehension is passed once.
    assert {kind for kind, _ in found.values()} <= {"first compilation"}


def test_what_compiles_once_is_no_loss(program):
    with watch() as watched:
        jax.jit(program)(np.ones((3, 11))).block_until_ready()
    assert {f.kind for f in watched.losses(-1)}.isdisjoint({"compilation", "first compilation"})


def test_what_a_library_compiles_in_one_call_is_not_compiled_again(program):
    code = "def both(f, *shapes): [f(x) for x in shapes]"
    library = {}
    exec(compile(code, "/env/site-packages/library.py", "exec"), library)
    double = jax.jit(program)

    def train():
        for turn in range(2):
            library["both"](double, np.ones((4 + turn, 3)), np.ones((4 + turn, 4)))
            time.sleep(0.1)

    ((kind, detail),) = compilations_in(train).values()
    assert kind == "compilation"
    assert "was compiled 2 times" in detail


# --- Whom it leaves alone -------------------------------------------------------------------------


def test_what_a_function_keeps_of_its_variables_stays():
    def train(rate=0.1, rows=32):
        wait = time.sleep
        kept = locals()
        for _ in range(5):
            wait(0.02)
        return kept

    def make(wait):
        class Config:
            first = 1
            wait(0.05)
            second = 2

        return Config

    with watch(0.001):
        kept, config = train(), make(time.sleep)
    assert {"rate", "rows", "wait"} <= kept.keys()
    assert (config.first, config.second) == (1, 2)


def test_what_fails_while_it_looks_is_told_where_the_block_ends(monkeypatch):
    def fail(frame):
        raise RuntimeError("no stack")

    monkeypatch.setattr("d2lpar._watch.sight_of", fail)
    with pytest.raises(D2lparError, match="ended early") as raised, watch(0.001):
        time.sleep(0.05)
    assert "no stack" in str(raised.value.__cause__)


def test_whoever_interrupts_its_end_can_watch_again(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    watcher = Watcher()
    watcher.start()
    monkeypatch.setattr(watcher._ended, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        watcher.stop()
    with watch():
        pass


def test_a_recording_of_the_program_has_the_way(tmp_path):
    y = jnp.ones(3)
    with watch() as watched:
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end and not watched.looks > 5:
            y = y + 1
        with jax.profiler.trace(tmp_path):
            jax.block_until_ready(y + 1)
        jax.block_until_ready(y + 1)
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_jax_and_the_interpreter_are_left_as_they_were():
    from jax._src.lib import _profiler

    before = _profiler.ProfilerSession, sys.getswitchinterval(), logging.root.handlers[:]
    with watch():
        jax.jit(lambda x: x - 17)(jnp.ones(3)).block_until_ready()
        time.sleep(0.1)
    assert (_profiler.ProfilerSession, sys.getswitchinterval(), logging.root.handlers) == before


def test_an_error_ends_the_watch_and_keeps_what_was_seen():
    with pytest.raises(ZeroDivisionError), watch() as watched:
        1 / 0  # noqa: B018
    assert watched.seconds > 0
    with watch():  # It is over.
        pass


def test_a_script_that_watches_itself_has_the_way_of_the_command():
    command = Watcher(of_command=True)
    command.start()
    with watch(0.001) as inner:
        time.sleep(0.05)
    looks = inner.looks
    time.sleep(0.05)
    command.stop()
    assert looks > 0
    assert inner.looks == looks
    assert command.watched.looks > 0


def test_an_array_that_grows_in_each_turn_compiles_again():
    def grow():
        grown = jnp.zeros((1, 9))
        for _ in range(8):
            grown = jnp.concatenate([grown, jnp.ones((1, 9))])

    found = compilations_in(grow)["grown = jnp.concatenate([grown, jnp.ones((1, 9))])"]
    assert found[0] == "compilation"
    assert "last for float32[8,9] after float32[7,9]" in found[1]


def test_functions_that_live_on_are_not_compiled_again(program):
    def make(factor):
        return jax.jit(lambda x: program(factor * x))

    functions = [make(factor) for factor in (1.0, 2.0, 3.0)]

    def train():
        for function in functions:
            function(np.ones((3, 5)))

    assert {kind for kind, _ in compilations_in(train).values()} <= {"first compilation"}


def test_who_watches_twice_is_told():
    with watch(), pytest.raises(D2lparError, match="already"), watch():
        pass


@pytest.mark.parametrize("every", [0, -1, True, "1", None, float("nan")])
def test_time_between_two_looks_is_a_positive_number(every):
    with pytest.raises(ValueError, match="positive number of seconds"), watch(every):
        pass


# --- Reckoning ------------------------------------------------------------------------------------

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
    site = Site(TRAIN, calls[-1].offset)
    return Sight((0, 0, 0), site, site, (), doing)


def looks(*threads, every=0.01):
    """Return looks of one window, each of a hundredth of a second: what each thread is at."""
    names = ("MainThread", "logger")
    return [
        _Look(
            n * every,
            (n + 1) * every,
            n * every,
            {
                threading.main_thread().ident + i: (names[i], sight, False, False)
                for i, sight in enumerate(at)
                if sight
            },
            0.0,
        )
        for n, at in enumerate(zip(*threads, strict=True))
    ]


def account(*windows, compiled=(), after=0.0, over=None):
    """Reckon with windows, one a second: what was looked at, and when each device was busy."""

    closed = []
    for number, (seen_there, busy) in enumerate(windows):
        shift = float(number)
        there = [
            x._replace(start=x.start + shift, end=x.end + shift, at=x.at + shift)
            for x in seen_there
        ]
        window = Window(shift, there[-1].end, b"", there)
        window.events = (
            {name: [(a + shift, b + shift) for a, b in spans] for name, spans in busy.items()},
            [(there[0].start, there[0].start + 1e-5)],
        )
        closed.append(window)
    watcher = SimpleNamespace(
        began=0.0,
        after=after,
        compiled=compiled,
        outside=Counter(),
        times=Counter(),
        callers=defaultdict(Counter),
        windows=SimpleNamespace(closed=closed, why_none="none"),
    )
    watched = Watched(seconds=over or len(windows))
    _Account(watcher).fill(watched)
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


def test_a_thread_that_feeds_no_device_loses_nothing():
    reads_values = [None] * 5 + [seen("log()", "value")] * 5
    one = looks([READ] * 5 + [STEP] * 5, reads_values)
    watched = account((one, {"CPU 0": [(0.05, 0.1)]}))
    assert {f.place.code for f in watched.losses(-1)} == {"read()"}


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


# --- The report -----------------------------------------------------------------------------------


@pytest.fixture
def watched():
    place = Place("/home/me/train.py", 12, "losses.append(float(loss))")
    one = Finding("value", place, "float(loss)", "MainThread", 0.5, 40, 0.4, 0.3)
    other = Finding("barrier", place, "x < y", "logger", 0.02, 1)
    return Watched(3.0, 1.0, 200, 0.5, {"CPU 0": 1.0}, (0.4, 0.6), [one, other])


def test_the_report_says_where_how_long_and_what_to_do(watched):
    text = str(watched)
    assert "Watched for 3 s, of which the start took 1 s" in text
    assert "CPU 0 had nothing to do for 50% of that (40% to 60%)." in text
    assert " 20.0% lost  /home/me/train.py:12  losses.append(float(loss))\n" in text
    assert "Python was there for 25.0% of the time (500 ms, at least 40 times)\n" in text
    assert "1.0% of the time (20 ms, at least 1 time), in logger\n" in text
    for text_or_link in KINDS["value"]:
        assert text_or_link in text


def test_who_calls_a_line_is_said_and_how_often(watched):
    watched.findings[0].callers = {"a.py:3": 30, "a.py:9": 10}
    assert str(watched).count("Called from") == 1
    assert "Called from a.py:3 (75%), a.py:9 (25%)." in str(watched)
    watched.findings[0].callers = {"a.py:3": 30}
    assert "Called from a.py:3." in str(watched)


def test_in_a_notebook_the_report_is_a_table(watched):
    page = watched._repr_html_()
    assert "train.py:12" in page
    assert "x &lt; y" in page
    assert f'<a href="{KINDS["barrier"][2]}">' in page


def test_as_json_the_report_has_seconds_and_shares(watched):
    read = json.loads(watched.to_json())
    assert (read["seconds"], read["start_seconds"], read["idle_seconds"]) == (3.0, 1.0, 1.0)
    assert [f["share"] for f in read["findings"]] == [0.25, 0.01]
    assert [f["loss"] for f in read["findings"]] == [0.2, 0.0]
    assert read["findings"][0]["place"]["line"] == 12


def test_what_is_lost_for_sure_is_over_the_share(watched):
    assert watched.losses(0.1) == watched.findings[:1]
    assert watched.losses(0.18) == []


# --- A script -------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    """A function that watches a script in a process of its own: status, output, report."""

    def run(program, *arguments, options=(), module=(), **environment):
        script = tmp_path / "script.py"
        script.write_text(program)
        asked = [*options, *(module or [str(script)]), *arguments]
        done = subprocess.run(
            [sys.executable, "-m", "d2lpar", "watch", *asked],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | environment,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_script_runs_as_python_would_run_it(command, tmp_path):
    (tmp_path / "beside.py").write_text("word = 'beside'")
    program = """
import os, sys, beside
print(__name__, __file__, sys.argv[1:], beside.word, 'jax' in sys.modules, 'numpy' in sys.modules)
os.chdir('/')
os.remove(__file__)
os.environ['JAX_ENABLE_X64'] = '1'
import threading, time
def late():
    time.sleep(0.2)
    print(threading.current_thread().name, file=sys.stderr)
threading.Thread(target=late, name='late').start()
"""
    status, out, said = command(program, "--json", "5")
    asked = "['--json', '5']"
    assert (status, out) == (0, f"__main__ {tmp_path / 'script.py'} {asked} beside False False\n")
    assert said.index("late") < said.index("Watched for")
    assert "What the devices did is not known: it did not use JAX." in said


def test_neither_signals_nor_forks_of_the_script_meet_the_thread_that_looks(command, run_python):
    program = """
import os, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait([signal.SIGUSR1]).name, threading.active_count())
"""
    assert command(program)[:2] == (0, "SIGUSR1 1\n")
    program = """
import os
os.register_at_fork(before=lambda: print(len(os.listdir("/proc/self/task"))))
from d2lpar import watch
with watch() as watched:
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    before = watched.looks
    while watched.looks < before + 3:
        pass
"""
    if sys.platform == "linux":
        assert run_python(program) == "1"


def test_a_script_sets_what_jax_reads_when_it_is_imported(command):
    program = """
import os
os.environ['JAX_ENABLE_X64'] = '1'
os.environ['JAX_NUM_CPU_DEVICES'] = '4'
import jax, jax.numpy as jnp
print(jnp.ones(3).dtype, jax.device_count())
"""
    assert command(program)[1] == "float64 4\n"


def test_a_module_runs_as_python_would_run_it(command, tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("")
    (tmp_path / "trainer" / "config.py").write_text("STEPS = 3")
    (tmp_path / "trainer" / "train.py").write_text(
        "import sys\nfrom .config import STEPS\nprint(STEPS, sys.argv[1:], __package__, __name__)"
    )
    status, out, said = command("", module=["-m", "trainer.train", "--steps", "3"])
    assert (status, out) == (0, "3 ['--steps', '3'] trainer __main__\n")
    status, _, said = command("", module=["-m", "nowhere"])
    assert (status, "There is no module 'nowhere'" in said) == (1, True)


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, sys; sys.stdout.flush(); os._exit(4)", 4, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
        ("import os, sys; sys.stderr.close(); os.close(2)", 0, ""),
    ],
)
def test_the_status_of_the_script_is_kept_and_what_was_seen_is_reported(command, end, status, says):
    ended, out, said = command(f"print('mine')\n{end}")
    assert (ended, out) == (status, "mine\n")
    assert says in said
    assert "d2lpar/__main__.py" not in said
    assert said.count("Watched for") == 1


def test_a_child_that_the_script_forks_reports_nothing(command):
    program = "import os\nif os.fork() == 0:\n    raise SystemExit(0)\nprint(os.wait()[1])\n"
    status, out, said = command(program)
    assert (status, out, said.count("Watched for")) == (0, "0\n", 1)


HIDDEN = """
import time
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda _, x: jnp.tanh(x @ x), x).sum())
x = jnp.ones((200, 200))
for _ in range({turns}):
    loss = step(x)
    float(loss)
    time.sleep(0.02)
"""


def test_a_script_that_keeps_its_device_waiting_fails_where_it_must_not(command, tmp_path):
    report = tmp_path / "report.json"
    options = ["--fail-over", "10%", "--json", str(report)]
    status, _, said = command(HIDDEN.format(turns=150), options=options)
    assert status == 1
    assert f"More than 10%: {tmp_path / 'script.py'}:9 keeps the device idle, which costs" in said
    assert {f["place"]["line"] for f in json.loads(report.read_text())["findings"]} >= {8, 9}


def test_a_script_whose_device_is_busy_may_wait_for_it(command):
    program = HIDDEN.format(turns=400).replace("    time.sleep(0.02)\n", "")
    program = program.replace("0, 60,", "0, 120,")
    status, _, said = command(program, options=["--fail-over", "30%"])
    assert "waits for a value: float(loss)" in said
    assert "Too short" not in said
    assert (status, "More than" in said) == (0, False)


def test_a_script_that_is_over_at_once_is_not_judged(command):
    status, _, said = command(HIDDEN.format(turns=3), options=["--fail-over", "1%"])
    assert (status, "Too short to judge" in said) == (0, True)


def test_a_script_whose_devices_are_not_seen_is_not_called_good(command):
    program = "import time\ntime.sleep(2.2)"
    status, _, said = command(program, options=["--fail-over", "1%"])
    assert (status, "It cannot be judged. What the devices did is not known" in said) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--json", "nowhere/report.json", __file__], "there is no folder 'nowhere'"),
        (["--json", "/", __file__], "'/' is a folder"),
        (["--fail-over", "200%", __file__], "between 0 % and 100 %, found '200%'"),
        (["--fail-over", "much", __file__], "found 'much'"),
        (["--after", "soon", __file__], "found 'soon'"),
        ([], "script"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(options, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "watch", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err
