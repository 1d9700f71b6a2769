import json
import math

import numpy as np
import pytest
from scipy import stats
from tables import bars_of, cells_of

from d2lpar import Predicate, Quantity, exact, once
from d2lpar._measure.quantity import quantities_table

# Ten samples 1..10: the interval of their median is 2 to 9.
TEN = Quantity("ten", tuple(range(1, 11)))
TINY = Quantity("tiny", (1.0, 2.0, 3.0))
ROUNDED_ALIKE = (1.0001, 1.0002, 1.0003, 1.0001, 1.0003, 1.0002)


def drawn(n, seed=0):
    return tuple(np.random.default_rng(seed).exponential(size=n))


@pytest.mark.parametrize("level", [0.95, 0.99])
@pytest.mark.parametrize("n", [8, 9, 11, 12, 15, 20, 33, 100, 201])
def test_the_interval_is_that_of_scipy(n, level):
    samples = drawn(n)
    expected = stats.quantile_test(samples, q=0, p=0.5).confidence_interval(level)
    assert Quantity("drawn", samples, level=level).interval == pytest.approx(tuple(expected))


@pytest.mark.parametrize(("level", "fewest"), [(0.5, 2), (0.9, 5), (0.95, 6), (0.99, 8)])
def test_a_surer_interval_needs_more_samples_and_fewer_are_said_to_be_too_few(level, fewest):
    enough = Quantity("enough", range(fewest), level=level)
    assert (enough.min_samples, enough.interval) == (fewest, (0, fewest - 1))
    few = Quantity("few", range(fewest - 1), level=level)
    assert few.interval == (-math.inf, math.inf)
    count = "1 sample is" if fewest == 2 else f"{fewest - 1} samples are"
    assert few.warnings[0] == f"{count} too few for a {100 * level:g}% interval (needs {fewest})"


@pytest.mark.parametrize(
    ("predicate", "verdict"),
    [
        (TEN > 1.9, "holds"),
        (TEN > 2, "inconclusive"),
        (TEN > 9, "fails"),
        (TEN < 9.1, "holds"),
        (TEN < 9, "inconclusive"),
        (TEN < 2, "fails"),
        (1.9 < TEN, "holds"),
        (np.float64(1.9) < TEN, "holds"),
        (TEN.between(2, 9), "holds"),
        (TEN.between(2.1, 9), "inconclusive"),
        (TEN.between(2, 8.9), "inconclusive"),
        (TEN.between(9.1, 20), "fails"),
        (TEN.between(0, 1.9), "fails"),
        (TINY > 0, "inconclusive"),
        (exact("three", 3) > 3, "fails"),
        (TEN > Quantity("alike", (1, 2, 3, 4, 5, 6)), "inconclusive"),
        (TEN < Quantity("alike", (5, 6, 7, 8, 9, 10)), "inconclusive"),
    ],
    ids=str,
)
def test_a_comparison_looks_at_the_whole_interval(predicate, verdict):
    assert predicate.verdict == verdict
    assert predicate.holds == (verdict == "holds")
    assert repr(predicate) == f"{predicate}: {verdict}"


def test_a_chained_comparison_does_not_drop_its_first_half():
    with pytest.raises(TypeError, match=r"no truth value.*\.holds.*quantity\.between\(low, high\)"):
        _ = 1 < TEN < 20


def test_a_predicate_says_what_was_measured_and_what_was_claimed():
    times = Quantity("one step", (0.25,) * 6, "s")
    measured = "one step: 250 ms (the same in all 6 samples)"
    assert str(times < 0.5) == f"{measured}; claimed: < 500 ms"
    assert str(times.between(0.1, 1)) == f"{measured}; claimed: 100 ms to 1 s"
    both = Quantity("two steps", (0.5, 0.5, 0.5, 0.5, 0.5, 2), "s")
    assert str(times < both) == f"{measured}; claimed: < all of 500 ms to 2 s"
    assert (TEN > Quantity("rounded alike", ROUNDED_ALIKE)).describe() == "> 1"


