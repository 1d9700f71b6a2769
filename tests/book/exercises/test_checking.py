"""Reports, odd and hostile answers, and the log of calls; the chapters' answers test the rest."""

import functools
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeArray, FakeDevice, raising

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


def test_a_report_is_text_escaped_html_and_data_that_json_can_keep():
    report = Report("X1", "not yet", "raised <b> & `x < y`", '<script>"x"</script>')
    bundle = json.loads(json.dumps(report._repr_mimebundle_()))
    text = f"Exercise X1: not yet\n  {report.saw}\n  {report.look}"
    assert bundle["text/plain"] == repr(report) == text
    assert bundle[MIME_TYPE] == {"exercise": "X1", "verdict": "not yet", "saw": report.saw}
    html = bundle["text/html"]
    assert 'class="d2lpar-exercise" data-verdict="not yet"' in html
    assert "raised &lt;b&gt; &amp; <code>x &lt; y</code>" in html
    assert "<li>&lt;script&gt;" in html
    assert "<script>" not in html


def test_an_error_of_the_check_is_not_blamed_on_the_answer():
    @exercise("X9")
    def check(answer):
        return answer.nothing

    with pytest.raises(AttributeError):
        check(None)


def test_an_answer_may_have_no_signature_and_return_zero():
    assert call_answer(min, [(0, 1)], "f(a, b)") == [0]


def divide(zero):
    return 1 / zero


CALL = "Call it yourself with small arguments"


@pytest.mark.parametrize(
    ("answer", "saw", "look"),
    [
        (lambda: divide(0), "ZeroDivisionError: division by zero, at `return 1 / zero`$", CALL),
        (
            raising(ValueError(f"\n{400 * 'x'}\nmore")),
            "ValueError: x{300}, at `raise error`$",
            CALL,
        ),
        (raising(SystemExit), "SystemExit, at `raise error`$", CALL),  # This would end Python.
        (lambda: json.loads("{"), r"JSONDecodeError: .*, at `\(lambda: json.loads", CALL),
        (functools.partial(int, "x"), "ValueError: .* with base 10: 'x'$", CALL),
        (lambda: gpu(99), r"DeviceError: gpu\(99\) .*, at `\(lambda: gpu", "no devices other"),
        (lambda: jax.jit(float)(1.0), "ConcretizationTypeError", "while JAX traces there is none"),
    ],
    ids=["in a helper", "long", "exit", "in a library", "no line", "no GPU", "while JAX traces"],
)
def test_an_exception_is_named_with_the_readers_line_that_raised_it_and_a_hint(answer, saw, look):
    with pytest.raises(Rejection, match=f"^Your function raised {saw}") as caught:
        call_answer(answer, [()], "f()")
    assert look in caught.value.look
    assert caught.value.__suppress_context__


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("  one\ntwo \n\n", "  one\ntwo \n\n"),
        ("x" * (SHOWN - 1) + "\n", "x" * (SHOWN - 1) + "\n"),  # This just fits.
        ("x" * 5 * SHOWN, "x" * SHOWN + f" ... (and {4 * SHOWN} more characters)\n"),
    ],
    ids=["nothing", "a few lines", "as much as fits", "too much"],
)
def test_the_beginning_of_the_output_is_shown_and_the_rest_counted(capsys, text, shown):
    def answer():
        for character in text:
            print(character, end="")
        return True

    assert call_answer(answer, [()], "f()") == [True]
    assert capsys.readouterr().out == shown


DELETED = EYE + 1
DELETED.delete()


@pytest.mark.parametrize(
    ("require", "value", "message"),
    [
        (require_number, DELETED, "which is not a number"),  # An array without a repr.
        (require_truth, np.ones(2), "which is neither true nor false"),
    ],
    ids=["a deleted array", "several truths"],
)
def test_a_result_of_another_kind_is_rejected_in_a_sentence(require, value, message):
    with pytest.raises(Rejection, match=rf"^Your function returned .+, {message}\.$"):
        require(value)


def test_arrays_may_differ_by_rounding_and_be_on_another_device():
    found = (EYE + 5e-4, EYE.astype(int), jax.device_put(EYE, cpu(1)))
    require_arrays(found, [EYE] * 3, "three")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (jnp.ones(2), r"has the shape \(2,\) and .*; the right one has \(2, 2\)"),
        (EYE + 2e-3, "by up to 0.002"),
        (EYE.at[0, 0].set(jnp.nan), "by up to nan"),
        (DELETED, "deleted"),
    ],
    ids=["shape", "just too far", "NaN", "deleted"],
)
def test_a_result_that_is_not_the_right_array_is_rejected_in_a_sentence(array, message):
    with pytest.raises(Rejection, match=rf"^What you returned .*{message}.*\.$") as caught:
        require_array(array, EYE, "What you returned")
    assert caught.value.look


def test_a_deleted_result_is_done_and_never_asked(clock):
    log = CallLog()
    step = log.watch("step()", FakeDevice(clock).run)
    step(10).delete()
    step(10)  # A fake array refuses is_ready() once it is deleted; JAX kills the process.
    assert log.calls[1].unfinished == ()


def test_an_answer_that_waited_for_a_copy_finds_the_array_done(clock, monkeypatch):
    log = CallLog()
    # The copy wakes Python up a little before the array says that it is ready.
    monkeypatch.setattr(time, "sleep", clock.advance)
    step = log.watch("step()", lambda: FakeArray(clock, clock.now + 2e-4))
    step(), step()
    assert log.calls[1].unfinished == ()


def test_calls_of_several_threads_are_in_one_order():
    log, inside = CallLog(), []

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


def test_inside_a_recording_of_the_reader_another_cannot_be_checked(tmp_path):
    with jax.profiler.trace(tmp_path):
        reports = [
            exercises.check_y1(lambda multiply, matrices: list(map(multiply, matrices))),
            exercises.check_y4(lambda timeline, row: (0.0, 0.0, 0.0)),
        ]
    assert [report.verdict for report in reports] == ["untestable"] * 2
    assert all("during another recording" in report.saw for report in reports)


@pytest.mark.parametrize(
    ("first", "names", "way_out"),
    [
        (
            "jax.config.update('jax_cpu_enable_async_dispatch', False); use_cpu_devices(2)",
            ["X2", "X4", "X5", "X6", "X7", "Y1", "Y3", "Y5", "Y6", "Z1", "Z3"],
            "Restart Python without jax_cpu_enable_async_dispatch=False",
        ),
        (
            "use_cpu_devices(1)",
            ["Y3", "Y5", "Y6"],
            "Call d2lpar.use_cpu_devices(2) before any other use of JAX",
        ),
    ],
    ids=["synchronous", "one device"],
)
def test_where_behavior_cannot_be_checked_the_report_says_the_way_out(
    run_python, first, names, way_out
):
    program = f"""
import jax
from d2lpar.book import exercises
from d2lpar import use_cpu_devices
{first}
for name in {names}:
    check = getattr(exercises, "check_" + name.lower())
    report = check(*[lambda *args: 1 / 0] * (2 if name == "X4" else 1))
    assert {way_out!r} in report.saw and report.look == "", report
    print(report.exercise, report.verdict)
"""
    assert run_python(program).splitlines() == [f"{name} untestable" for name in names]


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
