"""Read the text that a figure shows from its axes."""

import contextlib
import io

import matplotlib
import matplotlib.pyplot as plt

from d2lpar import use_style


@contextlib.contextmanager
def style_of_the_book():
    """Draw in the book's style, on a backend without a screen, and close all figures at the end."""
    with matplotlib.rc_context():
        matplotlib.use("agg")
        use_style()
        yield
    plt.close("all")


def svg(axes):
    """Return the figure as SVG, the format of the book."""
    file = io.StringIO()
    axes.figure.savefig(file, format="svg")
    return file.getvalue()


def texts(axes):
    return [text.get_text() for text in axes.texts]


def legend(axes):
    """Return the labels of the legend, which belongs to the figure or to the axes."""
    (drawn,) = axes.figure.legends or [axes.get_legend()]
    return [text.get_text() for text in drawn.get_texts()]
