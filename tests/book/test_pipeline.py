import pytest
from fakes import FakeArray, FakeDevice
from timelines import event, timeline

from d2lpar import compare
from d2lpar.book.asynchronous_computation import Pipeline, most_unfinished, time_to_notice


@pytest.mark.parametrize(("t1", "t2"), [(3, 5), (5, 3), (4, 4)])
def test_the_durations_are_those_of_the_two_ends_and_the_model_follows_from_them(clock, t1, t2):
    device = FakeDevice(clock)

    def turn():
        return device.run(t2, dispatch=t1)

    def call():
        return device.run(t2)

    times = compare(
        {"one turn": turn, "one call": call, "nine calls": lambda: [call() for _ in range(9)]},
        clock=clock,
    )
    found = Pipeline.of(times, turns=10)
    assert (found.t1.median, found.t2.median) == (t1, t2)
    assert found.with_barrier.median == 10 * (t1 + t2)
    assert found.without.median == t1 + t2 + 9 * max(t1, t2)


def test_the_time_to_notice_is_from_the_end_of_the_work_to_the_end_of_the_wait():
    recorded = timeline(
        event("Python", 0, 10, operator="dispatch"),
        event("Python", 10, 100, program="block", operator="wait"),
        event("CPU 0", 5, 70),
    )
    assert time_to_notice(recorded) == pytest.approx(30e-9)


def test_results_are_counted_that_are_unfinished_at_the_same_time(clock):
    ready_at = iter([5, 1, 9])

    def call():
        clock.advance(2)
        return FakeArray(clock, next(ready_at))

    assert most_unfinished(call, 3) == 1
    assert clock.now == 9
