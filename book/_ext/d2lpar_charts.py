"""Figures for Sphinx: the one of the first page, and how each is saved and shown."""

from pathlib import Path

import d2lpar_runs as runs
import matplotlib.pyplot as plt
from docutils import nodes

from d2lpar import COLORS, use_style
from d2lpar._plain.format import format_value, plural


def first_picture(app, docname, _):
    """Return a drawing, to scale, of when Python and the device finish ten products."""
    numbers = runs.numbers_of(app, "clock-stops-early")
    asked, taken = (numbers[name].median for name in ("asked", "taken"))
    dispatch, total = (format_value(seconds, "s", digits=2) for seconds in (asked, taken))
    share = asked / taken
    host, device = ({"color": COLORS[who], "weight": "bold"} for who in ("host", "device"))
    use_style()
    axes = plt.figure(figsize=(4.6, 2.2)).add_subplot(xlim=(-0.2, 1), ylim=(0.4, 4))
    axes.set_axis_off()
    axes.barh(3.5, max(share, 0.006), color=host["color"])  # Never too thin to be seen.
    axes.text(share + 0.02, 3.5, "has control back here, and goes on", va="center")
    for number in range(10):
        axes.barh(2.55, 0.1, left=number / 10, color=device["color"], edgecolor="white")
        axes.text(number / 10 + 0.05, 2.55, number + 1, color="white", ha="center", va="center")
    axes.text(1, 1.85, "here are the results", ha="right", va="center")
    columns = (
        (-0.2, 3.5, "Python", dispatch, "what your stopwatch says", host),
        (0.4, 2.55, "device", total, "what the ten products take", device),
    )
    for x, y, who, seconds, words, look in columns:
        axes.text(-0.2, y, who, va="center", **look)
        axes.text(x, 1.1, seconds, size=22, va="center", **look)
        axes.text(x, 0.6, words, va="top")
    image = save(app, docname, "first", f"Of {total} for ten products, Python needs {dispatch}.")
    machine = runs.this_build(app).machine
    where = f"{machine.processor}, {plural(machine.cores, 'core')}"
    words = f"To scale, measured while this page was made ({where})."
    caption = nodes.paragraph(text=words, classes=["sd-text-muted"])
    return [nodes.container("", image, caption, classes=["d2lpar-first", "sd-text-center"])]


def save(app, docname, name, alt):
    """Save the current figure, and return it as an image."""
    path = Path(app.srcdir, "_build", "figures", f"{name}.svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, format="svg", bbox_inches="tight")
    plt.close("all")
    uri = path.relative_to(app.srcdir).as_posix()
    app.env.images.add_file(docname, uri)
    return nodes.image(uri=uri, candidates={"*": uri}, alt=alt)


def figure(app, docname, name, alt, caption):
    """Save the current figure, and return it with its caption."""
    image = save(app, docname, name, alt)
    ids = [f"fig-{Path(docname).name}-{name.lower()}"]
    return [
        nodes.figure("", image, nodes.caption(text=caption), classes=["d2lpar-figure"], ids=ids)
    ]
