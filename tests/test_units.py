import pytest

from d2lpar import format_bytes, format_seconds
from d2lpar._format import format_value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (61.25, "61.2 s"),
        (1, "1 s"),
        (0.0123456, "12.3 ms"),
        (2.5e-5, "25 µs"),
        (1.5e-9, "1.5 ns"),
        (1e-9, "1 ns"),
        (1.3e-13, "under 1 ns"),  # What a fit ran into, and was printed as 0.00013 ns.
        (0, "0 s"),
        (-0.25, "-250 ms"),
        (float("inf"), "inf s"),
    ],
)
def test_seconds_get_the_prefix_that_fits(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (8192, "8.19 kB"), (16_777_216, "16.8 MB"), (3e12, "3000 GB")],
)
def test_bytes_are_written_in_powers_of_ten(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.12345, "0.123"), (48, "48"), (1234.5, "1234"), (1e6, "1000000")],
)
def test_counts_and_ratios_have_no_unit(value, text):
    assert format_value(value, "") == text


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(0.9999, "s", "1 s"), (999_999, "B", "1 MB"), (99.97, "", "100")]
)
def test_a_value_that_rounds_up_to_the_next_prefix_gets_it(value, unit, text):
    assert format_value(value, unit) == text
