"""State a sentence of the text in code, and check it."""

import math
import os
from dataclasses import dataclass

from d2lpar.book.notebook import VERDICT_COLOURS, show_in_notebook, verdict_box
from d2lpar.errors import ArgumentError, ClaimError
from d2lpar.quantity import Predicate
from d2lpar.units import format_value

MIME_TYPE = "application/vnd.d2lpar.claim+json"
"""The type under which a notebook keeps a claim for the status page."""

STRICT = "D2LPAR_STRICT"
"""The environment variable that makes a failed claim an error, for builds and tests."""

VERDICTS = {
    "holds": "holds here",
    "fails": "does not hold here",
    "inconclusive": "inconclusive here",
    "untestable": "cannot be tested here",
}
"""How each verdict reads."""


@dataclass(frozen=True)
class Claim:
    """A sentence, what was measured for it, and what must be true of that.

    Attributes:
        sentence: The sentence as it stands in the prose.
        predicates: Comparisons of measured quantities; all must hold.
        otherwise: The likely reason if it does not hold.
        needs: What this machine lacks to test it, or None.
        key: What evidence knows it by, however it is worded; empty if there is none.

    Raises:
        ArgumentError: If there is no sentence, or something other than a comparison is given.
    """

    sentence: str
    predicates: tuple[Predicate, ...] = ()
    otherwise: str = ""
    needs: str | None = None
    key: str = ""

    def __post_init__(self):
        if not isinstance(self.sentence, str) or not self.sentence.strip():
            raise ArgumentError(f"claim() needs the sentence it checks, found {self.sentence!r}.")
        for predicate in self.predicates:
            if not isinstance(predicate, Predicate):
                raise ArgumentError(
                    "claim() needs comparisons of quantities, such as ratio > 5, found "
                    f"{predicate!r}: without an interval nobody can say how sure it is. Measure "
                    "with compare(), use counted() for a count, and q.between(3, 3) for an "
                    "equality."
                )
        if not self.predicates and not self.needs:
            raise ArgumentError(
                f"The claim {self.sentence!r} has nothing to check: give a comparison."
            )

    @property
    def verdict(self) -> str:
        """`"holds"`, `"fails"`, `"inconclusive"`, or `"untestable"`."""
        if self.needs:
            return "untestable"
        verdicts = {predicate.verdict for predicate in self.predicates}
        return next(v for v in ("fails", "inconclusive", "holds") if v in verdicts)

    @property
    def detail(self) -> str:
        """What a reader should know beside the verdict; empty where nothing is to be said."""
        match self.verdict:
            case "fails":
                return self.otherwise
            case "inconclusive":
                return self._doubt
            case "untestable":
                return f"needs {self.needs}"
        return ""

    @property
    def _doubt(self) -> str:
        ends = (e for p in self.predicates for e in (*p.quantity.interval, p.low, p.high))
        if any(map(math.isinf, ends)):
            return "too few samples for an interval"
        unsure = next(p for p in self.predicates if p.verdict == "inconclusive")
        counted = unsure.quantity.exact  # Then it is the bound that nobody is sure of.
        ends = (unsure.low, unsure.high) if counted else unsure.quantity.interval
        low, high = (format_value(end, unsure.quantity.unit) for end in ends)
        return f"the interval, {low} to {high}, reaches over the bound"

    def as_dict(self) -> dict:
        """Return the claim as plain data, for JSON; the verdict is there to be read."""
        return {
            "sentence": self.sentence,
            "verdict": self.verdict,
            "predicates": [predicate.as_dict() for predicate in self.predicates],
            "otherwise": self.otherwise,
            "needs": self.needs,
            "key": self.key,
        }

    @classmethod
    def from_dict(cls, data: dict) -> "Claim":
        """Return the claim that `as_dict` has described.

        Raises:
            ArgumentError: If the verdict is not the one that follows from the samples.
        """
        predicates = tuple(map(Predicate.from_dict, data["predicates"]))
        key = data.get("key", "")  # Files of before 0.2 have none.
        made = cls(data["sentence"], predicates, data["otherwise"], data["needs"], key)
        if made.verdict != data["verdict"]:
            raise ArgumentError(
                f"The claim {made.sentence!r} is said to be {data['verdict']!r}, but from its "
                f"samples follows {made.verdict!r}: they were not written together."
            )
        return made

    def __str__(self):
        detail = f": {self.detail}" if self.detail else ""
        lines = [f"Claim: {self.sentence}", f"  {VERDICTS[self.verdict]}{detail}"]
        return "\n".join(lines + [f"    {predicate}" for predicate in self.predicates])

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": str(self), "text/html": self._html(), MIME_TYPE: self.as_dict()}

    def _html(self) -> str:
        lines = [str(predicate) for predicate in self.predicates]
        words, colour = VERDICTS[self.verdict], VERDICT_COLOURS[self.verdict]
        return verdict_box("claim", self.verdict, self.sentence, words, colour, self.detail, lines)


def claim(
    sentence: str,
    *predicates: Predicate,
    otherwise: str = "",
    needs: str | None = None,
    key: str = "",
) -> None:
    """Show a sentence of the text with its verdict on this machine.

    For a reader a claim that fails is a visible answer, and the notebook goes on. Where the
    environment variable `D2LPAR_STRICT` is `1`, as in the book build and the tests, it is an
    error.

    Args:
        sentence: The sentence as it stands in the prose.
        *predicates: Comparisons of measured quantities, such as `ratio > 5`; all must hold.
        otherwise: The likely reason if it does not hold.
        needs: What this machine lacks to test it, such as `"a GPU"`; None if it can be tested.
        key: What evidence knows it by, however it is worded, such as `"fork-speed-up"`.

    Raises:
        ArgumentError: If there is no sentence, or something other than a comparison is given.
        ClaimError: In strict mode, if the claim does not hold.

    Example:
        >>> from d2lpar.quantity import counted
        >>> claim("Three is less than four.", counted("three", 3) < 4)
        Claim: Three is less than four.
          holds here
            three: 3; claimed: < 4
    """
    made = Claim(sentence, predicates, otherwise, needs, key)
    if not show_in_notebook(made):
        print(made)
    if made.verdict == "fails" and os.environ.get(STRICT, "0") not in ("", "0"):
        raise ClaimError(str(made))
