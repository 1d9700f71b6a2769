import functools
import gc
import itertools
import json
import logging
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar import watch
from d2lpar.__main__ import main
from d2lpar._errors import D2lparError
from d2lpar._watch import (
    KINDS,
    Finding,
    Place,
    Watched,
    _Compilations,
    _Sight,
    called_at,
    expression_at,
)
from d2lpar.book.asynchronous_computation import NEED_A_VALUE, NEED_NONE
from d2lpar.book.workloads import Work, chain

# --- Watching -----------------------------------------------------------------------------------


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
    assert of_kind(found, KINDS.keys() - {"device idle"}) == set()


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
    watched = Watched(1.0, findings=[Finding("queue", Place("a.py", 1, ""), "f(x)", "t", 0.9, 1)])
    assert watched.losses() == []


def test_a_device_that_has_nothing_to_do_is_found_with_what_python_does_meanwhile():
    def read(y, s, i):
        y.block_until_ready()
        time.sleep(0.3)  # Read.

    found = found_in(read, seconds=0.03, enough=lambda found: of_kind(found, {"device idle"}))
    assert "time.sleep(0.3)  # Read." in of_kind(found, {"device idle"})


def test_what_compiles_again_is_found_with_what_has_changed():
    again = []
    for attempt in range(6):
        last = 3 + 5 * 2**attempt  # More of them, if nobody has looked in time.
        with watch(0.001) as watched:
            for rows in range(3, last + 1):
                jax.jit(lambda x: jnp.tanh(x @ x.T).sum())(jnp.ones((rows, 5), jnp.float16))
        again = [f.detail for f in watched.findings if f.kind == "compilation"]
        if any(f"float16[{last},5] after float16[{last - 1},5]" in detail for detail in again):
            return
    raise AssertionError(f"found only {again}")


def test_what_compiles_is_heard_where_logging_was_configured_anew(monkeypatch, caplog):
    logger = logging.getLogger("jax._src.interpreters.pxla")
    monkeypatch.setattr(logger, "disabled", True)
    test_what_compiles_again_is_found_with_what_has_changed()
    assert logger.disabled
    with watch():
        logger.warning("of a logger that is to be silent")
    assert caplog.records == []


def compiled_by(calls):
    """Return what was said of compiling, of calls of a library that compile for two shapes each."""
    library = {"jnp": jnp}
    code = "def both(f, *shapes): [f(jnp.ones(shape)) for shape in shapes]"
    exec(compile(code, jax.__file__.replace("__init__", "library"), "exec"), library)
    tried, double = library["both"], jax.jit(lambda x: 2 * x)
    compilations = _Compilations()
    with compilations:
        for rows in range(1, 1 + calls):
            tried(double, (rows, 3), (rows, 4))
    (place,) = {place for place, _ in compilations.seen}
    return compilations.again(place)


def test_a_call_that_compiles_for_several_shapes_has_compiled_nothing_again():
    assert compiled_by(1) == ""
    assert "was compiled 2 times, last for float32[2,4] after float32[1,4]." in compiled_by(2)


def test_what_can_have_lost_most_comes_first_also_where_it_took_less():
    def long(length):
        return jax.jit(lambda x: functools.reduce(lambda y, _: jnp.sin(y), range(length), x))

    jax.block_until_ready(arrays(0.001))
    for scale in (1, 2, 4, 8):  # What is short can fall between two looks of a busy machine.
        with watch(0.001) as watched:
            jax.block_until_ready(arrays(0.05 * scale))  # So that it sees when the device is idle.
            long(500 * scale)(1.0)
            time.sleep(0.05 * scale)
        kinds = {found.kind: found for found in reversed(watched.findings)}
        if {"first compilation", "device idle"} <= set(kinds):
            break
    compiled, idle = kinds["first compilation"], kinds["device idle"]
    assert compiled.seconds > idle.seconds
    assert watched.findings.index(idle) < watched.findings.index(compiled)


def test_a_first_look_that_is_dear_is_not_the_last(monkeypatch):
    used = itertools.chain([0, 100], itertools.repeat(100))  # One look uses a hundred seconds.
    clocks = SimpleNamespace(**vars(time) | {"thread_time": lambda: next(used)})
    monkeypatch.setattr("d2lpar._watch.time", clocks)
    found = found_in(lambda y, s, i: float(s), seconds=0.3, attempts=1)  # This line.
    assert [code for code in of_kind(found, WAITS) if code.endswith("# This line.")]


def test_a_thread_that_goes_on_while_it_is_looked_at_stops_nobody(monkeypatch):
    users = iter([sys._getframe()])

    class Returning:
        """A frame in JAX that can be left once only, as one of a thread that goes on."""

        f_code, f_lasti, f_globals = compile("pass", jax.__file__, "exec"), 0, {}
        f_back = property(lambda self: next(users, None))

    stacks = {threading.get_ident(): Returning()}
    monkeypatch.setattr(sys, "_current_frames", lambda: stacks)
    assert _Sight.of(threading.current_thread()).in_jax
    assert _Sight.of(threading.current_thread()) is None  # It has returned from everything.


