"""Fixtures for pytest, which finds them by itself where d2lpar is installed."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def no_waits() -> Callable[..., Any]:
    """Give the function `no_waits`, so that a test fails with each line that waits."""
    from d2lpar._no_waits import no_waits  # Here, as not every test needs JAX.

    return no_waits
