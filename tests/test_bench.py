import bench

from d2lpar import Quantity, exact

TIMES = Quantity("a turn", (1.0, 2.0, 2.0, 2.0, 2.0, 3.0), "s")
ROWS = [TIMES, TIMES < 5, TIMES < 2, TIMES > 3, Quantity("a ratio", (1.2,)) < 1.5]


def test_the_cost_of_a_turn_is_its_time_beyond_that_of_the_baseline(clock):
    arm, baseline = (bench.per_turn(lambda s=s: clock.advance(s)) for s in (5, 2))
    cost = bench.extra_cost("a turn", arm, baseline, repeats=3, clock=clock)
    assert cost.as_dict() == Quantity("a turn", (3, 3, 3), "s").as_dict()


def test_a_line_tells_the_goal_and_where_there_is_no_interval_how_few_runs_there_were():
    assert bench.line(exact("events", 7)) == "events: 7"
    assert bench.line(TIMES < 5) == (
        "a turn: 2 s (95 % interval 1 s to 3 s, 6 samples); goal < 5 s: holds"
    )
    assert bench.line(ROWS[-1]) == (
        "a ratio: 1.2 (one run, too few for an interval); goal < 1.5: holds in one run"
    )


def test_the_summary_names_every_goal_that_is_not_met():
    head, *others = bench.summary(ROWS).splitlines()
    assert head == "2 of 4 goals are met."
    assert others == [
        f"Undecided: {bench.line(TIMES < 2)}",
        f"Missed: {bench.line(TIMES > 3)}",
    ]


def test_a_benchmark_that_cannot_be_run_is_named_and_the_others_are_kept(monkeypatch, capsys):
    def broken():
        raise OSError("no ps here")

    monkeypatch.setattr(bench, "QUICK", (broken, lambda: [TIMES < 5, TIMES > 3]))
    assert bench.main(["--quick"]) == 1
    printed = capsys.readouterr().out
    assert "broken could not be run: OSError: no ps here" in printed
    assert "1 of 2 goals are met." in printed


def test_a_goal_that_is_missed_is_no_error(monkeypatch, capsys):
    monkeypatch.setattr(bench, "QUICK", (lambda: [TIMES > 3],))
    assert bench.main(["--quick"]) == 0
    assert "0 of 1 goals are met." in capsys.readouterr().out
