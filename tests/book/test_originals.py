import pytest
from drawings import style_of_the_book, svg

from d2lpar import Quantity, once
from d2lpar.book.originals import EXPERIMENTS, judge, plot_findings

# Each finding with its value, by hand from the printed numbers, and with its verdict.
PRINTED = {
    ("A1", "English edition 0.15.1, MXNet"): [
        ("without a barrier, ten times as fast or more", 0.8840 / 0.0044, "seen"),  # 200.9
        ("with a barrier, less than ten times as fast", 0.8840 / 0.7144, "seen"),  # 1.24
    ],
    ("A4", "English edition 0.15.1, MXNet"): [
        ("everything takes about as long as one", 0.0046 / 0.0044, "seen"),  # 1.05
        ("a conversion to NumPy waits", 0.0048 / 0.0044, "seen"),  # 1.09
        ("a conversion to a number waits", 0.0145 / 0.0044, "seen"),  # 3.30
    ],
    ("A6", "English edition 0.15.1, MXNet"): [
        ("without barriers a tenth faster or more", 0.0789 / 0.0769, "fails"),  # 1.03
    ],
    ("A10", "English edition 0.15.1, MXNet"): [
        ("handed out ten times faster", 6.1954 / 0.3538, "seen"),  # 17.5
        ("the epoch takes as long", 6.1967 / 6.0500, "seen"),  # 1.02
        ("more memory without barriers", -8.168e6, "fails"),  # and not above 23.696e6
    ],
    ("P4", "English edition 0.14.4, MXNet, CPU and GPU"): [
        ("both overlap", (0.3139 + 0.2995 - 0.3148) / 0.2995, "seen"),  # 0.997
    ],
    ("P4", "Chinese 1st edition, MXNet, CPU and GPU"): [
        ("both overlap", (0.3588 + 1.2104 - 1.2183) / 0.3588, "seen"),  # 0.978
    ],
    ("P4", "PyTorch edition, two GPUs"): [
        ("both overlap", (1.6029 + 1.6026 - 1.6019) / 1.6026, "seen"),  # 1.001
    ],
    ("P6", "English edition 0.14.4, MXNet, GPU to CPU"): [
        ("both overlap", (0.3089 + 0.9983 - 1.0636) / 0.3089, "seen"),  # 0.789
    ],
    ("P6", "Chinese 1st edition, MXNet, GPU to CPU"): [
        ("both overlap", (1.2223 + 0.5272 - 1.2770) / 0.5272, "seen"),  # 0.896
    ],
    ("P6", "PyTorch edition, GPU to CPU"): [
        ("both overlap", (1.6024 + 2.2067 - 2.0726) / 1.6024, "fails"),  # 1.084: broken
    ],
}


@pytest.mark.parametrize(("experiment", "edition"), PRINTED)
def test_what_an_edition_claims_is_compared_with_what_it_printed(experiment, edition):
    found = judge(experiment, EXPERIMENTS[experiment].editions[edition])
    assert [
        (claimed, pytest.approx(predicate.quantity.median, rel=1e-9), predicate.verdict)
        for claimed, predicate in found.items()
    ] == PRINTED[experiment, edition]


def test_every_edition_is_judged_here():
    assert set(PRINTED) == {
        (name, edition) for name, found in EXPERIMENTS.items() for edition in found.editions
    }


@pytest.mark.parametrize("experiment", ["P4", "P6"])
@pytest.mark.parametrize(
    ("at_once", "verdict"),
    [(2.2, "fails"), (2.0, "fails"), (1.0, "holds"), (0.8, "fails")],
    ids=["hindrance", "no overlap", "perfect overlap", "broken"],
)
def test_two_overlap_if_their_score_is_far_from_0_and_not_above_1(experiment, at_once, verdict):
    times = {"first": 1.0, "second": 1.0, "at once": at_once}
    rows = {row: Quantity(row, (time,) * 6, "s") for row, time in times.items()}
    assert judge(experiment, rows)["both overlap"].verdict == verdict


def test_what_was_measured_can_leave_it_undecided():
    rows = {
        "barrier in each turn": Quantity("each", (1.0, 1.0, 1.1, 1.2, 1.3, 1.4), "s"),
        "barrier at the end": Quantity("end", (1.0,) * 6, "s"),
    }
    (found,) = judge("A6", rows).values()
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_edition_of_an_experiment_has_the_same_rows(experiment):
    for rows in experiment.editions.values():
        assert tuple(rows) == experiment.rows


def test_editions_printed_single_runs_in_seconds_and_memory_in_bytes():
    printed = [
        (row, quantity)
        for experiment in EXPERIMENTS.values()
        for rows in experiment.editions.values()
        for row, quantity in rows.items()
    ]
    assert all(quantity.once and quantity.name == row for row, quantity in printed)
    in_bytes = {row for row, quantity in printed if quantity.unit == "B"}
    assert in_bytes == {"memory, barrier", "memory, none"}
    assert {quantity.unit for row, quantity in printed if row not in in_bytes} == {"s"}


# --- Figures ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _style():
    with style_of_the_book():
        yield


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


def test_where_a_claim_over_two_quantities_holds_lies_beyond_the_interval_of_the_second():
    more = Quantity("more", (4.0, 4.5, 4.5, 4.5, 4.5, 5.0))
    less = Quantity("less", (1.0, 2.0, 2.0, 2.0, 2.0, 3.0))
    (axes,) = plot_findings({"more than less": {"here": more > less}})
    (shaded,) = axes.patches
    assert shaded.get_x() == 3.0
    (axes,) = plot_findings({"nobody knows": {"here": more > Quantity("few", (1.0, 2.0))}})
    assert list(axes.patches) == []


def test_a_finding_from_too_few_samples_is_drawn_all_the_same():
    (axes,) = plot_findings({"less": {"here": Quantity("ratio", (2.0, 3.0)) < 1}})
    (shaded,) = axes.patches
    assert shaded.get_x() + shaded.get_width() == 1
