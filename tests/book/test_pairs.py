import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar import Quantity, cpu
from d2lpar.book import pairs
from d2lpar.book.automatic_parallelism import Repeated, cores_busy, fair_calls, fair_matrix


@jax.jit
def double(x):
    return 2 * x


def taking(monkeypatch, seconds_of):
    """Let a call take as long as a function says of its argument."""

    class Measured:
        def __init__(self, x):
            self.total = Quantity("total", [seconds_of(x)], "s")

    monkeypatch.setattr(pairs, "measure", lambda function, x, **_: Measured(x))


def test_a_matrix_is_halved_until_ten_calls_take_less_than_a_tenth_of_a_second(monkeypatch):
    taking(monkeypatch, lambda x: len(x) / 1e5)
    x, seconds = fair_matrix(double, cpu(), 2000)
    assert (x.shape, seconds) == ((500, 500), 0.005)


def test_a_matrix_of_a_slow_machine_does_not_become_too_small_to_be_worth_a_call(monkeypatch):
    taking(monkeypatch, lambda x: 1.0)
    x, _ = fair_matrix(double, cpu(), 2000)
    assert len(x) == 250


def test_devices_of_one_kind_get_equal_calls_on_equal_matrices():
    first, second = fair_calls(double, (cpu(), cpu()), (500, 500))
    assert first.count == second.count == 10
    np.testing.assert_array_equal(first.argument, second.argument)
    assert str(first) == "CPU 0: 10 times 500 x 500"


@pytest.mark.parametrize(("slower", "counts"), [(1.5, [10, 15]), (9, [10, 30])])
def test_a_faster_device_gets_more_calls_but_not_so_many_that_python_has_to_wait(
    monkeypatch, slower, counts
):
    taking(monkeypatch, lambda x: 1e-3 * (slower if len(x) == 400 else 1))
    made = fair_calls(double, (cpu(), cpu()), (400, 300))
    assert [calls.count for calls in made] == counts


def test_repeated_calls_return_all_their_results():
    results = Repeated(double, jnp.ones((3, 3)), 4)()
    assert len(results) == 4
    assert all((result == 2).all() for result in results)


def test_sleeping_keeps_no_core_busy_and_counting_keeps_one():
    assert cores_busy(lambda: time.sleep(0.02), times=2) < 0.5

    def count():
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass

    # On a busy machine it has to share its core, but never gets more than that one.
    assert 0.05 < cores_busy(count, times=2) < 1.5
