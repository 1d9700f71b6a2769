"""The exceptions of d2lpar, and checks of arguments before any work begins.

A value that makes no sense is a ValueError, and an object of the wrong type a TypeError, as in all
of Python. The classes below are for failures that a program may want to handle by themselves.
"""

import importlib
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any


class D2lparError(RuntimeError):
    """The request cannot be met here or now; the base class of all errors of d2lpar's own."""


class DeviceError(D2lparError):
    """A device was asked for that JAX does not have, or can no longer make."""


class CompilationError(D2lparError):
    """XLA compiled something while the clock was running, so the time means nothing.

    Call the function once before, with arguments of the same shapes, dtypes and devices.
    """


class WaitError(D2lparError):
    """A line has waited for a device, or compiled something, where `no_waits` forbids it.

    Attributes:
        findings: One for each line: `place` (`file`, `line`, `code`), `operation`, `kind`
            (`"value"`, `"barrier"`, `"check"` or `"compilation"`), `times` and `detail`, the dtype
            and shape of the array that was read, or the function that was compiled.
        exact: Whether every read was recorded; in Python 3.11 some are found by sampling.
    """

    def __init__(self, message: str, findings: Sequence[Any] = (), exact: bool = True) -> None:
        super().__init__(message)
        self.findings = list(findings)
        self.exact = exact


class WorkerError(D2lparError):
    """A process of `Workers` has failed, or did not answer.

    Attributes:
        worker: The number of the process, if the error is about a single one.
    """

    def __init__(
        self,
        message: str,
        worker: int | None = None,
        status: int = 1,
        ended: float = math.inf,
        raised: bool = False,
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.status = status or 1  # As a shell has it: 128 + 9 for SIGKILL. A failure is not 0.
        self.ended = ended  # When the process died or failed, by time.monotonic().
        self.raised = raised  # Whether the message quotes an exception that it has raised.


for _error in (D2lparError, DeviceError, CompilationError, WaitError, WorkerError):
    _error.__module__ = "d2lpar"  # The public name, as tracebacks print it.


def require_count(name: str, value: object, *, at_least: int, way_out: str = "") -> None:
    """Refuse `value` unless it is an integer of at least `at_least`.

    The message begins with the argument's name and ends with `way_out`.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= at_least:
        return
    asked = f"{name} must be an integer of at least {at_least}, found {value!r}."
    raise ValueError(f"{asked} {way_out}".rstrip())


def require_seconds(name: str, value: object) -> None:
    """Refuse `value` unless it is a finite, positive number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite, positive number of seconds, found {value!r}.")


def require_posix(name: str) -> None:
    """Refuse Windows, where processes have no `fork`, and threads no mask of signals."""
    if not hasattr(os, "fork"):
        raise D2lparError(
            f"{name} needs Linux or macOS; on Windows, use its Subsystem for Linux (WSL)."
        )


def require_function(name: str, function: object) -> None:
    """Refuse an object that cannot be called, most often the result of the function."""
    if not callable(function):
        raise TypeError(
            f"{name}() needs a function to call, found {type(function).__name__}: pass f and its "
            f"arguments, {name}(f, x), not its result, {name}(f(x))."
        )


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn the failure of an import into one that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f'{error.name} is not installed: pip install "d2lpar[{extra}] @ '
            'git+https://github.com/d2lpar/d2lpar"'
        ) from error


class WhenUsed:
    """A module of an extra, imported at the first use of one of its attributes.

    So the names of d2lpar that need the module exist without it, with their documentation.

    Example:
        >>> math = WhenUsed("math", extra="plot")
        >>> math.sqrt(4.0)
        2.0
    """

    def __init__(self, name: str, extra: str) -> None:
        self._name, self._extra = name, extra

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # inspect and doctest look these up in every module.
            raise AttributeError(attribute)
        with needs(self._extra):
            return getattr(importlib.import_module(self._name), attribute)
