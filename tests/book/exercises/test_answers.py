import contextlib
import inspect
import json
import math
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar import compare, cpu, gpu
from d2lpar.book.exercises.answers import (
    SHOWN,
    Rejection,
    call_answer,
    require_array,
    require_arrays,
    require_number,
    require_truth,
)

EYE = jnp.eye(2)
NAN = jnp.full((2, 2), jnp.nan)
KEYS = jax.random.split(jax.random.key(0), (2, 2))


def rejection_of(function, *args, usage="f()", **options):
    """Return how an answer is turned down."""
    with pytest.raises(Rejection) as caught:
        call_answer(function, [args], usage, **options)
    return caught.value


def deleted(array):
    # A copy, since the original is needed by other tests.
    copy = array + 1
    copy.delete()
    return copy


def divide(zero):
    return 1 / zero


# --- What can be called -----------------------------------------------------------------------


def test_the_answers_come_back_in_the_order_of_the_cases():
    seen = []

    def subtract(a, b):
        seen.append((a, b))
        return a - b

    assert call_answer(subtract, iter([(5, 1), (1, 5), (0, 0)]), "subtract(a, b)") == [4, -4, 0]
    assert seen == [(5, 1), (1, 5), (0, 0)]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, "None"),
        (3, "an int"),
        ("text", "a str"),
        ([len], "a list"),
        (EYE, "an ArrayImpl"),
    ],
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


@pytest.mark.parametrize("value", [0, False, 0.0, [], "", {}], ids=repr)
def test_what_is_only_empty_or_false_is_an_answer(value):
    assert call_answer(lambda: value, [()], "f()") == [value]


# --- What it raises ---------------------------------------------------------------------------


def test_an_exception_is_named_with_its_message_and_the_line_that_raised_it():
    rejection = rejection_of(lambda: divide(0))
    assert rejection.saw == (
        "Your function raised ZeroDivisionError: division by zero, at `return 1 / zero`"
    )
    assert "Call it yourself" in rejection.look


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


def test_of_a_long_message_the_first_line_is_shown_and_cut():
    def answer():
        raise ValueError("\n" + 400 * "x" + "\nsecond line")

    assert f"ValueError: {300 * 'x'}, at" in rejection_of(answer).saw


def test_an_exception_without_a_message_is_named_alone():
    def answer():
        raise KeyError

    assert rejection_of(answer).saw == "Your function raised KeyError, at `raise KeyError`"


@pytest.mark.parametrize("error", [SystemExit, SystemExit(3), KeyboardInterrupt, GeneratorExit])
def test_what_would_end_python_is_no_more_than_an_exception(error):
    def answer():
        raise error

    name = error.__name__ if isinstance(error, type) else "SystemExit: 3"
    assert rejection_of(answer).saw == f"Your function raised {name}, at `raise error`"


def test_after_an_exception_it_is_not_called_again():
    called = []

    def answer(x):
        called.append(x)
        return 1 / x

    with pytest.raises(Rejection, match="division by zero"):
        call_answer(answer, [(1,), (0,), (2,)], "answer(x)")
    assert called == [1, 0]


@pytest.mark.parametrize("ask", [gpu, cpu])
def test_a_device_that_is_not_there_is_not_needed(ask):
    rejection = rejection_of(lambda: ask(99))
    assert f"D2lparError: {ask.__name__}(99) was asked for, but JAX sees" in rejection.saw
    assert "needs no other device" in rejection.look


def test_who_needs_a_value_while_jax_traces_is_told_so():
    rejection = rejection_of(lambda: jax.jit(float)(1.0))
    assert "ConcretizationTypeError" in rejection.saw
    assert "while JAX traces there is none" in rejection.look


def test_who_compiles_in_each_call_is_told_which_function():
    def answer():
        return compare({"anew": lambda: jax.jit(lambda x: x + 1)(EYE)}, repeats=1)

    rejection = rejection_of(answer)
    assert rejection.saw == "XLA compiles in each call of your function: jit(<lambda>)."
    assert "Make the jitted function once" in rejection.look


def test_what_a_function_of_the_check_says_is_passed_on():
    said = Rejection("It was called twice.", "Once is enough.")

    def answer():
        raise said

    assert rejection_of(answer) is said


def test_the_rejection_hides_where_it_comes_from():
    assert rejection_of(lambda: divide(0)).__suppress_context__


# --- What does not end ------------------------------------------------------------------------


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
        call_answer(lambda: 1, [()], "f()", limit=7)
    assert limits == [7]


def test_what_does_not_return_in_time_is_given_up(never):
    called = []

    def answer(x):
        called.append(x)
        return never() if x else x

    with pytest.raises(Rejection) as caught:
        call_answer(answer, [(0,), (1,), (2,)], "answer(x)", limit=0.5)
    assert caught.value.saw.startswith("Your function did not return within 0.5 seconds, and is")
    assert "restart Python before you measure anything" in caught.value.saw
    assert "a loop that never ends" in caught.value.look
    assert called == [0, 1]


def test_it_runs_on_a_thread_that_does_not_keep_python_from_ending():
    (thread,) = call_answer(threading.current_thread, [()], "f()")
    assert thread.daemon
    assert thread is not threading.current_thread()


# --- What it prints ---------------------------------------------------------------------------


def printing(*texts, end=lambda: True):
    def answer():
        for text in texts:
            print(text)
        return end()

    return answer


def test_what_is_printed_is_shown(capsys):
    assert call_answer(printing("  one", "two ", ""), [()], "f()") == [True]
    assert capsys.readouterr().out == "  one\ntwo \n\n"


