"""Mutation testing of the book: a claim must hold with its cause, and fail without it.

How it works:

    run of a page                         claims must
    as it is                              hold
    without the causes in `CAUSES`        fail, if their cause is gone
    on one core as eight devices          not fail
    on one device, with GPU stand-ins     say that they cannot be tested, or run

A run is repeated up to three times while a verdict is wrong, and the evidence records how often.
After the last run of a page its results go to book/evidence/causes.json, with their commit; the
results of other pages stay.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from conditions import commit, on_cores, where
from counterfactuals import about_gpus, runs_without
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from run_notebook import (
    GPU_STAND_INS,
    ONE_DEVICE,
    ROOT,
    Intervention,
    claims_of,
    claims_shown,
    name_of,
    notebooks,
    run_notebook,
)

from d2lpar._plain.format import write_whole
from d2lpar.book import exercises
from d2lpar.book.claims import Claim
from d2lpar.book.results import outputs_of

FILE = ROOT / "book" / "evidence" / "causes.json"
TRIES = 3
EXPECTED = {"with": {"holds", "seen"}, "without": {"fails"}}


def load(file: Path) -> dict:
    """Return the evidence in a file; that for no page if the file is missing.

    `pages` has for each page its commit, date and machine, its claims `with` and `without` their
    cause, and the `conditions` for runs of the whole page.
    """
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    return {"schema": 2, "pages": {}}


def runs(
    page: Path, label: str, intervention: Intervention | None, keys: Iterable[str] = (), **options
) -> Iterator[tuple[int, dict[str, Claim], Mapping]]:
    """Run a page up to three times; yield each time its number, the claims, and the notebook.

    Each run prints how many claims have which verdict: those with the given keys, or all.
    """
    for tries in range(1, TRIES + 1):
        started = time.monotonic()
        notebook = run_notebook(page, intervention, **options)
        by_key = {claim.key: claim for claim in claims_shown(notebook)}
        verdicts = Counter(c.verdict for key, c in by_key.items() if not keys or key in keys)
        print(f"  {label}: {in_words(verdicts)} ({time.monotonic() - started:.0f} s)")
        yield tries, by_key, notebook


def tested(
    page: Path, side: str, keys: list[str], intervention: Intervention | None
) -> dict[str, dict]:
    """Run a page until each of these claims has the expected verdict; return each claim's result.

    A result that is as expected stays while other claims are tried again.
    """
    results: dict[str, dict] = {}
    label = f"without {intervention.takes_away}" if intervention else "with each cause"
    # A missing cause may break later cells, but the claims of others can still be tested.
    allow_errors = bool(intervention)
    for tries, made, notebook in runs(page, label, intervention, keys, allow_errors=allow_errors):
        if missing := ", ".join(key for key in keys if key not in made):
            outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", []))
            errors = "; ".join(
                f"{output['ename']}: {output['evalue']}"
                for output in outputs
                if output["output_type"] == "error"
            )
            raise RuntimeError(f"the run {side} the cause never reached {missing} ({errors})")
        for key in keys:
            if key not in results or complaint(side, key, results[key]):
                results[key] = summary(made[key]) | {"tries": tries}
        if not any(complaint(side, key, results[key]) for key in keys):
            break
    return results


def summary(claim: Claim) -> dict:
    """Return the result of a claim, as the book shows it."""
    measured = [] if claim.needs else list(map(repr, claim.predicates))
    return {"verdict": claim.verdict, "needs": claim.needs, "measured": measured}


def in_words(counts: Mapping[str, int]) -> str:
    """Return a line such as "holds: 12, inconclusive: 1"."""
    return ", ".join(f"{word}: {count}" for word, count in counts.items())


@dataclass(frozen=True)
class Condition:
    """A condition for whole pages, or for one of them, and a function that finds defects."""

    name: str
    wrong: Callable[[str, Mapping], str]
    page: str | None = None
    intervention: Intervention | None = None
    cores: int | None = None
    devices: int = 0

    def run(self, page: Path) -> dict:
        """Run a page until nothing is wrong, three times at most."""
        label = f"on {self.name}"
        with on_cores(self.cores):
            for tries, made, notebook in runs(page, label, self.intervention, devices=self.devices):
                reports = outputs_of(notebook, exercises.MIME_TYPE)
                record = {
                    "claims": {key: claim.verdict for key, claim in made.items()},
                    "exercises": {report["exercise"]: report["verdict"] for report in reports},
                    "tries": tries,
                }
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
    untested = [key for key, verdict in verdicts.items() if verdict == "untestable"]
    if untested or not verdicts:
        return f"did not run: {', '.join(untested) or 'any claim about GPUs'}"
    return ""


def _failing(record: Mapping) -> str:
    failing = ", ".join(key for key, verdict in record["claims"].items() if verdict == "fails")
    return f"does not hold: {failing}" if failing else ""


TWO_DEVICES = "automatic-parallelism"
CONDITIONS = [
    Condition("one core as eight devices", _wrong_on_one_core, cores=1, devices=8),
    Condition("one CPU device", _wrong_on_one_device, TWO_DEVICES, ONE_DEVICE),
    Condition("CPU devices in place of GPUs", _wrong_with_stand_ins, TWO_DEVICES, GPU_STAND_INS),
]


def conditions_of(page: str) -> list[Condition]:
    return [condition for condition in CONDITIONS if condition.page in (None, page)]


def complaint(side: str, key: str, result: Mapping) -> str:
    """Return the defect that a claim's result shows; empty if there is none."""
    verdict = result["verdict"]
    if verdict in EXPECTED[side]:
        return ""
    if verdict == "untestable":
        # A machine without a GPU can show the rest.
        return "" if about_gpus(key) else f"could not be tested: needs {result['needs']}"
    return f"{verdict}: {'; '.join(result['measured'])}"


