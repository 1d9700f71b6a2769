import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeDevice

from d2lpar import compare, cpu, measure
from d2lpar.errors import ArgumentError, CompilationError


@pytest.fixture
def device(clock):
    return FakeDevice(clock)


@pytest.fixture
def new_function():
    """A jitted function that XLA has not seen yet."""

    def new_function(x):
        return 2 * x + 1

    return jax.jit(new_function)


def test_dispatch_ends_when_python_has_control_and_total_when_the_result_is_ready(clock, device):
    result = measure(lambda: device.run(5, dispatch=2), repeats=3, clock=clock)
    assert result.dispatch.samples == (2, 2, 2)
    assert result.total.samples == (7, 7, 7)
    assert result.dispatch.unit == result.total.unit == "s"


def test_all_that_a_function_returns_is_waited_for(clock, device):
    result = measure(lambda: {"a": device.run(1), "b": [device.run(4)]}, repeats=2, clock=clock)
    assert result.total.samples == (5, 5)


def test_arguments_are_passed_on(clock, device):
    result = measure(lambda work, more: device.run(work + more), 1, 2, repeats=2, clock=clock)
    assert result.total.samples == (3, 3)


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_warm_up_calls_are_waited_for_but_not_counted(clock, device, warmup):
    works = iter([100] * warmup + [1, 2, 3])
    result = measure(lambda: device.run(next(works)), repeats=3, warmup=warmup, clock=clock)
    assert result.total.samples == (1, 2, 3)


def test_one_warm_up_call_is_enough_for_a_jitted_function(new_function):
    assert len(measure(new_function, jnp.ones(3), repeats=2).total.samples) == 2


def test_a_compilation_while_the_clock_runs_is_an_error_that_names_the_function(new_function):
    with pytest.raises(
        CompilationError, match=r"jit\(new_function\) was compiled while 'mine'.*Warm up with"
    ):
        measure(new_function, np.ones(3), warmup=0, name="mine")


def test_an_array_from_device_put_and_one_that_is_not_compile_separately(new_function):
    loose = jnp.ones(3)
    placed = jax.device_put(loose, jax.local_devices()[0])
    arrays = iter([loose, placed])
    with pytest.raises(CompilationError, match="device_put and one that is not"):
        measure(lambda: new_function(next(arrays)))


def test_a_measurement_prints_both_times_and_its_doubts(clock, device):
    works = iter([0, 1, 2, 3, 4, 5, 6])
    result = measure(lambda: device.run(next(works)), repeats=6, name="step", clock=clock)
    assert repr(result).splitlines() == [
        "step, 6 repeats",
        "  dispatch      0 s   95 % interval 0 s to 0 s",
        "  total       3.5 s   95 % interval 1 s to 6 s",
        "  caution: interquartile range is 71% of the median",
    ]


def test_a_measurement_knows_on_which_devices_its_results_lay():
    first, second = (jax.device_put(jnp.ones(3), cpu(index)) for index in (0, 1))
    times = compare(
        {"one": lambda: second, "both": lambda: {"a": first, "b": [second]}, "none": lambda: 3.0},
        repeats=2,
    )
    assert times["one"].devices == {"CPU 1"}
    assert times["both"].devices == {"CPU 0", "CPU 1"}
    assert times["none"].devices == frozenset()


@pytest.mark.parametrize("result", [None, 3.0, np.ones(3)])
def test_a_function_that_returns_no_jax_array_carries_a_warning(result):
    measurement = measure(lambda: result, repeats=6)
    assert any("returned no JAX array" in warning for warning in measurement.warnings)


def test_too_few_repeats_carry_a_warning(clock, device):
    assert "5 samples are too few" in measure(device.run, 1, repeats=5, clock=clock).warnings[0]
    assert measure(device.run, 1, repeats=6, clock=clock).warnings == ()


@pytest.mark.parametrize(
    ("function", "given", "name"),
    [
        (len, None, "len"),
        (len, "length", "length"),
        (functools.partial(len), None, "partial"),
    ],
)
def test_a_measurement_bears_the_name_of_its_function_unless_given_another(function, given, name):
    result = measure(function, "abc", repeats=1, name=given)
    assert result.name == name
    assert result.total.name == f"{name}, total"


class Lost(Exception):
    pass


