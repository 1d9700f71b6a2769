"""The ratio of two versions, from two runs, or from several rounds in turn."""

import re

import pytest
from fakes import FAST, SLOW, run_of

from d2lpar import Comparison, Quantity
from d2lpar._versions.compare import changes_of, in_common, report


def verdicts(changes):
    return {(change.function, change.quantity): change.verdict for change in changes}


@pytest.mark.parametrize(
    ("before", "after", "rounds", "needs", "verdict"),
    [
        (SLOW, FAST, 6, None, "faster"),
        (FAST, SLOW, 6, None, "slower"),
        (SLOW, SLOW[::-1], 6, None, "undecided"),
        (SLOW, FAST, 1, None, "undecided"),
        ((0.0,) * 9, FAST, 6, None, "undecided"),
        (SLOW, FAST, 6, "2 free cores", "needs 2 free cores"),
    ],
)
def test_the_verdict_rests_on_the_whole_interval(before, after, rounds, needs, verdict):
    result = changes_of([(run_of(f=before), run_of(f=after, needs=needs))] * rounds)
    assert verdicts(result) == {("f", "total"): verdict, ("f", "dispatch"): verdict}
    assert result[0].is_surely_later(1.0) == (verdict == "slower")
    assert ("too few runs for an interval" in str(result[0])) == (rounds < 6)
    assert ("no ratio, since not all" in str(result[0])) == (not any(before))


def test_an_observed_quantity_is_compared_as_well_and_is_less_or_more():
    rounds = [(run_of(f=(SLOW, SLOW)), run_of(f=(SLOW, FAST)))] * 6
    assert verdicts(changes_of(rounds))["f", "memory"] == "less"


def test_of_several_rounds_only_what_all_have_is_compared():
    rounds = [(run_of(f=SLOW, g=SLOW), run_of(f=FAST))] * 6
    expected = {("f", "total"): "faster", ("f", "dispatch"): "faster"}
    assert verdicts(changes_of(rounds)) == expected


def test_of_rounds_with_a_zero_on_either_side_there_is_no_ratio():
    pair = run_of(f=(SLOW, SLOW)), run_of(f=(SLOW, (0.0,) * 9))
    for rounds in ([pair] * 6, [pair[::-1]] * 6):
        assert verdicts(changes_of(rounds))["f", "memory"] == "undecided"


def test_the_report_has_each_change_and_caution_once_and_names_two_machines():
    before = run_of(f=SLOW, old=SLOW, warnings=("returned no JAX array",))
    after = run_of("another", f=FAST, new=SLOW, warnings=("returned no JAX array",))
    before["f"].observed["size"] = Quantity("size", (1.0,), "B")
    after["f"].observed["size"] = Quantity("size", (1.0,), "s")
    assert in_common(before, after) == [("f", "total"), ("f", "dispatch")]
    pairs, alike = [(before, after)], [(before, before)]
    text = report(("a.json", "b.json"), pairs, changes_of(pairs), ["Noted."])
    assert text.startswith("a.json -> b.json\n\nf\n  result ready")
    text = re.sub(" +", " ", text)
    assert "result ready 2.1 s -> 1.05 s 0.5 times (too few runs for an interval): und" in text
    assert "\n\nNoted.\n" in text
    assert "since not every run has it in the same unit: f, new, old." in text
    assert "different machines or versions of JAX, which may be the difference: mine; and a" in text
    assert text.count("Caution: f returned no JAX array.") == 1
    assert "machines" not in report(("a", "b"), alike, changes_of(alike), [])


@pytest.mark.parametrize(
    ("ratios", "rounds"),
    [
        ((0.5,) * 6, None),
        ((1.1, 1.1, 1.1, 1.1, 1.21, 0.99), "about 7"),
        ((0.8, 0.8, 0.8, 0.8, 0.7, 1.24), "about 23"),
        ((0.999, 1.001, 1, 1, 0.9, 1.1), "more than 200"),
    ],
)
def test_a_report_says_how_many_intervals_may_err_and_how_many_rounds_may_decide(ratios, rounds):
    pairs = [(run_of(f=(1.0,), g=(2.0,)), run_of(f=(ratio,), g=(1.0,))) for ratio in ratios]
    changes = changes_of(pairs)
    plain, full = (report("ab", pairs, changes, [], shows) for shows in (False, True))
    assert "Up to 5% of such intervals err: of these 2, 0.1 on average." in plain
    assert re.findall(", result ready: (.*) rounds", plain) == [rounds] * bool(rounds)
    assert ("call returns" in plain, "call returns" in full) == (False, True)


def test_a_comparison_and_a_measurement_come_back_from_json_as_they_were():
    before = run_of(f=(SLOW, SLOW), g=FAST, needs="2 free cores", level=0.99)
    after = Comparison.from_json(before.to_json())
    assert "\n" not in before.to_json()
    assert vars(after) == vars(before)
    assert repr(after) == repr(before)
    assert after["f"].devices == {"CPU 0"}
    assert after["f"]["memory"].samples == before["f"]["memory"].samples
    assert repr(Comparison.from_json(before["g"].to_json())["g"]) == repr(before["g"])


WRONG_LEVEL = run_of(f=SLOW, level=0.99).to_json().replace("0.99", '"x"')


@pytest.mark.parametrize("text", ["", "[]", '{"measurements": [1]}', "{} {}", WRONG_LEVEL])
def test_a_text_that_is_no_measurement_is_refused(text):
    with pytest.raises(ValueError, match="not written by Comparison"):
        Comparison.from_json(text)
