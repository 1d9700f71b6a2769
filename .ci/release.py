"""Make this tree the release of a tag: `make release VERSION=0.4.0`, then commit and tag v0.4.0.

Readers open, install and cite the book by addresses. On the branch `main` these lead to `main`; in
a release they lead to its tag, so that a class keeps the pages and the package that it began with.
"""

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = r"github\.com/d2lpar/d2lpar"


def main(version, *notebooks):
    """Write the tag in place of `main`, and the .ipynb of each notebook anew."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)$", changes, re.MULTILINE)[1]
    if version != newest:
        asked = f'VERSION="{version}"' if version else "no VERSION"
        sys.exit(
            f"CHANGELOG.md begins with {newest}, found {asked}: describe the release there, then "
            f"make release VERSION={newest}."
        )
    today = datetime.datetime.now(datetime.UTC).date()
    edits = {
        rf"(git\+https://{REPOSITORY})(@[\w.]+)?": rf"\1@v{version}",
        rf"({REPOSITORY}/(?:blob|tree)/)main/": rf"\1v{version}/",
        rf"git clone (--branch \S+ )?(https://{REPOSITORY})": rf"git clone --branch v{version} \2",
        "the branch main, which changes": f"release {version}",
        r"^  branch: main$": f"  branch: v{version}",  # _config.yml: edit, download, and Colab
        r"^(date-released: ).*": rf"\g<1>{today}",
    }
    kinds = ("*.md", "*.py", "*.cff", "_config.yml", ":!tests", ":!.ci", ":!CHANGELOG.md")
    listed = subprocess.check_output(["git", "ls-files", *kinds], cwd=ROOT, text=True)
    for path in map(ROOT.joinpath, listed.splitlines()):
        text = old = path.read_text(encoding="utf-8")
        for pattern, new in edits.items():
            text = re.sub(pattern, new, text, flags=re.MULTILINE)
        if text != old:
            path.write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, ROOT / ".ci/sync.py", *notebooks], cwd=ROOT, check=True)


main(*sys.argv[1:])
