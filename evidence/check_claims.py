"""Check the claims of the book: `make claims`.

Without --repeats, each claim is tested with its cause and without it; one that survives the
removal of its cause is a defect. With --repeats, the claims are tested again and again, to see
how often all of them hold and how far they are from failing.
"""

import argparse
import ast
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import jupytext
from counterfactuals import cause_of, runs_without
from run_notebook import (
    ROOT,
    claimed_by,
    keep_what_is_needed,
    notebooks,
    of_type,
    python_of,
    run_notebook,
)
from scipy.stats import binomtest

from d2lpar.book.claims import MIME_TYPE, VERDICTS, Claim
from d2lpar.machine import this_machine, usable_cores, versions
from d2lpar.quantity import Predicate

RESULTS = ROOT / "book" / "results"
FINE = {"holds", "untestable"}


def claims_in(outputs: Iterable[Mapping]) -> dict[str, Claim]:
    """Return the claims among outputs, by sentence."""
    made = map(Claim.from_dict, of_type(outputs, MIME_TYPE))
    return {claim.sentence: claim for claim in made}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    header = list(header)
    rows = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


# --- With the cause and without it ------------------------------------------------------------


def check_causes(pages: Iterable[Path]) -> tuple[str, list[str]]:
    """Test each claim with its cause and without; return a table, and what is wrong."""
    rows, defects = [], []
    for page in pages:
        print(f"{page.relative_to(ROOT)} ...", file=sys.stderr)
        with_it = claims_in(run_notebook(page, strict=False))
        without = {}
        for intervention, sentences in runs_without(page):
            outputs = run_notebook(page, intervention, sentences=sentences, strict=False)
            found = claims_in(outputs)
            without |= {sentence: found[sentence] for sentence in sentences}
        for sentence, intervention in cause_of(page).items():
            pair = with_it[sentence], without[sentence]
            if pair[0].verdict not in FINE:
                defects.append(f"{pair[0]}")
            if pair[1].verdict not in {"fails", "untestable"}:
                defects.append(f"Without {intervention.takes_away}: {pair[1]}")
            rows.append([sentence, said(pair[0]), intervention.takes_away, said(pair[1])])
    header = ["Claim", "With its cause", "What is taken away", "Without it"]
    return table(header, rows), defects


def said(made: Claim) -> str:
    """Return the verdict of a claim and what it is made from, for a cell of a table."""
    needs = f": {made.detail}" * bool(made.needs)
    measured = [] if made.needs else map(str, made.predicates)
    return "<br>• ".join([f"**{VERDICTS[made.verdict]}**{needs}", *measured]).replace("|", "\\|")


# --- Again and again --------------------------------------------------------------------------


def repeat(pages: list[Path], condition: dict, repeats: int, file: Path) -> None:
    """Run the claims of all pages until the file has so many runs of each; append each run."""
    if condition["devices"]:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(condition["devices"])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: condition["cores"]])
    with busy_processes(condition["load"]):
        for number in range(repeats):
            for page in pages:
                run = condition | identity(page) | {"machine": where()}
                if number < sum(run.items() <= past.items() for past in runs_in(file)):
                    continue
                outputs = run_notebook(page, sentences=claimed_by(page), strict=False, timeout=900)
                made = claims_in(outputs).values()
                run["date"] = datetime.now(UTC).isoformat(timespec="seconds")
                run["claims"] = [shortened(claim) for claim in made]
                append(run, file)
                verdicts = Counter(claim.verdict for claim in made)
                print(f"run {number + 1} of {run['page']}: {dict(verdicts)}", file=sys.stderr)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many processes busy beside what is done in the block."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def identity(page: Path) -> dict:
    """Return what runs must have in common to be counted together, if on one machine."""
    notebook = jupytext.read(page)
    keep_what_is_needed(notebook, claimed_by(page))
    # Without comments and line breaks: what they say changes no run.
    code = "\n".join(ast.unparse(ast.parse(python_of(cell.source))) for cell in notebook.cells)
    return {
        "page": page.relative_to(ROOT / "book").with_suffix("").as_posix(),
        "code": hashlib.sha256(code.encode()).hexdigest()[:16],
    }


def where() -> str:
    """Return what the claims are tested on."""
    machine = this_machine()
    return (
        f"{machine.processor} with {os.cpu_count()} cores, {machine.system}, "
        f"jax {versions()['jax']}"
    )


def shortened(claim: Claim) -> dict:
    """Return a claim without its samples: its verdict, and how far it was from its bounds."""
    predicates = {p.quantity.name: (str(p), distance(p)) for p in claim.predicates}
    return {"sentence": claim.sentence, "verdict": claim.verdict, "predicates": predicates}


def distance(predicate: Predicate) -> float:
    """Return how far the median is from the bound; negative on the side where it fails."""
    median = predicate.quantity.median
    match predicate.relation:
        case ">":
            return median - predicate.high
        case "<":
            return predicate.low - median
    return min(median - predicate.low, predicate.high - median)


