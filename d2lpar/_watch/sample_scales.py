"""Find for how long each sample of the windows stands.

How it works. A window stands for the time since the window before, so each of its samples stands
for a multiple of its own length, its scale. Three things are known better than that:

* Each collection of garbage is timed, and left out here.
* No window can begin during a call that keeps Python's lock, but an open window stays open until
  the call ends. So a call is met as often as any other moment, and then seen whole: a window counts
  as long as it is.
* Each compilation is timed. Whether one window more or less falls on it must change neither how
  long it took nor how long all else took::

    time            [step][ compiles, for 40 ms ][step][step][step]
    windows             [---]                           [---]
    samples             1 + 2                           3
    stand for       the two: 40 ms; the four: all other time
"""

from bisect import bisect_right
from collections import Counter
from typing import NamedTuple

from d2lpar._jax.stack import Place
from d2lpar._watch.attribution import ChargedSample
from d2lpar._watch.recompilations import Compiled
from d2lpar._watch.windows import Collection, Window, merged, overlap

_MOST = 8.0  # How many times more a sample may stand for, since a compilation was longer.


class Scales(NamedTuple):
    """For how long windows and samples stand."""

    samples: list[list[float]]  # For each window, the scale of each sample.
    windows: list[float]  # For how many seconds each window stands.
    missed: float  # How many seconds of compilations no window has met.


def find_scales(
    windows: list[Window],
    charged: list[list[ChargedSample]],
    programs: list[Compiled],
    collections: list[Collection],
    start: float,
    until: float,
) -> Scales:
    """Return the scales of windows with their charged samples, for the time after the start."""
    garbage = [(each.start, each.end) for each in collections]

    def seconds(spans: list[tuple[float, float]]) -> float:
        """Return how long spans are after the start, without collections of garbage."""
        spans = [(max(a, start), b) for a, b in spans if b > start]
        return sum(max(b - a - overlap(garbage, a, b), 0.0) for a, b in spans)

    own = [max(seconds([(w.began, w.over)]), 1e-9) for w in windows]
    gaps = [seconds(w.stands_for) for w in windows]
    last = [(w.over, until) for w in windows[-1:]]
    whole = sum(own) + sum(gaps) + seconds(last)
    # A call that is longer than the time between two windows was met by chance.
    shares = [
        (gap + length) * min(length, w.length + gap) / w.length
        for w, gap, length in zip(windows, gaps, own, strict=True)
    ]
    scales = [
        share / sum(shares) * whole / length for share, length in zip(shares, own, strict=True)
    ]

    spans = _compilations(programs)
    lines = [[_line_at(spans, sample.taken_at) for sample in each] for each in charged]
    met: Counter[Place | None] = Counter()
    for samples, at, scale in zip(charged, lines, scales, strict=True):
        for sample, line in zip(samples, at, strict=True):
            met[line] += sample.working * scale
    stood_for = merged([s for w in windows for s in (*w.stands_for, (w.began, w.over))] + last)
    known: Counter[Place | None] = Counter()
    for a, b, line in spans:
        known[line] += sum(
            seconds([(max(a, since), min(b, to))])
            for since, to in stood_for
            if since < b and to > a
        )
    known[None] = max(whole - known.total(), 0.0)
    takes = {line: min(known[line], _MOST * met[line]) for line in met}
    factors = {line: takes[line] / met[line] if met[line] else 1.0 for line in met}
    by_sample = [
        [scale * factors[line] for line in at] for scale, at in zip(scales, lines, strict=True)
    ]
    by_window = [
        sum(s.working * scale + s.collecting for s, scale in zip(*both, strict=True))
        for both in zip(charged, by_sample, strict=True)
    ]
    missed = known.total() - known[None] - sum(takes[line] for line in takes if line)
    return Scales(by_sample, by_window, missed)


def _compilations(programs: list[Compiled]) -> list[tuple[float, float, Place]]:
    """Return when each line traced or compiled, in order; of two at once, the first to begin."""
    spans, reached = [], 0.0
    for program in sorted(programs, key=lambda program: program.began):
        began = max(program.began, reached)
        if program.over > began:
            spans.append((began, program.over, program.callers[0].place))
            reached = program.over
    return spans


def _line_at(spans: list[tuple[float, float, Place]], at: float) -> Place | None:
    """Return which line compiled at a time; None if none did."""
    n = bisect_right(spans, at, key=lambda span: span[0]) - 1
    return spans[n][2] if n >= 0 and at < spans[n][1] else None
