"""What is shown once for each claim and page, and kept in book/evidence/causes.json.

Each claim is tested with its cause and without; each page runs on one core that counts as eight
devices, and what needs several devices or a GPU also on one device, and on others in place of a
GPU. A verdict stands beside the hash of what it vouches for, so it is known when it is too old.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from conditions import on_cores, where
from counterfactuals import about_gpus, cause_of, runs_without
from fingerprint import Package, fingerprint
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from run_notebook import (
    GPU_STAND_INS,
    ONE_DEVICE,
    ROOT,
    Intervention,
    claims_of,
    name_of,
    of_type,
    pages_by_key,
    run_notebook,
)

from d2lpar._format import write_whole
from d2lpar.book import claims, exercises
from d2lpar.book.claims import Claim

FILE = ROOT / "book" / "evidence" / "causes.json"
SCHEMA = 1
SIDES = {"with": "with its cause", "without": "without its cause"}


class EvidenceError(ValueError):
    """The file is no whole file of evidence, or of another schema."""


# --- The file ---------------------------------------------------------------------------------


def load(file: Path) -> dict:
    """Return what a file holds; nothing if there is none.

    Raises:
        EvidenceError: If it cannot be read.
    """
    if not file.exists():
        return nothing()
    try:
        evidence = json.loads(file.read_text(encoding="utf-8"))
        if evidence["schema"] == SCHEMA and {"claims", "pages"} <= evidence.keys():
            return evidence
        found = f"it has the schema {evidence['schema']!r}, not {SCHEMA}"
    except (ValueError, KeyError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
    raise EvidenceError(f"{file} holds no evidence that can be read ({found}).")


def nothing() -> dict:
    """Return the evidence before anything has been tested."""
    return {"schema": SCHEMA, "claims": {}, "pages": {}}


def save(evidence: Mapping, file: Path) -> None:
    """Write the file, whole or not at all, and always in the same order."""
    text = json.dumps(evidence, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_whole(file, text + "\n")


# --- What is run ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """What a whole page runs under, and what must come out."""

    name: str
    pages: Callable[[str], bool] = lambda page: True
    intervention: Intervention | None = None
    cores: int | None = None
    devices: int | None = None
    wrong: Callable[[str, Mapping], str] = lambda page, record: ""


def _wrong_on_one_core(page: str, record: Mapping) -> str:
    refused = {name: v for name, v in record["exercises"].items() if v != "accepted"}
    if page.startswith("solutions/") and (refused or not record["exercises"]):
        return f"not every solution is accepted: {refused or 'none is checked'}"
    return _failing(record)


def _wrong_on_one_device(page: str, record: Mapping) -> str:
    verdicts = list(record["claims"].values())
    if verdicts.count("untestable") <= len(verdicts) / 2:
        return "less than half of the claims say that they cannot be tested"
    return _failing(record)


def _wrong_with_stand_ins(page: str, record: Mapping) -> str:
    verdicts = {key: v for key, v in record["claims"].items() if about_gpus(key)}
    untested = ", ".join(key for key, verdict in verdicts.items() if verdict == "untestable")
    return f"did not run: {untested or 'any claim about GPUs'}" * bool(untested or not verdicts)


def _failing(record: Mapping) -> str:
    failing = ", ".join(key for key, verdict in record["claims"].items() if verdict == "fails")
    return f"does not hold: {failing}" * bool(failing)


CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition("one core as eight devices", cores=1, devices=8, wrong=_wrong_on_one_core),
        Condition(
            "one CPU device",
            pages=lambda page: page == "automatic-parallelism",
            intervention=ONE_DEVICE,
            wrong=_wrong_on_one_device,
        ),
        Condition(
            "CPU devices in place of GPUs",
            pages=lambda page: page == "automatic-parallelism",
            intervention=GPU_STAND_INS,
            wrong=_wrong_with_stand_ins,
        ),
    )
}


@dataclass(frozen=True)
class Run:
    """One run of a notebook, and where in the evidence goes what it shows.

    Attributes:
        page: The source of the notebook.
        side: `"with"` or `"without"` for claims, the name of a condition for a whole page.
        keys: The claims; none for a whole page.
        intervention: What is done to the notebook, if anything.
    """

    page: Path
    side: str
    keys: tuple[str, ...] = ()
    intervention: Intervention | None = None

    def __str__(self):
        if not self.keys:
            return f"the page on {self.side}"
        whose = "its" if len(self.keys) == 1 else "their"
        return f"{len(self.keys)} claim{'s' * (whose != 'its')} {self.side} {whose} cause"

    def outputs(self) -> list[dict]:
        """Run it."""
        if self.keys:
            options = {"keys": self.keys, "intervention": self.intervention}
            return run_notebook(self.page, strict=False, timeout=600, **options)
        condition = CONDITIONS[self.side]
        devices = {"JAX_NUM_CPU_DEVICES": str(condition.devices)} if condition.devices else {}
        with on_cores(condition.cores):
            return run_notebook(
                self.page, self.intervention, strict=False, timeout=900, environment=devices
            )


def hashes(page: Path, side: str, package: Package | None = None) -> dict[str, str]:
    """Return the hashes of what is to be shown for a page: by key, or by the page's name.

    Raises:
        ValueError: If a claim has no key or no cause, or an intervention does not fit.
    """
    package = package or Package(ROOT / "d2lpar")
    if side in CONDITIONS:
        parts = {name_of(page): (None, CONDITIONS[side].intervention)}
    else:
        parts = {key: ([key], cause) for key, cause in cause_of(page).items()}
    found = {}
    for name, (keys, intervention) in parts.items():
        changed = None if side == "with" else intervention
        try:
            found[name] = fingerprint(page, changed, keys=keys, package=package)
        except ValueError as error:
            raise ValueError(f"{name_of(page)}, {name}: {error}") from error
    return found


def parts_of(page: Path) -> list[str]:
    """Return what is to be shown for a page."""
    return [*SIDES, *(name for name, c in CONDITIONS.items() if c.pages(name_of(page)))]


def outstanding(page: Path, evidence: dict) -> Iterator[Run]:
    """Yield the runs that a page still needs, each planned when the one before it is over."""
    for side in parts_of(page):
        now = hashes(page, side)
        old = [name for name in now if complaint(evidence, side, name, now[name])]
        if side in CONDITIONS:
            yield from (Run(page, side, intervention=CONDITIONS[side].intervention) for _ in old)
        elif side == "with" and old:
            yield Run(page, side, tuple(old))
        elif side == "without":
            _note_what_is_missing(evidence, old, now)
            testable = [key for key in old if not _untestable(evidence, key)]
            for intervention, keys in runs_without(page, testable):
                yield Run(page, side, tuple(keys), intervention)


def _note_what_is_missing(evidence: dict, keys: Iterable[str], now: Mapping[str, str]) -> None:
    """Note that what lacks a GPU with its cause lacks it without, too; a run would only say so."""
    for key in keys:
        if about_gpus(key) and _untestable(evidence, key):
            sides = evidence["claims"][key]
            sides["without"] = sides["with"] | {"hash": now[key]}


def _untestable(evidence: Mapping, key: str) -> bool:
    record = _record(evidence, "with", key)
    return bool(record) and record["verdict"] == "untestable"


# --- What it shows ----------------------------------------------------------------------------


def note(run: Run, outputs: list[dict], now: Mapping[str, str], evidence: dict) -> list[str]:
    """Put into the evidence what a run has shown; return what it should have shown, and has not."""
    made = {c.key: c for c in map(Claim.from_dict, of_type(outputs, claims.MIME_TYPE))}
    page = name_of(run.page)
    if missing := [key for key in run.keys or claims_of(run.page) if key not in made]:
        return [f"{page}, {run}: never came to {', '.join(missing)}"]
    for key in run.keys:
        found = shown(made[key]) | _stamp(evidence, run.side, key, now[key])
        sides = evidence["claims"].setdefault(key, {})
        sides |= {run.side: found, "page": page}
    if not run.keys:
        reports = of_type(outputs, exercises.MIME_TYPE)
        found = _stamp(evidence, run.side, page, now[page])
        found["claims"] = {key: claim.verdict for key, claim in made.items()}
        found["exercises"] = {report["exercise"]: report["verdict"] for report in reports}
        evidence["pages"].setdefault(page, {})[run.side] = found
    return []


def _stamp(evidence: Mapping, side: str, name: str, code: str) -> dict:
    tries = 1
    before = _record(evidence, side, name)
    if before and before["hash"] == code and complaint(evidence, side, name, code):
        tries += before["tries"]  # What was tried until it pleased is to say so.
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    return {"hash": code, "machine": where(), "date": date, "tries": tries}


def _record(evidence: Mapping, side: str, name: str) -> dict | None:
    return evidence["pages" if side in CONDITIONS else "claims"].get(name, {}).get(side)


def shown(claim: Claim) -> dict:
    """Return what the book tells of a claim that was tested."""
    clearances = [] if claim.needs else [predicate.margin() for predicate in claim.predicates]
    return {
        "verdict": claim.verdict,
        "needs": claim.needs,
        "measured": [] if claim.needs else list(map(str, claim.predicates)),
        "clearance": round(min(clearances), 4) if clearances else None,
    }


# --- What is wrong ----------------------------------------------------------------------------


def complaint(evidence: Mapping, side: str, name: str, code: str) -> str:
    """Return what is wrong with the evidence for a claim or a page; empty if nothing is."""
    record = _record(evidence, side, name)
    if record is None:
        return "has not been tested"
    if record["hash"] != code:
        return "has been tested with other code"
    if side in CONDITIONS:
        return CONDITIONS[side].wrong(name, record)
    verdict = record["verdict"]
    if verdict == {"with": "holds", "without": "fails"}[side]:
        return ""
    if verdict == "untestable":
        # Whoever has no GPU can show the rest; whoever has one shows all.
        return "" if about_gpus(name) else f"could not be tested: needs {record['needs']}"
    return f"{verdict}: {'; '.join(record['measured'])}"


def complaints(evidence: Mapping, pages: Iterable[Path]) -> list[str]:
    """Return all that is wrong with the evidence for some pages.

    Raises:
        ValueError: If a claim has no key or no cause, or an intervention does not fit.
    """
    found, package = [], Package(ROOT / "d2lpar")
    for page in pages:
        for side in parts_of(page):
            for name, code in hashes(page, side, package).items():
                if wrong := complaint(evidence, side, name, code):
                    found.append(f"{name}, {SIDES.get(side, f'on {side}')}: {wrong}")
    return found


def left_over(evidence: Mapping, book: Iterable[Path]) -> list[str]:
    """Return the claims and pages in the evidence that the book has no longer."""
    book = list(book)
    there = {*pages_by_key(book), *map(name_of, book)}
    return [name for kind in ("claims", "pages") for name in evidence[kind] if name not in there]


# --- All of it --------------------------------------------------------------------------------


def gather(
    pages: list[Path],
    book: list[Path],
    file: Path = FILE,
    *,
    force: bool = False,
    say: Callable[..., None] = print,
) -> list[str]:
    """Run what is missing or too old, keep each run as soon as it is over, and say how far it is.

    Args:
        pages: What to gather evidence for.
        book: All pages that there are.
        file: Where it is kept. What it has of claims and pages that are no more is left out.
        force: Run also what is not too old.
        say: What tells how far it is; it takes what `print` takes.

    Returns:
        What is wrong with the evidence now; empty if nothing is.

    Raises:
        ValueError: Before anything runs, if a claim has no key or no cause, or two have the same
            key, or an intervention does not fit its page.
    """
    try:
        evidence = load(file)
    except EvidenceError as error:
        say(f"{error} It is made anew.")
        evidence = nothing()
    complaints(evidence, pages)  # What does not fit is found here, and not after ten minutes.
    again = {name for page in pages for name in (*claims_of(page), name_of(page))} if force else ()
    for name in {*left_over(evidence, book), *again}:
        for kind in ("claims", "pages"):
            evidence[kind].pop(name, None)
    troubles, started = [], time.monotonic()
    total = sum(len(claims_of(page)) for page in pages)
    for number, page in enumerate(pages, 1):
        for run in outstanding(page, evidence):
            say(f"page {number} of {len(pages)}, {name_of(page)}: {run} ...", end=" ", flush=True)
            begun = time.monotonic()
            wrong = _kept(run, evidence, file)
            troubles += wrong
            now = time.monotonic()
            tested = sum(_tested(evidence, page) for page in pages)
            say(
                f"{wrong[0] if wrong else _in_short(run, evidence)} ({now - begun:.0f} s; "
                f"so far {tested} of {total} claims, {now - started:.0f} s)",
                flush=True,
            )
        for key, cause in cause_of(page).items():  # In today's words.
            evidence["claims"].setdefault(key, {})["takes_away"] = cause.takes_away
    save(evidence, file)
    return troubles + complaints(evidence, pages)


def _kept(run: Run, evidence: dict, file: Path) -> list[str]:
    """Do one run, and keep what it shows; return why there is nothing to keep."""
    now, what = hashes(run.page, run.side), f"{name_of(run.page)}, {run}"
    try:
        outputs = run.outputs()
    except (CellExecutionError, CellTimeoutError, DeadKernelError, RuntimeError) as error:
        why = f"{error.ename}: {error.evalue}" if hasattr(error, "ename") else str(error)
        return [f"{what}: {' '.join(why.split()) or type(error).__name__}"]
    if hashes(run.page, run.side) != now:
        return [f"{what}: what it runs was changed meanwhile, so this run shows nothing"]
    wrong = note(run, outputs, now, evidence)
    save(evidence, file)
    return wrong


def _in_short(run: Run, evidence: Mapping) -> str:
    if run.keys:
        verdicts = [evidence["claims"][key][run.side]["verdict"] for key in run.keys]
    else:
        verdicts = evidence["pages"][name_of(run.page)][run.side]["claims"].values()
    return ", ".join(f"{verdict}: {count}" for verdict, count in Counter(verdicts).items())


def _tested(evidence: Mapping, page: Path) -> int:
    """Return how many claims of a page have been tested as they are now, with and without."""
    package = Package(ROOT / "d2lpar")
    current = set(claims_of(page))
    for side in SIDES:
        codes = hashes(page, side, package)
        current = {key for key in current if _code(evidence, side, key) == codes[key]}
    return len(current)


def _code(evidence: Mapping, side: str, name: str) -> str | None:
    record = _record(evidence, side, name)
    return record and record["hash"]
