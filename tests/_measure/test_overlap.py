import math

import numpy as np
import pytest
from fakes import FakeDevice

from d2lpar import Quantity, exact, measure_overlap, overlap_score

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
        (4, 1, 4.25, 0.75),
        (np.float64(1), np.float32(2), np.int64(2), 1),
    ],
)
def test_the_score_is_the_share_of_the_shorter_activity_that_was_hidden(
    first, second, together, score
):
    result = overlap_score(first, second, together)
    assert result.samples == (score,)
    assert result.interval == (score, score)  # A printed time has no interval.
    assert (result.unit, result.once, result.warnings) == ("", True, ())


def test_the_score_is_taken_round_by_round():
    # In the second round the other activity is the shorter one.
    result = overlap_score(seconds(1, 4, 2), seconds(2, 2, 2), seconds(2.5, 5, 2))
    assert result.samples == (0.5, 0.5, 1)
    assert not result.exact


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
    ids=str,
)
def test_something_is_said_if_the_whole_interval_is_clearly_outside_0_to_1(scores, warnings):
    ones = seconds(*[1] * len(scores))
    result = overlap_score(ones, ones, seconds(*(2 - score for score in scores)))
    assert result.samples == pytest.approx(tuple(scores))
    assert result.broken is (warnings == (BROKEN,))
    assert result.warnings == warnings
    assert repr(result).endswith(warnings or ("samples)", "interval)"))
    # The box of a claim has its own words.
    assert BROKEN not in str(result > 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("1.5", "made of times in seconds, found '1.5': pass what `compare` measured, or numbers"),
        (True, "made of times in seconds, found True"),
        (exact("size", 3, "B"), "made of times in seconds, found size: 3 B"),
        (0, "needs times above 0 seconds"),
        (math.nan, "is nan"),
        (seconds(1, 1), "round by round, but the three have .*2.* samples.*with one `compare`"),
    ],
    ids=str,
)
def test_what_is_no_time_has_no_score(given, message):
    with pytest.raises(ValueError, match=message):
        overlap_score(1.0, 1.0, given)


def test_a_pair_is_timed_alone_and_at_once_without_a_barrier_in_between(clock):
    first, second = FakeDevice(clock), FakeDevice(clock)
    pair = measure_overlap(
        lambda: first.run(3),
        lambda: second.run(2),
        until=lambda pair: pair.score.between(1, 1),
        clock=clock,
    )
    totals = {name: times.total.median for name, times in pair.times.items()}
    assert totals == {"first alone": 3, "second alone": 2, "at once": 3}
    assert (pair.score.samples, pair.needs) == ((1,) * 9, None)
    assert pair.score.level == pytest.approx(0.99)  # As at a look for the claim.
    for shown in (repr(pair), pair._repr_html_()):
        assert all(word in shown for word in ("first alone", "at once", "overlap score"))
