"""What every check must say of a right answer, of a wrong one, and of none."""

import re

import jax
import numpy as np

from d2lpar.book.exercises import Report


def require_accepted(report: Report) -> None:
    assert report.verdict == "accepted", report
    assert report.look == ""
    assert report.saw.endswith(".")


def require_not_yet(report: Report, phrase: str = "") -> None:
    assert report.verdict == "not yet", report
    assert re.search(phrase, said(report)), report
    assert report.look.endswith((".", "?"))


def require_told(report: Report, name: str, wrong: dict) -> None:
    """Ask that a wrong answer is told what is said of it, and what is said of no other."""
    require_not_yet(report)
    told = [other for other, (_, phrase) in wrong.items() if re.search(phrase, said(report))]
    assert told == [name], report


def said(report: Report) -> str:
    return f"{report.saw}\n  {report.look}"


def consuming(answer):
    """Return an answer that leaves nothing of the lists that it is given."""

    def my_answer(*args):
        found = answer(*args)
        for arg in args:
            if isinstance(arg, list):
                arg.clear()
        return found

    return my_answer


def to_numpy(answer):
    def converting(*args):
        return jax.tree.map(np.asarray, answer(*args))

    return converting