def complaints(evidence: Mapping, page: Path) -> Iterator[str]:
    """Yield all defects in the evidence for a page."""
    name = name_of(page)
    if name not in evidence["pages"]:
        yield f"{name} has not been tested"
        return
    tested, conditions = (evidence["pages"][name][part] for part in ("claims", "conditions"))
    causes = {key: cause.takes_away for cause, keys in runs_without(page) for key in keys}
    for key, cause in causes.items():
        if key not in tested:
            yield f"{key} has not been tested"
        elif (taken := tested[key]["takes_away"]) != cause:
            yield f"{key} has been tested without {taken}, and not without {cause}"
    for key, sides in tested.items():
        if key not in causes:
            yield f"{key} has been tested, but {name} has no such claim"
        for side in EXPECTED:
            if wrong := complaint(side, key, sides[side]):
                yield f"{key}, {side} its cause: {wrong}"
    for condition in conditions_of(name):
        record = conditions.get(condition.name)
        if wrong := condition.wrong(name, record) if record else "has not run":
            yield f"{name}, on {condition.name}: {wrong}"


def evidence_of(page: Path) -> dict:
    here = {
        "commit": commit("d2lpar", "evidence", page),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": where(),
    }
    with_it = tested(page, "with", list(claims_of(page)), None)
    results = {}
    for cause, keys in runs_without(page):
        if all(with_it[key]["verdict"] == "untestable" for key in keys):
            without = with_it  # A run would only say so again.
        else:
            without = tested(page, "without", keys, cause)
        for key in keys:
            sides = {"with": with_it[key], "without": without[key]}
            results[key] = {"takes_away": cause.takes_away} | sides
    return here | {
        "claims": results,
        "conditions": {c.name: c.run(page) for c in conditions_of(name_of(page))},
    }


def gather(pages: list[Path], file: Path = FILE) -> list[str]:
    """Test the claims of some pages, keep the results of each, and return all defects."""
    evidence = load(file)
    for page in pages:  # A cause that does not fit its page must be known before the first run.
        runs_without(page)
    wrong, book = [], {name_of(page) for page in notebooks()}
    for number, page in enumerate(pages, 1):
        print(f"page {number} of {len(pages)}, {name_of(page)}")
        try:
            results = evidence_of(page)
        except (CellExecutionError, CellTimeoutError, RuntimeError) as error:
            why = f"{error.ename}: {error.evalue}" if hasattr(error, "ename") else str(error)
            wrong.append(
                f"{name_of(page)} broke off, and its old evidence stays: {' '.join(why.split())}"
            )
            continue
        except KeyboardInterrupt:
            left = " ".join(map(name_of, pages[number - 1 :]))
            print(f'\nStopped. What is finished is kept. The rest: make evidence PAGES="{left}"')
            raise
        kept = evidence["pages"] | {name_of(page): results}
        evidence["pages"] = {name: kept[name] for name in kept if name in book}
        text = json.dumps(evidence, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        write_whole(file, text + "\n")
        wrong += complaints(evidence, page)
    return wrong
