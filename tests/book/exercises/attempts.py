"""Test the checks of a chapter with right and wrong answers.

A chapter's test keeps its answers in two tables: the right ones as `{check: {name: answer}}`, the
wrong ones as `{check: {name: (answer, message)}}`, where the message is a regular expression. If an
exercise asks for two functions, its answer is a tuple of two.
"""

import re

import pytest


def both_tests(right, wrong):
    """Return two tests: each right answer is accepted, each wrong one gets its own message."""

    @pytest.mark.parametrize(("check", "name"), _named(right))
    def accepts(check, name):
        report = _report_on(check, right[check][name])
        assert (report.verdict, report.look) == ("accepted", ""), report
        assert report.saw.endswith(".")

    @pytest.mark.parametrize(("check", "name"), _named(wrong))
    def tells(check, name):
        answer, message = wrong[check][name]
        report = _report_on(check, answer)
        assert report.verdict == "not yet", report
        assert report.look.endswith((".", "?"))
        text = f"{report.saw}\n  {report.look}"
        told = {other for _, other in wrong[check].values() if re.search(other, text)}
        assert told == {message}, report

    return accepts, tells


def _named(table):
    return [
        pytest.param(check, name, id=f"{check.__name__}-{name}")
        for check, answers in table.items()
        for name in answers
    ]


def _report_on(check, answer):
    return check(*answer) if isinstance(answer, tuple) else check(answer)


def consuming(answer):
    """Return an answer that empties the lists in its arguments."""

    def my_answer(*args):
        result = answer(*args)
        for arg in args:
            if isinstance(arg, list):
                arg.clear()
        return result

    return my_answer
