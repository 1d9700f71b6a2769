"""Everything d2lpar raises under a name of its own."""

from numbers import Integral


class D2lparError(Exception):
    """The base of every error that d2lpar raises on purpose."""


class ArgumentError(D2lparError, ValueError):
    """A call was given something it cannot work with."""


class DeviceError(D2lparError, RuntimeError):
    """A device was asked for that JAX does not have, or can no longer make."""


class CompilationError(D2lparError, RuntimeError):
    """XLA compiled something while the clock was running, so the time means nothing."""


class TraceError(D2lparError, RuntimeError):
    """A trace cannot be recorded now, or a file holds none that can be read."""


class ResultsError(D2lparError, ValueError):
    """A file does not hold results that can be read, or results cannot be kept."""


class ExtraError(D2lparError, ImportError):
    """Something is not installed that only a part of the package needs."""


class WatchError(D2lparError, RuntimeError):
    """The program cannot be watched now."""


class WorkerError(D2lparError, RuntimeError):
    """A process of `Workers` has failed, or did not answer.

    Attributes:
        worker: Its number, if it is about one.
    """

    def __init__(self, message: str, worker: int | None = None, rank: int = 0) -> None:
        super().__init__(message)
        self.worker = worker
        # Of several errors the lowest is the reason: died, failed, waited.
        self.rank = rank


class ClaimError(D2lparError, AssertionError):
    """A claim of the book does not hold on this machine (raised in strict mode only)."""


def require_count(name: str, value: object, *, at_least: int, way_out: str = "") -> None:
    """Refuse `value` unless it is an integer of at least `at_least`.

    Args:
        name: The argument as the caller wrote it, for the message.
        value: What the caller passed.
        at_least: The smallest value that makes sense.
        way_out: What the caller may want instead; one sentence.

    Raises:
        ArgumentError: If `value` is no integer or is too small.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= at_least:
        return
    asked = f"{name} must be an integer of at least {at_least}, found {value!r}."
    raise ArgumentError(f"{asked} {way_out}".rstrip())


def require_function(name: str, function: object) -> None:
    """Refuse what cannot be called, which most often is what the function has returned.

    Args:
        name: What takes a function and its arguments, for the message: `"measure"`.
        function: What the caller passed.

    Raises:
        ArgumentError: If it cannot be called.
    """
    if not callable(function):
        raise ArgumentError(
            f"{name}() needs a function to call, found {type(function).__name__}: pass f and its "
            f"arguments, {name}(f, x), not its result, {name}(f(x))."
        )
