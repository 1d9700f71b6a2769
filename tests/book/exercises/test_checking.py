"""Reports, odd and hostile answers, and the log of calls; the chapters' answers test the rest."""

import functools
import inspect
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeArray, FakeDevice

from d2lpar import cpu, gpu
from d2lpar.book import exercises
from d2lpar.book.exercises import MIME_TYPE, Report
from d2lpar.book.exercises.checking import (
    LIMIT,
    SHOWN,
    CallLog,
    Rejection,
    call_answer,
    exercise,
    require_array,
    require_arrays,
    require_number,
    require_truth,
)

EYE = jnp.eye(2)

# --- Reports ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "words", "text"),
    [
        (Report("X2", "accepted", "It did."), "accepted", "X2: accepted\n  It did."),
        (Report("Y1", "not yet", "No.", "Why?"), "not yet", "Y1: not yet\n  No.\n  Why?"),
        (
            Report("Y3", "untestable", "One device."),
            "cannot be checked here",
            "Y3: cannot be checked here\n  One device.",
        ),
    ],
    ids=["accepted", "not yet", "untestable"],
)
def test_a_report_is_text_html_and_data_that_json_can_keep(report, words, text):
    bundle = report._repr_mimebundle_()
    assert bundle["text/plain"] == repr(report) == f"Exercise {text}"
    assert f'class="d2lpar-exercise" data-verdict="{report.verdict}"' in bundle["text/html"]
    for part in (report.exercise, f">{words}<", report.saw, report.look):
        assert part in bundle["text/html"]
    assert bundle["text/html"].count("<li>") == bool(report.look)
    data = {"exercise": report.exercise, "verdict": report.verdict, "saw": report.saw}
    assert json.loads(json.dumps(bundle[MIME_TYPE])) == data


def test_html_escapes_what_others_wrote_and_shows_code_as_code():
    report = Report("X1", "not yet", "raised <b> & `x < y`", '<script>"x"</script>')
    html = report._repr_mimebundle_()["text/html"]
    assert "raised &lt;b&gt; &amp; <code>x &lt; y</code>" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_an_error_of_the_check_is_not_blamed_on_the_answer():
    @exercise("X9")
    def check(answer):
        return answer.nothing

    with pytest.raises(AttributeError):
        check(None)


# --- Calling an answer ------------------------------------------------------------------------


def rejection_of(function, *args, usage="f()"):
    """Return the rejection of an answer."""
    with pytest.raises(Rejection) as caught:
        call_answer(function, [args], usage)
    return caught.value


@pytest.mark.parametrize(
    ("answer", "saw"),
    [
        (None, "The check was given None, which cannot be called."),
        ("text", "The check was given a str, which cannot be called."),
        (EYE, "The check was given an ArrayImpl, which cannot be called."),
        (lambda: 0, "The check calls add(a, b), but your function takes ()."),
        (lambda a, b, c: 0, "The check calls add(a, b), but your function takes (a, b, c)."),
        (lambda a, *, b: 0, "The check calls add(a, b), but your function takes (a, *, b)."),
    ],
    ids=["None", "text", "array", "too few", "too many", "by name only"],
)
def test_an_answer_that_cannot_take_the_arguments_is_rejected_for_that(answer, saw):
    assert rejection_of(answer, 1, 2, usage="add(a, b)").saw == saw


def test_an_answer_may_have_no_signature_and_return_zero():
    assert call_answer(min, [(0, 1)], "f(a, b)") == [0]


def test_none_means_a_forgotten_return_even_if_it_comes_once():
    def answer(x):
        if x:
            return x

    with pytest.raises(Rejection, match="returned None") as caught:
        call_answer(answer, [(1,), (0,), (2,)], "answer(x)")
    assert caught.value.look == "Does every path through answer(x) end in a `return`?"


# --- Exceptions -------------------------------------------------------------------------------


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
        (raising(ValueError(f"\n{400 * 'x'}\nmore")), f"ValueError: {300 * 'x'}, at `raise error`"),
        (raising(SystemExit), "SystemExit, at `raise error`"),  # This would end Python.
        (functools.partial(int, "x"), "ValueError: invalid literal for int() with base 10: 'x'"),
    ],
    ids=["in a helper", "long", "exit", "no line of the reader"],
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
def test_the_line_is_the_readers_even_if_a_library_raised(answer):
    line = inspect.getsource(sys.modules[__name__]).splitlines()[answer.__code__.co_firstlineno - 1]
    assert rejection_of(answer).saw.endswith(f", at `{line.strip()}`")


