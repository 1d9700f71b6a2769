import pytest

from d2lpar import Quantity
from d2lpar.book.beyond_one_machine import MessageCost, break_even


def test_the_cost_of_messages_is_a_line_through_the_smallest_and_the_largest():
    times = {
        1000: Quantity("small", [0.004, 0.005], "s"),
        5000: Quantity("middle", [9.0, 9.0], "s"),
        9000: Quantity("large", [0.012, 0.013], "s"),
    }
    cost = MessageCost.of(times)
    assert cost.alpha.samples == (0.004, 0.005)
    assert cost.beta.samples == pytest.approx((1e-6, 1e-6))
    assert cost.seconds(3, 2000) == pytest.approx(3 * 0.0045 + 0.002)


@pytest.mark.parametrize(
    ("speed_ups", "found"),
    [
        ([0.5, 2.0, 4.0], 10**0.5),
        ([2.0, 0.5, 2.0], 10**1.5),  # The last rise counts.
        ([1.5, 2.0, 3.0], 1.0),
        ([0.1, 0.1, 0.5], 10 ** (1 + 1 / 0.69897)),  # The rise at the end goes on.
        ([0.5, 0.5, 0.5], 100_000.0),
        ([0.5, 2.0, 0.9], 100_000.0),
    ],
)
def test_it_pays_from_the_last_rise_through_one_on(speed_ups, found):
    assert break_even([1, 10, 100], speed_ups) == pytest.approx(found, rel=1e-4)
