"""State a sentence of the text with its measured numbers in it, and check it."""

import math
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass, field

from d2lpar._format import format_value
from d2lpar._quantity import Predicate, Quantity, exact, quantities_table
from d2lpar.book.notebook import VERDICT_COLORS, show_in_notebook, with_code

MIME_TYPE = "application/vnd.d2lpar.claim+json"
"""The type under which a notebook keeps a claim for the status page."""

STRICT = "D2LPAR_STRICT"
"""The environment variable that makes a failed claim an error, for builds and tests."""

VERDICTS = {
    "holds": "holds here",
    "seen": "seen here",
    "fails": "does not hold here",
    "inconclusive": "inconclusive here",
    "untestable": "cannot be tested here",
}
"""How each verdict reads."""

UNKNOWN = "…"
"""What stands for a number that this machine cannot measure."""


@dataclass(frozen=True)
class Claim:
    """A sentence, what was measured for it, and what must be true of that, as `claim` takes them.

    Attributes:
        sentence: The sentence, with a place in braces for each number, such as `"{gain}"`.
        predicates: Comparisons of measured quantities; all must hold.
        otherwise: The likely reason if it does not hold.
        needs: What this machine lacks to test it, or None.
        key: What evidence knows it by, however it is worded; empty if there is none.
        numbers: What stands in each place.
    """

    sentence: str
    predicates: tuple[Predicate, ...] = ()
    otherwise: str = ""
    needs: str | None = None
    key: str = ""
    numbers: Mapping[str, Quantity] = field(default_factory=dict)

    def __post_init__(self):
        if not isinstance(self.sentence, str) or not self.sentence.strip():
            raise ValueError(f"claim() needs the sentence it checks, found {self.sentence!r}.")
        for predicate in self.predicates:
            if not isinstance(predicate, Predicate):
                raise ValueError(
                    "claim() needs comparisons of quantities, such as ratio > 5, found "
                    f"{predicate!r}: without an interval nobody can say how sure it is. Measure "
                    "with compare(), use exact() for a count, and q.between(3, 3) for an "
                    "equality."
                )
        if not self.predicates and not self.needs:
            raise ValueError(
                f"The claim {self.sentence!r} has nothing to check: give a comparison."
            )
        places = _places_in(self.sentence)
        if places - self.numbers.keys() and not self.needs:
            raise ValueError(
                f"The claim {self.sentence!r} has places without a number, "
                f"{_listed(places - self.numbers.keys())}: pass each by its name, "
                "claim(..., gain=ratio)."
            )
        if left_over := self.numbers.keys() - places:
            raise ValueError(
                f"The claim {self.sentence!r} has no place for {_listed(left_over)}: write the "
                "name in braces where the number belongs."
            )

    @property
    def text(self) -> str:
        """The sentence with the measured numbers in it."""
        if self.needs:  # What was measured without it is not what the sentence is about.
            parts = string.Formatter().parse(self.sentence)
            return "".join(said + ("" if name is None else UNKNOWN) for said, name, _, _ in parts)
        return self.sentence.format_map(self.numbers)

    @property
    def verdict(self) -> str:
        """`"holds"`, `"seen"`, `"fails"`, `"inconclusive"`, or `"untestable"`."""
        if self.needs:
            return "untestable"
        verdicts = {predicate.verdict for predicate in self.predicates}
        return next(v for v in ("fails", "inconclusive", "seen", "holds") if v in verdicts)

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
        exact = unsure.quantity.exact  # Then it is the bound that nobody is sure of.
        ends = (unsure.low, unsure.high) if exact else unsure.quantity.interval
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
            "numbers": {name: number.as_dict() for name, number in self.numbers.items()},
        }

    @classmethod
    def from_dict(cls, data: dict) -> "Claim":
        """Return the claim that `as_dict` has described.

        Raises:
            ValueError: If the verdict is not the one that follows from the samples.
        """
        predicates = tuple(map(Predicate.from_dict, data["predicates"]))
        key, numbers = data.get("key", ""), data.get("numbers", {})  # Older files have none.
        numbers = {name: Quantity(**number) for name, number in numbers.items()}
        made = cls(data["sentence"], predicates, data["otherwise"], data["needs"], key, numbers)
        if made.verdict != data["verdict"]:
            raise ValueError(
                f"The claim {made.sentence!r} is said to be {data['verdict']!r}, but from its "
                f"samples follows {made.verdict!r}: they were not written together."
            )
        return made

    def __str__(self):
        detail = f": {self.detail}" if self.detail else ""
        lines = [f"Claim: {self.text}", f"  {VERDICTS[self.verdict]}{detail}"]
        return "\n".join(lines + [f"    {predicate}" for predicate in self.predicates])

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": str(self), "text/html": self._html(), MIME_TYPE: self.as_dict()}

    def _html(self) -> str:
        words, color = VERDICTS[self.verdict], VERDICT_COLORS[self.verdict]
        behind = f" {with_code(self.detail)}." if self.detail else ""
        # Inline, because Colab keeps an output's own styles and nothing else.
        sentence = (
            f"{with_code(self.text)} "
            f'<span class="d2lpar-verdict" style="background:{color};border-radius:0.25em;'
            "color:white;font-size:0.75em;padding:0.1em 0.4em;white-space:nowrap;"
            f'vertical-align:0.1em">{words}</span>{behind}'
        )
        of = f'class="d2lpar-claim" data-verdict="{self.verdict}" style="margin:0.8em 0"'
        if not self.predicates:  # Nothing to unfold.
            return f"<p {of}>{sentence}</p>"
        bounds = [predicate.describe() for predicate in self.predicates]
        measured = quantities_table([p.quantity for p in self.predicates], bounds)
        summary = f'<summary style="cursor:pointer;display:block">{sentence}</summary>'
        return f"<details {of}>{summary}{measured}</details>"


