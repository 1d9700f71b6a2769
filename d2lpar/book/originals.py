"""What the editions of the original printed, and what they claim of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from d2lpar._measure.overlap import SLACK, overlap_score
from d2lpar._measure.quantity import Predicate, Quantity, once
from d2lpar._timeline.plot import COLORS, WIDTH, error_bars, format_log_axis, interval_ends

Rows = Mapping[str, Quantity]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the original, as editions printed it and as we repeat it.

    Attributes:
        title: What is run.
        findings: What is claimed of it, as functions from its rows to a comparison, by the
            claim in a few words.
        printed: The rows that editions printed, in seconds and bytes, by edition. Each is a
            single run.
    """

    title: str
    findings: Mapping[str, Callable[[Rows], Predicate]]
    printed: Mapping[str, Mapping[str, float]]

    @property
    def rows(self) -> tuple[str, ...]:
        """What each of its rows is, in the order in which editions print them."""
        return tuple(next(iter(self.printed.values())))

    @property
    def editions(self) -> dict[str, dict[str, Quantity]]:
        """What the editions printed, as quantities that were seen once."""
        return {
            edition: {
                row: once(row, value, "B" if row.startswith("memory") else "s")
                for row, value in rows.items()
            }
            for edition, rows in self.printed.items()
        }


def _is_sound_and_overlaps(rows: Rows) -> Predicate:
    score = overlap_score(*(rows[row] for row in ("first", "second", "at once")))
    # Above 1 no overlap can lead, so a score there supports nothing.
    return score.between(0.5, 1 + SLACK)


EXPERIMENTS = {
    "A1": Experiment(
        "Ten products of random 1000 x 1000 matrices, in NumPy and in the framework (A1, A2)",
        {
            "without a barrier, ten times as fast or more": lambda rows: (
                (rows["NumPy"] / rows["handed out"]).rename("NumPy over handed out") > 10
            ),
            "with a barrier, less than ten times as fast": lambda rows: (
                (rows["NumPy"] / rows["ready"]).rename("NumPy over ready") < 10
            ),
        },
        {"English edition 0.15.1, MXNet": {"NumPy": 0.8840, "handed out": 0.0044, "ready": 0.7144}},
    ),
    "A4": Experiment(
        "One product, then a wait for everything, for one array, or a conversion (A4, A5)",
        {
            "everything takes about as long as one": lambda rows: (
                (rows["everything"] / rows["one array"])
                .rename("everything over one")
                .between(0.5, 2)
            ),
            "a conversion to NumPy waits": lambda rows: (
                (rows["to NumPy"] / rows["one array"]).rename("NumPy over a barrier") > 0.5
            ),
            "a conversion to a number waits": lambda rows: (
                (rows["to a number"] / rows["one array"]).rename("number over a barrier") > 0.5
            ),
        },
        {
            "English edition 0.15.1, MXNet": {
                "everything": 0.0046,
                "one array": 0.0044,
                "to NumPy": 0.0048,
                "to a number": 0.0145,
            }
        },
    ),
    "A6": Experiment(
        "A thousand increments of two elements, with a barrier in each turn or at the end (A6)",
        {
            "without barriers a tenth faster or more": lambda rows: (
                (rows["barrier in each turn"] / rows["barrier at the end"]).rename("gain") > 1.1
            ),
        },
        {
            "English edition 0.15.1, MXNet": {
                "barrier in each turn": 0.0789,
                "barrier at the end": 0.0769,
            }
        },
    ),
    "A10": Experiment(
        "An epoch of 150 minibatches, with a barrier after each or none (A10, A11)",
        {
            "handed out ten times faster": lambda rows: (
                (rows["handed out, barrier"] / rows["handed out, none"]).rename(
                    "handed out, barrier over none"
                )
                > 10
            ),
            "the epoch takes as long": lambda rows: (
                (rows["epoch, barrier"] / rows["epoch, none"]).rename("epoch, barrier over none")
            ).between(0.8, 1.25),
            "more memory without barriers": lambda rows: (
                rows["memory, none"] > rows["memory, barrier"]
            ),
        },
        {
            "English edition 0.15.1, MXNet": {
                "handed out, barrier": 6.1954,
                "handed out, none": 0.3538,
                "epoch, barrier": 6.1967,
                "epoch, none": 6.0500,
                "memory, barrier": 23.696e6,
                "memory, none": -8.168e6,
            }
        },
    ),
    "P4": Experiment(
        "Products on two devices, each alone and both at once (P3, P4)",
        {"both overlap": _is_sound_and_overlaps},
        {
            "English edition 0.14.4, MXNet, CPU and GPU": {
                "first": 0.3139,
                "second": 0.2995,
                "at once": 0.3148,
            },
            "Chinese 1st edition, MXNet, CPU and GPU": {
                "first": 0.3588,
                "second": 1.2104,
                "at once": 1.2183,
            },
            "PyTorch edition, two GPUs": {"first": 1.6029, "second": 1.6026, "at once": 1.6019},
        },
    ),
    "P6": Experiment(
        "Products on one device, and a copy of each to another (P5, P6)",
        {"both overlap": _is_sound_and_overlaps},
        {
            "English edition 0.14.4, MXNet, GPU to CPU": {
                "first": 0.3089,
                "second": 0.9983,
                "at once": 1.0636,
            },
            "Chinese 1st edition, MXNet, GPU to CPU": {
                "first": 1.2223,
                "second": 0.5272,
                "at once": 1.2770,
            },
            "PyTorch edition, GPU to CPU": {"first": 1.6024, "second": 2.2067, "at once": 2.0726},
        },
    ),
}
"""The experiments of which editions print numbers, by the id under which chapters keep them."""


