import numpy as np
import pytest

from d2lpar._measure.mean_share import FEWEST, interval, mean_share


def test_the_mean_is_weighted():
    mean, low, high = mean_share([0.2] * 10 + [0.8] * 10, [3.0] * 10 + [1.0] * 10)
    assert mean == pytest.approx(0.35)
    assert low < mean < high


def test_fewer_windows_than_needed_and_none_at_all_have_no_interval():
    assert mean_share([1.0] * (FEWEST - 1), [1.0] * (FEWEST - 1)) == (1.0, 0.0, 1.0)
    assert mean_share([1.0] * FEWEST, [1.0] * FEWEST)[1] > 0.5
    assert mean_share([], []) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("windows", [6, 20, 100])
def test_windows_that_agree_leave_what_no_window_has_met_and_the_more_the_less(windows):
    # Clopper and Pearson: 0.025 is the probability of n windows of 1 if the share is 0.025^(1/n).
    expected = 0.025 ** (1 / windows)
    assert mean_share([1.0] * windows, [0.2] * windows) == pytest.approx((1, expected, 1), abs=0.02)
    assert mean_share([0.0] * windows, [0.2] * windows) == pytest.approx(
        (0, 0, 1 - expected), abs=0.02
    )


def test_a_few_windows_that_represent_most_of_the_time_count_as_few():
    shares = [0.3, 0.7] * 10
    _, low, high = mean_share(shares, [1.0] * 20)
    _, low_of_few, high_of_few = mean_share(shares, [0.01] * 14 + [1.0] * 6)
    assert high_of_few - low_of_few > 1.5 * (high - low)


@pytest.mark.parametrize("probability", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("windows", [FEWEST, 20, 50])
def test_an_interval_covers_stalls_of_whole_windows_in_95_of_100_runs(windows, probability):
    weights = 1.05 ** np.arange(windows)
    runs = np.random.default_rng(0).random((1000, windows)) < probability
    low, high = interval(runs.astype(float), weights)
    assert np.mean((low <= probability) & (probability <= high)) > 0.93
    assert np.mean(low > probability) < 0.035
