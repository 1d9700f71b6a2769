"""Mutation testing of the book: a claim must hold with its cause, and fail without it.

How it works. Each page runs as it is. Then it runs as a whole without the causes of its claims,
which are in `CAUSES`, and these claims must fail. One that is undecided, or that survives, is tried
up to three times, and the evidence says how many it took. Each page also runs on one core that
counts as eight devices, and what needs several devices or a GPU on one device, and with CPU devices
in place of GPUs. What a page has shown is written to book/evidence/causes.json when all its runs
are over, with the commit that they are of; what was there of other pages stays.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from conditions import commit, on_cores, where
from counterfactuals import about_gpus, runs_without, together
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from run_notebook import (
    GPU_STAND_INS,
    ONE_DEVICE,
    ROOT,
    Intervention,
    claims_of,
    name_of,
    notebooks,
    run_notebook,
)

from d2lpar import Predicate
from d2lpar._plain.format import write_whole
from d2lpar.book import claims, exercises
from d2lpar.book.claims import Claim
from d2lpar.book.results import outputs_of

FILE = ROOT / "book" / "evidence" / "causes.json"
# Schema 2: `pages` has for each page its commit, date and machine, its claims `with` and `without`
# their cause, and the `conditions` that the whole page ran under. Schema 1 had hashes of the code.
SCHEMA = 2
TRIES = 3
EXPECTED = {"with": {"holds", "seen"}, "without": {"fails"}}


# --- The file ---------------------------------------------------------------------------------


def load(file: Path) -> dict:
    """Return the evidence in a file; that of no page if there is none."""
    if not file.exists():
        return {"schema": SCHEMA, "pages": {}}
    try:
        evidence = json.loads(file.read_text(encoding="utf-8"))
        if evidence["schema"] == SCHEMA:
            return evidence
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(
        f"{file} holds no evidence of schema {SCHEMA}. Restore it, or delete it and test all "
        "pages: make evidence"
    )


def save(evidence: Mapping, file: Path) -> None:
    """Write the file, whole or not at all, and always in the same order."""
    text = json.dumps(evidence, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_whole(file, text + "\n")


# --- Claims with their cause and without ------------------------------------------------------


def tested(
    page: Path, side: str, keys: list[str], intervention: Intervention | None
) -> dict[str, dict]:
    """Run a page until each of these claims has the verdict that is expected; three times at most.

    What was measured for each claim is returned, with the try in which it was.
    """
    found: dict[str, dict] = {}
    for tries in range(1, TRIES + 1):
        started = time.monotonic()
        # Without its cause a claim may leave nothing that the cells of others can go on with.
        notebook = run_notebook(
            page, intervention, strict=False, allow_errors=bool(intervention), timeout=900
        )
        made = {c.key: c for c in map(Claim.from_dict, outputs_of(notebook, claims.MIME_TYPE))}
        if missing := ", ".join(key for key in keys if key not in made):
            errors = "; ".join(errors_in(notebook))
            raise RuntimeError(f"the run {side} the cause never came to {missing} ({errors})")
        for key in keys:
            if key not in found or complaint(side, key, found[key]):
                found[key] = shown(made[key]) | {"tries": tries}
        verdicts = Counter(found[key]["verdict"] for key in keys)
        what = f"without {intervention.takes_away}" if intervention else "with each cause"
        print(f"  {what}: {in_words(verdicts)} ({time.monotonic() - started:.0f} s)")
        if not any(complaint(side, key, found[key]) for key in keys):
            break
    return found


def errors_in(notebook: Mapping) -> Iterator[str]:
    """Yield the errors that ended cells of a notebook."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                yield f"{output['ename']}: {output['evalue']}"


def shown(claim: Claim) -> dict:
    """Return what the book tells of a claim that was tested.

    Its margin is how far the comparison that is nearest to failing is from its bound, in units of
    the bound; below 0 it fails. There is none if nothing was measured, or too little. The margins
    of the ends of its interval are sorted.
    """
    told = {"verdict": claim.verdict, "needs": claim.needs, "measured": [], "margin": None}
    if claim.needs or not claim.predicates:
        return told
    told["measured"] = list(map(repr, claim.predicates))
    nearest = min(claim.predicates, key=Predicate.margin)
    margin, ends = nearest.margin(), list(map(nearest.margin, nearest.quantity.interval))
    if all(map(math.isfinite, (margin, *ends))):
        told |= {"margin": round(margin, 4), "ends": sorted(round(end, 4) for end in ends)}
    return told


def in_words(verdicts: Mapping[str, int]) -> str:
    """Return how many claims have which verdict."""
    return ", ".join(f"{verdict}: {count}" for verdict, count in verdicts.items())


