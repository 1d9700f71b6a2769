"""The report of `watch`: the lines that lose time, advice for each, and intervals."""

import html
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields

from d2lpar._jax.stack import Place
from d2lpar._plain.format import HOST, as_table, format_seconds, in_two_lines, plural, share_bar
from d2lpar._watch.recompilations import ADVICE

_BOOK = "https://d2lpar.github.io/d2lpar/book"
_CHAPTER = f"{_BOOK}/asynchronous-computation.html"
_RECIPES = f"{_BOOK}/in-your-own-code.html"
_PREFETCH = f"{_RECIPES}#a-value-that-decides-what-comes-next"

KINDS = {
    "value": (
        "waits for a value",
        "Keep the array, and read it a few steps later, when it is ready.",
        f"{_RECIPES}#a-loss-that-you-want-to-see",
    ),
    "barrier": (
        "waits at a barrier",
        "Remove it, unless you stop a clock here. To bound memory, d2lpar.InFlight waits less.",
        f"{_CHAPTER}#barriers-and-blockers",
    ),
    "compilation": (
        "compiles again",
        "Keep shapes and dtypes the same from step to step, and call jax.jit once, not in a loop.",
        f"{_RECIPES}#an-evaluation-between-two-epochs",
    ),
    "device idle": (
        "keeps the device idle",
        "Do this ahead of time, in a thread; or do not wait for the device in each iteration, so "
        "that it has work meanwhile.",
        _PREFETCH,
    ),
    "input": (
        "waits for a file, a pipe, the network, or a timer",
        "Read ahead of time, in a thread. If this waits for requests, nothing is wrong: "
        "`with d2lpar.waits_allowed():` around it excepts the line from --fail-over.",
        _PREFETCH,
    ),
    "host wait": (
        "waits for another thread or process",
        "Speed up the other thread or process, or start it earlier.",
        _PREFETCH,
    ),
    "collection": (
        "Python collects garbage, which stops all its threads",
        "Call gc.freeze() after the start, and gc.disable(); and gc.collect() by hand, between "
        "steps, where a pause costs least.",
        f"{_RECIPES}#which-line-is-it",
    ),
    "dispatch": (
        "prepares and dispatches",
        "Fewer and larger calls cost Python less: jax.jit around several, or jax.lax.scan over the "
        "steps.",
        f"{_RECIPES}#many-small-steps",
    ),
    "slow dispatch": (
        "dispatches through JAX's Python code",
        "JAX does so in the first call of a function, and in each call of one with a callback in "
        "it, such as jax.debug.print: return the values, and use them outside, some steps later.",
        f"{_RECIPES}#a-loss-that-you-want-to-see",
    ),
    "tracing": (
        "traces again, and compiles nothing",
        "jax.eval_shape, jax.make_jaxpr and lower() trace anew for another function object, such "
        "as a lambda, and for other shapes: call them once, and keep the result.",
        f"{_BOOK}/measuring-asynchronous-code.html#the-first-call",
    ),
    "callback": (
        "runs inside a program of the device, which waits for it",
        "Return the values, and do this outside the jitted function: some steps later or, if it "
        "takes longer than a step, in threads.",
        f"{_RECIPES}#a-loss-that-you-want-to-see",
    ),
    "first compilation": (
        "compiles for the first time",
        "Each run compiles it once, unless JAX's persistent cache is on "
        "(jax_compilation_cache_dir), which keeps it for the next run.",
        f"{_BOOK}/measuring-asynchronous-code.html#the-first-call",
    ),
    "check": (
        "waits while JAX checks the results",
        "Switch jax_debug_nans or jax_debug_infs off once it has found the cause.",
        f"{_RECIPES}#an-error-that-points-elsewhere",
    ),
    "queue": (
        "waits in a call",
        "A call waits if the queue is full, or copies its arguments.",
        _CHAPTER,
    ),
    "outside": (
        "no thread was in your code",
        "A library runs by itself, or all threads have ended.",
        _CHAPTER,
    ),
    "unseen": ("takes time", "", f"{_RECIPES}#how-watch-knows"),
    "watch": ("collects garbage of its own, which stops all Python threads", "", _CHAPTER),
    "other": ("lost less than half a percent each", "", _CHAPTER),
}
"""For each kind of finding: the words for it, the advice, and the section that explains why."""

