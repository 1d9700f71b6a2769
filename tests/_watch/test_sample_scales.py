from types import SimpleNamespace

import pytest

from d2lpar._jax.stack import Place
from d2lpar._watch.attribution import ChargedSample
from d2lpar._watch.recompilations import Compiled
from d2lpar._watch.sample_scales import find_scales
from d2lpar._watch.windows import Collection, Window

LINE = SimpleNamespace(place=Place("train.py", 7, "step(x)"))


def scales(*windows, programs=(), collections=(), start=0.0, until=10.0):
    """Return the scales of windows, each of a length of 1 s, a gap before it, and its samples."""
    closed, charged = [], []
    for gap, began, over in windows:
        closed.append(Window(began, over, stands_for=[(began - gap, began)], length=1.0))
        samples = [began + 0.5 * n for n in range(round(2 * (over - began)))]
        charged.append([ChargedSample(0.5, {}, 0.0, 0.0, [], at) for at in samples])
    programs = [Compiled("step", 0, 0, a, b, b - a, True, (LINE,)) for a, b in programs]
    collections = [Collection(a, b, None) for a, b in collections]
    return find_scales(closed, charged, programs, collections, start, until)


def test_a_window_stands_for_the_time_since_the_one_before_and_the_last_to_the_end():
    found = scales((2, 2, 3), (5, 8, 9))
    assert found.windows == pytest.approx([3 / 9 * 10, 6 / 9 * 10])
    assert found.samples[0] == pytest.approx([found.windows[0]] * 2)


def test_nothing_stands_for_the_start_nor_for_collections_of_garbage():
    found = scales((2, 2, 3), (5, 8, 9), start=1.0, collections=[(4, 6)])
    assert sum(found.windows) == pytest.approx(10 - 1 - 2)


def test_a_window_that_a_call_kept_open_counts_as_long_as_it_is_but_not_for_a_call_met_by_chance():
    short, kept = scales((3, 3, 4), (3, 7, 9), until=9.0).windows
    assert kept / short == pytest.approx(5 * 2 / (4 * 1))
    short, kept = scales((1, 1, 2), (1, 3, 9), until=9.0).windows
    assert kept / short == pytest.approx(7 * 2 / (2 * 1))


@pytest.mark.parametrize("met", [0.5, 2.0])
def test_a_compilation_stands_for_its_own_time_however_much_of_it_windows_met(met):
    found = scales((4, 4, 6), programs=[(4 + met - 3, 4 + met)])
    compiled = sum(0.5 * scale for scale in found.samples[0][: round(2 * met)])
    assert (compiled, found.missed) == (pytest.approx(3.0), 0.0)
    rest = [0.0] if met == 2.0 else [7.0]
    assert sum(0.5 * s for s in found.samples[0][round(2 * met) :]) == pytest.approx(rest[0])


def test_a_compilation_that_no_window_met_was_not_seen_and_of_two_at_once_the_first_counts():
    found = scales((2, 2, 3), (5, 8, 9), programs=[(4, 7), (5, 6)])
    assert found.missed == pytest.approx(3.0)
    assert sum(found.windows) == pytest.approx(7.0)