def test_what_compiles_once_is_no_loss():
    with watch(0.001) as watched:
        jax.jit(lambda x: jnp.cosh(x).prod())(jnp.ones(11)).block_until_ready()
    assert {f.kind for f in watched.losses()}.isdisjoint({"compilation", "first compilation"})


def test_threads_are_told_apart():
    def ask(y, s, i):
        thread = threading.Thread(target=float, args=[s], name="logger")
        another = threading.Thread(target=lambda: float(s), name="printer")
        for each in (thread, another):
            each.start()
        for each in (thread, another):
            each.join()

    for attempt in range(6):
        of = arrays(0.1 * 2**attempt)
        with watch(0.001) as watched:
            ask(*of)
        if waits := {f.thread for f in watched.findings if f.kind in WAITS}:
            break
    # The other has no line of anybody's code.
    assert waits == {"printer"}


def test_an_error_ends_the_watch_and_keeps_what_was_seen():
    with pytest.raises(ZeroDivisionError), watch() as watched:
        1 / 0  # noqa: B018
    assert watched.seconds > 0
    with watch():  # It is over.
        pass


def test_who_watches_twice_is_told():
    with watch(), pytest.raises(D2lparError, match="already"), watch():
        pass


@pytest.mark.parametrize("every", [0, -1, True, "1", None, float("nan")])
def test_time_between_two_looks_is_a_positive_number(every):
    with pytest.raises(ValueError, match="positive number of seconds"), watch(every):
        pass


def test_the_log_of_jax_is_left_as_it_was(capfd):
    logger = logging.getLogger("jax._src.interpreters.pxla")
    before = logger.level, list(logger.filters)
    with watch():
        jax.jit(lambda x: x - 17)(jnp.ones(3)).block_until_ready()
    assert (logger.level, logger.filters) == before
    assert capfd.readouterr().err == ""


def test_a_program_without_jax_is_told_so():
    with watch(0.001) as watched:
        time.sleep(0.01)
    assert "No array of JAX was being computed while this was watched." in str(watched)


# --- The report -------------------------------------------------------------------------------


@pytest.fixture
def watched():
    place = Place("/home/me/train.py", 12, "losses.append(float(loss))")
    one = Finding("value", place, "float(loss)", "MainThread", 0.5, 40)
    other = Finding("barrier", place, "x < y", "logger", 0.02, 1)
    return Watched(2.0, 1.0, True, [one, other])


def test_the_report_says_where_how_long_and_what_to_do(watched):
    text = str(watched)
    assert "Watched for 2 s; the device had nothing to do for 50% of it." in text
    assert "25.0%  500 ms, at least 40 times\n" in text
    assert "1.0%  20 ms, at least 1 time, in logger\n" in text
    assert "/home/me/train.py:12  losses.append(float(loss))" in text
    for text_or_link in KINDS["value"]:
        assert text_or_link in text


def test_a_wait_that_loses_nothing_is_not_to_be_mended(watched):
    watched.idle_seconds = 0.0
    assert str(watched).count("Nothing is lost here: the device worked meanwhile.") == 2
    assert KINDS["value"][1] not in str(watched)
    read = json.loads(watched.to_json())
    assert {f["advice"] for f in read["findings"]} == {watched.advice(watched.findings[0])}


def test_in_a_notebook_the_report_is_a_table(watched):
    page = watched._repr_html_()
    assert "train.py:12" in page
    assert "x &lt; y" in page
    assert f'<a href="{KINDS["barrier"][2]}">' in page


def test_a_cell_of_a_notebook_is_called_one():
    place = Place("/tmp/ipykernel_17/2718281828.py", 3, "float(loss)")
    assert str(place) == "line 3 of a cell"


def test_as_json_the_report_has_seconds_and_shares(watched):
    read = json.loads(watched.to_json())
    assert read["seconds"] == 2.0
    assert [f["share"] for f in read["findings"]] == [0.25, 0.01]
    assert [f["loss"] for f in read["findings"]] == [0.25, 0.01]
    assert read["findings"][0]["place"]["line"] == 12


def test_losses_are_those_over_a_share(watched):
    assert watched.losses(0.05) == watched.findings[:1]
    assert watched.losses() == watched.findings


def test_a_line_has_lost_no_more_than_the_device_was_idle(watched):
    watched.idle_seconds = 0.2
    assert [watched.loss(found) for found in watched.findings] == [0.1, 0.01]
    assert watched.share(watched.findings[0]) == 0.25
    compiling = Finding("compilation", watched.findings[0].place, "step", "MainThread", 0.5, 2)
    waiting = Finding("queue", watched.findings[0].place, "step", "MainThread", 0.5, 2)
    assert (watched.loss(compiling), watched.loss(waiting)) == (0.25, 0.0)


