"""What d2lpar raises, and what it refuses before it begins.

A value that makes no sense is a ValueError, and what is of the wrong kind a TypeError, as in all of
Python. The classes below are for what a program may want to tell apart from both.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any


class D2lparError(RuntimeError):
    """What was asked for cannot be done here or now; the base of all errors of d2lpar's own."""

    __module__ = "d2lpar"  # Where readers find it; a traceback says so.


class DeviceError(D2lparError):
    """A device was asked for that JAX does not have, or can no longer make."""

    __module__ = "d2lpar"


class CompilationError(D2lparError):
    """XLA compiled something while the clock was running, so the time means nothing.

    Call the function once before, with arguments of the same shapes, dtypes and devices.
    """

    __module__ = "d2lpar"


class WaitError(D2lparError):
    """A line has waited for a device, or compiled something, where `no_waits` forbids it.

    Attributes:
        findings: Each line, and what it has read: `place` (`file`, `line`, `code`), `operation`,
            `kind` (`"value"`, `"barrier"`, `"check"` or `"compilation"`), `times` and `detail`,
            which is the dtype and shape of the array, or the function that was compiled.
        exact: Whether every read was seen; in Python 3.11 some are found by sampling.
    """

    __module__ = "d2lpar"

    def __init__(self, message: str, findings: Sequence[Any] = (), exact: bool = True) -> None:
        super().__init__(message)
        self.findings = list(findings)
        self.exact = exact


class WorkerError(D2lparError):
    """A process of `Workers` has failed, or did not answer.

    Attributes:
        worker: Its number, if it is about one.
    """

    __module__ = "d2lpar"

    def __init__(self, message: str, worker: int | None = None, rank: int = 0) -> None:
        super().__init__(message)
        self.worker = worker
        # Of several errors the lowest is the reason: died, failed, waited.
        self.rank = rank


def require_count(name: str, value: object, *, at_least: int, way_out: str = "") -> None:
    """Refuse `value` unless it is an integer of at least `at_least`; the message ends in a way out.

    The name is the argument as the caller wrote it.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= at_least:
        return
    asked = f"{name} must be an integer of at least {at_least}, found {value!r}."
    raise ValueError(f"{asked} {way_out}".rstrip())


def require_seconds(name: str, value: object) -> None:
    """Refuse `value` unless it is a positive number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} must be a positive number of seconds, found {value!r}.")


def require_function(name: str, function: object) -> None:
    """Refuse what cannot be called, which most often is what the function has returned."""
    if not callable(function):
        raise TypeError(
            f"{name}() needs a function to call, found {type(function).__name__}: pass f and its "
            f"arguments, {name}(f, x), not its result, {name}(f(x))."
        )


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn the failure of an import into one that says what to install.

    Example:
        >>> with needs("plot"):
        ...     import no_such_module
        Traceback (most recent call last):
        ...
        ImportError: no_such_module is not installed: pip install "d2lpar[plot] @ \
git+https://github.com/d2lpar/d2lpar"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f'{error.name} is not installed: pip install "d2lpar[{extra}] @ '
            'git+https://github.com/d2lpar/d2lpar"'
        ) from error


class WhenUsed:
    """A module of an extra, which is imported when something of it is first used.

    So the names of d2lpar that need it exist without it, with their documentation.

    Example:
        >>> math = WhenUsed("math", extra="plot")
        >>> math.sqrt(4.0)
        2.0
    """

    def __init__(self, name: str, extra: str) -> None:
        self._name, self._extra = name, extra

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # What inspect and doctest ask of every name.
            raise AttributeError(attribute)
        with needs(self._extra):
            return getattr(importlib.import_module(self._name), attribute)
