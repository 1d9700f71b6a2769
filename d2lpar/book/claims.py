"""State a sentence of the text with its measured numbers in it, and check it."""

import functools
import math
import os
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from d2lpar._measure.quantity import Predicate, Quantity, exact, quantities_table
from d2lpar._plain.format import format_value
from d2lpar.book.notebook import VERDICT_COLORS, badge, show_in_notebook, with_code
from d2lpar.book.recorded import PAGE, claims_recorded

MIME_TYPE = "application/vnd.d2lpar.claim+json"
"""The type under which a notebook keeps a claim for the page with the evidence."""

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
        """The sentence with the measured numbers in it.

        If this machine cannot test it, they are those of one that could; if there is none, the
        text says that.
        """
        if not self.needs:
            return self.sentence.format_map(self.numbers)
        # What was measured here without it is not what the sentence is about.
        if known := self._elsewhere:
            return known[0].claim.text
        if not _places_in(self.sentence):
            return self.sentence.format()
        return f"Not yet measured: this needs {self.needs}."

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
                needs = f"needs {self.needs}"
                if not (known := self._elsewhere):
                    return needs
                return f"{needs}; the numbers are those of {known[0].machine} ({known[0].verdict})"
        return ""

    @property
    def anchor(self) -> str:
        """The id of its sentence on a page."""
        return f"claim-{self.key}"

    @property
    def _tested(self) -> str:
        """The bound of the one number that is tested, written as the sentence says it.

        Where several are, a bound beside a sentence does not say which number it is of.
        """
        measured = [p for p in self.predicates if not p.quantity.exact]
        for _, place, spec, _ in string.Formatter().parse(self.sentence):
            if place and [p.quantity.samples for p in measured] == [self.numbers[place].samples]:
                return f"tested: {measured[0].describe(percent=spec == '%')}"
        return ""

    @functools.cached_property
    def _elsewhere(self) -> list["_Elsewhere"]:
        """This sentence with the numbers of each machine that has recorded them, newest first.

        A sentence may have changed since, but for its key: a record counts if it has a number for
        each place of today's, and if those that are written out are the same.
        """
        places, found = _places_in(self.sentence), []
        for machine, has_gpu, jax, data in claims_recorded(self.key):
            there = Claim.from_dict(data)
            same = _written_out(there.sentence) == _written_out(self.sentence)
            if not there.needs and same and places <= there.numbers.keys():
                numbers = {place: there.numbers[place] for place in places}
                there = replace(there, sentence=self.sentence, numbers=numbers)
                found.append(_Elsewhere(machine, has_gpu, jax, there))
        return found

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

    @property
    def rows(self) -> list[Quantity]:
        """The rows of its table, what is tested first, then what the sentence says beside that."""
        rows = [predicate.quantity for predicate in self.predicates]
        if not self.needs:
            tested = {row.samples for row in rows}
            said = (number for number in self.numbers.values() if not number.exact)
            rows += (number for number in said if number.samples not in tested)
        return rows

    def _html(self) -> str:
        known = self._elsewhere
        link = f'<a href="{PAGE}">Every claim on every machine</a>.' if self.needs and known else ""
        words, color, behind = VERDICTS[self.verdict], VERDICT_COLORS[self.verdict], self.detail
        if self.needs and known:
            words, color = known[0].badge, VERDICT_COLORS[known[0].claim.verdict]
            behind = f"Testing it here needs {self.needs}"
        elif self.needs and _places_in(self.sentence):
            behind = ""  # The text says it.
        shown = f"{with_code(self.text)} {badge(words, color)}"
        if not self.needs and (bound := self._tested):
            style = "font-size:0.75em;opacity:0.8;white-space:nowrap"
            shown += f' <span style="{style}">{with_code(bound)}</span>'
        shown += f" {with_code(behind)}." if behind else ""
        of = f'class="d2lpar-claim" data-verdict="{self.verdict}" style="margin:0.8em 0"'
        of += f' id="{self.anchor}"' if self.key else ""
        if not self.predicates:  # Nothing to unfold.
            return f"<p {of}>{shown} {link}".rstrip() + "</p>"
        measured = quantities_table(self.rows, self.predicates)
        if link:  # Not in the summary, where a click unfolds.
            below = [f"The table is of this machine. {link}"]
        else:
            below = [with_code(there.line) for there in known if there.has_gpu and not self.needs]
        remarks = "".join(f'<p style="margin:0.3em 0;font-size:0.9em">{line}</p>' for line in below)
        summary = f'<summary style="cursor:pointer;display:block">{shown}</summary>'
        return f"<details {of}>{summary}{measured}{remarks}</details>"


class _Elsewhere(NamedTuple):
    """A claim with the numbers of another machine."""

    machine: str
    has_gpu: bool
    jax: str
    claim: Claim

    @property
    def verdict(self) -> str:
        """How its verdict reads behind the name of the machine."""
        return VERDICTS[self.claim.verdict].replace("here", "there")

    @property
    def badge(self) -> str:
        """How it reads with the name in it."""
        return VERDICTS[self.claim.verdict].replace("here", f"on {self.machine}")

    @property
    def line(self) -> str:
        """What the machine has to say beside what this one says."""
        return f"On {self.machine}, JAX {self.jax}: {self.claim.text} ({self.verdict})"


def _written_out(sentence: str) -> list[str]:
    """Return the numbers that stand in a sentence itself."""
    said = " ".join(said for said, *_ in string.Formatter().parse(sentence))
    return re.findall(r"\d+", said)


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
        ValueError: If there is no sentence, something other than a comparison is given, a place
            has no number or a number no place, or two quantities have one name.
        AssertionError: In strict mode, if the claim does not hold.

    Example:
        >>> from d2lpar._measure.quantity import exact
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
    named: dict[str, Quantity] = {}
    for row in made.rows:
        if named.setdefault(row.name, row).samples != row.samples:
            raise ValueError(
                f"The claim {sentence!r} has two quantities of the name {row.name!r}, which nobody "
                "could tell apart in its table: rename() one of them."
            )
    if not show_in_notebook(made):
        print(made)
    if made.verdict == "fails" and os.environ.get(STRICT, "0") not in ("", "0"):
        raise AssertionError(str(made))
