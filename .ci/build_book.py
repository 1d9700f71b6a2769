"""Build the book, unless it was built from just this: `make book`, or `make book FORCE=1`.

The stamp of a build is written last and says what the book was built from. If there is none, if it
cannot be read, or if it says something else, the book is built.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "_build"
STAMP = BUILT / "book.json"
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


def built() -> dict:
    """Return what the stamp says; nothing if there is none, or none that can be read."""
    try:
        said = json.loads(STAMP.read_text(encoding="utf-8"))
        return {"from": str(said["from"]), "seconds": float(said["seconds"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def build() -> None:
    """Build all pages from nothing; a failing cell, a false claim or a warning ends it."""
    for old in ("book.json", "html", ".doctrees", "jupyter_execute"):
        path = BUILT / old
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    # Taken before: what is changed meanwhile may be in the book or not.
    before, started = fingerprint(), time.monotonic()
    # Warnings are errors; without a clean build, a second one of the same failing book exits 0.
    command = ["jupyter-book", "build", ".", "--all", "-W", "-n", "--keep-going"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"D2LPAR_STRICT": "1"})
    if done.returncode:
        sys.exit(done.returncode)
    stamp = {"from": before, "seconds": round(time.monotonic() - started, 1)}
    half = STAMP.with_suffix(".half")
    half.write_text(json.dumps(stamp), encoding="utf-8")
    half.replace(STAMP)


def main() -> None:
    """Do what the command line asks for, and say where the book is."""
    last = built()
    if "--force" not in sys.argv and PAGE.exists() and last.get("from") == fingerprint():
        print("Nothing has changed since the book was built (make book FORCE=1 builds it anew).")
    else:
        build()
        print(f"Built in {built()['seconds']:.0f} s.")
    print(f"The book: {PAGE.relative_to(ROOT)}  (to read it in a browser: make serve)")


if __name__ == "__main__":
    main()
