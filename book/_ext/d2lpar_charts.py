"""Charts of what this build and other machines have measured, for Sphinx."""

import math
from html import escape
from itertools import chain
from pathlib import Path

import d2lpar_runs as runs
import matplotlib.pyplot as plt
import numpy as np
from docutils import nodes

from d2lpar import COLORS, use_style
from d2lpar.book.claims import VERDICTS
from d2lpar.book.originals import EXPERIMENTS, judge, plot_findings

# --- How far claims are from their bounds -----------------------------------------------------

REACH = 3.0
"""The distance from a bound, in units of it, at which a chart ends; what is beyond lies there."""


def verdicts_chart(app, docname, _):
    """Return a chart of this build: for each claim its interval, and the bound."""
    lines = []
    for claim in chain(*runs.this_build(app).claims.values()):
        if not claim.needs:
            low, median, high = min(map(interval_from_bound, claim.predicates))
            label = f"{VERDICTS[claim.verdict]}, {median:.2g} from the bound"
            lines.append((claim.key, label, bar(low, high) + dot(median, claim.verdict)))
    caption = (
        "What this build measured for each claim: the median, and a bar for its interval. A claim "
        "holds if nothing of its bar lies left of the line."
    )
    return [chart("Distance of each claim of this build from its bound", lines, caption)]


def interval_from_bound(predicate):
    """Return how far the lower end, the median and the upper end are from the bound."""
    low, high = predicate.quantity.interval
    found = [predicate.margin(value) for value in (low, predicate.quantity.median, high)]
    return min(found), found[1], max(found)


def causes_chart(app, docname, _):
    """Return a chart of how far each claim is from its bound, with its cause and without."""
    pages = runs.causes(app)["pages"].values()
    kept = {key: found for page in pages for key, found in page["claims"].items()}
    lines = []
    for claim in chain(*runs.this_build(app).claims.values()):
        sides = [kept.get(claim.key, {}).get(side, {}) for side in ("with", "without")]
        with_it, without = (side.get("margin") for side in sides)
        if with_it is None or without is None:
            continue
        label = f"with its cause {with_it:.2g} from the bound, without it {without:.2g}"
        marks = bar(*sorted((with_it, without))) + dot(without, "without") + dot(with_it, "with")
        lines.append((claim.key, label, marks))
    if not lines:
        return [nodes.paragraph(text="No claim has been tested yet.")]
    caption = (
        "What was measured for each claim with its cause (filled) and without it (hollow); of "
        "several comparisons, the one that is nearest to failing. Right of the line it holds."
    )
    return [chart("Distance of each claim from its bound, by cause", lines, caption)]


def place(distance):
    """Return where a distance from the bound lies in a chart, in per cent of its width."""
    clipped = min(max(distance, -REACH), REACH)
    # Linear about the bound, logarithmic far from it.
    return 50 + 49 * math.copysign(math.log1p(abs(clipped)) / math.log1p(REACH), clipped)


def bar(low, high):
    """Return the HTML of a bar between two distances."""
    left, right = place(low), place(high)
    return f'<i class="bar" style="left:{left:.1f}%;width:{right - left:.1f}%"></i>'


def dot(distance, kind):
    """Return the HTML of a point at a distance."""
    return f'<i class="dot {kind}" style="left:{place(distance):.1f}%"></i>'


def chart(title, lines, caption):
    """Return a chart with a line for each claim: its key, what it says, and its marks as HTML."""
    rows = "".join(
        f'<li><code>{escape(key)}</code><span class="track" role="img" '
        f'aria-label="{escape(label, quote=True)}">{marks}</span></li>'
        for key, label, marks in lines
    )
    html = (
        f'<figure class="d2lpar-chart" aria-label="{escape(title, quote=True)}">'
        '<p class="scale" aria-hidden="true"><span>fails</span><span>bound</span>'
        f"<span>holds</span></p><ul>{rows}</ul><figcaption>{escape(caption)}</figcaption></figure>"
    )
    return nodes.raw("", html, format="html")


# --- Drawings ---------------------------------------------------------------------------------


def first_picture(app, docname, _):
    """Return a drawing of when Python and when the device are done with ten products, to scale."""
    rows = runs.sources(app, "A1")["this build"]
    handed_out, ready = rows["handed out"].median, rows["ready"].median
    asked, there = in_seconds(handed_out, 1), in_seconds(ready, 2)
    share = handed_out / ready
    host, device = ({"color": COLORS[who], "weight": "bold"} for who in ("host", "device"))
    use_style()
    axes = plt.figure(figsize=(4.6, 2.4)).add_subplot(xlim=(-0.2, 1), ylim=(0, 4))
    axes.set_axis_off()
    axes.barh(3.5, max(share, 0.006), color=host["color"])  # Never too thin to be seen.
    axes.text(share + 0.02, 3.5, "has its answer here, and goes on", va="center")
    for number in range(10):
        axes.barh(2.55, 0.1, left=number / 10, color=device["color"], edgecolor="white")
        axes.text(number / 10 + 0.05, 2.55, number + 1, color="white", ha="center", va="center")
    axes.text(1, 1.85, "here are the results", ha="right", va="center")
    columns = (
        (-0.2, 3.5, "Python", asked, "is what a clock says\nthat does not wait", host),
        (0.4, 2.55, "device", there, "is how long the\nten products take", device),
    )
    for x, y, who, seconds, words, look in columns:
        axes.text(-0.2, y, who, va="center", **look)
        axes.text(x, 1, seconds, size=22, va="center", **look)
        axes.text(x, 0.55, words, va="top")
    image = save(app, docname, "first", f"Of {there} for ten products, Python needs {asked}.")
    machine = runs.this_build(app).machine
    cores = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    said = f"To scale, measured while this page was made ({machine.processor}, {cores})."
    caption = nodes.paragraph(text=said, classes=["sd-text-muted"])
    return [nodes.container("", image, caption, classes=["d2lpar-first", "sd-text-center"])]


def in_seconds(seconds, digits):
    """Write a time in seconds, however short, so that two of them can be compared at a glance."""
    return f"{np.format_float_positional(seconds, digits, fractional=False, trim='-')} s"


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
    image = save(app, docname, name, f"Points for each source: {'; '.join(panels)}.")
    caption = nodes.caption(
        text=f"{EXPERIMENTS[name].title}. Hollow points are single runs; bars are 95 % "
        "intervals. The claim holds where it is shaded."
    )
    made = nodes.figure("", image, caption, classes=["d2lpar-figure"])
    made["ids"] = [f"fig-results-{name.lower()}"]
    return [made]
