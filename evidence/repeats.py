"""How often all claims hold, and how far they are from failing: runs that are repeated and kept.

They are kept in book/evidence/repeats.jsonl, and each names the commit that it is of. A run counts
for each commit at which its page runs the same. So runs may be of code that is older than the tree;
`book/evidence/repeats.md` says at which commit the pages ran it.
"""

import ast
import itertools
import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from conditions import busy_processes, last_change, on_cores, where
from fingerprint import Package, digest, fingerprint
from run_notebook import (
    ROOT,
    claims_of,
    literal,
    name_of,
    notebooks,
    of_type,
    run_notebook,
    sentence_of,
)
from scipy.stats import binomtest

from d2lpar import Predicate
from d2lpar._format import write_whole
from d2lpar.book.claims import MIME_TYPE, Claim, without_numbers

FILE = ROOT / "book" / "evidence" / "repeats.jsonl"
FINE = {"holds", "untestable"}


# --- Running ----------------------------------------------------------------------------------


def main(pages: list[Path], condition: dict, repeats: int, file: Path) -> None:
    """Repeat the claims of some pages, write the report, and print that of these pages."""
    commit = repeat(pages, condition, repeats, file)
    lines = lines_of(file)
    write_whole(file.with_suffix(".md"), report(lines))
    print(report_of(commit, lines, [name_of(page) for page in pages]))


