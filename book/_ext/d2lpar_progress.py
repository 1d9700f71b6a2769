"""Say what a build is at, and how far: which notebook it runs, and what became of its claims."""

import time
from collections import Counter

from d2lpar_runs import claims_of, paired_notebook
from sphinx.util import logging

logger = logging.getLogger(__name__)


class Progress:
    """The notebooks of a build: how many there are, and how many have been run."""

    def __init__(self):
        self.notebooks, self.run, self.started = [], 0, 0.0
        self.verdicts = Counter()

    def count(self, app, env, pages):
        """Find out which of the pages to be read are notebooks."""
        self.notebooks = [page for page in pages if paired_notebook(app, page).exists()]

    def announce(self, app, page, source):
        """Say that a notebook is about to be run."""
        self.started = time.monotonic()
        if page in self.notebooks:
            self.run += 1
            logger.info("\nnotebook %s of %s: %s", self.run, len(self.notebooks), page)

    def report(self, app, doctree):
        """Say how long it took, and what became of the claims so far."""
        page = app.env.docname
        if page not in self.notebooks:
            return
        self.verdicts.update(claim["verdict"] for claim in claims_of(app, page))
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.items())
        seconds = time.monotonic() - self.started
        logger.info("%.0f s; claims so far: %s", seconds, verdicts or "none")


def setup(app):
    """Register it with Sphinx."""
    progress = Progress()
    app.connect("env-before-read-docs", progress.count)
    app.connect("source-read", progress.announce)
    app.connect("doctree-read", progress.report)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
