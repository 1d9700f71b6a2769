"""Pages of a few cells, for tests of the code that reads and runs pages."""

import yaml
from run_notebook import ROOT

BRANCH = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["branch"]
"""The branch, or the tag of a release, to which the pages lead."""

HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  name: python3
---

# A page
"""


def write_page(path, *cells, prose="Some prose."):
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = (f"\n{prose}\n\n```{{code-cell}} ipython3\n{cell}\n```\n" for cell in cells)
    path.write_text(HEADER + "".join(blocks), encoding="utf-8")
    return path


def notebook_showing(*outputs):
    """Return an executed notebook whose cells have shown data of these MIME types."""
    shown = [{"output_type": "display_data", "data": {kind: data}} for kind, data in outputs]
    return {"cells": [{"cell_type": "code", "outputs": shown}]}
