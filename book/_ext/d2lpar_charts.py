"""Charts of what this build and other machines have measured, for Sphinx."""

from itertools import chain
from pathlib import Path

import d2lpar_runs as runs
import matplotlib.pyplot as plt
import numpy as np
from docutils import nodes

from d2lpar import COLORS, use_style
from d2lpar._format import format_value
from d2lpar._plot import WIDTH
from d2lpar.book.originals import EXPERIMENTS, judge, plot_findings

# --- How far claims are from their bounds -----------------------------------------------------

REACH = 3.0
"""The distance from a bound, in units of it, at which a chart ends; what is beyond lies there."""

FILLED = {"marker": "o", "color": COLORS["host"]}
HOLLOW = {"marker": "D", "color": COLORS["device"], "mfc": "white"}


def verdicts_chart(app, docname, _):
    """Return a chart of this build: for each claim its interval, and the bound."""
    claims = chain(*runs.this_build(app).claims.values())
    found = {
        claim.key: min(map(interval_from_bound, claim.predicates))
        for claim in claims
        if not claim.needs
    }
    draw_distances(found, {1: FILLED})
    caption = (
        "What this build measured for each claim: the median, and a bar for its interval. A claim "
        "holds if nothing of its bar lies left of the line."
    )
    alt = "Distance of each claim of this build from its bound"
    return figure(app, docname, "verdicts", alt, caption)


def interval_from_bound(predicate):
    """Return how far the lower end, the median and the upper end are from the bound."""
    low, high = predicate.quantity.interval
    found = [predicate.margin(value) for value in (low, predicate.quantity.median, high)]
    return min(found), found[1], max(found)


def causes_chart(app, docname, _):
    """Return a chart of how far each claim is from its bound, with its cause and without."""
    kept = runs.causes(app)
    keys = [claim.key for claim in chain(*runs.this_build(app).claims.values())]
    margins = {
        key: [kept[key][side]["margin"] for side in ("without", "with")]
        for key in keys
        if key in kept
    }
    found = {key: both for key, both in margins.items() if None not in both}
    draw_distances(found, {0: HOLLOW, 1: FILLED})
    caption = (
        "What was measured for each claim with its cause (filled) and without it (hollow); of "
        "several comparisons, the one that is nearest to failing. Right of the line it holds."
    )
    return figure(
        app, docname, "causes", "Distance of each claim from its bound, by cause", caption
    )


def draw_distances(found, looks):
    """Draw a bar over the distances of each claim, and a point for each that has a look."""
    use_style()
    axes = plt.figure(figsize=(WIDTH, 0.35 + 0.17 * len(found))).add_subplot()
    for place, distances in enumerate(found.values()):
        shown = np.clip(distances, -REACH, REACH)
        axes.plot([min(shown), max(shown)], [place, place], color="gray")
        for number, look in looks.items():
            axes.plot(shown[number], place, markersize=6, **look)
    axes.axvline(0, color="black")
    axes.set_xscale("asinh", linear_width=0.5)  # Linear about the bound, logarithmic far from it.
    axes.set_xticks([-REACH, 0, REACH], ["fails", "bound", "holds"])
    axes.minorticks_off()
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(found)), found)
    axes.set_ylim(len(found) - 0.4, -0.6)


# --- Drawings ---------------------------------------------------------------------------------


def first_picture(app, docname, _):
    """Return a drawing of when Python and when the device are done with ten products, to scale."""
    rows = runs.sources(app, "A1")["this build"]
    handed_out, ready = rows["handed out"].median, rows["ready"].median
    asked, there = (format_value(seconds, "s", digits=2) for seconds in (handed_out, ready))
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
        (-0.2, 3.5, "Python", asked, "what your stopwatch says", host),
        (0.4, 2.55, "device", there, "what the ten products take", device),
    )
    for x, y, who, seconds, words, look in columns:
        axes.text(-0.2, y, who, va="center", **look)
        axes.text(x, 1.1, seconds, size=22, va="center", **look)
        axes.text(x, 0.6, words, va="top")
    image = save(app, docname, "first", f"Of {there} for ten products, Python needs {asked}.")
    machine = runs.this_build(app).machine
    cores = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    said = f"To scale, measured while this page was made ({machine.processor}, {cores})."
    caption = nodes.paragraph(text=said, classes=["sd-text-muted"])
    return [nodes.container("", image, caption, classes=["d2lpar-first", "sd-text-center"])]


def save(app, docname, name, alt):
    """Save the figure that was drawn last, and return it for the page."""
    path = Path(app.srcdir, "_build", "figures", f"{name}.svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, format="svg", bbox_inches="tight")
    plt.close("all")
    uri = path.relative_to(app.srcdir).as_posix()
    app.env.images.add_file(docname, uri)
    return nodes.image(uri=uri, candidates={"*": uri}, alt=alt)


def experiment_figure(app, docname, name):
    """Return the findings of an experiment as a figure: editions, machines, and this build."""
    found = {source: judge(name, rows) for source, rows in runs.sources(app, name).items()}
    panels = {
        claimed: {source: predicates[claimed] for source, predicates in found.items()}
        for claimed in EXPERIMENTS[name].findings
        if not any(predicates[claimed].quantity.unit for predicates in found.values())
    }
    use_style()
    plot_findings(panels)
    alt = f"Points for each source: {'; '.join(panels)}."
    caption = (
        f"{EXPERIMENTS[name].title}. Hollow points are single runs; bars are 95 % intervals. The "
        "claim holds where it is shaded."
    )
    return figure(app, docname, name, alt, caption)


def figure(app, docname, name, alt, caption):
    """Save the figure that was drawn last, and return it with its caption."""
    image = save(app, docname, name, alt)
    made = nodes.figure("", image, nodes.caption(text=caption), classes=["d2lpar-figure"])
    made["ids"] = [f"fig-{Path(docname).name}-{name.lower()}"]
    return [made]
