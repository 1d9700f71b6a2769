"""Run the notebooks and keep what this machine measures: `make record NAME=my-machine`.

The file is written anew when a page is done. A run that was interrupted goes on when it is started
again: only the pages run that are missing, if machine, versions and commit are those of the file.
If none of the pages that are asked for is missing, they all run again.
"""

import argparse
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from check_claims import page_named
from conditions import RECORDED, commit, this_run
from run_notebook import ROOT, name_of, notebooks, run_notebook

from d2lpar._plain.format import write_whole
from d2lpar.book.results import page_of


def record(file: Path, here: Mapping, pages: Mapping[str, Path], run: Callable[[Path], Any]):
    """Run pages by `run`, which returns the executed notebook, and keep each when it is done."""
    results = here | {"pages": finished_pages(file, here)}
    missing = [page for page in pages if page not in results["pages"]]
    for page in missing or pages:
        print(f"{page} ...", flush=True)
        results["pages"][page] = page_of(run(pages[page]))
        text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(file, text + "\n")


def finished_pages(file: Path, here: Mapping) -> dict[str, dict]:
    """Return the pages that a file has from this machine, these versions and this commit."""
    if not file.exists():
        return {}
    there = json.loads(file.read_text(encoding="utf-8"))
    same = ("schema", "machine", "versions", "commit")
    if others := [what for what in same if there[what] != here[what]]:
        print(f"{file.name} has another {', '.join(others)}: it begins anew.")
        return {}
    return there["pages"]


def header(name: str) -> dict:
    """Return what the file says beside its pages."""
    load = os.getloadavg()[0]
    return this_run() | {"name": name, "commit": commit("."), "load": load}


def main(given: list[str] | None = None) -> None:
    """Write the results of this machine under the name on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="what to call this machine")
    parser.add_argument("pages", nargs="*", type=page_named, help="all if none is named")
    asked = parser.parse_args(given)
    if not re.fullmatch(r"[\w.-]*\w", asked.name):
        parser.error(
            f"a machine needs a name of letters, digits, - and _, found {asked.name!r}: "
            "make record NAME=my-machine"
        )
    file = ROOT / RECORDED / f"{asked.name}.json"
    pages = {f"book/{name_of(page)}": page for page in asked.pages or notebooks()}
    try:
        # Whatever becomes of its claims.
        run = functools.partial(run_notebook, strict=False, timeout=900)
        record(file, header(asked.name), pages, run)
    except KeyboardInterrupt:
        print("\nStopped. What was finished is kept: the same command goes on from there.")
        sys.exit(130)
    print(f"Kept in {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
