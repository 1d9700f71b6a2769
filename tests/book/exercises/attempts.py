"""What every check must say of a right answer, of a wrong one, and of none.

A test of a chapter keeps its answers in tables, `{check: {name: answer}}`, with what is to be said
of the wrong ones. An exercise that asks for two functions has a tuple of two as its answer.
"""

import re

import jax
import numpy as np
import pytest


def named(table):
    """List check and name of each answer in a table, for `parametrize`."""
    return [
        pytest.param(check, name, id=f"{check.__name__}-{name}")
        for check, answers in table.items()
        for name in answers
    ]


def report_on(check, answer):
    return check(*answer) if isinstance(answer, tuple) else check(answer)


def require_accepted(report):
    assert report.verdict == "accepted", report
    assert report.look == ""
    assert report.saw.endswith(".")


def require_not_yet(report, phrase):
    assert report.verdict == "not yet", report
    assert re.search(phrase, said(report)), report
    assert report.look.endswith((".", "?"))


def require_told(check, name, wrong):
    """Ask that a wrong answer is told what the table says, and nothing that it says of others."""
    answer, phrase = wrong[name]
    report = report_on(check, answer)
    require_not_yet(report, phrase)
    assert {other for _, other in wrong.values() if re.search(other, said(report))} == {phrase}


def both_tests(right, wrong):
    """Return two tests: that each right answer of a chapter is accepted, and no wrong one is."""

    @pytest.mark.parametrize(("check", "name"), named(right))
    def accepts(check, name):
        require_accepted(report_on(check, right[check][name]))

    @pytest.mark.parametrize(("check", "name"), named(wrong))
    def tells(check, name):
        require_told(check, name, wrong[check])

    return accepts, tells


def said(report):
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
