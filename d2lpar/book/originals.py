"""The measurements that editions of the original printed, and their claims about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import gt, lt

from d2lpar._measure.overlap import SLACK, overlap_score
from d2lpar._measure.quantity import Predicate, Quantity, once

Rows = Mapping[str, Quantity]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the original, as editions printed it and as we repeat it.

    Attributes:
        title: The experiment in a few words.
        findings: For each claim of the editions, in a few words, a function that compares the
            experiment's rows.
        printed: The rows that each edition printed, in seconds and bytes. Each is a single run.
    """

    title: str
    findings: Mapping[str, Callable[[Rows], Predicate]]
    printed: Mapping[str, Mapping[str, float]]

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows, in the editions' order."""
        return tuple(next(iter(self.printed.values())))

    @property
    def editions(self) -> dict[str, dict[str, Quantity]]:
        """The printed rows of each edition, as quantities that were seen once."""
        return {
            edition: {
                row: once(row, value, "B" if row.startswith("memory") else "s")
                for row, value in rows.items()
            }
            for edition, rows in self.printed.items()
        }


_ACTIVITIES = "first", "second", "at once"


def _both(*seconds: float) -> dict[str, float]:
    return dict(zip(_ACTIVITIES, seconds, strict=True))


def _is_sound_and_overlaps(rows: Rows) -> Predicate:
    score = overlap_score(*(rows[row] for row in _ACTIVITIES))
    # No overlap can give a score above 1, so such a score means a broken measurement.
    return score.between(0.5, 1 + SLACK)


def _ratio(one: str, other: str, compare: Callable, *bounds: float) -> Callable[[Rows], Predicate]:
    return lambda rows: compare((rows[one] / rows[other]).rename(f"{one} over {other}"), *bounds)


EXPERIMENTS = {
    "A1": Experiment(
        "Ten products of random 1000 x 1000 matrices, in NumPy and in the framework (A1, A2)",
        {
            "without a barrier, ten times as fast or more": _ratio("NumPy", "handed out", gt, 10),
            "with a barrier, less than ten times as fast": _ratio("NumPy", "ready", lt, 10),
        },
        {"English edition 0.15.1, MXNet": {"NumPy": 0.8840, "handed out": 0.0044, "ready": 0.7144}},
    ),
    "A4": Experiment(
        "One product, then a wait for everything, for one array, or a conversion (A4, A5)",
        {
            "everything takes about as long as one": _ratio(
                "everything", "one array", Quantity.between, 0.5, 2
            ),
            "a conversion to NumPy waits": _ratio("to NumPy", "one array", gt, 0.5),
            "a conversion to a number waits": _ratio("to a number", "one array", gt, 0.5),
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
            "without barriers a tenth faster or more": _ratio(
                "barrier in each turn", "barrier at the end", gt, 1.1
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
            "handed out ten times faster": _ratio(
                "handed out, barrier", "handed out, none", gt, 10
            ),
            "the epoch takes as long": _ratio(
                "epoch, barrier", "epoch, none", Quantity.between, 0.8, 1.25
            ),
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
            "English edition 0.14.4, MXNet, CPU and GPU": _both(0.3139, 0.2995, 0.3148),
            "Chinese 1st edition, MXNet, CPU and GPU": _both(0.3588, 1.2104, 1.2183),
            "PyTorch edition, two GPUs": _both(1.6029, 1.6026, 1.6019),
        },
    ),
    "P6": Experiment(
        "Products on one device, and a copy of each to another (P5, P6)",
        {"both overlap": _is_sound_and_overlaps},
        {
            "English edition 0.14.4, MXNet, GPU to CPU": _both(0.3089, 0.9983, 1.0636),
            "Chinese 1st edition, MXNet, GPU to CPU": _both(1.2223, 0.5272, 1.2770),
            "PyTorch edition, GPU to CPU": _both(1.6024, 2.2067, 2.0726),
        },
    ),
}
"""The experiments with printed numbers, by the id that chapters pass to `keep`."""


def judge(experiment: str, rows: Rows) -> dict[str, Predicate]:
    """Compare rows, measured or printed, with each claim of the editions about an experiment.

    The verdict of each comparison says whether these rows support the claim.
    """
    findings = EXPERIMENTS[experiment].findings
    return {claimed: compare(rows) for claimed, compare in findings.items()}
