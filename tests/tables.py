"""What a reader sees of a table in HTML: the text of its cells, and the bars in them."""

from html.parser import HTMLParser


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self.bars, self.remarks, self._into = [], [], [], None

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
            self._into = self.rows[-1]
        elif tag == "p":
            self.remarks.append("")
            self._into = self.remarks
        elif tag == "br" and self._into:
            self._into[-1] += "\n"
        elif tag == "svg":
            self.bars.append((given["aria-label"], []))
        elif tag == "rect":
            shape = given["fill"], float(given["x"]), float(given["width"])
            self.bars[-1][1].append(shape)

    def handle_data(self, data):
        if self._into:
            self._into[-1] += data

    def handle_endtag(self, tag):
        if tag in ("th", "td", "p"):
            self._into = None


def _read(html):
    reader = _Reader()
    reader.feed(html)
    return reader


def cells_of(html):
    """Return the text of each cell, row by row; a line break where one is."""
    return _read(html).rows


def bars_of(html):
    """Return what each bar says, and the color, start and width of its rectangles, in percent."""
    return _read(html).bars


def remarks_of(html):
    """Return the text of the remarks below a table."""
    return _read(html).remarks
