"""Build the book, unless it was built from just this: `make book`, or `make book FORCE=1`.

A new book is built beside the last one, and takes its place when it is whole. Its stamp names what
it was made from: the environment, and the files that its pages could have read. Those are all of
the package and of the book, which the notebooks may read, and what Sphinx has opened elsewhere.
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
OPENED, REASON = "opened.json", "reason.txt"
PAGE = BUILD / "html/book/index.html"
# In a separate process, because asking JAX for a GPU reserves its memory.
MACHINE = "from d2lpar._jax.devices import this_machine; print(this_machine())"


def main():
    """Build the book if it has to be built, and say where it is."""
    started = time.time_ns()
    environment, before = describe_environment(), files()
    stamped = STAMP.exists() and STAMP.read_text(encoding="utf-8") == stamp(environment, before)
    if stamped and PAGE.exists() and "--force" not in sys.argv:
        print("Nothing has changed since the book was built (make book FORCE=1 builds it anew).")
    else:
        build()
        # A file edited during the build may be in the book in either version: no stamp, then.
        after = files()
        new = [ROOT / path for path in after.keys() - before.keys()]
        if before.items() <= after.items() and all(p.stat().st_ctime_ns < started for p in new):
            STAMP.write_text(stamp(environment, after), encoding="utf-8")
        print(f"Built in {(time.time_ns() - started) / 1e9:.0f} s.")
    print(f"The book: {PAGE.relative_to(ROOT)}  (to read it in a browser: make serve)")


def describe_environment():
    """Return what a measurement depends on beside the files."""
    asked = subprocess.run([sys.executable, "-c", MACHINE], capture_output=True, text=True)
    if asked.returncode:
        sys.exit(f"JAX does not start.\n{(asked.stderr.splitlines() or [''])[-1]}")
    settings = sorted(s for s in os.environ.items() if re.match("(JAX_|XLA_|NPROC$)", s[0]))
    packages = sorted({(d.name, d.version) for d in distributions()})
    return [sys.version, asked.stdout, settings, packages]


def files():
    """Return the hashes of the files that the book depends on, as Sphinx has told last time."""
    opened = BUILD / OPENED
    paths = json.loads(opened.read_text(encoding="utf-8")) if opened.exists() else []
    inputs = {ROOT / path for path in paths}
    for folder in ("book", "d2lpar"):
        inputs |= set((ROOT / folder).rglob("*"))
    kept = {"__pycache__", ".ipynb_checkpoints"}  # By Python and Jupyter, and read by no page.
    return {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(inputs)
        if path.is_file() and kept.isdisjoint(path.parts)
    }


def stamp(environment, hashes):
    """Return what the book is made from."""
    return json.dumps([*environment, hashes], indent=1)


def build():
    """Build the book aside and put it in place of the last one; exit if that fails."""
    for folder in (NEW, OLD):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    # Its kernels do not warn, once for each notebook, that they listen on this machine.
    options = {"D2LPAR_STRICT": "1", "JUPYTER_PATH": str(ROOT / ".ci" / "jupyter")}
    command = [sys.executable, "-P", __file__, "--sphinx"]
    lines = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        close_fds=False,  # It holds the lock of `make book` until it ends, too.
    ) as sphinx:
        try:
            for line in sphinx.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        except KeyboardInterrupt:  # Sphinx has heard it as well, and ends its kernel.
            sphinx.communicate()
            raise
    if sphinx.returncode:
        sys.exit(f"\nThe book could not be built.\n{reason(sphinx.returncode, lines)}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # What is left takes no time.
    STAMP.unlink(missing_ok=True)
    for part in (OPENED, "jupyter_execute", "html"):
        if (BUILD / part).exists():
            (BUILD / part).replace(OLD / part)
        (NEW / "_build" / part).replace(BUILD / part)
    for folder in (NEW, OLD):
        shutil.rmtree(folder)


def reason(status, lines):
    """Return why Sphinx has failed: the error that ended it, or the warnings it has printed."""
    if (NEW / REASON).exists():
        return (NEW / REASON).read_text(encoding="utf-8")
    if status < 0:
        return f"Sphinx was ended by {signal.Signals(-status).name}; perhaps memory ran out."
    warnings = [line for line in lines if re.search("(WARNING|ERROR): ", line)]
    return re.sub(r"\x1b\[[\d;]*m", "", "".join(warnings or lines[-3:])).rstrip()


def run_sphinx():
    """Run Jupyter Book in this process, and keep which files it opens, or why it fails."""
    from jupyter_book.cli.main import main as jupyter_book

    opened = set()

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], str):
            opened.add(arguments[0])

    sys.addaudithook(note)
    # Warnings are errors; without a clean build, a second one of the same failing book exits 0.
    options = ["--path-output", str(NEW), "--all", "-W", "-n", "--keep-going"]
    try:
        jupyter_book(["build", ".", *options], standalone_mode=False)
    except RuntimeError as error:
        (NEW / REASON).write_text(message_of(error.__cause__ or error), encoding="utf-8")
        raise
    # The source of a module that was compiled before is not opened.
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [Path(os.path.realpath(path)) for path in {*opened, *filter(None, modules)}]
    made = [BUILD, ROOT / ".venv"]
    read = [p for p in paths if p.is_relative_to(ROOT) and not any(map(p.is_relative_to, made))]
    inside = sorted(str(path.relative_to(ROOT)) for path in read)
    (NEW / "_build" / OPENED).write_text(json.dumps(inside), encoding="utf-8")


def message_of(error):
    """Return what an error of Sphinx says: of a cell, its page and the error that it raised."""
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