# --- Whole pages under other conditions -------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """What each page runs under as a whole, or the one that is named, and what must come out."""

    name: str
    wrong: Callable[[str, Mapping], str]
    page: str | None = None
    intervention: Intervention | None = None
    cores: int | None = None
    devices: int | None = None

    def run(self, page: Path) -> dict:
        """Run a page until nothing is wrong; three times at most."""
        devices = {"JAX_NUM_CPU_DEVICES": str(self.devices)} if self.devices else {}
        for tries in range(1, TRIES + 1):
            started = time.monotonic()
            with on_cores(self.cores):
                notebook = run_notebook(
                    page, self.intervention, strict=False, timeout=900, environment=devices
                )
            made = outputs_of(notebook, claims.MIME_TYPE)
            reports = outputs_of(notebook, exercises.MIME_TYPE)
            record = {
                "claims": {claim["key"]: claim["verdict"] for claim in made},
                "exercises": {report["exercise"]: report["verdict"] for report in reports},
                "tries": tries,
            }
            verdicts = in_words(Counter(record["claims"].values()))
            print(f"  on {self.name}: {verdicts} ({time.monotonic() - started:.0f} s)")
            if not self.wrong(name_of(page), record):
                break
        return record


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
    if not verdicts:
        return "did not run: any claim about GPUs"
    untested = ", ".join(key for key, verdict in verdicts.items() if verdict == "untestable")
    return f"did not run: {untested}" if untested else ""


def _failing(record: Mapping) -> str:
    failing = ", ".join(key for key, verdict in record["claims"].items() if verdict == "fails")
    return f"does not hold: {failing}" if failing else ""


CONDITIONS = [
    Condition("one core as eight devices", _wrong_on_one_core, cores=1, devices=8),
    Condition(
        "one CPU device",
        _wrong_on_one_device,
        page="automatic-parallelism",
        intervention=ONE_DEVICE,
    ),
    Condition(
        "CPU devices in place of GPUs",
        _wrong_with_stand_ins,
        page="automatic-parallelism",
        intervention=GPU_STAND_INS,
    ),
]


def conditions_of(page: str) -> list[Condition]:
    """Return what a page runs under."""
    return [condition for condition in CONDITIONS if condition.page in (None, page)]


# --- What is wrong ----------------------------------------------------------------------------


def complaint(side: str, key: str, record: Mapping) -> str:
    """Return what is wrong with what a claim has shown; empty if nothing is."""
    verdict = record["verdict"]
    if verdict in EXPECTED[side]:
        return ""
    if verdict == "untestable":
        # Whoever has no GPU can show the rest; whoever has one shows all.
        return "" if about_gpus(key) else f"could not be tested: needs {record['needs']}"
    return f"{verdict}: {'; '.join(record['measured'])}"


def complaints(evidence: Mapping, page: Path) -> Iterator[str]:
    """Yield all that is wrong with the evidence for a page."""
    name = name_of(page)
    if name not in evidence["pages"]:
        yield f"{name} has not been tested"
        return
    tested, conditions = (evidence["pages"][name][part] for part in ("claims", "conditions"))
    there = {key: cause for run in runs_without(page) for key, cause in run.items()}
    for key, cause in there.items():
        if key not in tested:
            yield f"{key} has not been tested"
        elif (taken := tested[key]["takes_away"]) != cause.takes_away:
            yield f"{key} has been tested without {taken}, and not without {cause.takes_away}"
    for key, sides in tested.items():
        if key not in there:
            yield f"{key} has been tested, but {name} has no such claim"
        for side in EXPECTED:
            if wrong := complaint(side, key, sides[side]):
                yield f"{key}, {side} its cause: {wrong}"
    for condition in conditions_of(name):
        record = conditions.get(condition.name)
        if wrong := condition.wrong(name, record) if record else "has not run":
            yield f"{name}, on {condition.name}: {wrong}"


# --- All of it --------------------------------------------------------------------------------


def evidence_of(page: Path) -> dict:
    """Make all runs of a page, and return what they have shown."""
    name, runs = name_of(page), runs_without(page)
    here = {
        "commit": commit("d2lpar", "evidence", page),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": where(),
    }
    with_it = tested(page, "with", list(claims_of(page)), None)
    without = {}
    for run in runs:
        if all(with_it[key]["verdict"] == "untestable" for key in run):
            without |= {key: with_it[key] for key in run}  # A run would only say so again.
        else:
            without |= tested(page, "without", list(run), together(run.values()))
    return here | {
        "claims": {
            key: {"takes_away": cause.takes_away, "with": with_it[key], "without": without[key]}
            for run in runs
            for key, cause in run.items()
        },
        "conditions": {c.name: c.run(page) for c in conditions_of(name)},
    }


def gather(pages: list[Path], file: Path = FILE) -> list[str]:
    """Test the claims of some pages, keep what each has shown, and return what is wrong with it."""
    evidence = load(file)
    for page in pages:  # What does not fit is found here, and not after ten minutes.
        runs_without(page)
    wrong, book = [], {name_of(page) for page in notebooks()}
    for number, page in enumerate(pages, 1):
        print(f"page {number} of {len(pages)}, {name_of(page)}")
        try:
            found = evidence_of(page)
        except (CellExecutionError, CellTimeoutError, RuntimeError) as error:
            why = f"{error.ename}: {error.evalue}" if hasattr(error, "ename") else str(error)
            wrong.append(f"{name_of(page)}, of which nothing new is kept: {' '.join(why.split())}")
            continue
        except KeyboardInterrupt:
            left = " ".join(map(name_of, pages[number - 1 :]))
            print(f'\nStopped. What is finished is kept. The rest: make evidence PAGES="{left}"')
            raise
        kept = evidence["pages"] | {name_of(page): found}
        evidence["pages"] = {name: kept[name] for name in kept if name in book}  # Or is no more.
        save(evidence, file)
        wrong += complaints(evidence, page)
    return wrong
