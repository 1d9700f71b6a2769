import numpy as np
import pytest

from d2lpar import Benchmark, Timer


def test_a_timer_counts_from_when_it_was_made_or_started(clock):
    clock.advance(100)
    timer = Timer(clock=clock)
    for seconds in (3, 1):  # The second stop counts from the same start.
        clock.advance(seconds)
        timer.stop()
    clock.advance(100)
    timer.start()
    clock.advance(2)
    assert timer.stop() == 2
    assert timer.times == [3, 4, 2]
    assert (timer.sum(), timer.avg(), timer.cumsum()) == (9, 3, [3, 7, 9])


def test_a_benchmark_prints_the_line_of_d2l(clock, capsys):
    with Benchmark(clock=clock) as benchmark:
        clock.advance(0.125)
    assert benchmark.seconds == 0.125
    assert capsys.readouterr().out == "Done: 0.1250 sec\n"


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
