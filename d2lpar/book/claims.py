"""Show a sentence of the text with its measured numbers, and check it."""

import functools
import math
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass, field

from d2lpar._measure.quantity import Predicate, Quantity, exact, quantities_table
from d2lpar._plain.format import format_value
from d2lpar.book.notebook import badge, show_in_notebook, with_code, words_for
from d2lpar.book.recorded import PAGE, Recorded, claims_recorded

MIME_TYPE = "application/vnd.d2lpar.claim+json"
"""The MIME type of a claim among a notebook's outputs, for the page with the evidence."""

STRICT = "D2LPAR_STRICT"
"""The environment variable that makes a failed claim an error, for builds and tests."""


@dataclass(frozen=True)
class Claim:
    """A sentence with the measurements that it states and the comparisons that test it.

    Its attributes are the arguments of `claim`; each of the `numbers` is a quantity.
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
                    f"{predicate!r}: without an interval it has no certainty. Measure with "
                    "compare(), use exact() for a count, and q.between(3, 3) for an equality."
                )
        if not self.predicates and not self.needs:
            raise ValueError(
                f"The claim {self.sentence!r} has nothing to check: give a comparison."
            )
        places = _places_in(self.sentence)
        missing = ", ".join(sorted(places - self.numbers.keys()))
        if missing and not self.needs:
            raise ValueError(
                f"The claim {self.sentence!r} has places without a number, {missing}: pass each "
                "by its name, claim(..., gain=ratio)."
            )
        if left_over := ", ".join(sorted(self.numbers.keys() - places)):
            raise ValueError(
                f"The claim {self.sentence!r} has no place for {left_over}: write the name in "
                "braces where the number belongs."
            )

    @property
    def text(self) -> str:
        """The sentence with the measured numbers in it.

        If this machine cannot test the claim, the numbers are from a machine that could. If no
        machine has measured it, the text says so.
        """
        if not self.needs:
            return self.sentence.format_map(self.numbers)
        # Numbers from here would be misleading: they were measured without that condition.
        if self._elsewhere:
            return self._elsewhere[0][1].text
        if not _places_in(self.sentence):
            return self.sentence.format()
        return f"Not measured here: this needs {self.needs}."

    @property
    def verdict(self) -> str:
        """`"holds"`, `"seen"`, `"fails"`, `"inconclusive"`, or `"untestable"`."""
        if self.needs:
            return "untestable"
        verdicts = {predicate.verdict for predicate in self.predicates}
        return next(v for v in ("fails", "inconclusive", "seen", "holds") if v in verdicts)

    @property
    def detail(self) -> str:
        """The explanation that follows the verdict; empty if the verdict needs none."""
        match self.verdict:
            case "fails":
                return self.otherwise
            case "inconclusive":
                return self._doubt
            case "untestable":
                needs = f"needs {self.needs}"
                if not self._elsewhere:
                    return needs
                record, claim = self._elsewhere[0]
                verdict = words_for(claim.verdict, "there")
                return f"{needs}; the numbers are those of {record.machine} ({verdict})"
        return ""

    @property
    def anchor(self) -> str:
        """The id of the claim's HTML element."""
        return f"claim-{self.key}"

    @property
    def _bound(self) -> str:
        """The tested bound, in the format that the sentence has for its number.

        Empty if several measured numbers are tested: the reader could not tell which one a single
        bound belongs to.
        """
        if self.needs:
            return ""
        measured = [p for p in self.predicates if not p.quantity.exact]
        for _, place, spec, _ in string.Formatter().parse(self.sentence):
            if place and [p.quantity.samples for p in measured] == [self.numbers[place].samples]:
                return f"tested: {measured[0].describe(percent=spec == '%')}"
        return ""

    @functools.cached_property
    def _elsewhere(self) -> list[tuple[Recorded, "Claim"]]:
        """The claim as each machine has recorded it, in the words of that day, newest first."""
        records = ((record, Claim.from_dict(record.claim)) for record in claims_recorded(self.key))
        return [(record, claim) for record, claim in records if not claim.needs]

    def _age(self, recorded: "Claim") -> str:
        return "" if recorded.sentence == self.sentence else ", in an earlier version of this page"

    @property
    def _doubt(self) -> str:
        """The reason why the verdict is inconclusive."""
        ends = (e for p in self.predicates for e in (*p.quantity.interval, p.low, p.high))
        if any(map(math.isinf, ends)):
            return "too few samples for an interval"
        unsure = next(p for p in self.predicates if p.verdict == "inconclusive")
        # A count has no spread, so the bound must be a measured interval.
        ends = (unsure.low, unsure.high) if unsure.quantity.exact else unsure.quantity.interval
        low, high = (format_value(end, unsure.quantity.unit) for end in ends)
        subject = "" if unsure.quantity.exact else f"{unsure.quantity.name}: "
        return f"{subject}the interval, {low} to {high}, reaches over the bound"

    def as_dict(self) -> dict:
        """Return the claim as plain data, for JSON, with its verdict for readers of the file."""
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
        numbers = {name: Quantity(**number) for name, number in data["numbers"].items()}
        others = (data[name] for name in ("otherwise", "needs", "key"))
        claim = cls(data["sentence"], predicates, *others, numbers)
        if claim.verdict != data["verdict"]:
            raise ValueError(
                f"The claim {claim.sentence!r} has the verdict {data['verdict']!r}, but its "
                f"samples give {claim.verdict!r}: the two were not written together."
            )
        return claim

    def __str__(self):
        detail = f": {self.detail}" if self.detail else ""
        lines = [f"Claim: {self.text}", f"  {words_for(self.verdict)}{detail}"]
        return "\n".join(lines + [f"    {predicate}" for predicate in self.predicates])

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": str(self), "text/html": self._html(), MIME_TYPE: self.as_dict()}

    @property
    def rows(self) -> list[Quantity]:
        """The rows of the claim's table: tested quantities, then the other measured numbers."""
        rows = [predicate.quantity for predicate in self.predicates]
        if not self.needs:
            tested = {row.samples for row in rows}
            measured = (number for number in self.numbers.values() if not number.exact)
            rows += (number for number in measured if number.samples not in tested)
        return rows

    def _html(self) -> str:
        """Return a headline, with a table and remarks to unfold if there are predicates.

        The headline has the verdict of this machine, or of the newest record if the claim cannot be
        tested here. A remark is about a GPU that has recorded the claim, or about all records.
        """
        text, tested, where, detail, remarks = self.text, self, "here", self.detail, []
        if not self.needs:
            for record, claim in self._elsewhere:
                if record.has_gpu:
                    machine = f"{record.machine}, JAX {record.jax}{self._age(claim)}"
                    result = f"{claim.text} ({words_for(claim.verdict, 'there')})"
                    remarks.append(with_code(f"On {machine}: {result}"))
        elif self._elsewhere:
            record, tested = self._elsewhere[0]
            text, where = f"On {record.machine}{self._age(tested)}: {self.text}", "there"
            detail = f"Testing it here needs {self.needs}"
            link = f'<a href="{PAGE}">Every claim on every machine</a>.'
            # The link may not be in the headline of a table, where a click unfolds.
            remarks = [f"The table is of this machine. {link}" if self.predicates else link]
        elif _places_in(self.sentence):
            detail = ""  # The text, which stands for the sentence, names what is needed.
        headline = f"{with_code(text)} {badge(tested.verdict, where)}"
        if self._bound:
            style = "font-size:0.75em;opacity:0.8;white-space:nowrap"
            headline += f' <span style="{style}">{with_code(self._bound)}</span>'
        if detail:
            headline += f" {with_code(detail)}."
        attributes = f'class="d2lpar-claim" data-verdict="{self.verdict}" style="margin:0.8em 0"'
        attributes += f' id="{self.anchor}"' if self.key else ""
        if not self.predicates:
            return f"<p {attributes}>{' '.join([headline, *remarks])}</p>"
        summary = f'<summary style="cursor:pointer;display:block">{headline}</summary>'
        table = quantities_table(self.rows, self.predicates)
        small = "".join(f'<p style="margin:0.3em 0;font-size:0.9em">{line}</p>' for line in remarks)
        return f"<details {attributes}>{summary}{table}{small}</details>"


