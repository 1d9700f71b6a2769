"""What pytest finds by itself where d2lpar is installed: fixtures, and an option."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from d2lpar._measurement import Comparison

_KEPT = pytest.StashKey[list[str]]()


@pytest.fixture
def no_waits() -> Callable[..., Any]:
    """Give the function `no_waits`, so that a test fails with each line that waits."""
    from d2lpar._no_waits import no_waits  # Here, as not every test needs JAX.

    return no_waits


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., "Comparison"]:
    """Give the function `compare`, and show at the end of the session what it has measured.

    With `--d2lpar-json FILE`, it is written there as well, for `python -m d2lpar compare`; without
    comparisons of which too few rounds count.
    """
    from d2lpar._measurement import compare

    def compare_and_keep(*args: Any, **kwargs: Any) -> "Comparison":
        times = compare(*args, **kwargs)
        request.node.stash.setdefault(_KEPT, []).append(times.to_json())
        return times

    return compare_and_keep


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("d2lpar").addoption(
        "--d2lpar-json",
        type=Path,
        metavar="FILE",
        help="write what the fixture `compare` measures there, for `python -m d2lpar compare`",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot be written before any test runs."""
    file = config.getoption("--d2lpar-json")
    if not file or hasattr(config, "workerinput"):  # A process of pytest-xdist.
        return
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise pytest.UsageError(f"--d2lpar-json: {str(file)!r} cannot be written")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Let the report of a test say what it has measured, wherever pytest-xdist has run it."""
    report = yield
    if report.when == "call":
        report.d2lpar = item.stash.get(_KEPT, [])
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what the fixture has measured, and write it."""
    kept, file = list(_kept(terminalreporter)), terminalreporter.config.getoption("--d2lpar-json")
    if not kept:
        if file:  # Else what is compared next is of an earlier session.
            file.unlink(missing_ok=True)
            terminalreporter.write_line(f"{file}: no test has used the fixture `compare`")
        return
    from d2lpar._format import write_whole
    from d2lpar._measurement import Comparison

    terminalreporter.section("d2lpar: when calls return, and when results are ready")
    for test, text in kept:
        terminalreporter.write_line(f"{test}\n{Comparison.from_json(text)}\n")
    if file:
        write_whole(file.absolute(), _together(kept))


def _kept(terminalreporter: Any) -> Iterator[tuple[str, str]]:
    """Give what each test has measured; the second comparison of a test has a number."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for number, text in enumerate(getattr(report, "d2lpar", ()), 1):
                yield f"{report.nodeid} ({number})" if number > 1 else report.nodeid, text


def _together(kept: list[tuple[str, str]]) -> str:
    """Return the JSON of one comparison that has the functions of all, by test."""
    every = [(test, json.loads(text)) for test, text in kept]
    counting = [(test, one) for test, one in every if not one["needs"]]
    measured = [
        each | {"name": f"{test}: {each['name']}"}
        for test, one in counting
        for each in one["measurements"]
    ]
    level = max((one["level"] for _, one in counting), default=0.95)
    return json.dumps(every[0][1] | {"measurements": measured, "level": level, "needs": None})