_WORKS = {"device idle", "dispatch", "slow dispatch", "host wait", "input", "queue"}
# Advice for lines whose code tells more than their activity: the kinds that it is for, a pattern,
# the advice, and the section. The pattern is matched with the code up to a colon: the body after it
# runs when the decision has been made.
_BY_CODE = [
    (
        {"collection"},
        r".*\bcollect\(",
        "Collect less often; or call gc.freeze() after the start, so that there is less to visit.",
        f"{_RECIPES}#which-line-is-it",
    ),
    (
        {"value"},
        r"(?:(?:el)?if|while|assert)\b(.*)",
        "The value decides what comes next. Read the next batch before this line waits; or keep "
        "the array, and decide a few steps later.",
        _PREFETCH,
    ),
    (
        {"value", *_WORKS},
        r".*\b\w*(?:save|dump|checkpoint)\w*\(",
        "Copy the state to the host, and write it in a thread, beside the next steps.",
        f"{_RECIPES}#a-checkpoint",
    ),
    (
        _WORKS,
        r".*\b(?:device_put\w*|make_array_from_\w+)\(",
        "Copy the next batch to the devices while they work on this one.",
        _PREFETCH,
    ),
    (
        _WORKS,
        r"(?:async )?for\b|.*\bnext\(",
        "If this loop reads its data here, let a thread read the next batches meanwhile.",
        _PREFETCH,
    ),
]

WITHOUT_ACTION = {"first compilation", "queue", "outside", "unseen", "watch", "other"}
"""The kinds of findings for which there is nothing to do."""

SEEN = 0.005
"""The least share of the time that a reported line takes."""

_UNSEEN = 0.02  # The least share of the time that a reported line takes while it is not seen.

VERSION = 2
"""The version of a report in JSON; others have other fields, or the same with other meanings."""

WAITS = {"value", "barrier", "queue", "host wait", "input", "check"}


@dataclass
class Finding:
    """A line that takes time.

    Attributes:
        kind: What costs most there, such as `"value"`, `"barrier"` or `"device idle"`.
        place: The source line: its `file`, `line` and `code`.
        operation: The source of the expression that Python evaluated.
        thread: The name of the thread or, if samples saw several there, how many.
        seconds: How long Python was there, after the start.
        times: How often a sample saw Python come there, a lower bound; of a line that compiles, how
            often it compiled one program; of the garbage collector, how many collections there were
            of a millisecond or more.
        lost: For how many of these seconds the device was idle, as far as the devices were seen.
        surely_lost: The lower end of the 95% interval of `lost`.
        callers: The lines that called it, with the number of samples of each; of the garbage
            collector, the lines that it struck, with seconds.
        detail: Further facts, for example the shape that has changed.
        unseen: The part of `seconds` in which the devices were not seen.
        cause: Why a function was compiled again, such as `"shape"`.
        allowed: Whether the line lost its time in a block of `waits_allowed`.
    """

    kind: str
    place: Place
    operation: str
    thread: str
    seconds: float = 0.0
    times: int = 0
    lost: float = 0.0
    surely_lost: float = 0.0
    callers: dict[str, float] = field(default_factory=dict)
    detail: str = ""
    unseen: float = 0.0
    cause: str = ""
    allowed: bool = False


