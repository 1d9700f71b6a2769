"""Display an object in a notebook, and format its text as HTML."""

import html
import re
import sys

VERDICTS = {
    "holds": ("holds here", "#13795b"),
    "seen": ("seen here", "#3f6f9f"),
    "fails": ("does not hold here", "#b8324a"),
    "inconclusive": ("inconclusive here", "#8a6200"),
    "untestable": ("cannot be tested here", "#62676f"),
}
"""The words for each verdict, as a reader sees them, and a color with contrast to white text."""


def words_for(verdict: str, where: str = "here") -> str:
    """Return the words for a verdict: `words_for("holds", "there")`."""
    return VERDICTS[verdict][0].replace("here", where)


_WITHIN = re.compile(r"(?<=\d) (?=(?:[nµm]?s|[kMG]?B)(?!\w))|(?<=[<>]) (?=-?\d)")


def unbroken(text: str) -> str:
    """Return text with no-break spaces between a number and its unit, or `<` and its number."""
    return _WITHIN.sub("\u00a0", text)


def with_code(text: str) -> str:
    """Return text as HTML, with `backticks` turned into code elements."""
    return "".join(
        f"<code>{html.escape(part)}</code>" if i % 2 else html.escape(unbroken(part))
        for i, part in enumerate(text.split("`"))
    )


def badge(verdict: str, where: str = "here") -> str:
    """Return the HTML of a verdict in a colored box."""
    # The style is inline because Colab drops all styles but the output's own.
    return (
        f'<span class="d2lpar-verdict" style="background:{VERDICTS[verdict][1]};'
        "border-radius:0.25em;"
        "color:white;font-size:0.75em;padding:0.1em 0.4em;white-space:nowrap;"
        f'vertical-align:0.1em">{html.escape(words_for(verdict, where))}</span>'
    )


def show_in_notebook(value: object) -> bool:
    """Display an object in all its forms in a notebook; return False outside a notebook."""
    ipython = sys.modules.get("IPython")  # Every notebook has imported IPython.
    if not ipython or not ipython.get_ipython():
        return False
    from IPython.display import display

    # With raw=True, display adds no repr to these forms.
    display(value._repr_mimebundle_(), raw=True)
    return True