# --- A script ---------------------------------------------------------------------------------


@pytest.fixture
def command(script, monkeypatch, capfd):
    """A function that watches a script, and returns the exit status and what was printed."""

    def run(program, *arguments, options=()):
        asked = ["d2lpar", "watch", *options, str(script(program)), *arguments]
        monkeypatch.setattr(sys, "argv", asked)
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, *capfd.readouterr()

    return run


HIDDEN = """
import time
import jax, jax.numpy as jnp
from d2lpar.book.workloads import Work, chain
work = Work()
step = jax.jit(lambda x: chain(x, work.links(0.2)).sum())
for _ in range(8):
    loss = step(work.matrix)
    float(loss)
    time.sleep(0.1)
"""


def test_a_script_with_a_hidden_barrier_fails_where_it_must_not_have_one(command, tmp_path):
    report = tmp_path / "report.json"
    options = ["--fail-over", "2%", "--json", str(report)]
    status, _, said = command(HIDDEN, options=options)
    assert status == 1
    assert f"More than 2%: {tmp_path / 'script.py'}:9 waits for a value, which can have " in said
    assert "float(loss)" in {f["operation"] for f in json.loads(report.read_text())["findings"]}


def test_a_script_whose_device_is_busy_may_wait_for_it(command):
    program = HIDDEN.replace("time.sleep(0.1)", "").replace("step(work", "step, step(work")
    program = program.replace("    float(loss)\n", "    step(work.matrix)\n    float(loss[1])\n")
    assert "float(loss[1])" in program
    status, _, said = command(program, options=["--fail-over", "30%"])
    assert "waits for a value: float(loss[1])" in said
    assert (status, "More than" in said) == (0, False)


def test_a_script_runs_as_python_would_run_it(command, tmp_path):
    (tmp_path / "beside.py").write_text("word = 'beside'")
    program = "import sys, beside\nprint(__name__, __file__, sys.argv[1:], beside.word)"
    status, out, said = command(program, "--json", "5")
    assert (status, out) == (0, f"__main__ {tmp_path / 'script.py'} ['--json', '5'] beside\n")
    assert "Watched for" in said


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("if", 1, "SyntaxError"),
    ],
)
def test_the_status_of_the_script_is_kept_and_what_was_seen_is_reported(command, end, status, says):
    ended, out, said = command(f"print('mine')\n{end}" if end != "if" else end)
    assert ended == status
    assert out == "mine\n" * (end != "if")
    assert says in said
    assert "d2lpar/__main__.py" not in said
    assert "Watched for" in said


def test_a_child_that_the_script_forks_reports_nothing(run_python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nif os.fork() == 0:\n    raise SystemExit(0)\nprint(os.wait()[1])\n"
    )
    program = f"""
import subprocess, sys
done = subprocess.run(
    [sys.executable, "-W", "ignore", "-m", "d2lpar", "watch", {str(script)!r}],
    capture_output=True, text=True,
)
print(done.stdout.strip(), done.stderr.count("Watched for"), done.returncode)
"""
    assert run_python(program) == "0 1 0"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--json", "nowhere/report.json", __file__], "there is no folder 'nowhere'"),
        (["--fail-over", "200%", __file__], "between 0 % and 100 %, found '200%'"),
        (["--fail-over", "much", __file__], "found 'much'"),
        ([], "script"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(options, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "watch", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


# --- Places -------------------------------------------------------------------------------------


def called():
    """Return what the caller has called, as its frame says: this function."""
    return called_at(sys._getframe(1))


def expression(*_):
    return expression_at(sys._getframe(1))


class Loop:
    def __init__(self, step):
        self.step = step

    @property
    def never(self):
        return called


def test_code_without_a_source_is_at_nothing():
    names = {"expression": expression, "called": called}
    exec(compile("at = expression(), called()", "<nowhere>", "exec"), names)
    assert names["at"] == ("", None)


def test_what_has_been_called_is_found_by_its_name():
    def through_a_local(function):
        return function()

    def through_an_attribute(loop):
        return loop.step()

    of_this_module = called()
    assert of_this_module is called
    assert through_a_local(called) is called
    assert through_an_attribute(Loop(called)) is called


def test_what_has_no_name_is_not_looked_for_and_no_property_is_run():
    unnamed = (lambda: called)()()
    loop = Loop(called)
    through_a_property = loop.never()
    assert unnamed is None
    assert through_a_property is vars(Loop)["never"]


def test_to_look_at_a_frame_keeps_none_of_its_arrays_alive():
    def program(function):
        array = np.ones(3)
        alive = weakref.ref(array)
        assert function() is called
        del array
        gc.collect()
        return alive() is None

    assert program(called)
