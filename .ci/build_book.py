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
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
NEW, OLD = BUILD / "new", BUILD / "old"
STAMP = BUILD / "book.stamp"
OPENED = "opened.json"
PAGE = BUILD / "html/book/index.html"
# In a process of its own: whoever asks for a GPU takes its memory.
DEVICES = "import jax; print([(device.platform, device.device_kind) for device in jax.devices()])"


def main():
    """Build the book if it has to be built, and say where it is."""
    started = time.time_ns()
    stamped = STAMP.exists() and STAMP.read_text(encoding="utf-8") == stamp()
    if stamped and PAGE.exists() and "--force" not in sys.argv:
        print("Nothing has changed since the book was built (make book FORCE=1 builds it anew).")
    else:
        build()
        # What was changed meanwhile is in the book as it was, or as it is.
        if all(path.stat().st_ctime_ns < started for path in inputs()):
            STAMP.write_text(stamp(), encoding="utf-8")
        print(f"Built in {(time.time_ns() - started) / 1e9:.0f} s.")
    print(f"The book: {PAGE.relative_to(ROOT)}  (to read it in a browser: make serve)")


def inputs():
    """Return the files that the book was made from, or will be if Sphinx opens what it did."""
    opened = BUILD / OPENED
    paths = json.loads(opened.read_text(encoding="utf-8")) if opened.exists() else []
    files = {ROOT / path for path in paths}
    for folder in ("book", "d2lpar"):
        files |= set((ROOT / folder).rglob("*"))
    kept = {"__pycache__", ".ipynb_checkpoints"}  # By Python and Jupyter, and read by no page.
    return sorted(path for path in files if path.is_file() and kept.isdisjoint(path.parts))


def stamp():
    """Return what the book is made from: the files, and what else a measurement depends on."""
    files = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in inputs()}
    devices = subprocess.check_output([sys.executable, "-c", DEVICES], text=True)
    settings = sorted(s for s in os.environ.items() if re.match("(JAX_|XLA_|NPROC$)", s[0]))
    packages = sorted({(d.name, d.version) for d in distributions()})
    return json.dumps([sys.version, devices, settings, packages, files], indent=1)


def build():
    """Build the book aside and put it in place of the last one; exit if that fails."""
    for folder in (NEW, OLD):
        shutil.rmtree(folder, ignore_errors=True)
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
            sphinx.wait()
            raise
    if sphinx.returncode:
        sys.exit(f"\nThe book could not be built.\n{reason(''.join(lines))}")
    STAMP.unlink(missing_ok=True)
    OLD.mkdir()
    for part in (OPENED, "jupyter_execute", "html"):
        if (BUILD / part).exists():
            (BUILD / part).replace(OLD / part)
        (NEW / "_build" / part).replace(BUILD / part)
    for folder in (NEW, OLD):
        shutil.rmtree(folder)


def reason(text):
    """Return why a cell or a page has failed, out of all that Sphinx has printed."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text).partition("\nThere was an error in building")[0]
    page = re.search(r"^\S*\.ExecutionError: (.*)", text, re.MULTILINE)
    if page:
        # The error of a cell may have a cause itself; the one of its page comes last.
        before = text[: page.start()].rpartition("\nThe above exception was the direct cause")[0]
        kind, _, error = before.rpartition("nbclient.exceptions.")[2].partition(": ")
        paragraphs = re.split(r"\n\n(?=[A-Za-z][\w.]*(?:: |\n|$))", error.rstrip())
        # Else it took too long, or its kernel died: the first line says so, and the cell follows.
        said = paragraphs[-1] if kind == "CellExecutionError" else error.partition("\n")[0]
        return f"{page[1]}\n{said}"
    warnings = re.findall(r"^.*(?:WARNING|ERROR): .*", text, re.MULTILINE)
    return "\n".join(warnings or [line for line in text.splitlines() if line.strip(" =")][-3:])


def run_sphinx():
    """Run Jupyter Book in this process, and keep which files it opens."""
    from jupyter_book.cli.main import main as jupyter_book

    opened = set()

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], str):
            opened.add(arguments[0])

    sys.addaudithook(note)
    # Warnings are errors; without a clean build, a second one of the same failing book exits 0.
    options = ["--path-output", str(NEW), "--all", "-W", "-n", "--keep-going"]
    jupyter_book(["build", ".", *options], standalone_mode=False)
    # The source of a module that was compiled before is not opened.
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [Path(os.path.realpath(path)) for path in {*opened, *filter(None, modules)}]
    made = [BUILD, ROOT / ".venv"]
    read = [p for p in paths if p.is_relative_to(ROOT) and not any(map(p.is_relative_to, made))]
    inside = sorted(str(path.relative_to(ROOT)) for path in read)
    (NEW / "_build" / OPENED).write_text(json.dumps(inside), encoding="utf-8")


try:
    run_sphinx() if "--sphinx" in sys.argv else main()
except KeyboardInterrupt:
    if "--sphinx" not in sys.argv:
        print("\nStopped. The last book, if there was one, is still there.", file=sys.stderr)
    sys.exit(130)
