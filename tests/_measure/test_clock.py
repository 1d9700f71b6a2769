import numpy as np
import pytest

from d2lpar import Benchmark, Timer

# --- Compilations -------------------------------------------------------------------------------


SMALL = np.ones(3, np.float32)


# --- Timer and Benchmark ------------------------------------------------------------------------


def timed(clock, *durations):
    timer = Timer(clock=clock)
    for seconds in durations:
        clock.advance(100)  # between stop and start nothing counts
        timer.start()
        clock.advance(seconds)
        assert timer.stop() == seconds
    return timer


def test_a_timer_starts_when_it_is_made(clock):
    clock.advance(100)
    timer = Timer(clock=clock)
    clock.advance(3)
    assert timer.stop() == 3


def test_a_timer_keeps_its_times_and_their_statistics(clock):
    timer = timed(clock, 1, 5, 3)
    assert timer.times == [1, 5, 3]
    assert timer.sum() == 9
    assert timer.avg() == 3
    assert timer.cumsum() == [1, 6, 9]


def test_a_second_stop_counts_from_the_same_start(clock):
    timer = Timer(clock=clock)
    clock.advance(1)
    timer.stop()
    clock.advance(1)
    assert timer.stop() == 2


def test_a_timer_without_times_has_no_average(clock):
    timer = timed(clock)
    assert timer.sum() == 0
    assert timer.cumsum() == []
    with pytest.raises(ValueError, match=r"avg\(\).* has no times; call stop\(\) first"):
        timer.avg()


def test_a_benchmark_prints_the_line_of_d2l(clock, capsys):
    with Benchmark("jax.numpy", clock=clock) as benchmark:
        clock.advance(0.125)
    assert benchmark.seconds == 0.125
    assert capsys.readouterr().out == "jax.numpy: 0.1250 sec\n"


def test_a_benchmark_is_done_if_nobody_says_otherwise(clock, capsys):
    with Benchmark(clock=clock):
        pass
    assert capsys.readouterr().out == "Done: 0.0000 sec\n"


def test_a_benchmark_says_what_was_compiled_meanwhile(clock, capsys, new_function):
    for label in ("first", "second"):
        with Benchmark(label, clock=clock):
            new_function(np.ones(3))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "first: 0.0000 sec; compiled meanwhile: jit(new_function)"
    assert second == "second: 0.0000 sec"


def test_a_benchmark_of_a_block_that_raises_still_prints_and_hides_nothing(clock, capsys):
    with pytest.raises(KeyError), Benchmark("broken", clock=clock):
        raise KeyError
    assert "broken: " in capsys.readouterr().out
