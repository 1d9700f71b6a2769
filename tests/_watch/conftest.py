import pytest

from d2lpar._watch import sampler
from d2lpar._watch.findings import fill


@pytest.fixture(autouse=True)
def _losses_add_up(monkeypatch):
    """Check each report of these tests: its losses are the idle time, and no share exceeds 1.

    No line loses more time than it takes.
    """

    def fill_and_check(watched, watcher):
        fill(watched, watcher)
        lost = sum(finding.lost for finding in watched.findings)
        assert lost == pytest.approx(watched.idle_seconds, abs=1e-6)
        assert all(watched.share(finding) < 1.001 for finding in watched.findings)
        assert all(finding.lost <= finding.seconds + 1e-6 for finding in watched.findings)

    monkeypatch.setattr(sampler, "fill", fill_and_check)
