"""What a check has found: accepted, not yet, or not to be seen on this machine."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from d2lpar._errors import D2lparError
from d2lpar.book.exercises.answers import (
    Rejection,
)
from d2lpar.book.notebook import VERDICT_COLORS, verdict_box

MIME_TYPE = "application/vnd.d2lpar.exercise+json"
"""The type under which a notebook keeps a report for the tests."""

_VERDICTS = {
    "accepted": ("accepted", VERDICT_COLORS["holds"]),
    "not yet": ("not yet", VERDICT_COLORS["inconclusive"]),
    "untestable": ("cannot be checked here", VERDICT_COLORS["untestable"]),
}


@dataclass(frozen=True, repr=False)
class Report:
    """What a check has found.

    Attributes:
        exercise: Such as `"X2"`.
        verdict: `"accepted"`, `"not yet"`, or `"untestable"` where this machine cannot tell.
        saw: What the check saw the answer do.
        look: Where to look; empty if it is accepted.
    """

    exercise: str
    verdict: str
    saw: str
    look: str = ""

    def __repr__(self):
        head = f"Exercise {self.exercise}: {_VERDICTS[self.verdict][0]}"
        return "\n  ".join(filter(None, (head, self.saw, self.look)))

    def _repr_mimebundle_(self, include=None, exclude=None):
        words, color = _VERDICTS[self.verdict]
        title, lines = f"Exercise {self.exercise}", [self.look] if self.look else []
        box = verdict_box("exercise", self.verdict, title, words, color, self.saw, lines)
        return {
            "text/plain": repr(self),
            "text/html": box,
            MIME_TYPE: {"exercise": self.exercise, "verdict": self.verdict, "saw": self.saw},
        }


class Untestable(Exception):
    """This machine cannot show what the check looks for."""


def exercise(name: str):
    """Let a check return what it saw, or say by an exception what is wrong with the answer."""

    def decorate(check: Callable[..., str]) -> Callable[..., Report]:
        @functools.wraps(check)
        def checked(*args, **kwargs) -> Report:
            try:
                return Report(name, "accepted", check(*args, **kwargs))
            except Rejection as rejection:
                return Report(name, "not yet", rejection.saw, rejection.look)
            except (Untestable, D2lparError) as missing:
                return Report(name, "untestable", str(missing))

        return checked

    return decorate
