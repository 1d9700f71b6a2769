"""Write what was measured as people read it: seconds and bytes, and tables with small bars."""

import html
import math
import os
import secrets
import signal
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_PREFIXES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "": ((1.0, ""),),
}

UNITS = frozenset(_PREFIXES)
"""The units of a quantity: seconds, bytes, or none for counts and ratios."""


def format_value(value: float, unit: str, digits: int = 3) -> str:
    """Write `value` with a few significant digits and the prefix that fits.

    Example:
        >>> format_value(0.0123456, "s"), format_value(8_388_608, "B"), format_value(7.0, "")
        ('12.3 ms', '8.39 MB', '7')
        >>> format_value(0.1346, "s", digits=2), format_value(0.996, "s", digits=2)
        ('130 ms', '1 s')
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:.0f} {unit}".rstrip()
    if unit == "s" and abs(value) < 0.9995e-9:  # Below any clock; only a fitted model gets here.
        return "under 1 ns"
    # A value that rounds up to the next prefix gets it: 999.6 ms is 1 s, and in two digits 996 ms.
    scale, symbol = prefix_of(value, unit, rounds_up=1 - 0.5 * 10.0**-digits)
    if abs(scaled := value / scale) >= 1000:  # A count keeps its digits, and gets no exponent.
        return f"{scaled:.0f} {symbol}".rstrip()
    rounded = float(f"{scaled:.{digits}g}")
    number = f"{rounded:.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
    return f"{number} {symbol}".rstrip()


def prefix_of(value: float, unit: str, rounds_up: float = 1.0) -> tuple[float, str]:
    """Return the scale and symbol of the largest prefix that a value reaches.

    With `rounds_up` below 1, a value reaches a prefix at this share of it.

    Example:
        >>> prefix_of(0.0123, "s"), prefix_of(7, "")
        ((0.001, 'ms'), (1.0, ''))
    """
    prefixes = _PREFIXES[unit]
    fits = ((scale, symbol) for scale, symbol in prefixes if abs(value) >= rounds_up * scale)
    return next(fits, prefixes[-1])


def plural(count: int, noun: str) -> str:
    """Write a count with its noun, such as "1 sample" or "3 samples"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def process_list(numbers: Iterable[int]) -> str:
    """Return numbers of processes in words, such as "Process 1" or "Processes 0, 2 and 3"."""
    *most, last = map(str, numbers)
    return f"Processes {', '.join(most)} and {last}" if most else f"Process {last}"