def append(run: dict, file: Path) -> None:
    """Add a run to the file, in a line of its own even if the last one was cut off."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cut_off = file.exists() and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as lines:
        lines.write("\n" * cut_off + json.dumps(run, allow_nan=False, ensure_ascii=False) + "\n")


def runs_in(file: Path) -> list[dict]:
    """Return the runs that a file holds, without lines that were cut off."""
    runs = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            runs.append(json.loads(line))
        except ValueError:
            print(f"{file}: a line was cut off, and is left out", file=sys.stderr)
    return runs


def report(pages: list[Path], runs: list[dict]) -> str:
    """Return what repeated runs of these pages, as they stand now, have shown, as tables."""
    current = [identity(page) for page in pages]
    groups = defaultdict(list)
    for run in runs:
        if any(page.items() <= run.items() for page in current):
            groups[run["machine"], run["load"], run["cores"], run["devices"]].append(run)
    together, columns = defaultdict(list), defaultdict(dict)  # By machine.
    anywhere = defaultdict(list)  # By options, how many of how many runs held on each machine.
    for (machine, load, cores, devices), group in sorted(groups.items()):
        by_page = [[r for r in group if page.items() <= r.items()] for page in current]
        if not (count := min(map(len, by_page))):
            continue  # A page has not been run yet.
        held = sum(
            all(claim["verdict"] in FINE for page in by_page for claim in page[number]["claims"])
            for number in range(count)
        )
        options = f"LOAD={load} CORES={cores}" + f" DEVICES={devices}" * bool(devices)
        days = sorted({run["date"][:10] for run in group})
        span = " to ".join(dict.fromkeys([days[0], days[-1]]))
        command = f"`make claims REPEATS={count} {options}`"
        together[machine].append([command, span, with_interval(held, count)])
        anywhere[options].append((held, count))
        claims = [claim for page in by_page for run in page for claim in run["claims"]]
        columns[machine][options] = how_often(claims)
    parts = []
    if len(columns) > 1:
        rows = [
            [options, with_interval(*map(sum, zip(*counts, strict=True))), str(len(counts))]
            for options, counts in sorted(anywhere.items())
        ]
        header = ["Condition", "All claims together", "Machines"]
        parts += ["### All machines\n", table(header, rows)]
    for machine, cells in columns.items():
        sentences = next(iter(cells.values()))  # The same in each: it is the same code.
        rows = [[s, *(column[s] for column in cells.values())] for s in sentences]
        parts += [
            f"### {machine}\n",
            table(["Command", "Days", "All claims together"], together[machine]),
            table(["Claim", *cells], rows),
        ]
    return "\n".join(parts) or "No run is complete yet.\n"


def with_interval(count: int, among: int) -> str:
    """Return a share with its exact 95 % interval (Clopper and Pearson, 1934)."""
    low, high = binomtest(count, among).proportion_ci(0.95, "exact")
    return f"{count} of {among} runs (95 % interval {low:.0%} to {high:.0%})"


def how_often(claims: list[dict]) -> dict[str, str]:
    """Return, by sentence, how often a claim held where it could be tested, and its margin."""
    by_sentence = defaultdict(list)
    for claim in claims:
        by_sentence[claim["sentence"]].append(claim)
    cells = {}
    for sentence, same in by_sentence.items():
        verdicts = Counter(claim["verdict"] for claim in same)
        tested = len(same) - verdicts["untestable"]
        others = {"undecided": verdicts["inconclusive"], "failed": verdicts["fails"]}
        parts = [f"{verdicts['holds']} of {tested}", *(f"{n} {o}" for o, n in others.items() if n)]
        parts.append(f"margin {margin(same)}")
        cells[sentence] = ", ".join(parts) if tested else "not testable"
    return cells


def margin(same: list[dict]) -> str:
    """Return the distance from the nearest bound over its spread between runs.

    The distance is the median over the runs, the spread their standard deviation; of several
    comparisons the least sure one counts. A count that is always the same has no spread, and
    what hardly differs so little that the number would say nothing.
    """
    tested = [claim["predicates"] for claim in same if claim["verdict"] != "untestable"]
    if len(tested) < 2:
        return "-"
    margins = [math.inf]
    for name in tested[0]:
        distances = [predicates[name][1] for predicates in tested if name in predicates]
        distance, spread = statistics.median(distances), statistics.pstdev(distances)
        margins.append(distance / spread if spread else math.copysign(math.inf, distance))
    if (least := min(margins)) == math.inf:
        return "exact"
    return "over 1000" if least > 1000 else f"{least:.1f}"


# --- The command line -------------------------------------------------------------------------


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=0, help="how many runs of each page")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the runs")
    parser.add_argument("--cores", type=int, default=usable_cores(), help="cores to run on")
    parser.add_argument("--devices", type=int, default=0, help="CPU devices, if not the default")
    parser.add_argument("--file", type=Path, default=RESULTS / "repeats.jsonl")
    parser.add_argument("pages", nargs="*", type=Path, help="sources of notebooks; all if none")
    asked = parser.parse_args()
    pages = [page.resolve() for page in asked.pages] or notebooks()
    if asked.repeats:
        condition = {"load": asked.load, "cores": asked.cores, "devices": asked.devices}
        repeat(pages, condition, asked.repeats, asked.file)
        text = report(pages, runs_in(asked.file))
        asked.file.with_suffix(".md").write_text(text, encoding="utf-8")
        print(text)
        return
    text, defects = check_causes(pages)
    print(text)
    if not asked.pages:
        text = f"`make claims` on {where()}, {datetime.now(UTC):%Y-%m-%d}:\n\n{text}"
        (RESULTS / "causes.md").write_text(text, encoding="utf-8")
    if defects:
        sys.exit("\n".join(["These claims are not what they should be:", *defects]))


if __name__ == "__main__":
    main()