def _places_in(sentence: str) -> set[str]:
    try:
        parts = list(string.Formatter().parse(sentence))
    except ValueError as error:
        raise ValueError(
            f"The claim {sentence!r} has a brace too many or too few: {error}. Double those that "
            "stand for themselves."
        ) from error
    return {name for _, name, _, _ in parts if name is not None}


def _listed(names) -> str:
    return ", ".join(sorted(names))


def claim(
    sentence: str,
    *predicates: Predicate,
    otherwise: str = "",
    needs: str | None = None,
    key: str = "",
    **numbers: Quantity | float,
) -> None:
    """Show a sentence of the text, with its measured numbers in it and its verdict here.

    For a reader a claim that fails is a visible answer, and the notebook goes on. Where the
    environment variable `D2LPAR_STRICT` is `1`, as in the book build and the tests, it is an
    error.

    Args:
        sentence: The sentence, with a place in braces for each number: `"{gain} times as fast"`,
            `"{share:%} of the time"`, or as Python formats numbers, `"{gain:.2f}"`.
        *predicates: Comparisons of measured quantities, such as `ratio > 5`; all must hold.
        otherwise: The likely reason if it does not hold.
        needs: What this machine lacks to test it, such as `"a GPU"`; None if it can be tested.
        key: What evidence knows it by, however it is worded, such as `"fork-speed-up"`.
        **numbers: What stands in each place: quantities, of which the median is said, or numbers.

    Raises:
        ValueError: If there is no sentence, something other than a comparison is given, or a
            place has no number or a number no place.
        AssertionError: In strict mode, if the claim does not hold.

    Example:
        >>> from d2lpar._quantity import exact
        >>> calls = exact("calls", 3)
        >>> claim("It takes {calls} calls.", calls < 4, calls=calls)
        Claim: It takes 3 calls.
          holds here
            calls: 3; claimed: < 4
    """
    known = {
        name: number if isinstance(number, Quantity) else exact(name, number)
        for name, number in numbers.items()
    }
    made = Claim(sentence, predicates, otherwise, needs, key, known)
    if not show_in_notebook(made):
        print(made)
    if made.verdict == "fails" and os.environ.get(STRICT, "0") not in ("", "0"):
        raise AssertionError(str(made))
