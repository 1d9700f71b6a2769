import bench
from fakes import raising

from d2lpar import Quantity

TIMES = Quantity("times", (1.0, 2.0, 2.0, 2.0, 2.0, 3.0), "s")


def test_the_cost_of_a_turn_is_its_time_beyond_that_of_the_baseline(clock):
    ours, baseline = (bench.per_turn(lambda s=s: clock.advance(s)) for s in (5, 2))
    cost = bench.extra_cost(ours, baseline, repeats=3, clock=clock)
    assert (cost.samples, cost.unit) == ((3, 3, 3), "s")


def test_each_row_says_its_goal_or_why_it_could_not_be_measured(monkeypatch, capsys):
    rows = {"broken": (raising(OSError("no memory here")), 1)}
    rows |= {"met": (lambda: TIMES, 5), "missed": (lambda: TIMES, 0.5)}
    monkeypatch.setattr(bench, "ROWS", rows)
    assert bench.main() == 1
    times = "2 s (95% interval 1 s to 3 s, 6 samples)"
    _, *printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "broken: could not be measured: OSError: no memory here",
        f"met: {times}; goal < 5 s: holds",
        f"missed: {times}; goal < 500 ms: fails",
        "1 of 2 goals are met.",
    ]
    monkeypatch.delitem(rows, "broken")
    assert bench.main() == 0
