"""How answers are called and judged, what is noted of their calls, and what is reported."""

import contextlib
import inspect
import json
import math
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeArray, FakeDevice

from d2lpar import D2lparError, compare, cpu, gpu
from d2lpar.book import exercises
from d2lpar.book.exercises import MIME_TYPE, Report
from d2lpar.book.exercises.checking import (
    LIMIT,
    SHOWN,
    CallLog,
    Rejection,
    Untestable,
    call_answer,
    exercise,
    require_array,
    require_arrays,
    require_number,
    require_truth,
)

EYE = jnp.eye(2)
KEYS = jax.random.split(jax.random.key(0), (2, 2))


# --- What a check says ------------------------------------------------------------------------

REPORTS = {
    "accepted": (Report("X2", "accepted", "It did."), "accepted"),
    "not yet": (Report("Y1", "not yet", "It did not.", "Why?"), "not yet"),
    "untestable": (Report("Y3", "untestable", "One device."), "cannot be checked here"),
}


def test_a_report_reads_as_lines_and_leaves_out_what_is_empty():
    assert [repr(report) for report, _ in REPORTS.values()] == [
        "Exercise X2: accepted\n  It did.",
        "Exercise Y1: not yet\n  It did not.\n  Why?",
        "Exercise Y3: cannot be checked here\n  One device.",
    ]


@pytest.mark.parametrize("verdict", REPORTS)
def test_a_notebook_gets_text_html_and_data_that_json_can_keep(verdict):
    report, words = REPORTS[verdict]
    bundle = report._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", MIME_TYPE}
    assert bundle["text/plain"] == repr(report)
    assert f'class="d2lpar-exercise" data-verdict="{verdict}"' in bundle["text/html"]
    for text in (report.exercise, f">{words}<", report.saw, report.look):
        assert text in bundle["text/html"]
    assert bundle["text/html"].count("<li>") == bool(report.look)
    assert json.loads(json.dumps(bundle[MIME_TYPE])) == {
        "exercise": report.exercise,
        "verdict": verdict,
        "saw": report.saw,
    }


def test_html_escapes_what_others_wrote_and_shows_code_as_code():
    report = Report("X1", "not yet", "raised <b> & `x < y`", '<script>"x"</script>')
    html = report._repr_mimebundle_()["text/html"]
    assert "raised &lt;b&gt; &amp; <code>x &lt; y</code>" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_a_check_still_has_its_name_and_its_help():
    assert exercises.check_x1.__name__ == "check_x1"
    assert inspect.getdoc(exercises.check_x1).startswith("Check a formula")


@pytest.mark.parametrize(
    ("raised", "verdict"),
    [
        (Rejection("It did not.", "Why?"), "not yet"),
        (Untestable("Nothing is to be seen."), "untestable"),
        (D2lparError("A recording is under way."), "untestable"),
    ],
    ids=repr,
)
def test_what_a_check_raises_becomes_its_report(raised, verdict):
    @exercise("X9")
    def check(answer):
        raise raised

    report = check(None)
    assert (report.exercise, report.verdict, report.saw) == ("X9", verdict, str(raised))
    assert report.look == getattr(raised, "look", "")


def test_what_a_check_does_not_expect_is_not_taken_for_an_answer():
    @exercise("X9")
    def check(answer):
        return answer.nothing

    with pytest.raises(AttributeError):
        check(None)


# --- What can be called -----------------------------------------------------------------------


def rejection_of(function, *args, usage="f()"):
    """Return how an answer is turned down."""
    with pytest.raises(Rejection) as caught:
        call_answer(function, [args], usage)
    return caught.value


def test_the_answers_come_back_in_the_order_of_the_cases():
    seen = []

    def subtract(a, b):
        seen.append((a, b))
        return a - b

    assert call_answer(subtract, iter([(5, 1), (1, 5), (0, 0)]), "subtract(a, b)") == [4, -4, 0]
    assert seen == [(5, 1), (1, 5), (0, 0)]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(None, "None"), (3, "an int"), ("text", "a str"), ([len], "a list"), (EYE, "an ArrayImpl")],
    ids=str,
)
def test_what_cannot_be_called_is_named_and_the_function_is_asked_for(answer, kind):
    rejection = rejection_of(answer, 1, 2, usage="add(a, b)")
    assert rejection.saw == f"The check was given {kind}, which cannot be called."
    assert rejection.look == "Pass the function itself, add, and not what it returns, add(a, b)."


