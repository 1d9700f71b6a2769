"""Keep what a machine measured as a file, load what others measured, and compare the two."""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from d2lpar import claims, experiments
from d2lpar.claims import VERDICTS, Claim
from d2lpar.errors import ArgumentError, ResultsError
from d2lpar.experiments import Kept
from d2lpar.machine import Machine, this_machine, versions
from d2lpar.quantity import Quantity
from d2lpar.units import format_bytes, format_value

SCHEMA = 1
"""The version of the file's layout; it grows with each change that a reader must know of."""

_QUANTITY = {"name": str, "samples": [int | float], "unit": str, "exact": bool}
_BOUND = int | float | None
_PREDICATE = {"quantity": _QUANTITY, "relation": str, "low": _BOUND, "high": _BOUND}
_CLAIM = {
    "sentence": str,
    "verdict": str,
    "predicates": [_PREDICATE],
    "otherwise": str,
    "needs": str | None,
}
_SHAPE = {
    "name": str,
    "machine": {
        "processor": str,
        "cores": int,
        "memory": int,
        "system": str,
        "devices": str,
        "driver": str,
    },
    "versions": {...: str},
    "commit": str,
    "date": str,
    "load": int | float,
    "claims": {...: [_CLAIM]},
    "experiments": [{"experiment": str, "variant": str, "rows": {...: _QUANTITY}}],
}


@dataclass(frozen=True)
class Results:
    """What one machine measured in one run of the book.

    Attributes:
        name: What to call the machine; the stem of its file.
        machine: What it is.
        versions: Of Python and the packages, by name.
        commit: The state of the book that was run, or nothing if it is not known.
        date: When, as ISO 8601 with its offset from UTC.
        load: How many processes wanted a core in the minute before, on average.
        claims: The claims of each page, by its path without a suffix.
        experiments: What the experiments measured.
    """

    name: str
    machine: Machine
    versions: Mapping[str, str]
    commit: str
    date: str
    load: float
    claims: Mapping[str, tuple[Claim, ...]]
    experiments: tuple[Kept, ...]

    def as_dict(self) -> dict:
        """Return the results as plain data, for JSON."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "machine": asdict(self.machine),
            "versions": dict(self.versions),
            "commit": self.commit,
            "date": self.date,
            "load": self.load,
            "claims": {
                page: [made.as_dict() for made in found] for page, found in self.claims.items()
            },
            "experiments": [kept.as_dict() for kept in self.experiments],
        }

    @classmethod
    def from_dict(cls, data: dict) -> "Results":
        """Return the results that `as_dict` has described.

        Raises:
            ArgumentError: If a quantity or a claim is none.
            KeyError, TypeError, AttributeError: If something is missing or of another type.
        """
        return cls(
            name=data["name"],
            machine=Machine(**data["machine"]),
            versions=data["versions"],
            commit=data["commit"],
            date=data["date"],
            load=data["load"],
            claims={
                page: tuple(map(Claim.from_dict, found)) for page, found in data["claims"].items()
            },
            experiments=tuple(map(Kept.from_dict, data["experiments"])),
        )

    @property
    def summary(self) -> str:
        """One line for each thing that a reader should know of the machine."""
        machine = self.machine
        driver = f" (driver {machine.driver})" if machine.driver else ""
        used = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return "\n".join(
            [
                f"{self.name}: {machine.processor}, {machine.cores} cores, "
                f"{format_bytes(machine.memory)}, {machine.devices}{driver}",
                f"  {machine.system}; {used}",
                f"  {self.date}, load {self.load:.1f}, commit {self.commit or 'unknown'}",
            ]
        )


def collect(
    name: str, pages: Mapping[str, Iterable[Mapping[str, Any]]], commit: str = "", load: float = 0.0
) -> Results:
    """Gather the results of this machine from what executed notebooks have displayed.

    Args:
        name: What to call the machine.
        pages: The data of each output, by MIME type, of each page.
        commit: The state of the book that was run.
        load: The average load before the run.

    Returns:
        The claims and experiments among them, with this machine and the versions here.
    """
    pages = {page: list(outputs) for page, outputs in pages.items()}
    found = {
        page: tuple(
            Claim.from_dict(data[claims.MIME_TYPE]) for data in outputs if claims.MIME_TYPE in data
        )
        for page, outputs in pages.items()
    }
    kept = tuple(
        Kept.from_dict(data[experiments.MIME_TYPE])
        for outputs in pages.values()
        for data in outputs
        if experiments.MIME_TYPE in data
    )
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Results(name, this_machine(), versions(), commit, date, load, found, kept)


def save(results: Results, path: Path | str) -> None:
    """Write results to a file, whole or not at all.

    Args:
        results: What to keep.
        path: Where to. A file of that name is replaced in the moment when the new one is whole.

    Raises:
        ResultsError: If the results hold a number that JSON has no word for.
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(collect("here", {}), f"{folder}/here.json")
        ...     load(f"{folder}/here.json").name
        'here'
    """
    path = Path(path)
    try:
        text = json.dumps(results.as_dict(), allow_nan=False, indent=1, ensure_ascii=False)
    except ValueError as error:
        raise ResultsError(f"{path} is not written: the results hold NaN or infinity.") from error
    write_whole(path, text + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write text to a file, whole or not at all.

    Args:
        path: Where to. A file of that name is replaced in the moment when the new one is whole.
        text: What to write, as UTF-8.

    Raises:
        OSError: If the file cannot be written.
    """
    # In the same folder, since a file can be renamed only within one file system.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp lets nobody else read it.
        os.replace(temporary, path)
    except BaseException:  # Also Ctrl-C.
        os.unlink(temporary)
        raise


