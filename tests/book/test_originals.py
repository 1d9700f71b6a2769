import pytest

from d2lpar import Quantity
from d2lpar.book.originals import EXPERIMENTS, judge


def test_the_printed_numbers_support_all_that_the_editions_claim_but_three_things():
    judged = {
        (name, claimed): [judge(name, rows)[claimed].verdict for rows in found.editions.values()]
        for name, found in EXPERIMENTS.items()
        for claimed in found.findings
    }
    assert {key: verdicts for key, verdicts in judged.items() if {*verdicts} != {"seen"}} == {
        ("A6", "without barriers a tenth faster or more"): ["fails"],
        ("A10", "more memory without barriers"): ["fails"],
        ("P6", "both overlap"): ["seen", "seen", "fails"],
    }


@pytest.mark.parametrize(
    ("at_once", "verdict"),
    [(2.0, "fails"), (1.0, "holds"), (0.8, "fails")],
    ids=["no overlap", "perfect overlap", "broken"],
)
def test_two_overlap_if_their_score_is_far_from_0_and_not_above_1(at_once, verdict):
    times = {"first": 1.0, "second": 1.0, "at once": at_once}
    rows = {row: Quantity(row, (time,) * 6, "s") for row, time in times.items()}
    assert judge("P4", rows)["both overlap"].verdict == verdict