@pytest.mark.parametrize(
    ("answer", "signature"),
    [
        (lambda: 0, "()"),
        (lambda a: 0, "(a)"),
        (lambda a, b, c: 0, "(a, b, c)"),
        (lambda a, *, b: 0, "(a, *, b)"),
    ],
    ids=["none", "too few", "too many", "by name only"],
)
def test_other_arguments_are_shown_beside_those_that_the_check_gives(answer, signature):
    rejection = rejection_of(answer, 1, 2, usage="add(a, b)")
    assert rejection.saw == f"The check calls add(a, b), but your function takes {signature}."


def test_nothing_is_called_unless_all_cases_fit():
    called = []
    with pytest.raises(Rejection, match="your function takes"):
        call_answer(lambda a: called.append(a), [(1,), (1, 2)], "f(a)")
    assert called == []


@pytest.mark.parametrize(
    "answer",
    [lambda *args: 7, lambda a, b, c=0: 7, lambda a, b, **options: 7, max, jax.jit(lambda a, b: 7)],
    ids=["any", "a default", "options", "no signature", "jitted"],
)
def test_arguments_that_fit_in_another_way_are_fine(answer):
    assert call_answer(answer, [(7, 1)], "f(a, b)") == [7]


def test_none_means_a_forgotten_return_even_if_it_comes_once():
    def answer(x):
        if x:
            return x

    with pytest.raises(Rejection, match="returned None") as caught:
        call_answer(answer, [(1,), (0,), (2,)], "answer(x)")
    assert caught.value.look == "Does each way through answer(x) end in a `return`?"


def test_what_is_only_empty_or_false_is_an_answer():
    assert call_answer(lambda: 0, [()], "f()") == [0]


def test_the_probe_is_asked_right_after_each_call_on_the_same_thread():
    happened = []

    def note(what):
        happened.append((what, threading.get_ident()))
        return len(happened)

    found = call_answer(
        lambda name: note(f"call {name}"), [("a",), ("b",)], "f(name)", probe=lambda: note("probe")
    )
    assert found == [(1, 2), (3, 4)]
    assert [what for what, _ in happened] == ["call a", "probe", "call b", "probe"]
    (thread,) = {thread for _, thread in happened}
    assert thread != threading.get_ident()


# --- What it raises ---------------------------------------------------------------------------


def divide(zero):
    return 1 / zero


def raising(error):
    def answer():
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "saw"),
    [
        (lambda: divide(0), "ZeroDivisionError: division by zero, at `return 1 / zero`"),
        (raising(KeyError), "KeyError, at `raise error`"),
        (raising(ValueError(f"\n{400 * 'x'}\nmore")), f"ValueError: {300 * 'x'}, at `raise error`"),
        # What would end Python is no more than an exception.
        (raising(SystemExit), "SystemExit, at `raise error`"),
    ],
)
def test_an_exception_is_named_with_its_first_line_and_the_line_that_raised_it(answer, saw):
    rejection = rejection_of(answer)
    assert rejection.saw == f"Your function raised {saw}"
    assert "Call it yourself" in rejection.look
    assert rejection.__suppress_context__


@pytest.mark.parametrize(
    "answer",
    [lambda: json.loads("{"), lambda: jnp.ones(2) @ jnp.ones(3), lambda: cpu(-1)],
    ids=["the library of Python", "JAX", "d2lpar"],
)
def test_the_line_is_the_readers_though_others_raised(answer):
    line = inspect.getsource(sys.modules[__name__]).splitlines()[answer.__code__.co_firstlineno - 1]
    rejection = rejection_of(answer)
    assert rejection.saw.endswith(f", at `{line.strip()}`")
    assert "d2lpar/" not in rejection.saw
    assert "raise " not in rejection.saw


