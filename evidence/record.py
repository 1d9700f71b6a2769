"""Run the notebooks and keep what this machine measures: `make record NAME=my-machine`."""

import os
import re
import sys

from conditions import commit
from run_notebook import ROOT, notebooks, run_notebook

from d2lpar.book.results import collect, save


def main() -> None:
    """Write the results of this machine under the name on the command line."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if not re.fullmatch(r"[\w.-]*\w", name):
        sys.exit(
            f"A machine needs a name of letters, digits, - and _, found {name!r}: "
            "make record NAME=my-machine"
        )
    load, state = os.getloadavg()[0], commit()
    pages = {}
    for notebook in notebooks():
        page = notebook.relative_to(ROOT).with_suffix("").as_posix()
        print(f"{page} ...")
        executed = run_notebook(notebook, strict=False, timeout=900)
        outputs = (output for cell in executed.cells for output in cell.outputs)
        pages[page] = [output.get("data", {}) for output in outputs]
    path = ROOT / "book" / "results" / f"{name}.json"
    results = collect(name, pages, commit=state, load=load)
    save(results, path)
    print(f"Kept in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
