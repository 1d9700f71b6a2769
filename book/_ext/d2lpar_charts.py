"""Charts of the measurements of this build and of other machines, for Sphinx."""

from pathlib import Path

import d2lpar_runs as runs
import matplotlib.pyplot as plt
from docutils import nodes

from d2lpar import COLORS, use_style
from d2lpar._plain.format import format_value, plural
from d2lpar.book.originals import EXPERIMENTS, judge, plot_findings


def first_picture(app, docname, _):
    """Return a drawing, to scale, of when Python and the device finish ten products."""
    rows = runs.sources(app, "A1")["this build", ""]
    handed_out, ready = rows["handed out"].median, rows["ready"].median
    dispatch, total = (format_value(seconds, "s", digits=2) for seconds in (handed_out, ready))
    share = handed_out / ready
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


def experiment_figure(app, docname, name):
    """Return the findings of an experiment as a figure: editions, machines, and this build."""
    sources = runs.sources(app, name).items()
    judged = {", ".join(filter(None, source)): judge(name, rows) for source, rows in sources}
    panels = {
        claimed: {source: predicates[claimed] for source, predicates in judged.items()}
        for claimed in EXPERIMENTS[name].findings
        if not any(predicates[claimed].quantity.unit for predicates in judged.values())
    }
    use_style()
    plot_findings(panels)
    alt = f"Points for each source: {'; '.join(panels)}."
    caption = (
        f"{EXPERIMENTS[name].title}. Hollow points are single runs; bars are intervals, of 95 or "
        "99 %. The claim holds where it is shaded."
    )
    return figure(app, docname, name, alt, caption)


def figure(app, docname, name, alt, caption):
    """Save the current figure, and return it with its caption."""
    image = save(app, docname, name, alt)
    ids = [f"fig-{Path(docname).name}-{name.lower()}"]
    return [
        nodes.figure("", image, nodes.caption(text=caption), classes=["d2lpar-figure"], ids=ids)
    ]
