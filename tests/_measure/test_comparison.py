import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeDevice, crowded_in
from tables import cells_of, remarks_of

from d2lpar import (
    CompilationError,
    InFlight,
    Quantity,
    carried,
    compare,
    cpu,
    exact,
    measure,
    record_trace,
)
from d2lpar._measure import comparison


@pytest.fixture
def device(clock):
    return FakeDevice(clock)


def test_dispatch_ends_when_python_has_control_and_total_when_all_results_are_ready(clock, device):
    def call(work):
        return {"a": device.run(1, dispatch=2), "b": [device.run(work)]}

    result = measure(functools.partial(call), 4, repeats=3, clock=clock)
    assert result.name == "partial"
    assert result.dispatch.samples == (2, 2, 2)
    assert result.total.samples == (7, 7, 7)
    assert result.dispatch.unit == result.total.unit == "s"


def test_what_one_function_leaves_on_a_device_is_not_in_the_time_of_the_next(
    clock, device, monkeypatch
):
    monkeypatch.setattr("d2lpar._jax.state.has_started", lambda: True)
    monkeypatch.setattr(comparison, "wait_all", lambda: device.run(0).block_until_ready())
    ways = {"hides it": lambda: device.run(9) and None, "next": lambda: device.run(1)}
    times = compare(ways, repeats=4, clock=clock)
    assert set(times["next"].total.samples) == {1}
    assert set(times["hides it"].total.samples) == {0}


def test_functions_without_jax_are_compared_without_starting_it(run_python):
    program = "import d2lpar\nd2lpar.compare({'a': int, 'b': str}, repeats=2)\n"
    program += "d2lpar.use_cpu_devices(3)\nprint(len(d2lpar.cpu(2).client.devices()))"
    assert run_python(program) == "3"


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_warm_up_calls_are_waited_for_but_not_counted(clock, device, warmup):
    works = iter([100] * warmup + [1, 2, 3])
    result = measure(lambda: device.run(next(works)), repeats=3, warmup=warmup, clock=clock)
    assert result.total.samples == (1, 2, 3)


def test_a_compilation_while_the_clock_runs_is_an_error_that_names_the_function(new_function):
    message = r"jit\(new_function\) was compiled while 'mine'.*Warm up with.*a named device"
    with pytest.raises(CompilationError, match=message):
        measure(new_function, np.ones(3), warmup=0, name="mine")


def test_a_measurement_shows_both_times_and_its_doubts(clock, device):
    works, dispatches = iter([0, 1, 2, 3, 4, 5, 6]), itertools.cycle([2, 2.0001])
    call = lambda: device.run(next(works), dispatch=next(dispatches))  # noqa: E731
    result = measure(call, repeats=6, name="step", clock=clock)
    assert repr(result).splitlines() == [
        "step, 6 repeats",
        "  dispatch      2 s   95% interval 2 s to 2 s",
        "  total       5.5 s   95% interval 3 s to 8 s",
        "  caution: interquartile range is 45% of the median",
    ]


def test_a_measurement_has_the_names_of_the_devices_of_its_results():
    x, y = (jax.device_put(jnp.ones(3), cpu(index)) for index in (0, 1))
    times = compare({"x": lambda: x, "both": lambda: (x, [y])}, repeats=6)
    assert [times[arm].devices for arm in times] == [{"CPU 0"}, {"CPU 0", "CPU 1"}]


@pytest.mark.parametrize(
    ("warmup", "call", "where"), [(0, 1, "round 1"), (1, 1, "the warm-up"), (1, 3, "round 2")]
)
def test_an_exception_bears_a_note_of_the_function_and_the_round(warmup, call, where):
    calls = itertools.count(1)

    def broken():
        if next(calls) == call:
            raise OSError("lost")

    with pytest.raises(OSError, match="lost") as caught:
        compare({"steady": lambda: None, "broken": broken}, warmup=warmup)
    assert caught.value.__notes__ == [f"Raised in {where} of 'broken'."]


@pytest.mark.parametrize("arms", ["ab", "abc"])
def test_a_steady_drift_of_the_machine_hits_all_arms_alike(clock, device, arms):
    drift = iter(range(100))  # each call takes a second longer than the one before
    functions = dict.fromkeys(arms, lambda: device.run(next(drift)))
    times = compare(functions, repeats=6, warmup=0, clock=clock)
    assert list(times) == list(arms)
    assert len({sum(times[arm].total.samples) for arm in arms}) == 1


@functools.partial(jax.jit, donate_argnums=0)
def descend(state, x, *, rate=1.0):
    """A step that donates its state, of arrays and a typed key, and returns it with a loss."""
    key, _ = jax.random.split(state["key"])
    return {"w": state["w"] + rate * x, "key": key}, x.sum()


