"""The content of a table in HTML: the text of its cells, and the bars in them."""

from xml.etree import ElementTree


def cells_of(html):
    return [["".join(cell.itertext()) for cell in row] for row in _tree(html).iter("tr")]


def bars_of(html):
    """Return each bar's label, and the color, start and width of its rectangles, in percent."""
    return [
        (
            svg.get("aria-label"),
            [(r.get("fill"), float(r.get("x")), float(r.get("width"))) for r in svg.iter("rect")],
        )
        for svg in _tree(html).iter("svg")
    ]


def remarks_of(html):
    return ["".join(paragraph.itertext()) for paragraph in _tree(html).iter("p")]


def _tree(html):
    # The fold of a claim has its table below the summary.
    folded = html.rpartition("</summary>")[2].removesuffix("</details>")
    return ElementTree.fromstring(f"<div>{folded}</div>".replace("<br>", "\n"))