def test_a_ratio_and_a_difference_are_taken_round_by_round():
    slow, fast = Quantity("slow", (2, 9, 4), "s"), Quantity("fast", (1, 3, 4), "s")
    derived = [(q.name, q.samples, q.unit, q.exact) for q in (slow / fast, slow - fast, slow / 2)]
    assert derived == [
        ("slow / fast", (2, 3, 1), "", False),
        ("slow - fast", (1, 6, 0), "s", False),
        ("slow", (1, 4.5, 2), "s", False),
    ]
    with pytest.raises(TypeError):
        slow - 1


def test_what_is_derived_is_exact_if_all_parts_are_and_has_the_highest_level():
    ratio = exact("six", 6) / exact("four", 4)
    assert (ratio.exact, ratio.interval) == (True, (1.5, 1.5))
    sure, usual = (Quantity("time", range(1, 10), "s", level=level) for level in (0.99, 0.95))
    derived = [sure / usual, usual / sure, sure - usual, sure / 2, sure.rename("x")]
    assert [quantity.level for quantity in derived] == [0.99] * 5
    assert "(99% interval" in repr(sure)
    assert Quantity(**sure.as_dict()).level == 0.99


def test_what_was_seen_once_supports_no_more_than_that_and_can_fail():
    seconds = once("until the other knows", 2.0, "s")
    assert [(seconds < 3).verdict, (seconds < 1).verdict] == ["seen", "fails"]
    times = Quantity("time", range(1, 10), "s")
    bounds = [once("bound", bound, "s") for bound in (0, 5, 12)]
    assert [(times < bound).verdict for bound in bounds] == ["fails", "inconclusive", "seen"]
    assert [(times > bound).verdict for bound in bounds] == ["seen", "inconclusive", "fails"]
    assert (exact("n", 1) < once("m", 2)).verdict == "seen"
    ratio = seconds / once("until it stops", 4.0, "s")
    assert (ratio.once, ratio.exact, (ratio < 1).verdict) == (True, False, "seen")
    assert (once("n", 6) / exact("m", 2)).once
    limits = [exact("limit", limit, "s") for limit in (1, 2)]
    assert (limits[0] / limits[1] < 1).verdict == "seen"
    assert (limits[1] - limits[0] > 0).verdict == "seen"
    sampled = Quantity("time", (1.0,), "s")
    assert not (seconds / sampled).once
    assert Quantity(**seconds.as_dict()).once


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Quantity("loss", (1.0, math.nan)),
            "Sample 1 of 'loss' is nan: nothing can be claimed.*Look for a division by zero",
        ),
        (lambda: Quantity("empty", ()), "'empty' has no samples"),
        (lambda: Quantity("few", (1, None)), "samples of 'few' must be numbers, found"),
        (lambda: Quantity("few", ("1", "2")), "samples of 'few' must be numbers, found"),
        (lambda: Quantity("sure", (1,), level=1), "'sure' lies between 0 and 1, found 1"),
        (lambda: Quantity("loss", (1,), "ms"), "'loss' has the unit 'ms'; known are '', 'B', 's'"),
        (lambda: TEN > math.nan, "cannot be compared with nan"),
        (lambda: TEN.between(0, math.inf), "cannot be compared with inf"),
        (lambda: TEN / TINY, "round by round.* 10 samples.*'tiny' has 3.*with one `compare`"),
        (lambda: exact("a", 1, "s") / exact("b", 1, "B"), "'a' has 1 samples in 's'.*'B'"),
        (lambda: TEN - TINY, "A difference is taken round by round"),
        (lambda: exact("a", 1) / exact("none", 0), "Cannot divide by 'none'.* is 0"),
        (lambda: TEN / 0, "'ten' cannot be divided by 0"),
        (lambda: once("a", 1, "s") > exact("b", 1, "B"), "'a'.*'s'.*'b'.*'B'"),
        (lambda: Quantity("t", (1,), "s") < exact("limit", 2, "s"), "'limit' is marked exact"),
        (lambda: TEN.between(4, 2), "swap them"),
        (lambda: TEN.between(exact("few", 1), 4), r"between\(\) takes two numbers"),
        (
            lambda: Predicate.from_dict((TEN > 3).as_dict() | {"relation": ">="}),
            "A comparison is >, < or between, found '>='",
        ),
    ],
)
def test_what_cannot_be_claimed_over_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "predicate",
    [
        TEN > Quantity("alike", (1, 2, 3, 4, 5, 6)),
        TEN > TINY,
        TEN < once("bound", 20),
        TINY.between(0, 5),
        Quantity("one product, in µs", (0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308), "s") < 1,
        Quantity("memory", np.float32([-1.5, 0.1]), "B") < 0.5,
    ],
    ids=str,
)
def test_a_comparison_comes_back_from_json_with_its_verdict(predicate):
    read = Predicate.from_dict(json.loads(json.dumps(predicate.as_dict(), allow_nan=False)))
    assert vars(read.quantity) == vars(predicate.quantity)  # To the last bit.
    assert vars(read) | {"quantity": 0} == vars(predicate) | {"quantity": 0}
    assert repr(read) == repr(predicate)


