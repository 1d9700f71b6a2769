import pytest
from drawings import svg

from d2lpar import Quantity, once
from d2lpar.book.originals import EXPERIMENTS, judge, plot_findings


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


def test_findings_show_a_point_for_each_source_and_shade_where_the_claim_holds():
    printed, measured = once("gain", 1.03), Quantity("gain", (1.2, 1.3, 1.3, 1.3, 1.4, 1.5))
    (above, between) = plot_findings(
        {
            "faster": {"edition": printed > 1.1, "here": measured > 1.1},
            "about as fast": {"here": measured.between(0.1, 10)},
        }
    )
    assert [label.get_text() for label in above.get_yticklabels()] == ["edition", "here"]
    assert [axes.get_title(loc="left") for axes in (above, between)] == ["faster", "about as fast"]
    assert (above.get_xscale(), between.get_xscale()) == ("linear", "log")
    (shaded,) = above.patches
    assert (shaded.get_x(), shaded.get_x() + shaded.get_width()) == (1.1, above.get_xlim()[1])
    assert above.get_xlim()[0] < 1.03
    (shaded,) = between.patches
    assert shaded.get_width() == pytest.approx(9.9)
    assert "<svg" in svg(above)
