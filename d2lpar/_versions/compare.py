"""Compare two versions of a program: two files of measurements, or two in turn.

How it works. A script prints its measurement as JSON. Two files give the ratio of their medians,
without an interval: samples show how times vary within a run, but not how runs vary. The
processor's clock, other programs and the placement of memory affect a whole run. Therefore two
commits, or two environments, are run in turn, each time in a new process, in reversed order in
every other round. Each round then gives one ratio, and the result is the median of these.
"""

import contextlib
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from d2lpar._measure.comparison import Comparison
from d2lpar._measure.quantity import LEVEL, Quantity, in_percent
from d2lpar._plain.errors import D2lparError, require_count
from d2lpar._plain.format import exit_status, format_value, plural
from d2lpar._plain.script import PYTHON
from d2lpar._versions import run_one

_NOT_IN_A_COMMIT = """\
A commit has only files that git has: no submodules, build outputs or data; give data by their
absolute path."""

TIMES = {"total": "result ready", "dispatch": "call returns"}
"""The names of the two times of a measurement in a report."""

NO_RATIO = math.nan, (math.nan, math.nan)
"""The ratio and interval of numbers that are not all positive."""


@dataclass(frozen=True)
class Change:
    """How a quantity of one function differs between two versions of a program."""

    function: str
    quantity: str  # "total", "dispatch", or the name of an observed quantity.
    before: float  # The median of the one version, in `unit`.
    after: float
    unit: str
    ratio: float  # After over before; NaN if not all numbers are positive.
    interval: tuple[float, float]  # Of the ratio; infinite if there are too few runs for one.
    needs: str | None = None  # A need that the machine did not meet: no verdict.

    @property
    def verdict(self) -> str:
        """Faster or slower for a time, less or more for other quantities; or undecided."""
        low, high = self.interval
        less, more = ("faster", "slower") if self.unit == "s" else ("less", "more")
        if self.needs:
            return f"needs {self.needs}"
        return less if high < 1 else more if low > 1 else "undecided"

    def is_surely_later(self, over: float) -> bool:
        """Return whether the whole interval of the time to a result lies above a ratio."""
        return self.quantity == "total" and not self.needs and self.interval[0] > over

    def __str__(self) -> str:
        numbers = [format_value(value, self.unit) for value in (self.before, self.after)]
        low, high = self.interval
        label = TIMES.get(self.quantity, self.quantity)
        left = f"  {label:<12} {numbers[0]:>9} -> {numbers[1]:<9}"
        if math.isnan(self.ratio):
            return f"{left} no ratio, since not all values are positive"
        shown = "too few runs for an interval" if math.isinf(high) else f"{low:.3g} to {high:.3g}"
        return f"{left} {self.ratio:6.3g} times ({shown}): {self.verdict}"


def read(file: Path) -> Comparison:
    """Return the comparison in a file, which may hold a program's whole output.

    Raises:
        ValueError: If neither the file nor its last line was written by `to_json`.
        OSError: If the file cannot be read.
    """
    text = file.read_text(encoding="utf-8").strip()
    try:
        return Comparison.from_json(text if text.startswith("{") else _last_line(text))
    except ValueError as error:
        raise ValueError(
            f"{file}: {error} Have the program write it: "
            f"Path({file.name!r}).write_text(times.to_json())."
        ) from error


def _last_line(text: str) -> str:
    *_, last = text.strip().splitlines() or [""]
    return last


def require_common(names: tuple[str, str], before: Comparison, after: Comparison) -> None:
    """Refuse two runs that have no function of the same name."""
    if not in_common(before, after):
        old, new = (", ".join(run) for run in (before, after))
        raise ValueError(
            f"{names[0]} and {names[1]} have no function in common: {old}; and {new}. Give a "
            "function the same name in both."
        )


def in_common(*runs: Comparison) -> list[tuple[str, str]]:
    """Return the functions and quantities that every run has measured, in the same unit."""
    first, *others = (_units(run) for run in runs)
    return [key for key, unit in first.items() if all(run.get(key) == unit for run in others)]


def _units(run: Comparison) -> dict[tuple[str, str], str]:
    return {
        (function, quantity): measurement[quantity].unit
        for function, measurement in run.items()
        for quantity in ("total", "dispatch", *measurement.observed)
    }


class Version(NamedTuple):
    """A clone at some commit, or the user's repository itself; and the Python that runs it."""

    name: str
    folder: Path
    python: str


