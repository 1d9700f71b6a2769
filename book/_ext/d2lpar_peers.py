"""PyTorch beside JAX, for Sphinx: the figure and the tables of what both took."""

import json
from pathlib import Path
from statistics import median

import d2lpar_charts as charts
import d2lpar_tables as tables
import matplotlib.pyplot as plt
from docutils import nodes
from matplotlib.ticker import FuncFormatter, NullLocator

from d2lpar import use_style
from d2lpar._plain.format import format_value
from d2lpar._timeline.plot import WIDTH, device_color

GROUPS = {
    "Ten random products": [
        ("of size 1000", "ten random products of 1000"),
        ("of size 4000", "ten random products of 4000"),
        ("only one product of 1000", "one product of 1000"),
        ("only one draw of 1000", "one draw of 1000 x 1000"),
    ],
    "1000 increments of two numbers": [
        ("a barrier in each", "a thousand increments, a barrier in each"),
        ("call by call", "a thousand increments, call by call"),
        (
            "one call: graph / scan",
            "a thousand increments, CUDA graph",
            "a thousand increments, scan",
        ),
        (
            "one call: graph / unrolled",
            "a thousand increments, CUDA graph",
            "a thousand increments, scan with unroll=50",
        ),
    ],
    "Products on CPU and GPU": [
        ("only the CPU", "ten products of 2000 on the CPU"),
        ("only the GPU", "ten products of 6000 on the GPU"),
        ("the GPU asked first", "both, GPU asked first"),
        ("the CPU asked first", "both, CPU asked first"),
    ],
    "Fifty products to the host": [
        ("only the products", "fifty products"),
        ("only copies, pageable", "copying them to pageable memory"),
        ("only copies, pinned", "copying them to pinned memory"),
        ("products, then copies", "fifty products, then fifty copies"),
        ("each copy right behind", "each copy behind its product"),
    ],
    "Training": [
        ("a barrier in each step", "training, a barrier in each step"),
        ("step by step", "training"),
        ("compiled / scan", "training, torch.compile", "training, scan"),
    ],
}
"""What the rows show, by group: the words, and what PyTorch and JAX call it in the files.

One name stands for both.
"""

NONE = "\N{EN DASH}"
TO = "\N{EN DASH}\N{WORD JOINER}"  # No line ends behind it.

MACHINES = {
    "h200": ("H200", {"marker": "D", "color": device_color("GPU 0")}),
    "two-cores": ("two EPYC cores", {"marker": "o", "color": device_color("CPU 0")}),
    "two-xeon-cores": ("two Xeon cores", {"marker": "s", "color": device_color("CPU 1")}),
}
"""The files in `evidence/`, with what to call the machine and how to mark it."""


def measured(app, stem):
    """Return what `evidence/beside_pytorch.py` has written of a machine."""
    return json.loads(Path(app.srcdir, "evidence", f"{stem}.json").read_text(encoding="utf-8"))


def times_of(found, names):
    """Return the times of PyTorch and of JAX under one name for both or two; none if not run."""
    seconds = found["seconds"]
    return [seconds["PyTorch"].get(names[0]), seconds["JAX"].get(names[-1])]


def ratio(found, names):
    """Return how many times as long PyTorch took: by the medians, and run by run."""
    torch, jax = times_of(found, names)
    if not torch or not jax:
        return None
    return median(torch) / median(jax), [a / b for a, b in zip(torch, jax, strict=True)]


def time(app, docname, argument):
    """Return the median of what was measured, given as in "two-cores JAX one product of 1000"."""
    stem, framework, work = argument.split(maxsplit=2)
    return [nodes.Text(format_value(median(measured(app, stem)["seconds"][framework][work]), "s"))]


# --- The figure -------------------------------------------------------------------------------


def figure(app, docname, _):
    """Return a figure of how many times as long PyTorch took as JAX, machine by machine."""
    found = {stem: measured(app, stem) for stem in MACHINES}
    lines = [line for name, rows in GROUPS.items() for line in (name, *rows)]
    use_style()
    axes = plt.figure(figsize=(WIDTH, 0.75 + 0.245 * len(lines))).add_subplot()
    for place, line in enumerate(lines):
        for number, (stem, (_, look)) in enumerate(MACHINES.items()):
            if not isinstance(line, str) and (both := ratio(found[stem], line[1:])):
                draw(axes, place + 0.24 * (number - 1), *both, look)
    for name, look in MACHINES.values():
        axes.plot([], [], linestyle="", markersize=7, label=name, **look)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(0.08, 14)
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("time of PyTorch / time of JAX")
    labels = [line if isinstance(line, str) else line[0] for line in lines]
    axes.set_yticks(range(len(lines)), labels)
    for label, line in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_weight("bold" if isinstance(line, str) else "normal")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.text(0.9, 0, "← PyTorch faster", ha="right", va="center")
    axes.text(1.1, 0, "JAX faster →", va="center")
    axes.figure.legend(loc="outside upper center", ncols=len(MACHINES))
    alt = "Ratios of times, PyTorch to JAX: " + "; ".join(
        f"{row[0]} {both[0]:.2g} on {name}"
        for rows in GROUPS.values()
        for row in rows
        for stem, (name, _) in MACHINES.items()
        if (both := ratio(found[stem], row[1:]))
    )
    caption = (
        "How many times as long PyTorch takes as JAX: left of the line PyTorch is faster, right of "
        "it JAX. Large marks are ratios of medians, small ones the three runs."
    )
    return charts.figure(app, docname, "ratios", alt, caption)


def draw(axes, place, middle, runs, look):
    """Draw the ratio of the medians of a row, and those of its runs."""
    axes.plot([min(runs), max(runs)], [place, place], color=look["color"], linewidth=0.8)
    axes.plot(runs, [place] * len(runs), linestyle="", markersize=2.5, **look)
    axes.plot(middle, place, markersize=6.5, **look)


# --- The tables -------------------------------------------------------------------------------


def table(app, docname, stem):
    """Return what was measured on a machine as a table, and a line on machine and versions."""
    found = measured(app, stem)
    rows = []
    for name, lines in GROUPS.items():
        shown = [cells for line in lines if (cells := cells_of(found, *line))]
        rows += [name, *shown] if shown else []
    made = tables.table("peers", ("Work", "PyTorch", "JAX", "Ratio"), rows)
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    steps = f"{found['training steps']} steps of training"
    said = f"{found['machine']}; {versions}; {found['date']}; {steps}."
    return [nodes.paragraph(text=said, classes=["sd-text-muted"]), made]


def cells_of(found, words, *names):
    """Return a row of a table, or nothing if neither framework has run it."""
    times, both = times_of(found, names), ratio(found, names)
    if not any(times):
        return None
    cells = [spread(runs) if runs else NONE for runs in times]
    return (words, *cells, digits(both[0], 2) if both else NONE)


def spread(runs):
    """Return the median of some seconds, and where the others lie, in one unit."""
    middle = median(runs)
    units = ((1, "s"), (1e3, "ms"), (1e6, "\N{MICRO SIGN}s"))
    factor, unit = next(pair for pair in units if middle * pair[0] >= 1)
    low, middle, high = (digits(factor * value, 3) for value in (min(runs), middle, max(runs)))
    return f"{middle}\N{NO-BREAK SPACE}{unit} ({low}{TO}{high})"


def digits(value, count):
    """Return a number with so many digits, zeros too, and with all before the point."""
    return f"{value:.0f}" if value >= 10**count else f"{value:#.{count}g}".rstrip(".")