@pytest.mark.parametrize(
    ("quantity", "spec", "text"),
    [
        (Quantity("t", (0.1346,), "s"), "", "130 ms"),
        (Quantity("m", (8_388_608,), "B"), "", "8.4 MB"),
        (Quantity("ratio", (1.7321,)), "", "1.7"),
        (Quantity("ratio", (1.7321,)), ".2f", "1.73"),
        (Quantity("time", (0.0012346,), "s"), ".2f", "1.23 ms"),
        (Quantity("share", (0.0413,)), "%", "4.1%"),
        (Quantity("share", (0.0,)), "%", "0%"),
        (Quantity("about", (128.0,)), "", "130"),
        (exact("calls", 128), "", "128"),  # A count is not rounded.
    ],
)
def test_in_a_sentence_stands_the_median_rounded_as_a_person_would(quantity, spec, text):
    assert f"{quantity:{spec}}" == text
    assert (str(quantity) == text) is (spec == "")


@pytest.mark.parametrize(
    ("quantity", "summary"),
    [
        (TEN, "95% interval 2 to 9, 10 samples"),
        (Quantity("steady", (2.0,) * 6), "the same in all 6 samples"),
        (Quantity("all but one", (1,) * 8 + (5,)), "no spread within the 95% interval, 9 samples"),
        (Quantity("rounded alike", ROUNDED_ALIKE), "no spread within the 95% interval, 6 samples"),
        (Quantity("once", (2.0,)), "1 sample, too few for an interval"),
        (exact("calls", 3), "counted"),
        (once("calls", 3), "seen once"),
    ],
)
def test_the_summary_of_a_quantity_is_its_interval_in_words(quantity, summary):
    assert quantity.summary == summary


def test_quantities_of_one_unit_share_an_axis_from_zero_and_say_what_is_claimed():
    half = Quantity("half", tuple(sample / 2 for sample in TEN.samples))
    seconds = Quantity("other", (7.0,) * 6, "s")
    html = quantities_table([TEN, half, seconds], [TEN > 1, half.between(0, 8)])
    assert [row[-1] for row in cells_of(html)] == ["tested", "> 1", "0 to 8", "not tested"]
    assert html.count("stroke-dasharray") == 3  # Each bound is a line across its bar.
    ten, halved, other = ([width for *_, width in shapes] for _, shapes in bars_of(html))
    assert ten[0] == pytest.approx(2 * halved[0], rel=0.05)
    assert other[0] < 1  # All samples are equal, and yet the bar can be seen.
    assert bars_of(TINY._repr_html_()) == []  # It has no interval.
    # The axis reaches below zero if a quantity does.
    negative = Quantity("gain", (-4.0, -3, -2, -1, 1, 4))
    ((label, ((_, *ends), _)),) = bars_of(negative._repr_html_())
    assert ends == [1, 98]
    assert label == "median -1.5, interval -4 to 4"


@pytest.mark.parametrize(
    ("predicate", "margin"),
    [
        (exact("n", 6) > 2, 2),
        (exact("n", 0.5) > 2, -0.75),
        (exact("n", 3) > 0, 3),
        (exact("n", 3).between(0.5, 1.5), -3),
        (exact("n", 10).between(10, 10), 1),
        (exact("n", 1).between(10, 10), -0.9),
    ],
)
def test_the_margin_is_in_units_of_the_bound_and_negative_where_a_claim_fails(predicate, margin):
    assert predicate.margin() == pytest.approx(margin)
    assert (predicate.verdict == "holds") == (margin > 0)
    assert (Quantity("few", (1.0, 2.0)) > Quantity("fewer", (1.0,))).margin() == -math.inf
