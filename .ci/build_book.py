"""Build the book, unless it was built from just this: `make book`, or `make book FORCE=1`."""

import hashlib
import os
import re
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
STAMP = ROOT / "_build/book.stamp"
SOURCES = ["_config.yml", "_toc.yml", "CHANGELOG.md", "requirements.txt", "book", "d2lpar"]
# In a process of its own: whoever asks for a GPU takes its memory.
DEVICES = "import jax; print([(device.platform, device.device_kind) for device in jax.devices()])"

devices = subprocess.check_output([sys.executable, "-c", DEVICES])
settings = sorted(s for s in os.environ.items() if re.match("(JAX_|XLA_|NPROC$)", s[0]))
made_from = [sys.version, devices, settings, sorted({(d.name, d.version) for d in distributions()})]
for path in sorted(path for name in SOURCES for path in [ROOT / name, *ROOT.glob(f"{name}/**/*")]):
    if path.is_file() and "__pycache__" not in path.parts:
        made_from += [path.relative_to(ROOT), hashlib.sha256(path.read_bytes()).hexdigest()]

page = ROOT / "_build/html/book/index.html"
stamped = STAMP.exists() and STAMP.read_text(encoding="utf-8") == str(made_from)
if stamped and page.exists() and "--force" not in sys.argv:
    print("Nothing has changed since the book was built (make book FORCE=1 builds it anew).")
else:
    old = [STAMP.name, "html", ".doctrees", "jupyter_execute"]
    subprocess.check_call(["rm", "-rf", *old], cwd=STAMP.parent)
    started = time.monotonic()
    # Warnings are errors; without a clean build, a second one of the same failing book exits 0.
    command = ["jupyter-book", "build", ".", "--all", "-W", "-n", "--keep-going"]
    # Its kernel does not warn, once for each notebook, that it listens on this machine.
    options = {"D2LPAR_STRICT": "1", "JUPYTER_PATH": str(ROOT / ".ci" / "jupyter")}
    if status := subprocess.call(command, cwd=ROOT, env=os.environ | options):
        sys.exit(status)
    STAMP.write_text(str(made_from), encoding="utf-8")  # Last: without it the book is built again.
    print(f"Built in {time.monotonic() - started:.0f} s.")
print(f"The book: {page.relative_to(ROOT)}  (to read it in a browser: make serve)")