@dataclass(frozen=True)
class Program:
    """The script or module to run of each version."""

    name: str
    is_module: bool
    arguments: Sequence[str]

    def within(self, repository: Path) -> Path | None:
        """Return the script's path in the repository; None for one outside, or for a module."""
        path = Path(self.name).resolve()
        inside = not self.is_module and path.is_relative_to(repository)
        return path.relative_to(repository) if inside else None

    def run(self, version: Version, repository: Path) -> Comparison:
        """Run it with the files of a version, and return the comparison that it prints last.

        Raises:
            D2lparError: If it fails, or prints something else.
        """
        is_commit = version.folder != repository
        script = version.folder / (self.within(repository) or Path(self.name).resolve())
        name = self.name if self.is_module else str(script)
        folders = str(version.folder), str(repository) if is_commit else ""
        python = [version.python, *PYTHON[1:]]
        command = [*python, run_one.__file__, *folders, "-m" * self.is_module, name]
        status, output = _run(
            [*command, *self.arguments],
            cwd=version.folder / Path.cwd().resolve().relative_to(repository),
            env={
                **_without_gits_variables(),
                "PYTHONPATH": _python_path(version, repository),
                "PYTHONDONTWRITEBYTECODE": "1",  # Keep the repository clean.
            },
        )
        if status:
            how = f"{'by' if status < 0 else 'with the'} {exit_status(status)}"
            ending = "\n".join(output.splitlines()[-10:])
            raise D2lparError(
                f"{self.name} of {version.name} has ended {how}."
                + f"\nThe last lines it printed:\n{ending}" * bool(ending)
                + f"\n{_NOT_IN_A_COMMIT}" * is_commit
            )
        last = _last_line(output)
        try:
            return Comparison.from_json(last)
        except ValueError as error:
            raise D2lparError(
                f"{self.name} of {version.name} has not printed its measurements: {error} Its last "
                "line must come from print(times.to_json()), with times from compare or measure; "
                f"it was {last[:200]!r}. Put that into a new script: a commit without that file "
                "gets a copy."
            ) from error


def _python_path(version: Version, repository: Path) -> str:
    """Return the folders of a version's modules: its root, `src`, and the user's PYTHONPATH.

    A folder of PYTHONPATH that lies in the repository becomes the same folder of the version.
    """
    user_paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    paths = [version.folder]
    if not (version.folder / "src" / "__init__.py").exists():  # Else `src` is itself a package.
        paths.append(version.folder / "src")
    for path in map(Path.resolve, map(Path, user_paths)):
        inside = path.is_relative_to(repository)
        paths.append(version.folder / path.relative_to(repository) if inside else path)
    return os.pathsep.join(map(str, paths))