def test_without_a_line_of_the_reader_none_is_named():
    assert rejection_of(math.sqrt, -1).saw.startswith("Your function raised ValueError: ")
    assert ", at " not in rejection_of(math.sqrt, -1).saw


@pytest.mark.parametrize(
    ("answer", "saw", "look"),
    [
        (lambda: gpu(99), "DeviceError: gpu(99) was asked for, but JAX sees", "no other device"),
        (
            lambda: jax.jit(float)(1.0),
            "ConcretizationTypeError",
            "while JAX traces there is none",
        ),
        (
            lambda: compare({"anew": lambda: jax.jit(lambda x: x + 1)(EYE)}, repeats=1),
            "XLA compiles in each call of your function: jit(<lambda>).",
            "Make the jitted function once",
        ),
    ],
    ids=["no such GPU", "a value while JAX traces", "compiles in each call"],
)
def test_of_what_jax_and_d2lpar_raise_it_says_where_to_look(answer, saw, look):
    rejection = rejection_of(answer)
    assert saw in rejection.saw
    assert look in rejection.look


def test_what_a_function_of_the_check_says_is_passed_on():
    said = Rejection("It was called twice.", "Once is enough.")
    assert rejection_of(raising(said)) is said


# --- What does not end, and what is printed ---------------------------------------------------


@pytest.fixture
def never(monkeypatch):
    """A wait that does not end before the test does; the limit is up when it has begun."""
    begun, over = threading.Event(), threading.Event()

    def wait():
        begun.set()
        over.wait()

    monkeypatch.setattr(threading.Thread, "join", lambda thread, limit: begun.wait())
    yield wait
    over.set()


def test_an_answer_has_no_longer_than_the_limit(monkeypatch):
    limits = []
    monkeypatch.setattr(threading.Thread, "join", lambda thread, limit: limits.append(limit))
    with contextlib.suppress(Rejection):
        call_answer(lambda: 1, [()], "f()")
    assert limits == [LIMIT]


def test_what_does_not_return_in_time_is_given_up(never):
    called = []

    def answer(x):
        called.append(x)
        return never() if x else x

    with pytest.raises(Rejection) as caught:
        call_answer(answer, [(0,), (1,), (2,)], "answer(x)")
    assert caught.value.saw.startswith("Your function did not return within 30 seconds, and is")
    assert "restart Python before you measure anything" in caught.value.saw
    assert "a loop that never ends" in caught.value.look
    assert called == [0, 1]


def test_it_runs_on_a_thread_that_does_not_keep_python_from_ending():
    (thread,) = call_answer(threading.current_thread, [()], "f()")
    assert thread.daemon
    assert thread is not threading.current_thread()


def printing(*texts, end=lambda: True):
    def answer():
        for text in texts:
            print(text)
        return end()

    return answer


MUCH = "x" * 5 * SHOWN


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ([], ""),
        (["  one", "two ", ""], "  one\ntwo \n\n"),
        (["x" * (SHOWN - 1)], "x" * (SHOWN - 1) + "\n"),  # It just fits.
        ([MUCH], f"{MUCH[:SHOWN]} ... (and {4 * SHOWN + 1} more characters)\n"),
        (MUCH, SHOWN // 2 * "x\n" + f" ... (and {9 * SHOWN} more characters)\n"),
    ],
    ids=["nothing", "a few lines", "as much as fits", "too much", "too many lines"],
)
def test_of_what_is_printed_the_beginning_is_shown_and_the_rest_counted(capsys, texts, shown):
    assert call_answer(printing(*texts), [()], "f()") == [True]
    assert capsys.readouterr().out == shown


def test_what_was_printed_before_it_was_given_up_is_shown(capsys, never):
    before = sys.stdout
    rejection_of(printing("so far", end=never))
    assert capsys.readouterr().out == "so far\n"
    assert sys.stdout is before


# --- What is asked of what it returns ---------------------------------------------------------


def deleted(array):
    # A copy, since the original is needed by other tests.
    copy = array + 1
    copy.delete()
    return copy


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.int64(3), jnp.float32(3)], ids=repr)
def test_a_number_is_a_number_of_python_numpy_or_jax(value):
    assert require_number(value) == 3.0
    assert type(require_number(value)) is float


