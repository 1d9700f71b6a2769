"""Keep what the pages of the book measured on a machine, as one JSON file."""

# The history of the file's layout. Each change that a reader must know of has a schema of its own:
# * Schema 2 (d2lpar 0.3.0): `pages` has for each page that was run, by its path without a suffix,
#   the `claims` and `experiments` that its notebook displayed. It is written page by page.
# * Schema 1 (d2lpar 0.1.0): `claims` by page, and the `experiments` of all pages in one list; the
#   `date` was that of the end.
# In both, `name`, `machine`, `versions`, `commit`, `date` and `load` say where all that was
# measured, as `Results` describes. A claim has no `key` and no `numbers` before d2lpar 0.2.0.

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from d2lpar._jax.devices import Machine, this_machine, versions
from d2lpar._measure.quantity import Quantity
from d2lpar.book import claims
from d2lpar.book.claims import Claim
from d2lpar.book.notebook import show_in_notebook
from d2lpar.book.originals import EXPERIMENTS, Rows

MIME_TYPE = "application/vnd.d2lpar.experiment+json"
"""The type under which a notebook keeps an experiment for a results file."""

SCHEMA = 2
"""The version of the file's layout."""


def outputs_of(notebook: Mapping[str, Any], mime_type: str) -> list[dict]:
    """Return what an executed notebook has displayed under one MIME type, in its order.

    The notebook is as `nbformat` or `json` reads it from its file.
    """
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", []))
    shown = (output.get("data", {}) for output in outputs)  # What was printed has none.
    return [data[mime_type] for data in shown if mime_type in data]


@dataclass(frozen=True)
class ExperimentResult:
    """What one run of an experiment has measured, by what it is.

    Attributes:
        experiment: Its id, one of `EXPERIMENTS`.
        variant: What sets this run apart from others of the same experiment, or nothing.
        rows: The quantities, by what they are.
    """

    experiment: str
    variant: str
    rows: Rows

    def __post_init__(self):
        if self.experiment not in EXPERIMENTS:
            known = ", ".join(EXPERIMENTS)
            raise ValueError(f"There is no experiment {self.experiment!r}; there are {known}.")
        expected = EXPERIMENTS[self.experiment].rows
        if set(self.rows) != set(expected):
            raise ValueError(
                f"Experiment {self.experiment} has the rows {', '.join(expected)}; "
                f"found {', '.join(self.rows) or 'none'}."
            )
        for row, quantity in self.rows.items():
            if not isinstance(quantity, Quantity):
                raise ValueError(
                    f"{row!r} of experiment {self.experiment} must be a quantity, found "
                    f"{quantity!r}: keep what was measured, or `exact`."
                )

    def _repr_mimebundle_(self, include=None, exclude=None):
        rows = {row: quantity.as_dict() for row, quantity in self.rows.items()}
        return {MIME_TYPE: {"experiment": self.experiment, "variant": self.variant, "rows": rows}}


def keep(experiment: str, rows: Rows, variant: str = "") -> None:
    """Keep what an experiment has measured, for the results of this machine.

    It shows nothing, but `make record` and the build of the book find it among a notebook's
    outputs. Outside a notebook it only looks whether the rows are right.

    Args:
        experiment: Its id, one of `EXPERIMENTS`.
        rows: Quantities by name, named as in what the editions printed.
        variant: What sets this run apart from others of the same experiment.

    Raises:
        ValueError: If there is no such experiment, or if rows are missing, too many, or no
            quantities.
    """
    show_in_notebook(ExperimentResult(experiment, variant, rows))


@dataclass(frozen=True)
class Results:
    """What one machine measured in one run of the book.

    Attributes:
        name: What to call the machine; the stem of its file.
        machine: What it is.
        versions: Of Python and the packages, by name.
        commit: The state of the book that was run, or nothing if it is not known.
        date: When the run began (the last time, if it was interrupted), as ISO 8601 with its
            offset from UTC.
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
    experiments: tuple[ExperimentResult, ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Results":
        """Return what the JSON of a file says.

        Raises:
            ValueError: If a quantity or a claim is none, or a verdict does not follow from its
                samples.
            KeyError, TypeError, AttributeError: If something is missing or of another type.
        """
        said = {key: data[key] for key in ("name", "versions", "commit", "date", "load")}
        made = {
            page: tuple(map(Claim.from_dict, found["claims"]))
            for page, found in data["pages"].items()
        }
        kept = tuple(
            ExperimentResult(
                run["experiment"],
                run["variant"],
                {row: Quantity(**quantity) for row, quantity in run["rows"].items()},
            )
            for found in data["pages"].values()
            for run in found["experiments"]
        )
        return cls(**said, machine=Machine(**data["machine"]), claims=made, experiments=kept)


def this_run() -> dict[str, Any]:
    """Return what a file says of the machine, the versions and the date; JAX starts."""
    return {
        "schema": SCHEMA,
        "machine": asdict(this_machine()),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def page_of(notebook: Mapping[str, Any]) -> dict[str, list[dict]]:
    """Return what a file says of a page: the claims and experiments that its notebook displayed."""
    return {
        "claims": outputs_of(notebook, claims.MIME_TYPE),
        "experiments": outputs_of(notebook, MIME_TYPE),
    }


def load(path: Path | str) -> Results:
    """Read results from a file, and compare each verdict with the samples it follows from.

    Raises:
        ValueError: If the file is no whole file of results, of another schema, or if it holds
            a NaN, an unknown unit, or a verdict that does not follow from its samples.
        OSError: If there is no such file, or it cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse)
    except ValueError as error:  # JSON's and UTF-8's errors are of this kind, too.
        raise ValueError(
            f"{path} is no whole file of results: {error}. Record it anew with `make record`."
        ) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise ValueError(
            f"{path} has the schema {schema!r}, and this version of d2lpar reads {SCHEMA}. "
            "Record it anew with `make record`, or read it with the version that wrote it."
        )
    try:
        return Results.of(data)
    except ValueError as error:
        raise ValueError(f"{path} cannot be believed: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no file of results: something is missing or of another type "
            f"({type(error).__name__}: {error}). Record it anew with `make record`."
        ) from error


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}, which is no number")