def format_seconds(seconds: float) -> str:
    """Write a duration in seconds as people read it.

    Args:
        seconds: A time in seconds.

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


HOST, DEVICE = "#0072B2", "#D55E00"
"""The colors of Python and of a device, in tables and in figures."""


def as_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], below: Iterable[str] = ()
) -> str:
    """Return the HTML of a table that a notebook shows, sensible in the dark and on a phone.

    Cells are HTML, and the first cell of a row names it; the header and the remarks are text.
    """
    # Styles are inline, because Colab strips all others from an output. Colors are inherited from
    # the page.
    cell = "text-align:left;padding:0.15em 0.9em 0.15em 0;border:0;background:none;color:inherit"
    line = "border:0;border-bottom:1px solid rgba(128,128,128,0.35);background:none"
    head = "".join(
        f'<th scope="col" style="{cell}">{html.escape(t)}</th>'
        if t
        else f'<td style="{cell}"></td>'
        for t in header
    )
    body = "".join(
        f'<tr style="{line}"><th scope="row" style="{cell};font-weight:normal">{first}</th>'
        + "".join(f'<td style="{cell}">{value}</td>' for value in values)
        + "</tr>"
        for first, *values in rows
    )
    remarks = "".join(
        f'<p style="margin:0.3em 0;font-size:0.9em">{html.escape(remark)}</p>' for remark in below
    )
    return (
        '<div class="d2lpar-table" style="overflow-x:auto" tabindex="0">'
        '<table style="border-collapse:collapse;margin:0.4em 0;font-size:0.9em;border:0">'
        f'<thead><tr style="{line}">{head}</tr></thead><tbody>{body}</tbody></table>{remarks}</div>'
    )


def in_one_line(value: str) -> str:
    """Return the HTML of a value that does not break, given as text."""
    return f'<span style="white-space:nowrap">{html.escape(value)}</span>'


def in_two_lines(value: str, small: str) -> str:
    """Return the HTML of a value with something in small print below it, given as text."""
    return (
        f"{in_one_line(value)}<br>"
        f'<span style="font-size:0.85em;opacity:0.8">{html.escape(small)}</span>'
    )


def stacked_bar(first: float, whole: float, longest: float, label: str) -> str:
    """Return a bar in two colors: the first part for Python, the rest of the whole for a device.

    The longest whole of a table fills the column. Screen readers read the label.
    """
    scale = 100 / longest if longest > 0 else 0
    blue, all_of_it = scale * min(first, whole), scale * whole
    return _drawn(
        f'<rect x="{blue:.2f}" y="2" width="{all_of_it - blue:.2f}" height="8" fill="{DEVICE}"/>'
        f'<rect x="0" y="2" width="{max(blue, 0.8):.2f}" height="8" fill="{HOST}"/>',
        label,
    )


def interval_bar(
    low: float,
    middle: float,
    high: float,
    ends: tuple[float, float],
    label: str,
    bounds: Iterable[float] = (),
) -> str:
    """Return an interval as a bar with its median, on an axis with the given ends.

    The bounds of a claim are dashed lines across the bar. Screen readers read the label.
    """
    left, right = ends
    scale = 100 / (right - left) if right > left else 0

    def at(value: float) -> float:
        return min(max((value - left) * scale, 1), 99)

    return _drawn(
        '<line x1="0" x2="100" y1="6" y2="6" stroke="currentColor" stroke-opacity="0.25"/>'
        f'<rect x="{at(low):.2f}" y="4" width="{max(at(high) - at(low), 0.5):.2f}" height="4" '
        f'fill="currentColor" fill-opacity="0.55"/>'
        f'<rect x="{at(middle) - 0.7:.2f}" y="1" width="1.4" height="10" fill="currentColor"/>'
        + "".join(
            f'<line x1="{at(bound):.2f}" x2="{at(bound):.2f}" y1="0" y2="12" '
            'stroke="currentColor" stroke-dasharray="2.2 1.2"/>'
            for bound in bounds
        ),
        label,
    )


def share_bar(share: float, color: str, label: str) -> str:
    """Return a bar that is filled to a share between 0 and 1."""
    filled = f'<rect x="0" y="2" width="{100 * min(max(share, 0), 1):.2f}" height="8" '
    whole = '<rect x="0" y="2" width="100" height="8" fill="currentColor" fill-opacity="0.12"/>'
    return _drawn(f'{whole}{filled}fill="{color}"/>', label)


def _drawn(shapes: str, label: str) -> str:
    return (
        f'<svg role="img" aria-label="{html.escape(label, quote=True)}" viewBox="0 0 100 12" '
        'preserveAspectRatio="none" style="width:9em;height:0.9em;vertical-align:middle;'
        f'display:inline-block">{shapes}</svg>'
    )


def is_stream(path: Path) -> bool:
    """Return whether a path leads to a device, to a pipe, or to what this process prints into."""
    with suppress(OSError):
        status = path.stat()
        return not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)) or any(
            os.path.samestat(status, os.fstat(descriptor)) for descriptor in (1, 2)
        )
    return False


def can_be_written(path: Path) -> bool:
    """Return whether `write_whole` may write there, as far as can be known before."""
    target = path if is_stream(path) else path.resolve().parent
    return not path.is_dir() and os.access(target, os.W_OK)


def write_whole(path: Path, text: str) -> None:
    """Write text to a file, whole or not at all: an old file stays until the new one is whole."""
    if is_stream(path):  # `/dev/stdout` would else be replaced by a file.
        with open(path, "a", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        return
    path = path.resolve()  # A symbolic link stays.
    # The temporary file is in the same folder: a rename works only within one file system.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            if path.exists():
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C included.
        temporary.unlink(missing_ok=True)  # Missing if the rename is already done.
        raise


def exit_status(code: int) -> str:
    """Return how a process has ended, in words: its exit status, or the name of the signal."""
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
