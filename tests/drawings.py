"""Read the texts and the legend of a figure from its axes."""

import io

import matplotlib
import matplotlib.pyplot as plt

from d2lpar import use_style


def style_of_the_book():
    """Draw in the book's style, on a backend without a screen, and close everything afterwards."""
    with matplotlib.rc_context():
        matplotlib.use("agg")
        use_style()
        yield
    plt.close("all")


def svg(axes):
    file = io.StringIO()
    axes.figure.savefig(file, format="svg")
    return file.getvalue()


def texts(axes):
    return [text.get_text() for text in axes.texts]


def legend(axes):
    (box,) = axes.figure.legends or [axes.get_legend()]
    return [text.get_text() for text in box.get_texts()]
