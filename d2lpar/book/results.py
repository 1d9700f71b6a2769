"""Keep what experiments of the book measured, as a file for each machine."""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from d2lpar.book import claims
from d2lpar.book.claims import Claim
from d2lpar.book.notebook import show_in_notebook
from d2lpar.book.originals import EXPERIMENTS, Rows
from d2lpar.errors import ArgumentError, ResultsError
from d2lpar.machine import Machine, this_machine, versions
from d2lpar.quantity import Quantity

MIME_TYPE = "application/vnd.d2lpar.experiment+json"
"""The type under which a notebook keeps an experiment for a results file."""

SCHEMA = 1
"""The version of the file's layout; it grows with each change that a reader must know of."""


def outputs_of(notebook: Mapping[str, Any], mime_type: str) -> list[dict]:
    """Return what an executed notebook has displayed under one MIME type, in its order.

    Args:
        notebook: As `nbformat` or `json` reads it from its file.
        mime_type: Of which outputs.

    Example:
        >>> shown = {"output_type": "display_data", "data": {"text/plain": "3", MIME_TYPE: {}}}
        >>> outputs_of({"cells": [{"outputs": [shown]}, {"source": "prose"}]}, MIME_TYPE)
        [{}]
    """
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", []))
    shown = (output.get("data", {}) for output in outputs)  # What was printed has none.
    return [data[mime_type] for data in shown if mime_type in data]


@dataclass(frozen=True)
class Kept:
    """What one run of an experiment has measured.

    Attributes:
        experiment: Its id, one of `EXPERIMENTS`.
        variant: What sets this run apart from others of the same experiment, or nothing.
        rows: The quantities, by what they are.

    Raises:
        ArgumentError: If there is no such experiment, or if rows are missing, too many, or no
            quantities.
    """

    experiment: str
    variant: str
    rows: Rows

    def __post_init__(self):
        if self.experiment not in EXPERIMENTS:
            known = ", ".join(EXPERIMENTS)
            raise ArgumentError(f"There is no experiment {self.experiment!r}; there are {known}.")
        expected = EXPERIMENTS[self.experiment].rows
        if set(self.rows) != set(expected):
            raise ArgumentError(
                f"Experiment {self.experiment} has the rows {', '.join(expected)}; "
                f"found {', '.join(self.rows) or 'none'}."
            )
        for row, quantity in self.rows.items():
            if not isinstance(quantity, Quantity):
                raise ArgumentError(
                    f"{row!r} of experiment {self.experiment} must be a quantity, found "
                    f"{quantity!r}: keep what was measured, or `counted`."
                )

    def as_dict(self) -> dict:
        """Return it as plain data, for JSON."""
        rows = {row: quantity.as_dict() for row, quantity in self.rows.items()}
        return {"experiment": self.experiment, "variant": self.variant, "rows": rows}

    @classmethod
    def from_dict(cls, data: dict) -> "Kept":
        """Return what `as_dict` has described."""
        rows = {row: Quantity(**quantity) for row, quantity in data["rows"].items()}
        return cls(data["experiment"], data["variant"], rows)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {MIME_TYPE: self.as_dict()}


def keep(experiment: str, rows: Rows, variant: str = "") -> None:
    """Keep what an experiment has measured, for the results of this machine.

    It shows nothing, but `make record` and the results page find it among a notebook's outputs.
    Outside a notebook it only looks whether the rows are right.

    Args:
        experiment: Its id, one of `EXPERIMENTS`.
        rows: Quantities by name, named as in what the editions printed.
        variant: What sets this run apart from others of the same experiment.

    Raises:
        ArgumentError: As `Kept` does.

    Example:
        >>> from d2lpar import counted
        >>> keep("A6", {"barrier in each turn": counted("loop", 2.0, "s")})
        Traceback (most recent call last):
        d2lpar.errors.ArgumentError: Experiment A6 has the rows barrier in each turn, barrier at \
the end; found barrier in each turn.
    """
    show_in_notebook(Kept(experiment, variant, rows))


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
        Kept.from_dict(data[MIME_TYPE])
        for outputs in pages.values()
        for data in outputs
        if MIME_TYPE in data
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
