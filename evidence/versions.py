"""Run notebooks with this JAX; keep the verdicts of claims and facts, and seconds, by its version.

Usage: python evidence/versions.py FACTS.xml NOTEBOOK...

FACTS.xml is what `pytest --junitxml` wrote of the experiments in `book/facts.md`. A failing cell
ends the command with an error; so does, after the last notebook, a claim or a fact that does not
hold, or a solution that is not accepted.
"""

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from conditions import commit, this_run
from run_notebook import ROOT, claims_shown, name_of, run_notebook

from d2lpar._plain.format import write_whole
from d2lpar.book import exercises
from d2lpar.book.results import outputs_of

FILE = ROOT / "book" / "evidence" / "versions.json"


def keep(file: Path, run: Mapping, **outcomes: Mapping) -> None:
    """Put a run into the file, in place of an older one with the same JAX; newest JAX last."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    python, jax = (run["versions"][name] for name in ("Python", "jax"))
    where = {"python": python, "cores": run["machine"]["cores"]}
    kept[jax] = {**where, "date": run["date"], "commit": run["commit"], **outcomes}
    in_order = sorted(kept, key=lambda version: [int(part) for part in version.split(".")])
    text = json.dumps({version: kept[version] for version in in_order}, indent=1)
    write_whole(file, text + "\n")


def facts_of(report: Path) -> dict[str, str]:
    """Return the outcome of each experiment of the facts, by the first words of its sentence."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if name := re.fullmatch(r"test_each_experiment\w+\[(.+)\]", case.get("name", "")):
            marks = {mark.tag: mark.get("message") for mark in case}
            failed = marks.keys() & {"failure", "error"}
            outcomes[name[1]] = "fails" if failed else marks.get("skipped", "holds")
    return outcomes


def run_pages(pages: Iterable[Path]) -> tuple[dict[str, str], dict[str, float], list[str]]:
    """Run notebooks; return verdicts by claim, seconds by notebook, and what was not right."""
    verdicts, seconds, wrong = {}, {}, []
    for path in pages:
        print(f"{name_of(path)} ...", flush=True)
        start = time.perf_counter()
        notebook = run_notebook(path)
        seconds[name_of(path)] = round(time.perf_counter() - start, 1)
        on_page = {claim.key: claim.verdict for claim in claims_shown(notebook)}
        wrong += [f"{path}: {key} fails" for key in on_page if on_page[key] == "fails"]
        verdicts |= on_page
        if path.parent.name == "solutions":
            reports = outputs_of(notebook, exercises.MIME_TYPE)
            refused = [r["exercise"] for r in reports if r["verdict"] == "not yet"]
            wrong += [f"{path}: {exercise} is not accepted" for exercise in refused]
    return verdicts, seconds, wrong


def main() -> None:
    """Run the notebooks on the command line, and keep what they say."""
    report, *pages = map(Path, sys.argv[1:])
    run = this_run() | {"commit": commit("book", "d2lpar", f":!*{FILE.name}")}
    facts = facts_of(report)
    verdicts, seconds, wrong = run_pages(pages)
    keep(FILE, run, claims=verdicts, facts=facts, seconds=seconds)
    wrong += [f"book/facts.md: {words} fails" for words in facts if facts[words] == "fails"]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
