"""Print seconds and bytes as people read them; compute in SI only."""

import math

_PREFIXES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "": ((1.0, ""),),
}

UNITS = frozenset(_PREFIXES)
"""What a quantity may be measured in, which is seconds, bytes, or nothing for counts and ratios."""


def format_value(value: float, unit: str, digits: int = 3) -> str:
    """Write `value` with a few significant digits and the prefix that fits.

    Args:
        value: A number in the unit given, without any prefix.
        unit: `"s"` for seconds, `"B"` for bytes, `""` for a count or a ratio.
        digits: How many significant digits.

    Returns:
        The number as text, for example `"12.3 ms"`.

    Example:
        >>> format_value(0.0123456, "s"), format_value(8_388_608, "B"), format_value(7.0, "")
        ('12.3 ms', '8.39 MB', '7')
        >>> format_value(0.1346, "s", digits=2)
        '130 ms'
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:.0f} {unit}".rstrip()
    if unit == "s" and abs(value) < 0.9995e-9:  # No clock sees that; a model may be fitted to it.
        return "under 1 ns"
    prefixes = _PREFIXES[unit]
    # What rounds up to the next prefix gets it: 999.6 ms is 1 s.
    fits = ((scale, symbol) for scale, symbol in prefixes if abs(value) >= 0.9995 * scale)
    scale, symbol = next(fits, prefixes[-1])
    if abs(scaled := value / scale) >= 1000:  # A count keeps its digits, and gets no exponent.
        return f"{scaled:.0f} {symbol}".rstrip()
    rounded = float(f"{scaled:.{digits}g}")
    number = f"{rounded:.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
    return f"{number} {symbol}".rstrip()


def format_seconds(seconds: float) -> str:
    """Write a duration in seconds as people read it.

    Args:
        seconds: How long.

    Returns:
        The number as text, with the unit that fits.

    Example:
        >>> format_seconds(2.5e-5)
        '25 µs'
    """
    return format_value(seconds, "s")


def format_bytes(count: float) -> str:
    """Write a number of bytes as people read it, in powers of ten.

    Args:
        count: How many bytes.

    Returns:
        The number as text, with the unit that fits.

    Example:
        >>> format_bytes(2_000_000)
        '2 MB'
    """
    return format_value(count, "B")
