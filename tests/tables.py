"""What a reader sees of a table in HTML: the text of its cells, and the bars in them."""

import re
from html import unescape


def cells_of(html):
    """Return the text of each cell, row by row; a line break where one is."""
    return [_texts("t[hd]", row) for row in _elements("tr", html)]


def bars_of(html):
    """Return what each bar says, and the color, start and width of its rectangles, in percent."""
    return [
        (_attribute("aria-label", svg), [_rectangle(tag) for tag in re.findall("<rect.*?>", svg)])
        for svg in _elements("svg", html)
    ]


def remarks_of(html):
    """Return the text of the remarks below a table."""
    return _texts("p", html)


def _elements(tag, html):
    return re.findall(rf"<{tag}\b.*?</{tag}>", html, re.DOTALL)


def _texts(tag, html):
    broken = (element.replace("<br>", "\n") for element in _elements(tag, html))
    return [unescape(re.sub("<.*?>", "", element)) for element in broken]


def _attribute(name, tag):
    return unescape(re.search(rf'\b{name}="(.*?)"', tag)[1])


def _rectangle(tag):
    return _attribute("fill", tag), float(_attribute("x", tag)), float(_attribute("width", tag))