def test_a_carried_step_takes_the_state_that_it_has_returned_in_the_call_before():
    start = {"w": jnp.zeros(3), "key": jax.random.key(0)}
    step = carried(descend, start, jnp.ones(3), rate=2.0)
    for turn in range(1, 4):
        state, loss = step()
        assert (state["w"] == 2 * turn).all()
        assert loss == 3
    assert step.__name__ == "descend"
    record_trace(step)
    with InFlight(2) as window:
        for _ in range(5):
            state, _ = window.submit(step)
    assert (state["w"] == 2 * (3 + 1 + 5)).all()


def test_a_state_that_the_first_step_commits_compiles_twice_and_needs_a_second_warm_up():
    batch = jax.device_put(jnp.ones(3), cpu())
    anew = lambda: carried(jax.jit(lambda state, x: state + x), jnp.zeros(3), batch)  # noqa: E731
    with pytest.raises(CompilationError, match="a carried state may need warmup=2"):
        measure(anew(), repeats=6)
    assert measure(anew(), repeats=6, warmup=2)


@pytest.mark.parametrize("state", [(1, 2), [1, [2]], {"a": 1}, 1], ids=repr)
def test_the_state_may_be_all_that_a_step_returns_or_the_first_element_of_a_tuple(state):
    more = lambda state: jax.tree.map(lambda x: x + 1, state)  # noqa: E731
    alone, beside = carried(more, state), carried(lambda state: (more(state), "loss"), state)
    for _ in range(3):
        state = more(state)
        assert alone() == state
        assert beside() == (state, "loss")


@pytest.mark.parametrize("spread_over", [1, 2])
def test_a_step_that_donates_deletes_all_that_shares_its_memory_and_not_a_copy(spread_over):
    start = {"w": jax.device_put(jnp.zeros(3), cpu()), "key": jax.random.key(0)}
    copied = jax.tree.map(jnp.copy, start)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:spread_over]), "d")
    placed = jax.device_put(start, jax.NamedSharding(mesh, jax.P()))
    carried(descend, placed, np.ones(3, np.float32), rate=2.0)()
    assert start["w"].is_deleted()
    assert (copied["w"] == 0).all()


@pytest.mark.parametrize(
    "result", [None, (), 1.0, (1.0, np.zeros(3)), [np.zeros(3)], np.zeros(4)], ids=repr
)
def test_a_step_that_does_not_return_its_state_where_it_is_looked_for_is_refused(result):
    step = carried(lambda state: result, np.zeros(3))
    with pytest.raises(ValueError, match=r"no new state in the result of '<lambda>'.* \(3,\)"):
        step()


def test_the_trees_of_state_and_result_are_compared_in_the_first_call_only():
    shapes = iter([(3,), (4,)])
    step = carried(lambda state: np.zeros(next(shapes)), np.zeros(3))
    assert [step().shape, step().shape] == [(3,), (4,)]


def test_what_is_observed_is_off_the_clock_and_has_a_sample_for_each_round(clock, device):
    calls = itertools.count()

    def bytes_of(array):
        assert array.is_ready()
        clock.advance(100)
        return 8 * next(calls)

    times = compare(
        {"a": lambda: device.run(1), "b": lambda: device.run(2)},
        repeats=2,
        observe={"memory": bytes_of, "busy": lambda _: 0.5},
        units={"memory": "B"},
        clock=clock,
    )
    assert times["a"].total.samples == (1, 1)
    assert times["a"]["memory"].samples == (0, 24)  # A B, B A.
    assert times["b"]["memory"].unit == "B"
    assert "b, memory: 12 B" in repr(times)
    header, *rows = cells_of(times._repr_html_())
    assert header[-2:] == ["memory", "busy"]
    few = "too few for an interval"
    assert [row[-2:] for row in rows] == [[f"12 B\n{few}", f"0.5\n{few}"]] * 2


def test_a_ratio_is_taken_round_by_round_and_named(clock, device):
    works = iter([1, 1, 2, 3, 8, 2])
    arms = {"a": lambda: device.run(next(works), dispatch=1), "b": lambda: device.run(next(works))}
    times = compare(arms, repeats=2, clock=clock)
    ratio = times.ratio("a", "b")
    assert ratio.samples == (3 / 3, 3 / 8)
    assert ratio.name == "time, a over b"
    with pytest.raises(KeyError, match="no function 'c'; there are a, b"):
        times.ratio("a", "c")
    with pytest.raises(KeyError, match="'a' has no 'memory'; it has dispatch, total"):
        times.ratio("a", "b", of="memory")


def test_rounds_in_which_the_control_does_not_hold_do_not_count(clock, device):
    works = iter([1, *range(10)])
    arms = {"a": lambda: device.run(1 + next(works))}
    times = compare(arms, repeats=10, control=crowded_in({3}), clock=clock)
    assert times["a"].total.samples == (1, 2, 3, 5, 6, 7, 8, 9, 10)
    assert times.ratio("a", "a").samples == (1,) * 9
    assert (times.dropped_rounds, times.needs) == (1, None)
    assert repr(times).endswith("Without 1 round: the control failed, or one order came too often.")


