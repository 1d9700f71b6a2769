"""Show an object in a notebook, and its verdict in a box."""

import html
import re
from collections.abc import Iterable

VERDICT_COLORS = {
    "holds": "#13795b",
    "seen": "#3f6f9f",
    "fails": "#b8324a",
    "inconclusive": "#8a6200",
    "untestable": "#62676f",
}
"""The color of each verdict; white on it is legible."""


def verdict_box(
    kind: str,
    verdict: str,
    title: str,
    words: str,
    color: str,
    detail: str,
    lines: Iterable[str],
) -> str:
    """Return the HTML of a box with a colored bar on its left.

    Args:
        kind: What is judged; its class is `d2lpar-` and this.
        verdict: The key of the verdict, kept in `data-verdict`.
        title: The first line. Here and below, what stands in `backticks` becomes code.
        words: The verdict as it reads.
        color: Of the bar, and behind the verdict; white on it is legible.
        detail: What stands behind the verdict, or nothing.
        lines: What stands below, in small print.
    """
    behind = f": {with_code(detail)}" if detail else ""
    rows = "".join(f"<li>{with_code(line)}</li>" for line in lines)
    # Inline, because Colab keeps an output's own styles and nothing else.
    return (
        f'<div class="d2lpar-{kind}" data-verdict="{verdict}" style="border-left: 0.3em '
        f'solid {color}; padding: 0.2em 0 0.2em 0.8em; margin: 0.5em 0">'
        f"<div>{with_code(title)}</div>"
        f'<strong style="background: {color}; border-radius: 0.25em; color: white; '
        f'padding: 0 0.4em">{words}</strong>{behind}'
        f'<ul style="margin: 0.2em 0; font-size: 0.85em">{rows}</ul></div>'
    )


_WITHIN = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|[kMG]?B)(?!\w))|(?<=[<>]) (?=-?\d)")


def unbroken(text: str) -> str:
    r"""Return text with no-break spaces between a number and its unit, or its sign of comparison.

    Example:
        >>> unbroken("a share < 0.5 in 95 % of 20 ms").split(" ")
        ['a', 'share', '<\xa00.5', 'in', '95\xa0%', 'of', '20\xa0ms']
    """
    return _WITHIN.sub("\u00a0", text)


def with_code(text: str) -> str:
    r"""Return text as HTML, with what stands in `backticks` as code.

    Example:
        >>> with_code("`a < b` takes 5 ms")
        '<code>a &lt; b</code> takes 5\xa0ms'
    """
    return "".join(
        f"<code>{html.escape(part)}</code>" if i % 2 else html.escape(unbroken(part))
        for i, part in enumerate(text.split("`"))
    )


def show_in_notebook(made: object) -> bool:
    """Display an object in all its forms, if this runs in a notebook.

    Args:
        made: What to show.

    Returns:
        Whether it does.
    """
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return False
    if not get_ipython():
        return False
    # All of its forms, and no repr beside them.
    display(made._repr_mimebundle_(), raw=True)
    return True