NO_NUMBERS = [None, "soon", {}, [1.0], 1j, (1, 2), np.ones(2), jnp.ones(2), dict, len, "3.5"]
DELETED = deleted(jnp.float32(1))


@pytest.mark.parametrize("value", [*NO_NUMBERS, 10**400, DELETED], ids=lambda v: type(v).__name__)
def test_what_is_no_number_is_turned_down_in_a_sentence(value):
    with pytest.raises(Rejection, match=r"^Your function returned .+, which is no number\.$"):
        require_number(value)


@pytest.mark.parametrize(
    ("value", "truth"),
    [(True, True), (0, False), (np.bool_(False), False), (jnp.bool_(True), True)],
    ids=repr,
)
def test_truth_is_a_truth_of_python_numpy_or_jax(value, truth):
    assert require_truth(value) is truth


@pytest.mark.parametrize("value", [np.ones(2), jnp.ones(2), jnp.ones(2) > 0, DELETED], ids=type)
def test_what_is_neither_true_nor_false_is_turned_down_in_a_sentence(value):
    with pytest.raises(Rejection, match=r"^Your function returned .*neither true nor false\.$"):
        require_truth(value)


@pytest.mark.parametrize(
    "found", [EYE + 5e-4, EYE.astype(int), jax.device_put(EYE, cpu(1))], ids=["near", "int", "CPU"]
)
def test_an_array_may_differ_by_rounding_and_lie_elsewhere(found):
    require_array(found, EYE, "It")
    require_arrays([found, EYE], [EYE, EYE], "two")
    require_arrays((EYE, found), [EYE, EYE], "two")


ODD = {
    "numpy": (np.eye(2), r"NumPy's, not JAX's \(ndarray\)"),
    "number of numpy": (np.float32(1), r"NumPy's, not JAX's \(float32\)"),
    "float": (1.0, r"Python's, not JAX's \(float\)"),
    "int": (1, "of type int, not an array of JAX"),
    "shape": (jnp.ones(2), r"has the shape \(2,\), but \(2, 2\) was expected"),
    "would broadcast": (jnp.ones((1, 2)), r"has the shape \(1, 2\), but \(2, 2\)"),
    "values": (EYE.at[1, 1].set(0.75), "wrong: it differs from the right one by up to 0.25"),
    "below": (EYE.at[1, 1].set(1.5), "by up to 0.5"),
    "just too far": (EYE + 2e-3, "by up to 0.002"),
    "one nan": (EYE.at[0, 0].set(jnp.nan), "by up to nan"),
    "deleted": (deleted(EYE), "deleted"),
    "random keys": (KEYS, "dtype"),
}


@pytest.mark.parametrize(("found", "message"), ODD.values(), ids=ODD)
def test_anything_but_the_right_array_is_turned_down_in_a_sentence(found, message):
    with pytest.raises(Rejection, match=message) as caught:
        require_array(found, EYE, "What you returned")
    assert caught.value.saw.startswith("What you returned ")
    assert caught.value.saw.endswith(".")
    assert caught.value.look


def test_a_list_is_turned_down_for_its_first_wrong_item():
    with pytest.raises(Rejection, match=r"^Item 1 of what your function returned has the shape"):
        require_arrays([EYE, jnp.ones(2), None], [EYE] * 3, "three")


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ([EYE] * 3, "list of 3"),
        ((EYE,), "tuple of 1"),
        (None, "NoneType"),
        ({0: EYE, 1: EYE}, "dict of 2"),
        (jnp.stack([EYE, EYE]), "ArrayImpl of 2"),
        (jnp.float32(1), "ArrayImpl"),
    ],
)
def test_what_is_no_list_of_that_length_is_named_beside_what_was_expected(found, what):
    with pytest.raises(Rejection) as caught:
        require_arrays(found, [EYE, EYE], "a result for each batch")
    assert caught.value.saw.startswith(f"Your function returned {what}")
    assert "where a result for each batch was expected, a list of 2." in caught.value.saw


