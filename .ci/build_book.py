"""Build the book, unless it was built from just this: `make book`, or `make book FORCE=1`.

`make book SOLUTIONS=0` leaves the pages of solutions out, and the links to them.

A new book is built beside the last one and replaces it when it is complete. The stamp of a book
records the environment and a hash of every file in INPUTS. Another stamp means another book.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
NEW, OLD = BUILD / "new", BUILD / "old"
STAMP = BUILD / "book.stamp"
REASON = NEW / "reason.txt"
PAGE = BUILD / "html/book/index.html"
# Pages read the changelog, and notebooks may read anything in the folders.
INPUTS = (".ci", "book", "d2lpar", "evidence", "CHANGELOG.md", "_config.yml", "_toc.yml")
WITHOUT_SOLUTIONS = "--without-solutions" in sys.argv
# In a separate process, because asking JAX for a GPU reserves its memory.
MACHINE = "from d2lpar._jax.devices import this_machine; print(this_machine())"


def main():
    """Build the book if it has to be built, and print where it is."""
    started, environment = time.monotonic(), describe_environment()
    stamp = stamp_of(environment)
    stamped = STAMP.exists() and STAMP.read_text(encoding="utf-8") == stamp
    if stamped and PAGE.exists() and "--force" not in sys.argv:
        print("Nothing has changed since the book was built (make book FORCE=1 builds it anew).")
    else:
        build()
        # A file edited during the build may be in the book in either version: no stamp, then.
        if stamp_of(environment) == stamp:
            STAMP.write_text(stamp, encoding="utf-8")
        print(f"Built in {time.monotonic() - started:.0f} s.")
    print(f"The book: {PAGE.relative_to(ROOT)}  (to read it in a browser: make serve)")


def describe_environment():
    """Return what a book depends on beside the files: Python, machine, settings, packages."""
    machine = subprocess.run([sys.executable, "-c", MACHINE], capture_output=True, text=True)
    if machine.returncode:
        sys.exit(f"JAX does not start.\n{(machine.stderr.splitlines() or [''])[-1]}")
    settings = sorted(s for s in os.environ.items() if re.match("(JAX_|XLA_|NPROC$)", s[0]))
    packages = sorted({(d.name, d.version) for d in distributions()})
    return [sys.version, machine.stdout, settings, packages, WITHOUT_SOLUTIONS]


def stamp_of(environment):
    """Return the stamp of a book built now: its environment, and a hash of each input."""
    paths = {path for name in INPUTS for path in [ROOT / name, *(ROOT / name).rglob("*")]}
    ignored = {"__pycache__", ".ipynb_checkpoints"}
    hashes = {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
        if path.is_file() and ignored.isdisjoint(path.parts)
    }
    return json.dumps([*environment, hashes], indent=1)


def build():
    """Build a new book and replace the last one by it; exit if that fails."""
    for folder in (NEW, OLD):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    # The kernel in this folder does not warn, once per notebook, that it listens on localhost.
    options = {"D2LPAR_STRICT": "1", "JUPYTER_PATH": str(ROOT / ".ci" / "jupyter")}
    command = [sys.executable, "-P", __file__, "--sphinx", *sys.argv[1:]]
    lines = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        close_fds=False,  # Sphinx inherits the lock of `make book`, and holds it until it ends.
    ) as sphinx:
        try:
            for line in sphinx.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        except KeyboardInterrupt:  # Sphinx got the signal too, and ends its kernel.
            sphinx.communicate()
            raise
    if sphinx.returncode:
        sys.exit(f"\nThe book could not be built.\n{reason(sphinx.returncode, lines)}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Replacing the book takes milliseconds.
    STAMP.unlink(missing_ok=True)
    for part in ("jupyter_execute", "html"):
        if (BUILD / part).exists():
            (BUILD / part).replace(OLD / part)
        (NEW / "_build" / part).replace(BUILD / part)
    for folder in (NEW, OLD):
        shutil.rmtree(folder)


def reason(status, lines):
    """Return why Sphinx failed: the error that ended it, or else the warnings it printed."""
    if REASON.exists():
        return REASON.read_text(encoding="utf-8")
    if status < 0:
        return f"{signal.Signals(-status).name} ended Sphinx; perhaps memory ran out."
    warnings = [line for line in lines if re.search("(WARNING|ERROR): ", line)]
    return re.sub(r"\x1b\[[\d;]*m", "", "".join(warnings or lines[-3:])).rstrip()


def run_sphinx():
    """Run Jupyter Book in this process; if it fails, write the reason to a file."""
    import yaml
    from jupyter_book.cli.main import main as jupyter_book

    # Warnings are errors; without --all, a second build of the same failing book exits 0.
    options = ["--path-output", str(NEW), "--all", "-W", "-n", "--keep-going"]
    if WITHOUT_SOLUTIONS:
        contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
        contents["parts"] = [part for part in contents["parts"] if part["caption"] != "Practice"]
        (NEW / "toc.yml").write_text(yaml.safe_dump(contents), encoding="utf-8")
        options += ["--toc", str(NEW / "toc.yml")]
    try:
        jupyter_book(["build", ".", *options], standalone_mode=False)
    except RuntimeError as error:
        REASON.write_text(message_of(error.__cause__ or error), encoding="utf-8")
        raise


def message_of(error):
    """Return the message of an error of Sphinx; for a cell that failed, its page and its error."""
    if type(error).__name__ != "ExecutionError":
        return f"{type(error).__name__}: {error}"
    cell = error.__cause__
    if hasattr(cell, "evalue"):
        return f"{error}\n{cell.ename}: {cell.evalue}"
    return f"{error}\n{str(cell).partition(chr(10))[0]}"  # The kernel died, or took too long.


try:
    run_sphinx() if "--sphinx" in sys.argv else main()
except KeyboardInterrupt:
    if "--sphinx" not in sys.argv:
        print("\nStopped. The last book, if there was one, is still there.", file=sys.stderr)
    sys.exit(130)