@contextlib.contextmanager
def versions_of(
    program: Program, commits: tuple[str | None, str | None], pythons: tuple[str | None, str | None]
) -> Iterator[tuple[Path, Version, Version]]:
    """Yield the repository here and two of its versions; clones are removed after the block.

    A clone, unlike a `git worktree`, leaves nothing in the user's .git folder, also after kill -9.
    A commit without the script gets a copy of the script here. A version without a commit is the
    files here; two of these need no repository, and the current folder takes its place.
    """
    repository = Path(_git("rev-parse", "--show-toplevel") if commits[0] else "").resolve()
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:

        def checked_out(where: str, commit: str | None, python: str | None) -> Version:
            path = _executable(python)
            named = f" with {python or path}" * any(pythons)
            if not commit:
                return Version(f"the files here{named}", repository, path)
            try:
                full = _git("rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}")
            except D2lparError as error:
                way_out = "A shallow clone gets others by git fetch --unshallow."
                raise D2lparError(f"git has no commit {commit!r} here. {way_out}") from error
            root = Path(folder, where).resolve()
            _git("clone", "--quiet", "--shared", "--no-checkout", str(repository), str(root))
            _git("-C", str(root), "checkout", "--quiet", "--detach", full)
            if missing := _git("-C", str(root), "ls-files", "--deleted").splitlines():
                raise D2lparError(
                    f"git does not have {missing[0]} of {commit} here, as in a partial clone: "
                    "check that commit out once, which fetches what it needs."
                )
            inside = program.within(repository)
            if inside and not (root / inside).exists():
                (root / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(repository / inside, root / inside)
            (root / Path.cwd().resolve().relative_to(repository)).mkdir(parents=True, exist_ok=True)
            return Version(f"{commit} ({full[:7]}){named}", root, path)

        old, new = map(checked_out, ("before", "after"), commits, pythons)
        if old == new:
            raise D2lparError(f"There are no two versions: both would be {old.name}.")
        yield repository, old, new


def _executable(python: str | None) -> str:
    """Return the path of a Python, without following links: a link tells Python its environment."""
    if not (path := shutil.which(python or sys.executable)):
        raise D2lparError(f"There is no Python at {python!r} that can be run.")
    return os.path.abspath(path)


def _without_gits_variables() -> dict[str, str]:
    """Return the environment without the variables that git sets for its hooks.

    With these, such as GIT_INDEX_FILE, commands in a clone would write into the user's repository.
    """
    command = ["git", "rev-parse", "--local-env-vars"]
    try:
        names = subprocess.check_output(command, text=True).split()
    except FileNotFoundError as error:
        raise D2lparError("git, which holds the two versions, was not found.") from error
    return {name: value for name, value in os.environ.items() if name not in names}


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        env=_without_gits_variables(),
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise D2lparError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _run(command: Sequence[str], **options: Any) -> tuple[int, str]:
    """Run a command, and return its status and output.

    All processes that it has started are killed when it ends, and when a signal ends this wait.
    """
    # Into a file: a pipe stays open while any process lives that the command has started.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, start_new_session=True, **options)
        try:
            status = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace")


def in_turn(
    program: Program,
    commits: tuple[str | None, str | None],
    pythons: tuple[str | None, str | None],
    rounds: int,
) -> tuple[tuple[str, str], list[tuple[Comparison, Comparison]], list[str]]:
    """Run two versions of a program in turn, each run in a process of its own.

    Without a commit a version is the files here, and without a Python it runs with this one. Return
    the names of the two, the measurements of both for each round, and notes for the report.
    """
    require_count("rounds", rounds, at_least=1)
    with versions_of(program, commits, pythons) as (repository, old, new):
        pairs, notes = [], []
        for number in range(rounds):
            order = (old, new) if number % 2 == 0 else (new, old)
            ran = {version: program.run(version, repository) for version in order}
            require_common((old.name, new.name), ran[old], ran[new])
            pairs.append((ran[old], ran[new]))
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        level, count = in_percent(LEVEL), plural(rounds, "round")
        notes.append(f"In parentheses: the {level} interval of the ratio, of {count} in turn.")
        if inside := program.within(repository):
            scripts = {(version.folder / inside).read_bytes() for version in (old, new)}
            if len(scripts) > 1:
                notes.append(f"{inside} itself differs: the two may have measured different work.")
    return (old.name, new.name), pairs, notes


def changes_of(pairs: Sequence[tuple[Comparison, Comparison]]) -> list[Change]:
    """Return the change of each quantity that every run has measured, from one ratio per round."""
    runs = [run for pair in pairs for run in pair]
    needs = next((run.needs for run in runs if run.needs), None)
    result = []
    for function, quantity in in_common(*runs):
        medians = [[run[function][quantity].median for run in pair] for pair in pairs]
        old, new = map(statistics.median, zip(*medians, strict=True))
        if all(median > 0 for pair in medians for median in pair):
            ratios = Quantity("ratio", tuple(after / before for before, after in medians))
            ratio, interval = ratios.median, ratios.interval
        else:
            ratio, interval = NO_RATIO
        unit = runs[0][function][quantity].unit
        result.append(Change(function, quantity, old, new, unit, ratio, interval, needs))
    return result


TWO_RUNS = """\
Caution: these are two runs at two times. Differences between runs (the processor's clock, other
programs, the placement of memory) may be all that the ratio shows. Two versions that are in git can
be run in turn: python -m d2lpar compare --before COMMIT script.py"""
"""The notes for two files."""


def report(
    names: tuple[str, str],
    runs: Sequence[tuple[Comparison, Comparison]],
    changes: Sequence[Change],
    notes: Sequence[str],
    dispatch: bool = False,
) -> str:
    """Return the report of two versions: their changes by function, then notes and cautions."""
    lines = [" -> ".join(names)]
    shown = [change for change in changes if dispatch or change.quantity != "dispatch"]
    for function in dict.fromkeys(change.function for change in shown):
        lines += ["", function, *(str(c) for c in shown if c.function == function)]
    return "\n".join([*lines, "", *notes, *_how_sure(shown, len(runs)), *_cautions(runs, changes)])


def _how_sure(changes: Sequence[Change], rounds: int) -> Iterator[str]:
    """Yield how many intervals may err, and how many rounds may decide if the medians are right.

    An interval gets narrower with the square root of the number of rounds.
    """
    judged = [c for c in changes if not c.needs and math.isfinite(sum(c.interval))]
    if judged:
        several = f": of these {len(judged)}, {(1 - LEVEL) * len(judged):.2g} on average"
        yield f"Up to {in_percent(1 - LEVEL)} of such intervals err{several * (len(judged) > 1)}."
    for change in judged:
        if change.verdict == "undecided":
            distance, end = math.log(change.ratio), math.log(change.interval[change.ratio < 1])
            needed = rounds * ((distance - end) / distance) ** 2 if distance else math.inf
            about = f"about {needed:.0f}" if needed <= 200 else "more than 200"
            label = TIMES.get(change.quantity, change.quantity)
            yield f"{change.function}, {label}: {about} rounds (--rounds) may decide."


def _cautions(
    runs: Sequence[tuple[Comparison, Comparison]], changes: Sequence[Change]
) -> Iterator[str]:
    every_run = [run for pair in runs for run in pair]
    compared = {(change.function, change.quantity) for change in changes}
    if others := sorted(set().union(*map(_units, every_run)) - compared):
        names = dict.fromkeys(function for function, _ in others)
        yield f"Not compared, since not every run has it in the same unit: {', '.join(names)}."
    yield from dict.fromkeys(
        f"Caution: {name} {warning}."
        for run in every_run
        for name, measurement in run.items()
        for warning in measurement.warnings
        if warning not in measurement.total.warnings  # Those are about the spread of samples.
    )
    old, new = (sorted({run.machine for run in side}) for side in zip(*runs, strict=True))
    if old != new:
        yield (
            "They ran on different machines or versions of JAX, which may be the difference: "
            f"{', '.join(old)}; and {', '.join(new)}."
        )