X = jnp.ones((3, 3))


@pytest.fixture
def log():
    return CallLog()


def numbers(calls):
    return [(call.label, call.number) for call in calls]


# --- What was unfinished when a call was made -------------------------------------------------


def test_a_call_tells_which_earlier_ones_were_unfinished(clock, log):
    step = log.watch("step()", FakeDevice(clock).run)
    step(10)  # Done at 10.
    step(10)  # Done at 20.
    clock.advance_to(15)
    step(10)  # Done at 30.
    clock.advance_to(30)  # What is done at that very moment is done.
    step(10)
    assert [[one.number for one in call.unfinished] for call in log.calls] == [[], [0], [1], []]


def test_it_counts_what_was_unfinished_before_the_call_and_not_after_it(clock, log):
    device = FakeDevice(clock)
    step = log.watch("step()", lambda work, dispatch: device.run(work, dispatch=dispatch))
    step(10, 0)
    step(5, 40)
    assert [call.number for call in log.calls[1].unfinished] == [0]


def test_a_deleted_result_is_done_and_never_asked(clock, log):
    step = log.watch("step()", FakeDevice(clock).run)
    step(10).delete()
    step(10)  # A fake array refuses to be asked once it is deleted; JAX kills the process.
    assert log.calls[1].unfinished == ()


def test_whoever_waited_for_a_copy_finds_the_array_done(clock, log, monkeypatch):
    # The copy wakes Python up a little before the array says that it is ready.
    monkeypatch.setattr(time, "sleep", clock.advance)
    step = log.watch("step()", lambda: FakeArray(clock, clock.now + 2e-4))
    step(), step()
    assert log.calls[1].unfinished == ()


def test_a_call_found_those_busy_that_were_unfinished(clock, log):
    first, second = FakeDevice(clock), FakeDevice(clock)
    make, send = log.watch("make()", first.run), log.watch("send()", second.run)
    make(10)
    send(1)
    clock.advance(5)
    send(1)
    clock.advance(10)
    make(1)
    found = [(call.found_busy("make()"), call.found_busy("send()")) for call in log.calls]
    assert found == [(False, False), (True, False), (True, False), (False, False)]


# --- What a call is ---------------------------------------------------------------------------


def test_each_function_has_its_numbers_and_all_calls_have_one_order(clock, log):
    make = log.watch("make()", FakeDevice(clock).run)
    send = log.watch("send()", FakeDevice(clock).run)
    make(1), send(1), send(1), make(1)
    assert numbers(log.calls) == [("make()", 0), ("send()", 0), ("send()", 1), ("make()", 1)]
    assert numbers(log.of("send()")) == [("send()", 0), ("send()", 1)]
    assert log.of("receive()") == []
    assert [len(call.earlier) for call in log.calls] == [0, 1, 2, 3]
    assert log.calls[3].earlier == tuple(log.calls[:3])


def test_calls_of_several_threads_are_in_one_order(log):
    inside = []

    def function(x):
        inside.append("in")
        time.sleep(1e-3)  # Long enough for the others to come in, if they could.
        inside.append("out")
        return x

    watched = log.watch("function()", function)
    start = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: (start.wait(), watched(X), watched(X)), range(4)))
    assert inside == ["in", "out"] * 8
    assert [call.number for call in log.calls] == list(range(8))
    assert [len(call.earlier) for call in log.calls] == list(range(8))
    assert len({call.thread for call in log.calls}) == 4