@pytest.mark.parametrize(
    ("answer", "saw", "look"),
    [
        (lambda: gpu(99), "DeviceError: gpu(99) was asked for, but JAX sees", "no devices other"),
        (lambda: jax.jit(float)(1.0), "ConcretizationTypeError", "while JAX traces there is none"),
    ],
    ids=["no such GPU", "a value while JAX traces"],
)
def test_an_error_of_jax_or_d2lpar_has_its_own_hint(answer, saw, look):
    rejection = rejection_of(answer)
    assert saw in rejection.saw
    assert look in rejection.look


# --- Hanging and printing ---------------------------------------------------------------------


def test_an_answer_that_hangs_is_given_up_and_its_output_is_shown(capsys, monkeypatch):
    begun, over = threading.Event(), threading.Event()
    calls, joins, before = [], [], sys.stdout

    def join(thread, limit):  # The limit is up when the wait has begun.
        joins.append((thread.daemon, limit))
        begun.wait()

    def answer(x):
        calls.append(x)
        print("so far")
        if x:
            begun.set()
            over.wait(10)  # Ends even if this test fails.
        return x

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(Rejection, match=r"did not return within 30 seconds, and is.*restart") as e:
        call_answer(answer, [(0,), (1,)], "answer(x)")
    over.set()
    assert joins == [(True, LIMIT)]  # Python can end in spite of a daemon thread.
    assert "a loop that never ends" in e.value.look
    assert calls == [0, 1]
    assert capsys.readouterr().out == "so far\nso far\n"
    assert sys.stdout is before


MUCH = "x" * 5 * SHOWN


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ([], ""),
        (["  one", "two ", ""], "  one\ntwo \n\n"),
        (["x" * (SHOWN - 1)], "x" * (SHOWN - 1) + "\n"),  # This just fits.
        ([MUCH], f"{MUCH[:SHOWN]} ... (and {4 * SHOWN + 1} more characters)\n"),
        (MUCH, SHOWN // 2 * "x\n" + f" ... (and {9 * SHOWN} more characters)\n"),
    ],
    ids=["nothing", "a few lines", "as much as fits", "too much", "too many lines"],
)
def test_the_beginning_of_the_output_is_shown_and_the_rest_counted(capsys, texts, shown):
    def answer():
        for text in texts:
            print(text)
        return True

    assert call_answer(answer, [()], "f()") == [True]
    assert capsys.readouterr().out == shown


# --- Results ----------------------------------------------------------------------------------

DELETED = EYE + 1
DELETED.delete()


@pytest.mark.parametrize(
    "value", ["3.5", 1j, np.ones(2), dict, 10**400, DELETED], ids=lambda value: type(value).__name__
)
def test_a_result_that_is_not_a_number_is_rejected_in_a_sentence(value):
    with pytest.raises(Rejection, match=r"^Your function returned .+, which is not a number\.$"):
        require_number(value)


@pytest.mark.parametrize("value", [np.ones(2), jnp.ones(2), DELETED], ids=type)
def test_a_result_that_is_neither_true_nor_false_is_rejected_in_a_sentence(value):
    with pytest.raises(Rejection, match=r"^Your function returned .*neither true nor false\.$"):
        require_truth(value)


def test_arrays_may_differ_by_rounding_and_be_on_another_device():
    found = (EYE + 5e-4, EYE.astype(int), jax.device_put(EYE, cpu(1)))
    require_arrays(found, [EYE] * 3, "three")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.float32(1), "is a NumPy float32, not a JAX array"),
        (1.0, "is a float, not a JAX array"),
        (1, "is an int, not a JAX array"),
        (jnp.ones(2), r"has the shape \(2,\) and .*; the right one has \(2, 2\)"),
        (jax.random.split(jax.random.key(0), (2, 2)), "the dtype key<fry>; the right one has"),
        (EYE.at[1, 1].set(0.75), "is wrong: it differs from the right one by up to 0.25"),
        (EYE + 2e-3, "by up to 0.002"),
        (EYE.at[0, 0].set(jnp.nan), "by up to nan"),
        (DELETED, "deleted"),
    ],
    ids=["NumPy", "float", "int", "shape", "keys", "values", "just too far", "NaN", "deleted"],
)
def test_a_result_that_is_not_the_right_array_is_rejected_in_a_sentence(array, message):
    with pytest.raises(Rejection, match=rf"^What you returned .*{message}.*\.$") as caught:
        require_array(array, EYE, "What you returned")
    assert caught.value.look