def _places_in(sentence: str) -> set[str]:
    try:
        parts = list(string.Formatter().parse(sentence))
    except ValueError as error:
        raise ValueError(
            f"The claim {sentence!r} has a brace too many or too few: {error}. Double each brace "
            "that belongs to the text."
        ) from error
    return {name for _, name, _, _ in parts if name is not None}


def claim(
    sentence: str,
    *predicates: Predicate,
    otherwise: str = "",
    needs: str | None = None,
    key: str = "",
    **numbers: Quantity | float,
) -> None:
    """Show a sentence of the text, with its measured numbers and its verdict on this machine.

    A claim that fails is shown as failing, and the notebook goes on. If the environment variable
    `D2LPAR_STRICT` is `1`, as in the book build and the tests, a failing claim is an error.

    Args:
        sentence: The sentence, with a place in braces for each number: `"{gain} times as fast"`,
            `"{share:%} of the time"`, or as Python formats numbers, `"{gain:.2f}"`.
        *predicates: Comparisons of measured quantities, such as `ratio > 5`; all must hold.
        otherwise: The likely reason if it does not hold.
        needs: The condition that this machine does not meet, such as `"a GPU"`; None if it can test
            the claim.
        key: The id of the claim in all evidence, such as `"fork-speed-up"`; stays when the wording
            changes.
        **numbers: A number for each place, or a quantity, whose median is shown.

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
    quantities = {
        name: number if isinstance(number, Quantity) else exact(name, number)
        for name, number in numbers.items()
    }
    shown = Claim(sentence, predicates, otherwise, needs, key, quantities)
    named: dict[str, Quantity] = {}
    for row in shown.rows:
        if named.setdefault(row.name, row).samples != row.samples:
            raise ValueError(
                f"The claim {sentence!r} has two quantities named {row.name!r}, which its table "
                "could not tell apart: rename() one of them."
            )
    if not show_in_notebook(shown):
        print(shown)
    if shown.verdict == "fails" and os.environ.get(STRICT, "0") not in ("", "0"):
        raise AssertionError(str(shown))
