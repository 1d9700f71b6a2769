import numpy as np
import pytest
import watch_coverage


@pytest.fixture(autouse=True)
def _few_cells(monkeypatch):
    monkeypatch.setattr(watch_coverage, "WINDOWS", (3, 6))
    monkeypatch.setattr(
        watch_coverage, "PROGRAMS", {"idle in 10 %": watch_coverage.PROGRAMS["idle in 10 %"]}
    )


def test_each_number_of_windows_has_a_row_and_intervals_that_cover_are_no_error(capsys):
    assert watch_coverage.main() == 0
    *_, three, six = capsys.readouterr().out.splitlines()
    assert (three.split()[0], six.split()[0]) == ("3", "6")


def test_intervals_that_cover_too_little_are_an_error(monkeypatch):
    def two_standard_errors(shares, weights):
        mean, error = shares.mean(-1), shares.std(-1) / np.sqrt(len(weights))
        return mean - 2 * error, mean + 2 * error

    monkeypatch.setattr(watch_coverage, "interval", two_standard_errors)
    assert watch_coverage.main() == 1
