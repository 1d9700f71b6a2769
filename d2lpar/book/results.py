"""Keep the measurements of all pages on one machine in one JSON file."""

# The history of the file's layout. Each incompatible change has a schema of its own:
# * Schema 2 (d2lpar 0.3.0): `pages` has the `claims` and `experiments` that each page's notebook
#   displayed, by the page's path without a suffix. The file is written page by page.
# * Schema 1 (d2lpar 0.1.0): `claims` by page, and the `experiments` of all pages in one list; the
#   `date` was the end of the run.
# In both, `name`, `machine`, `versions`, `commit`, `date` and `load` say where the pages were
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
"""The MIME type of an experiment among a notebook's outputs, for a results file."""

SCHEMA = 2
"""The version of the file's layout."""


def outputs_of(notebook: Mapping[str, Any], mime_type: str) -> list[dict]:
    """Return the outputs of one MIME type in an executed notebook, in order.

    The notebook is as `nbformat` or `json` reads it from its file.
    """
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", []))
    bundles = (output.get("data", {}) for output in outputs)  # Printed text has no data.
    return [data[mime_type] for data in bundles if mime_type in data]


@dataclass(frozen=True)
class ExperimentResult:
    """The measurements of one run of an experiment.

    Attributes:
        experiment: Its id, one of `EXPERIMENTS`.
        variant: The difference to other runs of the same experiment; may be empty.
        rows: The quantities by name.
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

    def _repr_mimebundle_(self, include=None, exclude=None):
        rows = {row: quantity.as_dict() for row, quantity in self.rows.items()}
        return {MIME_TYPE: {"experiment": self.experiment, "variant": self.variant, "rows": rows}}


def keep(experiment: str, rows: Rows, variant: str = "") -> None:
    """Keep the measurements of an experiment for the results of this machine.

    The reader sees nothing, but `make record` and the build of the book find the rows among the
    notebook's outputs. Outside a notebook, `keep` only checks the rows.

    Args:
        experiment: Its id, one of `EXPERIMENTS`.
        rows: Quantities by name, with the names that `EXPERIMENTS` gives the printed rows.
        variant: The difference to other runs of the same experiment; may be empty.

    Raises:
        ValueError: If there is no such experiment, or if rows are missing or too many.
    """
    show_in_notebook(ExperimentResult(experiment, variant, rows))


@dataclass(frozen=True)
class Results:
    """The measurements of one machine in one run of the book.

    Attributes:
        name: The machine's short name, which is the stem of its file.
        machine: The machine's hardware and system.
        versions: Versions of Python and the packages, by name.
        commit: The commit of the book that was run; empty if unknown.
        date: The start of the run (the last start, if it was interrupted), as ISO 8601 with its
            offset from UTC.
        load: The average number of processes that wanted a core in the minute before.
        claims: The claims of each page, by the page's path without a suffix.
        experiments: The results of all experiments.
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
        """Return the results that the JSON of a file describes.

        Raises:
            ValueError: If a quantity or a claim is none, or a verdict does not follow from its
                samples.
        """
        claims, experiments = {}, []
        for name, page in data["pages"].items():
            claims[name] = tuple(map(Claim.from_dict, page["claims"]))
            for run in page["experiments"]:
                rows = {row: Quantity(**quantity) for row, quantity in run["rows"].items()}
                experiments.append(ExperimentResult(run["experiment"], run["variant"], rows))
        return cls(
            machine=Machine(**data["machine"]),
            claims=claims,
            experiments=tuple(experiments),
            **{key: data[key] for key in ("name", "versions", "commit", "date", "load")},
        )


def this_run() -> dict[str, Any]:
    """Return the head of a results file: schema, machine, versions, date. Starts JAX."""
    return {
        "schema": SCHEMA,
        "machine": asdict(this_machine()),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def page_of(notebook: Mapping[str, Any]) -> dict[str, list[dict]]:
    """Return a page's part of a results file: the claims and experiments its notebook displayed."""
    return {
        "claims": outputs_of(notebook, claims.MIME_TYPE),
        "experiments": outputs_of(notebook, MIME_TYPE),
    }


def load(path: Path | str) -> Results:
    """Read results from a file, and check each verdict against its samples.

    Raises:
        ValueError: If the file is no whole file of results, of another schema, or if it holds
            a NaN, an unknown unit, or a verdict that does not follow from its samples.
        OSError: If there is no such file, or it cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse)
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are subclasses.
        raise ValueError(
            f"{path} is not a complete results file: {error}. Record it again with `make record`."
        ) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise ValueError(
            f"{path} has the schema {schema!r}, and this version of d2lpar reads {SCHEMA}. "
            "Record it again with `make record`, or read it with the version that wrote it."
        )
    try:
        return Results.of(data)
    except ValueError as error:
        raise ValueError(f"{path} cannot be trusted: {error}") from error


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}, which is not a number")
