"""Run the notebooks and keep the results of this machine: `make record NAME=my-machine`.

The file is written anew after each page. Started again after an interruption, the command runs only
the missing pages, if the file has the same machine, versions and commit. If no page is missing, all
run again.
"""

import argparse
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
    """Run pages by `run`, which returns the executed notebook, and keep each result at once."""
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
    before = json.loads(file.read_text(encoding="utf-8"))
    keys = ("schema", "machine", "versions", "commit")
    if changed := [key for key in keys if before[key] != here[key]]:
        print(f"{file.name} has another {', '.join(changed)}: it begins anew.")
        return {}
    return before["pages"]


def header(name: str) -> dict:
    """Return the file's entries except its pages."""
    return this_run() | {"name": name, "commit": commit("."), "load": os.getloadavg()[0]}


def main(given: list[str] | None = None) -> None:
    """Write the results of this machine under the name on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a name for this machine")
    parser.add_argument("pages", nargs="*", type=page_named, help="all if none is named")
    options = parser.parse_args(given)
    if not re.fullmatch(r"[\w.-]*\w", options.name):
        parser.error(
            f"a machine needs a name of letters, digits, - and _, found {options.name!r}: "
            "make record NAME=my-machine"
        )
    file = ROOT / RECORDED / f"{options.name}.json"
    pages = {f"book/{name_of(page)}": page for page in options.pages or notebooks()}
    try:
        record(file, header(options.name), pages, run_notebook)
    except KeyboardInterrupt:
        print("\nStopped. What was finished is kept: the same command goes on from there.")
        sys.exit(130)
    print(f"Kept in {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
