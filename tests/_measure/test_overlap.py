import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeDevice

from d2lpar import Quantity, compare, cpu, exact, measure_overlap, overlap_score
from d2lpar._measure.overlap import Overlap

BROKEN = "a broken measurement: clearly above 1, so the runs differ in something other than overlap"
HINDERED = "clearly below 0: the two hinder each other, or the runs differ"


def seconds(*samples):
    return Quantity("time", samples, "s")


@pytest.mark.parametrize(
    ("first", "second", "together", "score"),
    [
        (1, 2, 3, 0),
        (1, 2, 2, 1),
        (2, 1, 2, 1),
        (1, 2, 2.5, 0.5),
        (1, 1, 1.75, 0.25),
        (4, 1, 4.25, 0.75),
    ],
)
def test_the_score_is_the_share_of_the_shorter_activity_that_was_hidden(
    first, second, together, score
):
    result = overlap_score(first, second, together)
    assert result.samples == (score,)
    assert (result.unit, result.once, result.warnings) == ("", True, ())


def test_the_score_is_taken_round_by_round():
    # In the second round the other activity is the shorter one.
    result = overlap_score(seconds(1, 4, 2), seconds(2, 2, 2), seconds(2.5, 5, 2))
    assert result.samples == (0.5, 0.5, 1)
    assert not result.exact


# Times as Dive into Deep Learning prints them for its two scripts of three loops.
@pytest.mark.parametrize(
    ("times", "score", "broken"),
    [
        ((0.3139, 0.2995, 0.3148), 0.997, False),
        ((1.6024, 2.2067, 2.0726), 1.084, True),
        ((0.3089, 0.9983, 1.0636), 0.789, False),
    ],
)
def test_printed_times_have_a_score_without_an_interval(times, score, broken):
    result = overlap_score(*times)
    assert result.median == pytest.approx(score, abs=5e-4)
    assert result.interval == (result.median, result.median)
    assert (result.broken, result.warnings) == (broken, (BROKEN,) if broken else ())


def test_numbers_of_numpy_are_numbers():
    assert overlap_score(np.float64(1), np.float32(2), np.int64(2)).samples == (1,)


@pytest.mark.parametrize(
    ("scores", "warnings"),
    [
        ([1.04] * 6, ()),
        ([1.06] * 6, (BROKEN,)),
        ([-0.04] * 6, ()),
        ([-0.06] * 6, (HINDERED,)),
        ([1.01, 1.3, 1.3, 1.3, 1.3, 1.3], ()),  # the interval reaches down to 1.01
        ([-1, -1, -1, -1, -1, -0.01], ()),
        ([1.9] * 5, ()),  # too few for an interval
    ],
)
def test_something_is_said_if_the_whole_interval_is_clearly_outside_0_to_1(scores, warnings):
    ones = seconds(*[1] * len(scores))
    result = overlap_score(ones, ones, seconds(*(2 - score for score in scores)))
    assert result.samples == pytest.approx(tuple(scores))
    assert result.broken is (warnings == (BROKEN,))
    assert result.warnings == warnings
    assert repr(result).endswith(warnings or "samples)")


def test_the_remarks_of_a_score_are_not_in_a_claim_over_it():
    broken = overlap_score(seconds(*[1] * 6), seconds(*[2] * 6), seconds(*[1] * 6))
    assert BROKEN in repr(broken)
    assert BROKEN not in str(broken > 0.5)  # The box of a claim has its own words.


@pytest.mark.parametrize(("other", "shared"), [(0, "CPU 0"), (1, "")])
def test_two_activities_on_one_device_carry_a_caution(other, shared):
    add = jax.jit(lambda x: x + 1)
    x, y = (jax.device_put(jnp.ones(3), cpu(index)) for index in (0, other))
    times = compare({"x": lambda: add(x), "y": lambda: add(y), "both": lambda: (add(x), add(y))})
    result = overlap_score(times["x"], times["y"], times["both"])
    assert result.shared_device == shared
    caution = "the results of both lie on CPU 0, where programs that one thread asks for take turns"
    assert (caution in result.warnings) is bool(shared)
    assert (caution in repr(result)) is bool(shared)


def test_the_total_of_a_measurement_counts(clock):
    device = FakeDevice(clock)
    times = compare(
        {
            "a": lambda: device.run(3, dispatch=1),
            "b": lambda: device.run(3, dispatch=1),
            "both": lambda: device.run(4, dispatch=2),
        },
        repeats=1,
        clock=clock,
    )
    assert overlap_score(times["a"], times["b"], times["both"]).samples == (0.5,)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("1.5", "made of times in seconds, found '1.5': pass what `compare` measured, or numbers"),
        (True, "made of times in seconds, found True"),
        (None, "made of times in seconds, found None"),
        ((1.0, 2.0), r"made of times in seconds, found \(1.0, 2.0\)"),
        (exact("size", 3, "B"), "made of times in seconds, found size: 3 B"),
        (exact("ratio", 3), "made of times in seconds, found ratio: 3"),
        (0, "needs times above 0 seconds"),
        (-1.0, "needs times above 0 seconds"),
        (math.nan, "is nan"),
        (math.inf, "is inf"),
        (seconds(1, 1), "round by round, but the three have .*2.* samples.*with one `compare`"),
    ],
    ids=str,
)
def test_what_is_no_time_has_no_score(given, message, place):
    times = [1.0, 1.0, 1.0]
    times[place] = given
    with pytest.raises(ValueError, match=message):
        overlap_score(*times)


def test_a_pair_is_timed_alone_and_at_once_and_has_the_score_that_follows():
    pair = measure_overlap(lambda: time.sleep(0.002), lambda: time.sleep(0.001), repeats=6)
    assert list(pair.times) == ["first alone", "second alone", "at once"]
    assert (pair.times["at once"].total > 0.003).verdict == "holds"
    assert pair.score.samples == overlap_score(*pair.times.values()).samples
    assert pair.score.median < 0.5  # In one thread nothing overlaps.


def test_both_functions_are_called_before_anything_is_waited_for():
    calls = []

    class Late:
        def __init__(self, name):
            self.name = name
            calls.append(f"ask {name}")

        def block_until_ready(self):
            calls.append(f"wait for {self.name}")
            return self

    measure_overlap(lambda: Late("a"), lambda: Late("b"), repeats=1, warmup=0)
    assert calls[-4:] == ["ask a", "ask b", "wait for a", "wait for b"]


def test_what_is_to_be_decided_is_asked_of_the_pair():
    seen = []

    def until(pair):
        seen.append(pair)
        return pair.score > -10

    pair = measure_overlap(lambda: None, lambda: time.sleep(0.0005), until=until)
    assert isinstance(seen[0], Overlap)
    assert pair.needs is None
    assert (pair.score > -10).verdict == "holds"


def test_a_pair_shows_its_times_and_its_score_as_text_and_in_a_notebook():
    pair = measure_overlap(lambda: None, lambda: time.sleep(0.0005), repeats=6)
    for shown in (repr(pair), pair._repr_html_()):
        assert all(word in shown for word in ("first alone", "at once", "overlap score"))
