"""Keep the measurements of all pages on one machine in one JSON file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from d2lpar._jax.devices import Machine, this_machine, versions
from d2lpar.book import claims, recorded
from d2lpar.book.claims import Claim

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
class Results:
    """The measurements of one machine in one run of the book.

    `name` is the stem of the file, and `commit` that of the book, empty if unknown. The run was
    started, or started again, at `date`, in ISO 8601; in the minute before, `load` processes wanted
    a core on average. The claims of a page are under its path without a suffix.
    """

    name: str
    machine: Machine
    versions: Mapping[str, str]
    commit: str
    date: str
    load: float
    claims: Mapping[str, tuple[Claim, ...]]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Results":
        """Return the results that the JSON of a file describes."""
        return cls(
            machine=Machine(**data["machine"]),
            claims={
                name: tuple(map(Claim.from_dict, page["claims"]))
                for name, page in data["pages"].items()
            },
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
    """Return a page's part of a results file: the claims and times that its notebook displayed."""
    return {
        "claims": outputs_of(notebook, claims.MIME_TYPE),
        "experiments": outputs_of(notebook, recorded.MIME_TYPE),
    }


def load(path: Path | str) -> Results:
    """Read results from a file, and check each verdict against its samples.

    Raises:
        ValueError: If the file is no whole file of results, of another schema, or if it holds an
            unknown unit, or a verdict that does not follow from its samples.
        OSError: If there is no such file, or it cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}, and this d2lpar reads {SCHEMA}")
        return Results.of(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(".")
        raise ValueError(
            f"{path} is no file of results ({reason}). Record it again with `make record`."
        ) from error