def test_a_call_that_raises_passes_through_and_is_no_call(log):
    watched = log.watch("divide()", lambda x: X / x if x else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        watched(0)
    assert log.calls == []
    assert watched(2).shape == X.shape
    assert log.calls[0].number == 0


# --- Which calls are turned down --------------------------------------------------------------


@pytest.mark.parametrize(
    "under",
    [
        lambda f: jax.jit(f)(X),
        lambda f: jax.vmap(f)(X),
        lambda f: jax.jit(lambda x: f(X, {"x": [x]}))(X),
    ],
    ids=["jit", "vmap", "nested in the second argument"],
)
def test_under_a_transformation_all_calls_would_be_one_and_none_is_noted(log, under):
    called = []
    watched = log.watch("step()", lambda x, *more: called.append(x) or x)
    with pytest.raises(Rejection, match=r"^step\(\) was called while JAX was tracing") as caught:
        under(watched)
    assert "Do without jit, vmap or scan" in caught.value.look
    assert called == log.calls == []


@pytest.mark.parametrize(("calls", "count"), [(1, 2), (3, 2)])
def test_another_number_of_calls_is_turned_down(clock, log, calls, count):
    step = log.watch("step()", FakeDevice(clock).run)
    other = log.watch("other()", FakeDevice(clock).run)
    for _ in range(calls):
        step(1)
    for _ in range(2 - calls):
        other(1)  # Calls of others do not count.
    log.require_count("step()", calls)
    message = rf"^step\(\) was called {calls} times?; it takes {count} calls\.$"
    with pytest.raises(Rejection, match=message) as caught:
        log.require_count("step()", count)
    assert "the first and the last as well" in caught.value.look


def test_what_was_never_called_is_not_taken_for_a_loop_that_is_too_short(clock, log):
    log.watch("other()", FakeDevice(clock).run)(1)
    with pytest.raises(Rejection, match=r"^step\(\) was never called; it takes 2 calls\.$") as many:
        log.require_count("step()", 2)
    assert "Call what you are given" in many.value.look
    with pytest.raises(Rejection, match=r"^step\(\) was never called: nothing was done\.$") as once:
        log.require_called("step()", "nothing was done", "Where?")
    assert once.value.look == "Where?"
    log.require_called("other()", "nothing was done", "Where?")


# --- What a machine cannot show, a check does not judge ----------------------------------------

BEHAVIOR = ["X2", "X4", "X5", "Y1", "Y3", "Y5", "Z1", "Z3"]


def test_inside_a_recording_of_the_reader_what_needs_one_cannot_be_checked(tmp_path):
    with jax.profiler.trace(tmp_path):
        reports = [
            exercises.check_y1(lambda multiply, matrices: list(map(multiply, matrices))),
            exercises.check_y4(lambda timeline, row: (0.0, 0.0, 0.0)),
        ]
    assert [report.verdict for report in reports] == ["untestable"] * 2
    assert all("a recording is under way" in report.saw for report in reports)


def test_without_asynchronous_dispatch_behavior_cannot_be_checked(run_python):
    program = f"""
import jax
jax.config.update("jax_cpu_enable_async_dispatch", False)
from d2lpar.book import exercises
from d2lpar import use_cpu_devices
use_cpu_devices(2)
for name in {[name.lower() for name in BEHAVIOR]}:
    check = getattr(exercises, "check_" + name)
    report = check(*[lambda *args: 1 / 0] * (2 if name == "x4" else 1))
    assert "Restart Python without jax_cpu_enable_async_dispatch=False" in report.saw, report
    assert report.look == ""
    print(report.exercise, report.verdict)
"""
    expected = [f"{name} untestable" for name in BEHAVIOR]
    assert run_python(program).splitlines() == expected


def test_on_a_single_device_those_for_two_say_how_to_get_another(run_python):
    program = """
from d2lpar.book import exercises
for check in exercises.check_y3, exercises.check_y5:
    report = check(lambda *args: 1 / 0)
    assert "two CPU devices" in report.saw, report
    assert "Call d2lpar.use_cpu_devices(2) before anything else of JAX" in report.saw, report
    print(report.exercise, report.verdict)
"""
    printed = run_python(program, JAX_NUM_CPU_DEVICES="1")
    assert printed.splitlines() == ["Y3 untestable", "Y5 untestable"]


def test_whoever_deletes_a_result_does_not_end_python(run_python):
    program = """
from d2lpar.book import exercises

def my_second(start):
    results = start()
    jax.block_until_ready(results[1])
    results[0].delete()
    return results[1]

print(exercises.check_x4(my_second, lambda start: jax.block_until_ready(start())).exercise)
"""
    assert run_python(program) == "X4"  # The verdict depends on who else is at work.