@pytest.mark.parametrize(
    ("found", "saw"),
    [
        ([EYE, jnp.ones(2)], "Item 1 of your function's result has the shape"),
        ((EYE,), "Your function returned a tuple of 1; the exercise asks for a list of 2: two."),
        ({0: EYE, 1: EYE}, "Your function returned a dict; the exercise asks for a list of 2"),
        (jnp.stack([EYE, EYE]), "Your function returned an ArrayImpl; the exercise asks"),
    ],
    ids=["wrong item", "tuple", "dict", "array"],
)
def test_a_result_that_is_not_the_right_list_is_rejected_in_a_sentence(found, saw):
    with pytest.raises(Rejection) as caught:
        require_arrays(found, [EYE, EYE], "two")
    assert caught.value.saw.startswith(saw)


# --- The log of calls -------------------------------------------------------------------------


@pytest.fixture
def log():
    return CallLog()


def test_the_log_holds_the_results_unfinished_before_a_call_and_not_after_it(clock, log):
    device = FakeDevice(clock)
    step = log.watch("step()", lambda work, dispatch: device.run(work, dispatch=dispatch))
    step(10, 0)
    step(5, 40)
    assert [call.number for call in log.calls[1].unfinished] == [0]


def test_a_deleted_result_is_done_and_never_asked(clock, log):
    step = log.watch("step()", FakeDevice(clock).run)
    step(10).delete()
    step(10)  # A fake array refuses is_ready() once it is deleted; JAX kills the process.
    assert log.calls[1].unfinished == ()


def test_an_answer_that_waited_for_a_copy_finds_the_array_done(clock, log, monkeypatch):
    # The copy wakes Python up a little before the array says that it is ready.
    monkeypatch.setattr(time, "sleep", clock.advance)
    step = log.watch("step()", lambda: FakeArray(clock, clock.now + 2e-4))
    step(), step()
    assert log.calls[1].unfinished == ()


def test_calls_of_several_threads_are_in_one_order(log):
    inside = []

    def function(x):
        inside.append("in")
        time.sleep(1e-3)  # Long enough for the others to come in, if they could.
        inside.append("out")
        return x

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(log.watch("function()", function), [EYE] * 8))
    assert inside == ["in", "out"] * 8
    assert [len(call.earlier) for call in log.calls] == list(range(8))
    assert len({call.thread for call in log.calls}) > 1


def test_a_call_under_a_transformation_is_rejected_wherever_the_tracer_is(log):
    called = []
    step = log.watch("step()", lambda *args, **kwargs: called.append(args))
    with pytest.raises(Rejection, match=r"^step\(\) was called while JAX was tracing"):
        jax.jit(lambda x: step(EYE, batch={"x": [x]}))(EYE)
    assert called == log.calls == []


# --- Machines that cannot show the behavior ----------------------------------------------------

BEHAVIOR = ["X2", "X4", "X5", "Y1", "Y3", "Y5", "Z1", "Z3"]


def test_inside_a_recording_of_the_reader_another_cannot_be_checked(tmp_path):
    with jax.profiler.trace(tmp_path):
        reports = [
            exercises.check_y1(lambda multiply, matrices: list(map(multiply, matrices))),
            exercises.check_y4(lambda timeline, row: (0.0, 0.0, 0.0)),
        ]
    assert [report.verdict for report in reports] == ["untestable"] * 2
    assert all("during another recording" in report.saw for report in reports)


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
    assert "Call d2lpar.use_cpu_devices(2) before any other use of JAX" in report.saw, report
    print(report.exercise, report.verdict)
"""
    printed = run_python(program, JAX_NUM_CPU_DEVICES="1")
    assert printed.splitlines() == ["Y3 untestable", "Y5 untestable"]


def test_an_answer_that_deletes_a_result_does_not_end_python(run_python):
    program = """
import jax
from d2lpar.book import exercises

def my_second(start):
    results = start()
    jax.block_until_ready(results[1])
    results[0].delete()
    return results[1]

print(exercises.check_x4(my_second, lambda start: jax.block_until_ready(start())))
"""
    printed = run_python(program)
    assert printed.startswith("Exercise X4: ")  # The verdict depends on who else is at work.
    assert "raised" not in printed
