"""How often the intervals of `watch` cover the truth: `python evidence/watch_coverage.py`.

Each cell simulates runs of one length of a program whose windows have shares of one distribution.
`d2lpar/_measure/mean_share.py` has the summary.
"""

import sys
from collections.abc import Callable

import numpy as np

from d2lpar._measure.mean_share import FEWEST, interval
from d2lpar._watch.windows import Windows, pause_after

RUNS = 2000
WINDOWS = 3, 5, 6, 8, 10, 20, 50, 100
COVERS, LOW_IS_ABOVE = 0.93, 0.035  # At least, and at most.
ERROR = 2 * (0.05 * 0.95 / RUNS) ** 0.5  # Of a simulated coverage: two standard errors.

RNG = np.random.default_rng(1)


def stalls(probability: float, otherwise: float = 0.0) -> Callable[[tuple], np.ndarray]:
    """Return a distribution of windows that are idle throughout, or else have another share."""
    return lambda shape: np.where(RNG.random(shape) < probability, 1.0, otherwise)


def normal(mean: float, deviation: float) -> Callable[[tuple], np.ndarray]:
    """Return a normal distribution, clipped to shares."""
    return lambda shape: RNG.normal(mean, deviation, shape).clip(0, 1)


PROGRAMS: dict[str, Callable[[tuple], np.ndarray]] = {
    "normal, 50 +- 15 %": normal(0.5, 0.15),
    "normal, 10 +- 5 %": normal(0.1, 0.05),
    "idle in 2 %": stalls(0.02),
    "idle in 10 %": stalls(0.1),
    "idle in 50 %": stalls(0.5),
    "idle in 90 %": stalls(0.9),
    "5 %, and idle in 10 %": stalls(0.1, otherwise=0.05),
    "8 % in each window": stalls(0, otherwise=0.08),
    "uniform": lambda shape: RNG.random(shape),
    "10 or 80 %, +- 5 %": lambda shape: np.where(
        RNG.random(shape) < 0.5, normal(0.1, 0.05)(shape), normal(0.8, 0.05)(shape)
    ),
}


def scheduled(windows: int) -> np.ndarray:
    """Return how many seconds each window stands for, as `Windows.record` opens them on a CPU."""
    ends = [0.0]
    for _ in range(windows):
        pause = RNG.uniform(0.5, 1.5) * pause_after(ends[-1])
        ends.append(ends[-1] + pause + Windows.LENGTH)
    return np.diff(ends)


def cell(
    shares: Callable[[tuple], np.ndarray], truth: float, weights: np.ndarray
) -> tuple[float, float, float, float]:
    """Return how often the interval covers, lies above and lies below the truth; and its width."""
    low, high = interval(shares((RUNS, len(weights))), weights)
    above, below = np.mean(low > truth + 1e-9), np.mean(high < truth - 1e-9)
    return 1 - above - below, above, below, np.mean(high - low)


def main() -> int:
    """Print all cells and a summary, and return 1 if an interval covers too little."""
    print("covers, low end above the truth, high end below the truth; mean width, in %")
    print(f"{'windows':37}", *(f"{n:16}" for n in WINDOWS))
    cells = []
    for kind, weights in {"equal": np.ones, "scheduled": scheduled}.items():
        for program, shares in PROGRAMS.items():
            truth = shares((1_000_000,)).mean()
            cells.append([cell(shares, truth, weights(n)) for n in WINDOWS])
            row = ("{:5.1f}{:4.1f}{:4.1f};{:3.0f}".format(*(100 * x for x in c)) for c in cells[-1])
            print(f"{program + ', ' + kind:37}", *row, flush=True)
    print("\nwindows  covers at least  low above at most  high below at most  mean width")
    holds = True
    for n, (covers, above, below, width) in zip(
        WINDOWS, np.transpose(cells, (1, 2, 0)), strict=True
    ):
        print(
            f"{n:7} {100 * min(covers):16.1f} {100 * max(above):18.1f} {100 * max(below):19.1f}"
            f" {100 * min(width):5.0f} to {100 * max(width):.0f}"
        )
        if n >= FEWEST:
            holds &= min(covers) - ERROR >= COVERS and max(above) <= LOW_IS_ABOVE
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