def test_a_control_that_holds_mostly_in_one_order_makes_no_winner_of_a_drift(clock, device):
    drift = itertools.count(10)
    arms = dict.fromkeys("ab", lambda: device.run(next(drift)))
    times = compare(arms, repeats=30, control=crowded_in(set(range(1, 20, 2))), clock=clock)
    assert [ratio > 1 for ratio in times.ratio("b", "a").samples].count(True) == 6
    assert len(times["a"].total.samples) == 11
    assert (times.ratio("b", "a") > 1).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("crowded", "max_seconds", "samples", "dropped", "needs"),
    [
        ({0}, 1e9, 9, 1, None),
        (set(range(9)), 1e9, 9, 9, None),
        (set(range(10)), 1e9, 18, 10, None),
        ({0}, 5, 9, 1, "two free cores"),
        (set(range(99)), 1e9, 18, 18, "two free cores"),
        (set(range(99)) - {5}, 1e9, 36, 35, "two free cores"),
        (set(range(99)) - {5, 8}, 1e9, 72, 70, "two free cores"),
    ],
    ids=["one", "half", "more", "one, short of time", "all", "all but one", "all but two"],
)
def test_a_look_waits_for_rounds_that_count_unless_the_time_is_up_or_hardly_any_count(
    clock, device, crowded, max_seconds, samples, dropped, needs
):
    times = compare(
        {"a": lambda: device.run(1)},
        until=lambda times: times["a"].total < 2,
        control=crowded_in(crowded),
        max_seconds=max_seconds,
        clock=clock,
    )
    # Where fewer than nine rounds count, all are kept.
    assert len(times["a"].total.samples) == samples
    assert (times.dropped_rounds, times.needs) == (dropped, needs)


def below_5(times):
    return times["a"].total < 5


@pytest.mark.parametrize(
    ("works", "until", "max_seconds", "rounds"),
    [
        ([1], below_5, 1e9, 9),
        ([1] * 8 + [9], below_5, 1e9, 18),
        ([1, 9], below_5, 1e9, 144),
        ([1] * 8 + [9], lambda times: [times["a"].total < 50, below_5(times)], 1e9, 18),
        ([1, 9], lambda times: (times["a"], exact("three", 3) > 2)[1], 1e9, 9),
        ([1, 9], below_5, 120, 25),  # 24 rounds take 120 seconds.
        ([1, 9], below_5, 1e-9, 9),
    ],
    ids=["clear", "less clear", "never", "two claims", "decided before", "end of time", "no time"],
)
def test_it_goes_on_until_all_claims_are_decided_or_the_time_is_up(
    clock, device, works, until, max_seconds, rounds
):
    again = itertools.cycle(works)
    arms = {"a": lambda: device.run(next(again))}
    times = compare(arms, until=until, max_seconds=max_seconds, warmup=0, clock=clock)
    assert len(times["a"].total.samples) == rounds


def test_with_the_truth_at_the_bound_at_most_one_claim_in_twenty_is_decided(clock):
    # Five looks at 1% each decide no more than that; but with a limit of time, the number of
    # rounds at the last look depends on the samples.
    decided, trials, chance = 0, 200, np.random.default_rng(0)
    for _ in range(trials):
        times = compare(
            {"a": functools.partial(next, map(clock.advance, chance.exponential(size=144)))},
            until=lambda times: times["a"].total > math.log(2),  # The median.
            max_seconds=25,
            warmup=0,
            clock=clock,
        )
        assert times["a"].total.level == pytest.approx(0.99)
        decided += (times["a"].total > math.log(2)).verdict != "inconclusive"
    assert 0 < decided <= trials / 20


STALE = Quantity("measured before", range(9))


@pytest.mark.parametrize(
    ("until", "message"),
    [
        (lambda times: times["a"].total.median > 1, "must return a comparison .*(True|False)"),
        (lambda times: [times["a"].total > 1, True], "must return a comparison .* or several"),
        (lambda times: Quantity("b", times["a"].total.samples) > 1, "too narrow for one of 5"),
        (lambda times: STALE > 1, "too narrow for one of 5"),
        (lambda times: (), "must return a comparison"),
        (STALE > 1, "until must be a function of what is measured, found .*claimed: "),
    ],
)
def test_a_question_that_no_measurement_can_answer_is_refused(until, message):
    with pytest.raises(ValueError, match=message):
        compare({"a": int}, until=until)


def test_below_the_table_each_remark_stands_once_and_names_are_text():
    arms = {"<a>": lambda: None, "b": lambda: 1}
    observe = {"<i>": lambda _: 1.0}
    html = compare(arms, observe=observe, repeats=10, control=crowded_in({3}))._repr_html_()
    assert "<a>" not in html
    assert "<i>" not in html
    medians, caution, counting = remarks_of(html)
    assert medians.startswith("Medians of 9 rounds")
    assert caution.startswith("<a>, b: returned no JAX array")
    assert counting.startswith("Without 1 round: ")