def judge(experiment: str, rows: Rows) -> dict[str, Predicate]:
    """Compare what was measured, or printed, with what editions claim of an experiment.

    The verdict of each comparison says whether these rows support the claim.
    """
    findings = EXPERIMENTS[experiment].findings
    return {claimed: compare(rows) for claimed, compare in findings.items()}


def plot_findings(panels: Mapping[str, Mapping[str, Predicate]]) -> list[Axes]:
    """Draw what several sources found beside the bound of what is claimed, a panel for each claim.

    A source may be an edition or a machine. The claim holds where its panel is shaded. What was
    seen once is hollow, what was sampled is filled and has a bar for its 95 % interval.
    """
    heights = [0.9 + 0.24 * len(found) for found in panels.values()]
    figure = plt.figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    # The label of an axis is not to be read with the title below it.
    figure.get_layout_engine().set(h_pad=0.12)
    all_axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (claimed, found) in zip(all_axes, panels.items(), strict=True):
        places = np.arange(len(found))[::-1]
        for place, predicate in zip(places, found.values(), strict=True):
            seen_once = predicate.quantity.once
            axes.errorbar(
                [predicate.quantity.median],
                [place],
                xerr=error_bars([predicate.quantity]),
                fmt="o" if seen_once else "s",
                color=COLORS["other" if seen_once else "device"],
                mfc="white" if seen_once else None,
                capsize=3,
            )
        _shade_where_it_holds(axes, list(found.values()))
        axes.set_yticks(places, list(found))
        axes.set_ylim(-0.7, len(found) - 0.3)
        axes.grid(axis="y", visible=False)
        axes.set_title(claimed, loc="left")
        axes.set_xlabel(next(iter(found.values())).quantity.name)
    return list(all_axes)


def _shade_where_it_holds(axes: Axes, predicates: Sequence[Predicate]) -> None:
    """Show all points and the bounds of the first comparison, and shade where it holds."""
    claimed = predicates[0]
    bounds = [bound for bound in (claimed.low, claimed.high) if math.isfinite(bound)]
    shown = [end for predicate in predicates for end in interval_ends(predicate.quantity)] + bounds
    lowest, highest = min(shown), max(shown)
    if lowest > 0 and highest / lowest > 5:
        axes.set_xscale("log")
        axes.set_xlim(lowest / 1.3, highest * 1.3)
        format_log_axis(axes.xaxis, "")
    else:
        pad = 0.08 * (highest - lowest)
        axes.set_xlim(lowest - pad, highest + pad)
    left, right = axes.get_xlim()
    inside = {">": (claimed.high, right), "<": (left, claimed.low)}
    low, high = inside.get(claimed.relation, (claimed.low, claimed.high))
    if math.isfinite(low) and math.isfinite(high):  # A bound may be a quantity of few samples.
        axes.axvspan(low, high, color=COLORS["window"], alpha=0.25, lw=0)