def raising_in_call(number):
    """Return a function that takes no time and raises when called for the n-th time."""
    calls = iter([None] * (number - 1))

    def work():
        try:
            return next(calls)
        except StopIteration:
            raise Lost("lost") from None

    return work


def test_a_function_that_raises_in_the_third_repeat_keeps_its_exception_and_earlier_times():
    with pytest.raises(Lost) as caught:
        measure(raising_in_call(4))  # the first call is the warm-up
    assert str(caught.value) == "lost"
    assert len(caught.value.partial_measurement.total.samples) == 2
    assert caught.value.__notes__ == [
        "Raised in repeat 3 of 9 of 'work'; the 2 before it are kept in this exception's "
        "partial_measurement."
    ]


@pytest.mark.parametrize(("warmup", "where"), [(0, "repeat 1 of 9"), (1, "the warm-up")])
def test_a_function_that_raises_at_its_first_call_leaves_no_times(warmup, where):
    with pytest.raises(Lost) as caught:
        measure(raising_in_call(1), warmup=warmup)
    assert caught.value.partial_measurement is None
    assert f"Raised in {where} of 'work'" in caught.value.__notes__[0]


def test_an_arm_that_raises_keeps_its_own_earlier_times():
    with pytest.raises(Lost) as caught:
        compare({"steady": lambda: None, "broken": raising_in_call(3)})
    assert caught.value.partial_measurement.name == "broken"
    assert len(caught.value.partial_measurement.total.samples) == 1


@pytest.mark.parametrize("arms", ["ab", "abc"])
def test_a_steady_drift_of_the_machine_hits_all_arms_alike(clock, device, arms):
    drift = iter(range(100))  # each call takes a second longer than the one before
    times = compare(
        dict.fromkeys(arms, lambda: device.run(next(drift))), repeats=6, warmup=0, clock=clock
    )
    assert list(times) == list(arms)
    assert len({sum(times[arm].total.samples) for arm in arms}) == 1


def test_a_disturbed_round_cancels_in_the_ratio(clock, device):
    rounds = [1, 1, 9, 1]  # in the third everything takes nine times as long
    slow = iter([2 * factor for factor in rounds])
    fast = iter(rounds)
    times = compare(
        {"slow": lambda: device.run(next(slow)), "fast": lambda: device.run(next(fast))},
        repeats=3,
        clock=clock,
    )
    assert (times["slow"].total / times["fast"].total).samples == (2, 2, 2)


def test_an_arm_is_not_charged_for_the_warm_up_of_another(clock, device):
    times = compare(
        {"long": lambda: device.run(50), "short": lambda: device.run(1)}, repeats=2, clock=clock
    )
    assert times["long"].total.samples == (50, 50)
    assert times["short"].total.samples == (1, 1)


def test_a_comparison_prints_each_of_its_measurements():
    lines = repr(compare({"a": lambda: None, "b": lambda: None}, repeats=1)).splitlines()
    assert lines[0] == "a, 1 repeats"
    assert "b, 1 repeats" in lines


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: measure(3.5, repeats=2),
            r"measure\(\) needs a function to call, found float: "
            r"pass f and its arguments, measure\(f, x\), not its result, measure\(f\(x\)\)",
        ),
        (lambda: measure(len, "", repeats=0), "repeats must be .* at least 1, found 0"),
        (lambda: measure(len, "", repeats=2.0), "repeats must be an integer .*, found 2.0"),
        (lambda: measure(len, "", warmup=-1), "warmup must be .* at least 0, found -1"),
        (lambda: compare({}), r"needs a dictionary of functions by name, found {}: compare\("),
        (lambda: compare([len]), r"needs a dictionary .*, found \[<built-in.*compare\({\"a\": f"),
        (
            lambda: compare({"sum": 3}),
            r"cannot call 'sum', which is int: pass a function .*{\"sum\": lambda: f\(x\)}",
        ),
        (lambda: compare({"sum": int}, repeats=0), "repeats must be .* at least 1, found 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_way_out(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    reason: str


def test_an_exception_that_cannot_take_a_note_is_not_masked():
    def work():
        raise Frozen("full")

    with pytest.raises(Frozen):
        measure(work)


def test_an_interrupted_measurement_keeps_its_earlier_times():
    calls = iter([None, None])

    def work():
        try:
            next(calls)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt) as caught:
        measure(work)
    assert len(caught.value.partial_measurement.total.samples) == 1
