"""The plugin that pytest loads where d2lpar is installed: two fixtures."""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from d2lpar._measure.comparison import Comparison

_TIMES = pytest.StashKey[list[str]]()
_READS_MAY_HIDE = pytest.StashKey[bool]()


@pytest.fixture
def no_waits(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Give the function `no_waits`, so that a test fails with each line that waits."""
    from d2lpar._watch.no_waits import no_waits  # Not at the head: not every test needs JAX.

    request.node.stash[_READS_MAY_HIDE] = sys.version_info < (3, 12)
    return no_waits


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., "Comparison"]:
    """Give the function `compare`, and show its measurements at the end of the session."""
    from d2lpar._measure.comparison import compare

    def compare_and_keep(*args: Any, **kwargs: Any) -> "Comparison":
        times = compare(*args, **kwargs)
        request.node.stash.setdefault(_TIMES, []).append(repr(times))
        return times

    return compare_and_keep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Attach the measurements of a test to its report, which pytest-xdist sends home."""
    report = yield
    if report.when == "call" and _TIMES in item.stash:
        report.d2lpar = item.stash[_TIMES]
    report.d2lpar_reads_may_hide = report.passed and item.stash.get(_READS_MAY_HIDE, False)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the measurements of all tests; say which reads a passed one may miss."""
    passed = terminalreporter.stats.get("passed", ())
    if any(getattr(report, "d2lpar_reads_may_hide", False) for report in passed):
        from d2lpar._watch.no_waits import HIDDEN

        terminalreporter.write_line(f"no_waits: {HIDDEN}")
    if not (measured := list(_measured(terminalreporter))):
        return
    terminalreporter.section("d2lpar: when calls return, and when results are ready")
    for test, times in measured:
        terminalreporter.write_line(f"{test}\n{times}\n")
    if (terminalreporter.config.getoption("numprocesses", None) or 1) > 1:
        terminalreporter.write_line(
            "Caution: with -n of pytest-xdist, these ran beside other tests."
        )


def _measured(terminalreporter: Any) -> Iterator[tuple[str, str]]:
    """Yield each test's name and comparison, as text; a second one of a test gets a number."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for number, times in enumerate(getattr(report, "d2lpar", ()), 1):
                yield f"{report.nodeid} ({number})" if number > 1 else report.nodeid, times
