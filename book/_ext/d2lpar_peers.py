"""PyTorch beside JAX, for Sphinx: the figure and the tables of how long both took."""

from statistics import median

import d2lpar_charts as charts
import d2lpar_tables as tables
import matplotlib.pyplot as plt
from d2lpar_runs import beside_pytorch
from docutils import nodes

from d2lpar import use_style
from d2lpar._plain.format import prefix_of
from d2lpar._timeline.plot import WIDTH, device_color, format_log_axis

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
"""The rows by group: the words, then the name in the files for PyTorch and for JAX.

A single name serves both.
"""

MACHINES = {
    "h200": ("H200", {"marker": "D", "color": device_color("GPU 0")}),
    "two-cores": ("two EPYC cores", {"marker": "o", "color": device_color("CPU 0")}),
    "two-xeon-cores": ("two Xeon cores", {"marker": "s", "color": device_color("CPU 1")}),
}
"""The files in `evidence/`, with the machine's name and its mark in the figure."""


def times_of(data, names):
    """Return the times of PyTorch and of JAX, or None for a framework that has not run the work."""
    return data["seconds"]["PyTorch"].get(names[0]), data["seconds"]["JAX"].get(names[-1])


def ratios_of(data, names):
    """Return how many times as long PyTorch took: by the medians, then run by run."""
    torch, jax = times_of(data, names)
    if not torch or not jax:
        return None
    return [median(torch) / median(jax), *(a / b for a, b in zip(torch, jax, strict=True))]


def figure(app, docname, _):
    """Return a figure of how many times as long PyTorch took as JAX, machine by machine."""
    lines = [line for name, rows in GROUPS.items() for line in ((name,), *rows)]
    use_style()
    axes = plt.figure(figsize=(WIDTH, 0.75 + 0.245 * len(lines))).add_subplot()
    alt = []
    for place, (words, *names) in enumerate(lines):
        for number, (stem, (machine, look)) in enumerate(MACHINES.items()):
            if names and (ratios := ratios_of(beside_pytorch(app, stem), names)):
                middle, *by_run = ratios
                y = place + 0.24 * (number - 1)
                axes.plot([min(by_run), max(by_run)], [y, y], color=look["color"], linewidth=0.8)
                axes.plot(by_run, [y] * len(by_run), linestyle="", markersize=2.5, **look)
                axes.plot(middle, y, markersize=6.5, **look)
                alt.append(f"{words} {middle:.2g} on {machine}")
    for machine, look in MACHINES.values():
        axes.plot([], [], linestyle="", markersize=7, label=machine, **look)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(0.08, 14)
    format_log_axis(axes.xaxis, "")
    axes.set_xlabel("time of PyTorch / time of JAX")
    axes.set_yticks(range(len(lines)), [words for words, *_ in lines])
    for label, (_, *names) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_weight("normal" if names else "bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.text(0.9, 0, "← PyTorch faster", ha="right", va="center")
    axes.text(1.1, 0, "JAX faster →", va="center")
    axes.figure.legend(loc="outside upper center", ncols=len(MACHINES))
    caption = (
        "How many times as long PyTorch takes as JAX: left of the line PyTorch is faster, right of "
        "it JAX. Large marks are ratios of medians, small ones the three runs."
    )
    alt = f"Ratios of times, PyTorch to JAX: {'; '.join(alt)}"
    return charts.figure(app, docname, "ratios", alt, caption)


def table(app, docname, stem):
    """Return a machine's times as a table, below a line on the machine and the versions."""
    data = beside_pytorch(app, stem)
    rows = []
    for name, lines in GROUPS.items():
        measured = [line for line in lines if any(times_of(data, line[1:]))]
        rows += [name] * bool(measured) + [cells_of(data, *line) for line in measured]
    header = ("Work", "PyTorch", "JAX", "PyTorch / JAX (below 1: PyTorch is faster)")
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    steps = f"{data['training steps']} steps of training"
    line = f"{data['machine']}; {versions}; {data['date']}; {steps}."
    paragraph = nodes.paragraph(text=line, classes=["sd-text-muted"])
    return [paragraph, tables.table("peers", header, rows)]


def cells_of(data, words, *names):
    """Return a row of a table, with a dash for each missing number."""
    ratios = ratios_of(data, names)
    cells = [spread(times) if times else "\N{EN DASH}" for times in times_of(data, names)]
    return (words, *cells, digits(ratios[0], 2) if ratios else "\N{EN DASH}")


def spread(times):
    """Return the median of some seconds and the range of the others, in one unit."""
    scale, unit = prefix_of(median(times), "s")
    # Times are written in decimals, which a division by 1e-3 does not keep: 0.1435 s is 143.5 ms.
    low, middle, high = (digits(f(times) * round(1 / scale), 3) for f in (min, median, max))
    # The word joiner keeps the range on one line.
    return f"{middle}\N{NO-BREAK SPACE}{unit} ({low}\N{EN DASH}\N{WORD JOINER}{high})"


def digits(value, count):
    """Return a number with that many significant digits, and with all before the point."""
    return f"{value:.0f}" if value >= 10**count else f"{value:#.{count}g}".rstrip(".")
