"""Show an object in a notebook, and set its text as HTML."""

import html
import re

VERDICT_COLORS = {
    "holds": "#13795b",
    "seen": "#3f6f9f",
    "fails": "#b8324a",
    "inconclusive": "#8a6200",
    "untestable": "#62676f",
}
"""The color of each verdict; white on it is legible."""


_WITHIN = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|[kMG]?B)(?!\w))|(?<=[<>]) (?=-?\d)")


def unbroken(text: str) -> str:
    """Return text with no-break spaces between a number and its unit, or its sign of comparison."""
    return _WITHIN.sub("\u00a0", text)


def with_code(text: str) -> str:
    """Return text as HTML, with what stands in `backticks` as code."""
    return "".join(
        f"<code>{html.escape(part)}</code>" if i % 2 else html.escape(unbroken(part))
        for i, part in enumerate(text.split("`"))
    )


def badge(words: str, color: str) -> str:
    """Return a verdict as HTML, as it stands beside a sentence."""
    # Inline, because Colab keeps an output's own styles and nothing else.
    return (
        f'<span class="d2lpar-verdict" style="background:{color};border-radius:0.25em;'
        "color:white;font-size:0.75em;padding:0.1em 0.4em;white-space:nowrap;"
        f'vertical-align:0.1em">{html.escape(words)}</span>'
    )


def show_in_notebook(made: object) -> bool:
    """Display an object in all its forms, if this runs in a notebook, and say whether it does."""
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
