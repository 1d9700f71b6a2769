import bench

from d2lpar import Quantity

TIMES = Quantity("times", (1.0, 2.0, 2.0, 2.0, 2.0, 3.0), "s")


def test_the_cost_of_a_turn_is_its_time_beyond_that_of_the_baseline(clock):
    ours, baseline = (bench.per_turn(lambda s=s: clock.advance(s)) for s in (5, 2))
    cost = bench.extra_cost(ours, baseline, repeats=3, clock=clock)
    assert (cost.samples, cost.unit) == ((3, 3, 3), "s")


def test_each_row_says_its_goal_and_a_goal_that_is_missed_is_no_error(monkeypatch, capsys):
    rows = {"met": (lambda: TIMES, 5), "missed": (lambda: TIMES, 0.5), "open": (lambda: TIMES, 2)}
    monkeypatch.setattr(bench, "ROWS", rows)
    assert bench.main() == 0
    times = "2 s (95 % interval 1 s to 3 s, 6 samples)"
    _, *printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"met: {times}; goal < 5 s: holds",
        f"missed: {times}; goal < 500 ms: fails",
        f"open: {times}; goal < 2 s: inconclusive",
        "1 of 3 goals are met.",
    ]


def test_a_row_that_cannot_be_measured_is_named_and_the_others_are_kept(monkeypatch, capsys):
    def broken():
        raise OSError("no memory here")

    monkeypatch.setattr(bench, "ROWS", {"broken": (broken, 1), "met": (lambda: TIMES, 5)})
    assert bench.main() == 1
    printed = capsys.readouterr().out
    assert "broken: could not be measured: OSError: no memory here" in printed
    assert "1 of 1 goals are met." in printed
