"""The plugin that pytest loads where d2lpar is installed: two fixtures, and an option."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
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
    """Give the function `compare`, and show its measurements at the end of the session.

    With `--d2lpar-json FILE` they are written to FILE as well, for `python -m d2lpar compare`, but
    for comparisons with too few rounds that count.
    """
    from d2lpar._measure.comparison import compare

    def compare_and_keep(*args: Any, **kwargs: Any) -> "Comparison":
        times = compare(*args, **kwargs)
        request.node.stash.setdefault(_TIMES, []).append(times.to_json())
        return times

    return compare_and_keep


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("d2lpar").addoption(
        "--d2lpar-json",
        type=Path,
        metavar="FILE",
        help="write the fixture `compare`'s measurements there, for `python -m d2lpar compare`",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a file that cannot be written, before any test runs."""
    file = config.getoption("--d2lpar-json")
    if not file or hasattr(config, "workerinput"):  # A process of pytest-xdist.
        return
    from d2lpar._plain.format import can_be_written

    if not can_be_written(file):
        raise pytest.UsageError(f"--d2lpar-json: {str(file)!r} cannot be written")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Attach the measurements of a test to its report, which pytest-xdist sends home."""
    report = yield
    if report.when == "call" and _TIMES in item.stash:
        report.d2lpar = item.stash[_TIMES]
    report.d2lpar_reads_may_hide = report.passed and item.stash.get(_READS_MAY_HIDE, False)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show and write the measurements of all tests; say which reads a passed one may miss."""
    passed = terminalreporter.stats.get("passed", ())
    if any(getattr(report, "d2lpar_reads_may_hide", False) for report in passed):
        from d2lpar._watch.no_waits import HIDDEN

        terminalreporter.write_line(f"no_waits: {HIDDEN}")
    file = terminalreporter.config.getoption("--d2lpar-json")
    measured = list(_measured(terminalreporter))
    if not measured:
        if file:
            terminalreporter.write_line(
                f"{file} is not written: no test has used the fixture `compare`"
            )
        return
    from d2lpar._plain.format import write_whole

    terminalreporter.section("d2lpar: when calls return, and when results are ready")
    for test, times in measured:
        terminalreporter.write_line(f"{test}\n{times}\n")
    if (terminalreporter.config.getoption("numprocesses", None) or 1) > 1:
        terminalreporter.write_line(
            "Caution: with -n of pytest-xdist, these ran beside other tests."
        )
    if file:
        write_whole(file.absolute(), _together(measured).to_json())


def _measured(terminalreporter: Any) -> Iterator[tuple[str, "Comparison"]]:
    """Yield the name of each test and its comparison; a second one of a test gets a number."""
    from d2lpar._measure.comparison import Comparison

    for reports in terminalreporter.stats.values():
        for report in reports:
            for number, text in enumerate(getattr(report, "d2lpar", ()), 1):
                test = f"{report.nodeid} ({number})" if number > 1 else report.nodeid
                yield test, Comparison.from_json(text)


def _together(measured: list[tuple[str, "Comparison"]]) -> "Comparison":
    """Return one comparison with the functions of all tests in which enough rounds count."""
    from d2lpar._measure.comparison import Comparison

    counting = [(test, times) for test, times in measured if not times.needs]
    return Comparison(
        [replace(m, name=f"{test}: {m.name}") for test, times in counting for m in times.values()],
        max(times.level for _, times in measured),
        sum(times.dropped_rounds for _, times in counting),
        machine=measured[0][1].machine,
    )