@dataclass(repr=False)
class Watched:
    """The report of `watch`; complete when its block has ended.

    Attributes:
        seconds: For how many seconds it watched.
        start_seconds: How many of them the start took: imports and first compilations.
        looks: How many samples it took of Python's threads.
        observed_seconds: How many seconds after the start the profiler's windows covered.
        devices: For how many seconds after the start each device was seen idle, by its name;
            the busiest device first.
        interval: The 95% interval of the idle share of the busiest device, from 0 to 1.
        findings: The lines that took time: those first for which something can be done, and of
            these the ones that lost most. The losses add up to the idle time of the busiest device.
        notes: Further facts: an option of JAX, or a part of the run that was not seen.
        collective_seconds: For how many seconds the busiest device was in collective operators,
            such as an all-reduce, which end when all devices have reached them.
        windows: How many windows of the profiler there were after the start.
        unseen_seconds: For how many seconds after the start the devices were not seen.
    """

    seconds: float = 0.0
    start_seconds: float = 0.0
    looks: int = 0
    observed_seconds: float = 0.0
    devices: dict[str, float] = field(default_factory=dict)
    interval: tuple[float, float] = (0.0, 1.0)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    collective_seconds: float = 0.0
    windows: int = 0
    unseen_seconds: float = 0.0

    @property
    def judged_seconds(self) -> float:
        """How many seconds came after the start; all shares refer to them."""
        return max(self.seconds - self.start_seconds, 1e-9)

    @property
    def idle_seconds(self) -> float:
        """For how many seconds after the start the busiest device was seen idle."""
        return next(iter(self.devices.values()), 0.0)

    def share(self, finding: Finding) -> float:
        """Return the share of the time, from 0 to 1, that Python spent at a finding's line."""
        return finding.seconds / self.judged_seconds

    def loss(self, finding: Finding) -> float:
        """Return the share of the time, from 0 to 1, that the device was idle for this line."""
        return finding.lost / self.judged_seconds

    def losses(self, over: float = 0.0) -> list[Finding]:
        """Return the findings whose whole interval lies above a share of the time.

        Lines in a block of `waits_allowed`, and first compilations, are left out.

        Args:
            over: That share, from 0 to 1.
        """
        return [
            finding
            for finding in self.findings
            if finding.lost and finding.surely_lost / self.judged_seconds > over
            if not finding.allowed and finding.kind not in ("first compilation", "watch", "other")
        ]

    def advice(self, finding: Finding) -> str:
        """Return the advice for a finding, or that it loses nothing or was not seen."""
        lost_nothing = self.loss(finding) < SEEN and not finding.unseen
        if lost_nothing and finding.kind in {*WAITS, "unseen"}:
            words = "Next to nothing" if finding.lost else "Nothing"
            return f"{words} is lost here: the device worked meanwhile."
        advice = _advice_and_link(finding)[0]
        if finding.unseen > 0.5 * finding.seconds:
            mostly = " for most of that time" if finding.lost else ""
            advice = f"What the devices did meanwhile was not seen{mostly}. {advice}".strip()
        return advice

    def report(self, everything: bool = False) -> str:
        """Return the report as text, with all findings or those that may have lost something."""
        shown = self.findings if everything else self._shown()
        lines = list(self._head())
        for finding in shown:
            code = f"  {finding.place.code}" if finding.place.code else ""
            loss = self._loss_in_words(finding)
            lines += ["", f"{loss:>11}  {finding.place}{code}"]
            lines += (f"{'':13}{line}" for line in self._details(finding))
        lines += (f"\n{line}" for line in self._left_out(shown))
        return "\n".join(lines)

    def _loss_in_words(self, finding: Finding) -> str:
        is_seen = self.loss(finding) >= SEEN or finding.unseen < 0.5 * finding.seconds
        return f"{self.loss(finding):.1%} lost" if is_seen else "not seen"

    def _left_out(self, shown: list[Finding]) -> Iterator[str]:
        if left_out := len(self.findings) - len(shown):
            yield (
                f"{plural(left_out, 'further line')} lost next to nothing (--all shows them; in "
                "Python, report(everything=True))."
            )

    def _shown(self) -> list[Finding]:
        # A compilation is known to have taken place, also where no window fell on it.
        return [
            finding
            for finding in self.findings
            if self.loss(finding) >= SEEN
            or finding.unseen > _UNSEEN * self.judged_seconds
            or finding.cause
        ]

    def to_json(self) -> str:
        """Return the report as JSON, with durations in seconds."""
        findings = [
            asdict(finding)
            | {"share": self.share(finding), "loss": self.loss(finding)}
            | {"advice": self.advice(finding), "link": _advice_and_link(finding)[1]}
            for finding in self.findings
        ]
        whole = asdict(self) | {"idle_seconds": self.idle_seconds, "findings": findings}
        return json.dumps({"version": VERSION} | whole, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Watched":
        """Return the report that `to_json` has written.

        Raises:
            ValueError: If the text is no such report, or one of another version.
        """
        try:
            given = json.loads(text)
            if "seconds" in given and given.get("version") != VERSION:
                raise ValueError(
                    f"This report has version {given.get('version', 1)}, and version {VERSION} is "
                    "needed: run `watch --json` again with this version of d2lpar."
                )
            findings = []
            for entry in given["findings"]:
                own = {f.name: entry[f.name] for f in fields(Finding)}
                findings.append(Finding(**own | {"place": Place(**entry["place"])}))
            own = {"findings": findings, "interval": tuple(given["interval"])}
            return cls(**{f.name: given[f.name] for f in fields(cls)} | own)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"This is not a report of watch: {error!r}.") from error

    def __repr__(self) -> str:
        return self.report()

    def _head(self) -> Iterator[str]:
        after = ""
        if self.start_seconds >= 0.05:
            after = (
                f", including a start of {format_seconds(self.start_seconds)} (imports, first "
                "compilations); the shares are of the rest"
            )
        yield f"Watched for {format_seconds(self.seconds)}{after}."
        if self.devices and self.unseen_seconds < 0.9 * self.judged_seconds:
            low, high = self.interval
            interval = (
                f"95% interval: {low:.0%} to {high:.0%}"
                if high - low < 1
                else "too few windows for an interval"
            )
            as_seen = ", as far as seen" if self.unseen_seconds > SEEN * self.judged_seconds else ""
            busiest, *others = (
                (name, f"for {s / self.judged_seconds:.0%}") for name, s in self.devices.items()
            )
            yield (
                f"{busiest[0]} had nothing to do {busiest[1]} of that{as_seen} ({interval})"
                + "".join(f", {' '.join(other)}" for other in others)
                + "."
            )
        yield (
            f"Sampled Python {plural(self.looks, 'time')}, and the devices in "
            f"{plural(self.windows, 'window')}, {format_seconds(self.observed_seconds)} in all."
        )
        if any(map(self.loss, self.findings)):
            yield "Lost: the share of the time in which the device was idle while Python was there."
        yield from self.notes
        if not self.findings:
            yield "No line took long enough to be seen."

    def _details(self, finding: Finding) -> Iterator[str]:
        title = KINDS[finding.kind][0]
        operation = finding.operation if finding.kind in WAITS else ""
        yield f"{title}: {operation}" if operation else title
        if finding.kind == "other":
            return
        thread = "" if finding.thread in ("", "MainThread") else f", in {finding.thread}"
        yield (
            f"{'Python was there for' if finding.place.line else 'This took'} "
            f"{self.share(finding):.1%} of the time "
            f"({format_seconds(finding.seconds)}, at least {plural(finding.times, 'time')}){thread}"
        )
        yield from self._more(finding)
        yield from filter(None, (self.advice(finding), _advice_and_link(finding)[1]))

    def _more(self, finding: Finding) -> Iterator[str]:
        if finding.detail:
            yield finding.detail
        if finding.callers:
            called = sorted(finding.callers.items(), key=lambda item: -item[1])[:3]
            count = sum(finding.callers.values())
            several = [f"{at} ({n / count:.0%})" for at, n in called if n > 0.005 * count]
            places = ", ".join(several) if len(several) > 1 else called[0][0]
            yield f"{'Called from' if finding.place.line else 'Mostly at'} {places}."

    def _repr_html_(self) -> str:
        rows, shown = [], self._shown()
        for finding in shown:
            title, link = KINDS[finding.kind][0], _advice_and_link(finding)[1]
            where = str(finding.place).rsplit("/", 1)[-1]
            more = html.escape(" ".join([*self._more(finding), self.advice(finding)]))
            code = html.escape(finding.operation)
            operation = f": <code>{code}</code>" if code else ""
            why = f'{more} <a href="{link}">Why?</a>' if more else ""
            loss = self._loss_in_words(finding)
            rows.append(
                [
                    in_two_lines(where, finding.place.code),
                    share_bar(self.loss(finding), HOST, loss),
                    in_two_lines(loss, f"there for {self.share(finding):.1%}"),
                    f"{html.escape(title)}{operation}<br>{why}",
                ]
            )
        lines = [*self._head(), *self._left_out(shown)]
        return as_table(["line", "", "time", "activity"], rows, lines)


def _advice_and_link(finding: Finding) -> tuple[str, str]:
    """Return the advice for a finding, and the section of the book that explains why."""
    if finding.cause and finding.kind == "compilation":
        return ADVICE[finding.cause], KINDS[finding.kind][2]
    code = re.split(r":(?:\s|$)", finding.place.code)[0]
    for kinds, pattern, advice, link in _BY_CODE:
        if finding.kind in kinds and (match := re.match(pattern, code)):
            # Another part of the condition, or the line's body, may be what waits.
            is_whole = finding.operation == finding.place.code
            if is_whole or not match.groups() or finding.operation in match[1]:
                return advice, link
    return KINDS[finding.kind][1:]