def test_who_prints_nothing_leaves_no_empty_line(capsys):
    call_answer(printing(), [()], "f()")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("texts", [["x" * 5 * SHOWN], ["x"] * 5 * SHOWN], ids=["one", "many"])
def test_of_much_the_beginning_is_shown_and_the_rest_counted(capsys, texts):
    call_answer(printing(*texts), [()], "f()")
    written = "".join(f"{text}\n" for text in texts)
    more = len(written) - SHOWN
    expected = f"{written[:SHOWN]} ... (and {more} more characters)\n"
    assert capsys.readouterr().out == expected


def test_all_that_just_fits_is_shown(capsys):
    call_answer(printing("x" * (SHOWN - 1)), [()], "f()")
    assert capsys.readouterr().out == "x" * (SHOWN - 1) + "\n"


def test_what_was_printed_before_it_went_wrong_is_shown(capsys):
    rejection_of(printing("so far", end=lambda: divide(0)))
    assert capsys.readouterr().out == "so far\n"


def test_what_was_printed_before_it_was_given_up_is_shown(capsys, never):
    before = sys.stdout
    rejection_of(printing("so far", end=never))
    assert capsys.readouterr().out == "so far\n"
    assert sys.stdout is before


# --- The probe --------------------------------------------------------------------------------


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


def test_a_probe_may_say_none():
    assert call_answer(lambda: 1, [()], "f()", probe=lambda: None) == [(1, None)]


# --- What is asked of an answer ---------------------------------------------------------------


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.int64(3), jnp.float32(3)], ids=repr)
def test_a_number_is_a_number_of_python_numpy_or_jax(value):
    assert require_number(value) == 3.0
    assert type(require_number(value)) is float


@pytest.mark.parametrize(
    "value",
    [
        None,
        "soon",
        {},
        [1.0],
        1j,
        (1, 2),
        np.ones(2),
        jnp.ones(2),
        dict,
        len,
        "3.5",
        pytest.param(10**400, id="huge"),
        pytest.param(deleted(jnp.float32(1)), id="deleted"),
    ],
)
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


@pytest.mark.parametrize(
    "value",
    [
        np.ones(2),
        jnp.ones(2),
        jnp.ones(2) > 0,
        pytest.param(deleted(jnp.float32(1)), id="deleted"),
    ],
)
def test_what_is_neither_true_nor_false_is_turned_down_in_a_sentence(value):
    with pytest.raises(Rejection, match=r"^Your function returned .*neither true nor false\.$"):
        require_truth(value)


def test_what_is_no_number_and_no_truth_is_shown_and_what_to_return_instead():
    with pytest.raises(Rejection, match="returned 'soon', which is no number") as caught:
        require_number("soon")
    assert caught.value.look == "Return seconds."
    with pytest.raises(Rejection, match=r"returned array\(\[1\., 1\.\]\), which") as caught:
        require_truth(np.ones(2))
    assert caught.value.look == "Return True or False."


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
    "none": (None, "of type NoneType, not an array of JAX"),
    "text": ("ab", "of type str, not"),
    "dict": ({0: EYE}, "of type dict, not"),
    "nested": ([EYE, EYE], "of type list, not"),
    "class": (dict, "of type type, not"),
    "shape": (jnp.ones(2), r"has the shape \(2,\), but \(2, 2\) was expected"),
    "would broadcast": (jnp.ones((1, 2)), r"has the shape \(1, 2\), but \(2, 2\)"),
    "flat": (EYE.ravel(), r"has the shape \(4,\), but \(2, 2\)"),
    "scalar": (jnp.float32(1), r"has the shape \(\), but"),
    "values": (EYE.at[1, 1].set(0.75), "wrong: it differs from the right one by up to 0.25"),
    "below": (EYE.at[1, 1].set(1.5), "by up to 0.5"),
    "just too far": (EYE + 2e-3, "by up to 0.002"),
    "complex": (EYE + 1j, "by up to 1"),
    "nan": (NAN, "by up to nan"),
    "one nan": (EYE.at[0, 0].set(jnp.nan), "by up to nan"),
    "infinite": (EYE / 0, "by up to (inf|nan)"),
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


@pytest.mark.parametrize(("found", "message"), ODD.values(), ids=ODD)
def test_a_list_is_turned_down_for_its_first_wrong_item(found, message):
    with pytest.raises(Rejection, match=message) as caught:
        require_arrays([EYE, found, None], [EYE] * 3, "three")
    assert caught.value.saw.startswith("Item 1 of what your function returned ")


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ([], "list of 0"),
        ([EYE] * 3, "list of 3"),
        ((EYE,), "tuple of 1"),
        (None, "NoneType"),
        ("ab", "str of 2"),
        ({0: EYE, 1: EYE}, "dict of 2"),
        ((x for x in (EYE, EYE)), "generator"),
        (jnp.stack([EYE, EYE]), "ArrayImpl of 2"),
        (np.ones((2, 2, 2)), "ndarray of 2"),
        (np.float32(1), "float32"),
        (deleted(jnp.ones(2)), "ArrayImpl"),
        (jnp.float32(1), "ArrayImpl"),
        (np.array(1), "ndarray"),
        (dict, "type"),
    ],
)
def test_what_is_no_list_of_that_length_is_named_beside_what_was_expected(found, what):
    with pytest.raises(Rejection) as caught:
        require_arrays(found, [EYE, EYE], "a result for each batch")
    assert caught.value.saw.startswith(f"Your function returned {what}")
    assert "where a result for each batch was expected, a list of 2." in caught.value.saw