def repeat(
    pages: list[Path],
    condition: Mapping,
    repeats: int,
    file: Path,
    say: Callable[..., None] = print,
) -> str:
    """Run the claims of pages until the file has so many runs of each; return their commit.

    Each run is kept when it is over. `condition` has the keys `load`, `cores` and `devices`.
    """
    commit, code = state(), codes()
    if not _header(commit, lines_of(file)):
        said = {name_of(page): sentences_of(page) for page in notebooks()}
        append({"commit": commit, "sentences": said, "code": code}, file)
    devices = condition["devices"]
    environment = {"JAX_NUM_CPU_DEVICES": str(devices)} if devices else {}
    with on_cores(condition["cores"]), busy_processes(condition["load"]):
        for number in range(repeats):
            for page in pages:
                run = {"page": name_of(page), "machine": where(), **condition}
                past = runs_for(commit, lines_of(file))
                if number < sum(run.items() <= made.items() for made in past):
                    continue
                outputs = run_notebook(
                    page, keys=claims_of(page), strict=False, timeout=900, environment=environment
                )
                made = list(map(Claim.from_dict, of_type(outputs, MIME_TYPE)))
                run |= {"commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
                run["claims"] = {claim.key: shortened(claim) for claim in made}
                if state() != commit and codes() != code:
                    raise ValueError("What is repeated has been changed meanwhile: start again.")
                append(run, file)
                verdicts = Counter(claim.verdict for claim in made)
                found = ", ".join(f"{verdict}: {n}" for verdict, n in verdicts.items())
                say(f"run {number + 1} of {repeats}, {run['page']}: {found}", flush=True)
    return commit


def state() -> str:
    """Return the commit of what is repeated; what is not committed adds a hash of itself."""
    commit, changed = last_change([ROOT / "d2lpar", *notebooks()])
    return commit if commit and not changed else f"{commit}+{digest(list(codes().values()))}"


def codes() -> dict[str, str]:
    """Return the hash of what the claims of each page run."""
    package = Package(ROOT / "d2lpar")
    return {
        name_of(page): fingerprint(page, keys=claims_of(page), package=package)
        for page in notebooks()
    }


def sentences_of(page: Path) -> dict[str, str]:
    """Return what the claims of a page say, by their keys."""
    said = {key: sentence_of(call) for key, call in claims_of(page).items()}
    return {key: without_numbers(literal(code) or ast.unparse(code)) for key, code in said.items()}


def shortened(claim: Claim) -> list:
    """Return how far each comparison of a claim was from its bound, after its verdict.

    Most hold, so that is not said: the file would be a fifth larger.
    """
    distances = [] if claim.needs else map(distance, claim.predicates)
    verdict = [claim.verdict] if claim.verdict != "holds" else []
    return [*verdict, *(json.loads(f"{each:.9g}") for each in distances)]


def verdict_of(made: list) -> str:
    """Return the verdict of a claim that was shortened."""
    return made[0] if made and isinstance(made[0], str) else "holds"


def distance(predicate: Predicate) -> float:
    """Return how far the median is from the bound; negative on the side where it fails."""
    median = predicate.quantity.median
    match predicate.relation:
        case ">":
            return median - predicate.high
        case "<":
            return predicate.low - median
    return min(median - predicate.low, predicate.high - median)


# --- The file ---------------------------------------------------------------------------------


def append(line: Mapping, file: Path) -> None:
    """Add a line to the file, in a line of its own even if the last one was cut off."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cut_off = file.exists() and not file.read_bytes().endswith(b"\n")
    text = json.dumps(line, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    with file.open("a", encoding="utf-8") as lines:
        lines.write("\n" * cut_off + text + "\n")


def lines_of(file: Path) -> list[dict]:
    """Return the lines of a file, without those that were cut off."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            print(f"{file}: a line was cut off, and is left out", file=sys.stderr)
    return lines


# --- The report -------------------------------------------------------------------------------


def report(lines: list[dict]) -> str:
    """Return what the runs of each commit have shown, the newest first, that one with each claim.

    A commit of which no condition has a run of each page is not told of, and of those at which all
    pages ran the same only the newest.
    """
    newest: dict[str, str] = {}
    for header in (line for line in reversed(lines) if "sentences" in line):
        newest.setdefault(digest(_code(header)), header["commit"])
    complete = [commit for commit in newest.values() if together(commit, lines)]
    if not complete:
        return "No run is complete yet.\n"
    parts = [
        f"These runs are of what the pages ran at commit `{complete[0]}`. If the book has moved on "
        "since then, a claim may be worded or tested in another way now.\n",
        report_of(complete[0], lines),
    ]
    for commit in complete[1:]:
        parts += [f"### Before: commit `{commit}`\n", overall(together(commit, lines))]
    return "\n".join(parts)


def report_of(commit: str, lines: list[dict], pages: Iterable[str] | None = None) -> str:
    """Return what the runs of one commit have shown, for all its pages or for some, as tables."""
    groups = together(commit, lines, pages)
    if not groups:
        return "No run is complete yet.\n"
    parts = []
    machines = list(dict.fromkeys(machine for machine, _ in groups))
    if len(machines) > 1:
        parts += ["### All machines\n", overall(groups)]
    for machine in machines:
        here = {options: runs for (place, options), runs in groups.items() if place == machine}
        rows = []
        for options, runs in here.items():
            days = sorted({run["date"] for page in runs.values() for run in page})
            span = " to ".join(dict.fromkeys([days[0], days[-1]]))
            held, count = held_together(runs)
            command = f"`make evidence REPEATS={count} {options}`"
            rows.append([command, span, with_interval(held, count)])
        columns = {options: how_often(runs) for options, runs in here.items()}
        claims = [
            [sentence, *(column.get(key, "-") for column in columns.values())]
            for key, sentence in sentences(commit, lines, pages).items()
        ]
        parts += [
            f"### {machine}\n",
            table(["Command", "Days", "All claims together"], rows),
            table(["Claim", *columns], claims),
        ]
    return "\n".join(parts)


def together(
    commit: str, lines: list[dict], pages: Iterable[str] | None = None
) -> dict[tuple[str, str], dict[str, list[dict]]]:
    """Return what counts for a commit by machine and condition, then page, where no page lacks."""
    pages = list(_header(commit, lines).get("sentences", {}) if pages is None else pages)
    groups = defaultdict(lambda: {page: [] for page in pages})
    for line in runs_for(commit, lines):
        if line["page"] in pages:
            options = f"LOAD={line['load']} CORES={line['cores']}"
            options += f" DEVICES={line['devices']}" * bool(line["devices"])
            groups[line["machine"], options][line["page"]].append(line)
    return {name: runs for name, runs in sorted(groups.items()) if all(runs.values())}


def runs_for(commit: str, lines: list[dict]) -> list[dict]:
    """Return the runs that count for a commit: what their page ran is what it ran there."""
    ran = {line["commit"]: _code(line) for line in lines if "sentences" in line}
    here = ran.get(commit, {})
    return [
        line
        for line in lines
        if (page := line.get("page")) in here
        and ran.get(line["commit"], {}).get(page) == here[page]
    ]


def _code(header: Mapping) -> dict[str, str]:
    # Before there were hashes, the commit stood for what was run.
    return header.get("code") or dict.fromkeys(header["sentences"], header["commit"])


def sentences(commit: str, lines: list[dict], pages: Iterable[str] | None = None) -> dict[str, str]:
    """Return what the claims of some pages of a commit said, by their keys."""
    said = _header(commit, lines)["sentences"]
    return {key: s for page in (said if pages is None else pages) for key, s in said[page].items()}


def _header(commit: str, lines: list[dict]) -> dict:
    """Return the line that says what the pages of a commit claim and run; empty if none does."""
    of_it = (line for line in lines if line["commit"] == commit)
    return next((line for line in of_it if "sentences" in line), {})


def held_together(runs: Mapping[str, list[dict]]) -> tuple[int, int]:
    """Return in how many runs of all pages no claim failed or was left undecided, of how many."""
    count = min(map(len, runs.values()))
    held = sum(
        all(
            verdict_of(made) in FINE
            for page in runs.values()
            for made in page[number]["claims"].values()
        )
        for number in range(count)
    )
    return held, count


def overall(groups: Mapping[tuple[str, str], Mapping[str, list[dict]]]) -> str:
    """Return a table of how often all claims held in each condition, over all machines."""
    counts = defaultdict(list)
    for (_, options), runs in groups.items():
        counts[options].append(held_together(runs))
    rows = [
        [options, with_interval(*map(sum, zip(*each, strict=True))), str(len(each))]
        for options, each in sorted(counts.items())
    ]
    return table(["Condition", "All claims together", "Machines"], rows)


def with_interval(count: int, among: int) -> str:
    """Return a share with its exact 95 % interval (Clopper and Pearson, 1934)."""
    low, high = binomtest(count, among).proportion_ci(0.95, "exact")
    return f"{count} of {among} runs (95 % interval {low:.0%} to {high:.0%})"


def how_often(runs: Mapping[str, list[dict]]) -> dict[str, str]:
    """Return, by key, how often a claim held where it could be tested, and its margin."""
    by_key = defaultdict(list)
    for run in (run for page in runs.values() for run in page):
        for key, made in run["claims"].items():
            by_key[key].append(made)
    cells = {}
    for key, same in by_key.items():
        verdicts = Counter(map(verdict_of, same))
        tested = len(same) - verdicts["untestable"]
        others = {"undecided": verdicts["inconclusive"], "failed": verdicts["fails"]}
        parts = [f"{verdicts['holds']} of {tested}", *(f"{n} {o}" for o, n in others.items() if n)]
        parts.append(f"margin {margin(same)}")
        cells[key] = ", ".join(parts) if tested else "not testable"
    return cells


def margin(same: list[list]) -> str:
    """Return the distance from the nearest bound over its spread between runs.

    The distance is the median over the runs, the spread their standard deviation; of several
    comparisons the least sure one counts. A count that is always the same has no spread, and
    what hardly differs so little that the number would say nothing.
    """
    tested = [
        [each for each in made if not isinstance(each, str)]
        for made in same
        if verdict_of(made) != "untestable"
    ]
    if len(tested) < 2:
        return "-"
    margins = [math.inf]
    for comparison in itertools.zip_longest(*tested):
        distances = [each for each in comparison if each is not None]
        distance, spread = statistics.median(distances), statistics.pstdev(distances)
        margins.append(distance / spread if spread else math.copysign(math.inf, distance))
    if (least := min(margins)) == math.inf:
        return "exact"
    return "over 1000" if least > 1000 else f"{least:.1f}"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    header = list(header)
    rows = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
