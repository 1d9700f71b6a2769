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
NEW = BUILD / "new"
STAMP = BUILD / "book.stamp"
OPENED = "opened.json"
PAGE = BUILD / "html/book/index.html"
# In a process of its own: whoever asks for a GPU takes its memory.
DEVICES = "import jax; print([(device.platform, device.device_kind) for device in jax.devices()])"


def main():
    """Build the book if it has to be built, and say where it is."""
    files = hashes()
    environment = describe_environment()
    stamped = STAMP.exists() and STAMP.read_text(encoding="utf-8") == stamp(environment, files)
    if stamped and PAGE.exists() and "--force" not in sys.argv:
        print("Nothing has changed since the book was built (make book FORCE=1 builds it anew).")
    else:
        started = time.monotonic()
        build()
        STAMP.write_text(stamp(environment, files), encoding="utf-8")
        print(f"Built in {time.monotonic() - started:.0f} s.")
    print(f"The book: {PAGE.relative_to(ROOT)}  (to read it in a browser: make serve)")


def describe_environment():
    """Return what a measurement depends on beside the files."""
    devices = subprocess.check_output([sys.executable, "-c", DEVICES], text=True)
    settings = sorted(s for s in os.environ.items() if re.match("(JAX_|XLA_|NPROC$)", s[0]))
    packages = sorted({(d.name, d.version) for d in distributions()})
    return [sys.version, devices, settings, packages]


def hashes():
    """Return the hash of every file of the tree, but for what git ignores."""
    ignored = {".git", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())}
    found = {}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = set(folders) - ignored
        for path in (Path(folder, name) for name in names):
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[path.relative_to(ROOT).as_posix()] = digest
    return found


def stamp(environment, files):
    """Return what the book is made from, if what Sphinx opened last time is what it opens."""
    file = BUILD / OPENED
    opened = set(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else set()
    inputs = {
        path: files[path]
        for path in sorted(files)
        if path.startswith(("book/", "d2lpar/")) or path in opened
    }
    return json.dumps([*environment, inputs], indent=1)


def build():
    """Build the book aside and put it in place of the last one; exit if that fails."""
    shutil.rmtree(NEW, ignore_errors=True)
    # Its kernels do not warn, once for each notebook, that they listen on this machine.
    options = {"D2LPAR_STRICT": "1", "JUPYTER_PATH": str(ROOT / ".ci" / "jupyter")}
    command = [sys.executable, "-P", __file__, "--sphinx"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    lines = []
    try:
        with subprocess.Popen(command, cwd=ROOT, env=os.environ | options, **pipes) as sphinx:
            for line in sphinx.stdout:
                print(line, end="", flush=True)
                lines.append(line)
    except KeyboardInterrupt:  # Which Sphinx and its kernel have heard, too.
        sphinx.wait()
        print("\nStopped. The last book, if there was one, is still there.", file=sys.stderr)
        sys.exit(130)
    if sphinx.returncode:
        sys.exit(f"\nThe book could not be built.\n{reason(''.join(lines))}")
    for part in (OPENED, ".doctrees", "jupyter_execute", "html"):
        shutil.rmtree(BUILD / part, ignore_errors=True)
        (NEW / "_build" / part).replace(BUILD / part)


def reason(text):
    """Return the cell that failed, or the warnings, out of all that Sphinx has printed."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    page = re.search(r"^\S*\.ExecutionError: (.*)", text, re.MULTILINE)
    if page:
        before = text.partition("\nThe above exception was the direct cause")[0].rstrip()
        error = before.rpartition("\n\n")[2]
        return f"{page[1]}\n{error}"
    warnings = re.findall(r"^.*(?:WARNING|ERROR): .*", text, re.MULTILINE)
    return "\n".join(warnings or text.splitlines()[-3:])


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
    opened |= {module.__file__ for module in sys.modules.values() if getattr(module, "__file__", 0)}
    paths = [path for path in map(os.path.realpath, opened) if path.startswith(f"{ROOT}/")]
    inside = sorted({os.path.relpath(path, ROOT) for path in paths})
    (NEW / "_build" / OPENED).write_text(json.dumps(inside), encoding="utf-8")


if "--sphinx" in sys.argv:
    run_sphinx()
else:
    main()
