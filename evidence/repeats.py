"""How often all claims hold, and how far they are from failing: pages that run again and again.

How it works. Each run of a page is a row of book/evidence/repeats.csv, with the commit that last
changed the page or the package, the machine, and the load. For each claim the row has the verdict
and the margin of each comparison: the distance of the median from the bound, in units of the bound.

    page,commit,...,load,cores,devices,claims
    asynchronous-computation,5d3c...,2,2,0,clock-stops-early holds 0.97; limit-in-flight holds 1 1

Runs of uncommitted changes are reported, and not kept. For each page and condition, the report
counts the runs of the commit that ran last, and names that commit.
"""

import csv
import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from causes import in_words
from conditions import busy_processes, commit, on_cores, where
from run_notebook import ROOT, claims_shown, name_of, run_notebook

from d2lpar._plain.format import plural, write_whole
from d2lpar.book.claims import Claim

FILE = ROOT / "book" / "evidence" / "repeats.csv"
COLUMNS = ["page", "commit", "date", "machine", "load", "cores", "devices", "claims"]
TOTALS = ["Days", "Commits", "Runs of a page", "Runs in which all held"]
ENOUGH = 5  # runs of each page for an estimate


def main(pages: list[Path], condition: Mapping, repeats: int, file: Path = FILE) -> None:
    """Run pages until each has so many runs, keep each run, and print the report on all of them.

    `condition` has the keys `load`, `cores` and `devices`.
    """
    rows = load(file)
    with on_cores(condition["cores"]), busy_processes(condition["load"]):
        for number in range(repeats):
            for page in pages:
                run = {name: str(value) for name, value in condition.items()}
                run |= {"page": name_of(page), "machine": where()}
                run["commit"] = commit("d2lpar", page)
                if number < sum(run.items() <= row.items() for row in rows):
                    continue
                notebook = run_notebook(page, devices=condition["devices"])
                made = claims_shown(notebook)
                run |= {"date": f"{datetime.now(UTC):%Y-%m-%d}"}
                run |= {"claims": "; ".join(map(in_short, made))}
                rows.append(run)
                save(rows, file)
                verdicts = in_words(Counter(claim.verdict for claim in made))
                print(f"run {number + 1} of {repeats}, {name_of(page)}: {verdicts}", flush=True)
    print(report(rows, list(map(name_of, pages))))


def load(file: Path) -> list[dict[str, str]]:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return list(csv.DictReader(io.StringIO(text)))


def save(rows: Iterable[Mapping], file: Path) -> None:
    """Write the rows, all or nothing, but leave out runs of uncommitted changes."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(row for row in rows if not row["commit"].endswith("-dirty"))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text.getvalue())


def in_short(claim: Claim) -> str:
    """Return the key of a claim, its verdict and its margins."""
    margins = [] if claim.needs else [f"{p.margin():.4g}" for p in claim.predicates]
    return " ".join([claim.key, claim.verdict, *margins])


def claims_in(row: Mapping[str, str]) -> dict[str, tuple[str, list[float]]]:
    """Return the verdicts and margins of the claims in a row, by their keys."""
    parts = (claim.split() for claim in row["claims"].split("; "))
    return {key: (verdict, list(map(float, margins))) for key, verdict, *margins in parts}


def report(rows: Iterable[Mapping[str, str]], pages: list[str]) -> str:
    """Return how often all claims and each claim held, for each machine and condition."""
    lines = []
    for machine, conditions in sorted(latest(rows, pages).items()):
        for condition, runs in conditions.items():
            totals = zip(TOTALS, in_total(runs, pages), strict=True)
            lines += [f"{machine}, {condition}", *(f"  {name}: {cell}" for name, cell in totals)]
            for key in (key for page in runs.values() for key in claims_in(page[-1])):
                lines.append(f"  {key}: {', '.join(filter(None, how_often(runs, key, worst)))}")
    return "\n".join(lines)


def latest(rows: Iterable[Mapping], pages: list[str]) -> dict[str, dict[str, dict[str, list]]]:
    """Return rows by machine, condition and page, for the commit that ran last."""
    by_machine: dict = defaultdict(dict)
    for row in rows:
        if row["page"] in pages:
            runs = by_machine[row["machine"]].setdefault(condition_of(row), {})
            before = runs.get(row["page"], [])
            runs[row["page"]] = [r for r in before if r["commit"] == row["commit"]] + [row]
    return by_machine


def condition_of(row: Mapping[str, str]) -> str:
    words = plural(int(row["cores"]), "core")
    if row["devices"] != "0":
        words += f" as {row['devices']} devices"
    load = int(row["load"])
    return f"{words} beside {plural(load, 'busy program')}" if load else f"{words}, quiet"


def in_total(runs: Mapping[str, list[Mapping]], pages: list[str]) -> list[str]:
    """Return the columns of `TOTALS` for the runs of some pages under one condition.

    Pages are repeated one by one and a build runs them all, so the rates of the pages are
    multiplied where each page has `ENOUGH` runs.
    """
    rows = [row for page in runs.values() for row in page]
    days = sorted({row["date"] for row in rows})
    counts = sorted({len(page) for page in runs.values()})
    held = {page: sum(map(all_held, rows)) for page, rows in runs.items()}
    rates = [held[page] / len(rows) for page, rows in runs.items()]
    others = [f"{p}: {held[p]} of {len(f)}" for p, f in runs.items() if held[p] < len(f)]
    if counts[0] >= ENOUGH:
        others.append(f"all pages together: {100 * math.prod(rates):.0f}%")
    if missing := len(pages) - len(runs):
        others.append(f"without {plural(missing, 'page')} that did not run")
    return [
        " to ".join(dict.fromkeys([days[0], days[-1]])),
        ", ".join(f"`{commit}`" for commit in sorted({row["commit"] for row in rows})),
        " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]]))),
        "; ".join([f"{sum(held.values())} of {len(rows)}", *others]),
    ]


def all_held(row: Mapping[str, str]) -> bool:
    return {verdict for verdict, _ in claims_in(row).values()} <= {"holds", "seen", "untestable"}


def how_often(
    runs: Mapping[str, list[Mapping]], key: str, how_far: Callable[[list[list[float]]], str]
) -> tuple[str, str]:
    """Return how often a claim held where it could be tested, and how far it is from failing.

    `how_far` takes the margins of each run and puts the distance into words.
    """
    made = [claims_in(row)[key] for page in runs.values() for row in page if key in claims_in(row)]
    tested = [margins for verdict, margins in made if verdict != "untestable"]
    if not tested:
        return "not testable" if made else "not run", ""
    verdicts = Counter(verdict for verdict, _ in made)
    others = {"undecided": verdicts["inconclusive"], "failed": verdicts["fails"]}
    parts = [f"{verdicts['holds'] + verdicts['seen']} of {len(tested)}"]
    parts += [f"{count} {verdict}" for verdict, count in others.items() if count]
    return ", ".join(parts), how_far(tested) if len(tested) > 1 else ""


def worst(runs: list[list[float]]) -> str:
    """Return the smallest margin of all comparisons in all runs, in words.

    The margin of a count that never changes says nothing: such a count is called exact.
    """
    if all(margins == runs[0] for margins in runs):
        return "exact"
    least = min(map(min, runs))
    if not math.isfinite(least):
        return "too few samples"
    return f"{100 * least:+.0f}% at worst" if least < 10 else "over +1000%"
