"""What pytest finds by itself where d2lpar is installed: fixtures, and an option."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from d2lpar._measurement import Comparison

_KEPT = "d2lpar.compare"
"""The name under which a test's report has what `compare` has measured in it."""


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
        # A report comes to the main process also where pytest-xdist runs the test in another.
        request.node.user_properties.append((_KEPT, times.to_json()))
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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what the fixture has measured, and write it."""
    kept = list(_kept(terminalreporter))
    if not kept:
        return
    from d2lpar._format import write_whole
    from d2lpar._measurement import Comparison

    terminalreporter.section("d2lpar: when calls return, and when results are ready")
    for test, text in kept:
        terminalreporter.write_line(f"{test}\n{Comparison.from_json(text)}\n")
    if file := terminalreporter.config.getoption("--d2lpar-json"):
        write_whole(file.absolute(), _together(kept))


def _kept(terminalreporter: Any) -> Iterator[tuple[str, str]]:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                yield from ((report.nodeid, v) for k, v in report.user_properties if k == _KEPT)


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
