"""Gather the evidence that the claims of the book are sound: `make evidence`.

Without --repeats, each claim is tested with its cause and without it, and each page on one core
that counts as eight devices; a claim that survives the removal of its cause is a defect. With
--repeats, the pages run again and again, which shows how often all claims hold and how far they are
from failing.
"""

import argparse
import sys
from pathlib import Path

import causes
import repeats
from run_notebook import name_of, notebooks

from d2lpar import usable_cores


def page_named(name: str) -> Path:
    """Return a page of the book by its name, or by the path of its source."""
    pages = {name_of(page): page for page in notebooks()}
    stem = name.removeprefix("book/").removesuffix(".md").removesuffix(".ipynb")
    if stem in pages:
        return pages[stem]
    raise argparse.ArgumentTypeError(f"there is no page {name!r}; there are {', '.join(pages)}")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, words in (
        ("--repeats", "how many runs of each page"),
        ("--load", "busy processes beside the repeats"),
        ("--cores", "cores for them, if not all"),
        ("--devices", "CPU devices for them, if not as many as the pages ask for"),
    ):
        parser.add_argument(name, type=int, default=0, help=words)
    parser.add_argument("pages", nargs="*", type=page_named, help="all if none is named")
    options = parser.parse_args(given)
    if not options.repeats and (options.load or options.cores or options.devices):
        parser.error("--load, --cores and --devices need --repeats, the number of runs")
    return options


def main() -> None:
    options = arguments()
    pages = options.pages or notebooks()
    try:
        if options.repeats:
            cores = options.cores or usable_cores()
            condition = {"load": options.load, "cores": cores, "devices": options.devices}
            repeats.main(pages, condition, options.repeats)
            return
        wrong = causes.gather(pages)
    except ValueError as error:  # A key that is missing, or the like.
        sys.exit(f"{error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if wrong:
        sys.exit("\n".join(["The evidence has defects:", *wrong]))
    print("The evidence has no defects.")


if __name__ == "__main__":
    main()
