"""Build the book, unless it was built from just this: `make book`, or `make book FORCE=1`.

The stamp of a build is written last and says what the book was built from. If there is none, or if
it says something else, the book is built.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "_build"
STAMP = BUILT / "book.stamp"
PAGE = BUILT / "html" / "book" / "index.html"
SOURCES = ["_config.yml", "_toc.yml", "CHANGELOG.md", "requirements.txt", "book", "d2lpar"]


def fingerprint() -> str:
    """Return a hash of all that the book is built from: its sources, and what is installed."""
    made_from = hashlib.sha256(sys.version.encode())
    installed = {f"{of.metadata['Name']} {of.version}" for of in distributions()}
    made_from.update("\n".join(sorted(installed)).encode())
    made_from.update(os.environ.get("JAX_NUM_CPU_DEVICES", "").encode())
    for name in SOURCES:
        files = sorted((ROOT / name).rglob("*")) if (ROOT / name).is_dir() else [ROOT / name]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                made_from.update(file.relative_to(ROOT).as_posix().encode() + b"\0")
                made_from.update(hashlib.sha256(file.read_bytes()).digest())
    return made_from.hexdigest()


def build(made_from: str) -> float:
    """Build all pages from nothing, and return the seconds it took.

    A failing cell, a false claim or a warning ends it.
    """
    for old in ("book.stamp", "html", ".doctrees", "jupyter_execute"):
        path = BUILT / old
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    started = time.monotonic()
    # Warnings are errors; without a clean build, a second one of the same failing book exits 0.
    command = ["jupyter-book", "build", ".", "--all", "-W", "-n", "--keep-going"]
    options = {
        "D2LPAR_STRICT": "1",
        # A kernel that does not warn, once for each notebook, that it listens on this machine.
        "JUPYTER_PATH": str(ROOT / ".ci" / "jupyter"),
    }
    done = subprocess.run(command, cwd=ROOT, env=os.environ | options)
    if done.returncode:
        sys.exit(done.returncode)
    STAMP.write_text(made_from, encoding="utf-8")  # Half of it is not what is asked for.
    return time.monotonic() - started


def main() -> None:
    """Do what the command line asks for, and say where the book is."""
    # Taken before a build: what is changed meanwhile may be in the book or not.
    now = fingerprint()
    stamped = STAMP.exists() and STAMP.read_bytes() == now.encode()
    if stamped and PAGE.exists() and "--force" not in sys.argv:
        print("Nothing has changed since the book was built (make book FORCE=1 builds it anew).")
    else:
        print(f"Built in {build(now):.0f} s.")
    print(f"The book: {PAGE.relative_to(ROOT)}  (to read it in a browser: make serve)")


if __name__ == "__main__":
    main()