def load(path: Path | str) -> Results:
    """Read results from a file.

    Args:
        path: A file that `save` has written.

    Returns:
        What it holds. Each verdict has been compared with the samples it follows from.

    Raises:
        ResultsError: If the file is no whole file of results, of another schema, or if it holds
            a NaN, an unknown unit, or a verdict that does not follow from its samples.
        OSError: If there is no such file, or it cannot be read.
    """
    try:
        data = json.loads(
            Path(path).read_text(encoding="utf-8"), parse_constant=_refuse, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:  # JSON's and UTF-8's errors are ValueErrors.
        raise ResultsError(
            f"{path} is no whole file of results: {error}. Record it anew with `make record`."
        ) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise ResultsError(
            f"{path} has the schema {schema!r}, and this version of d2lpar reads {SCHEMA}. "
            "Record it anew with `make record`, or read it with the version that wrote it."
        )
    try:
        _check(data, _SHAPE)
        return Results.from_dict(data)
    except ArgumentError as error:
        raise ResultsError(f"{path} cannot be believed: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"{path} is no file of results: something is missing or of another type "
            f"({type(error).__name__}: {error}). Record it anew with `make record`."
        ) from error


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}, which is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _check(found: object, shape: object, name: str = "it") -> None:
    """Refuse plain data that is not of this shape: a type, a list of it, or by key (... is any)."""
    kind = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise TypeError(f"{name} is {found!r}")
    if isinstance(shape, list):
        for element in found:
            _check(element, shape[0], name)
    elif isinstance(shape, dict):
        for key in found if ... in shape else shape:
            _check(found[key], shape.get(key, shape.get(...)), key)


def compare_results(first: Results, second: Results) -> str:
    """Set two machines side by side, as text for a terminal.

    Args:
        first: The results of one machine.
        second: Those of another, or of the same at another time.

    Returns:
        Both machines; each row of each experiment with both medians and their ratio; and the
        claims whose verdicts differ, with what either has measured.
    """
    lines = [first.summary, second.summary, ""]
    width = max(len(first.name), len(second.name), 10)
    ours, theirs = (
        {(kept.experiment, kept.variant): kept.rows for kept in results.experiments}
        for results in (first, second)
    )
    lines.append(f"{'':40} {first.name:>{width}} {second.name:>{width}}   second / first")
    for key in sorted(ours.keys() | theirs.keys()):
        experiment, variant = key
        lines.append(f"{experiment} {variant}".rstrip())
        pair = ours.get(key, {}), theirs.get(key, {})
        for row in dict.fromkeys([*pair[0], *pair[1]]):
            lines.append(_row(row, [rows.get(row) for rows in pair], width))
    verdicts = [
        {made.sentence: made for found in results.claims.values() for made in found}
        for results in (first, second)
    ]
    shared = [sentence for sentence in verdicts[0] if sentence in verdicts[1]]
    differ = [s for s in shared if verdicts[0][s].verdict != verdicts[1][s].verdict]
    alike = len(shared) - len(differ)
    lines += ["", f"Of {len(shared)} claims that both have, {alike} have the same verdict."]
    for sentence in differ:
        lines.append(sentence)
        for results, made in zip((first, second), (v[sentence] for v in verdicts), strict=True):
            detail = f": {made.detail}" if made.detail else ""
            lines.append(f"  {results.name} {VERDICTS[made.verdict]}{detail}")
            lines += [f"    {predicate}" for predicate in made.predicates]
    return "\n".join(lines)


def _row(name: str, pair: list[Quantity | None], width: int) -> str:
    cells = [format_value(q.median, q.unit) if q else "-" for q in pair]
    ratio = ""
    if all(pair) and pair[0].median > 0:
        ratio = f"{pair[1].median / pair[0].median:.2f}"
    return f"  {name:38} {cells[0]:>{width}} {cells[1]:>{width}}   {ratio:>14}".rstrip()
