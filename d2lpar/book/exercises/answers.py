"""Call a reader's function: give it up if it does not end, and say in a sentence what was wrong."""

import contextlib
import inspect
import io
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._errors import CompilationError, D2lparError

LIMIT = 30.0
"""Seconds after which a reader's function is given up."""

SHOWN = 1000
"""How many characters of what a reader's function prints are shown."""

# Whatever lies below these is not the reader's code.
_INSTALLED = [
    Path(__file__).parents[2],  # d2lpar
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
]


class Rejection(Exception):
    """An answer is not right yet.

    Args:
        saw: What was seen; one sentence or two.
        look: Where to look; likewise.
    """

    def __init__(self, saw: str, look: str):
        super().__init__(saw)
        self.saw = saw
        self.look = look


def call_answer(
    function: Callable,
    cases: Iterable[tuple],
    usage: str,
    *,
    limit: float = LIMIT,
    probe: Callable[[], Any] | None = None,
) -> list[Any]:
    """Call a reader's function once for each case, and return its answers.

    It runs on a thread of its own, so that it can be given up. Of what it prints, the beginning
    is shown and the rest is counted.

    Args:
        function: What the reader has written.
        cases: The arguments of each call.
        usage: How it is called, as it should be printed: `"my_epoch(step, batches)"`.
        limit: Seconds that all calls may take together.
        probe: What to ask right after each call, on the same thread and so behind the same queue.

    Returns:
        What it returned, call by call; with a probe, pairs of that and of what the probe said.

    Raises:
        Rejection: If it cannot be called like that, raises something, does not end within the
            limit, or returns None.
        D2lparError: If it records while another recording is under way.

    Example:
        >>> call_answer(lambda a, b: a + b, [(1, 2), (3, 4)], "add(a, b)")
        [3, 7]
        >>> call_answer(lambda a: a, [(1, 2)], "add(a, b)")
        Traceback (most recent call last):
        ...
        d2lpar.book.exercises.answers.Rejection: The check calls add(a, b), but your \
function takes (a).
    """
    cases = list(cases)
    require_callable(function, cases, usage)
    found: list[tuple[Any, Any]] = []
    raised: list[BaseException] = []

    def run():
        try:
            for case in cases:
                found.append((function(*case), probe() if probe else None))
        except BaseException as error:  # Also what a reader raises to leave, such as SystemExit.
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    printed = _Printed()
    with contextlib.redirect_stdout(printed):
        thread.start()
        thread.join(limit)
    printed.show()
    if thread.is_alive():
        raise Rejection(
            f"Your function did not return within {limit:g} seconds, and is still running: restart "
            "Python before you measure anything.",
            "Is there a loop that never ends, or a wait for something that nobody dispatched?",
        )
    if raised and isinstance(raised[0], D2lparError):
        raise raised[0]  # Not the reader's fault: another recording is under way.
    if raised:
        raise _rejection_of(raised[0]) from None
    returned = [answer for answer, _ in found]
    if any(answer is None for answer in returned):
        raise Rejection(
            "Your function returned None.", f"Does each way through {usage} end in a `return`?"
        )
    return found if probe else returned


def require_number(value: Any, look: str = "Return seconds.") -> float:
    """Return what a reader's function returned as a number.

    Args:
        value: What it returned.
        look: What to return instead, as the reader is told.

    Raises:
        Rejection: If it is none.
    """
    try:
        if isinstance(value, str):  # float() would read it.
            raise TypeError
        return float(value)
    except Exception:  # Not only TypeError and ValueError: think of 10**400, or a deleted array.
        raise Rejection(
            f"Your function returned {shown(value)}, which is no number.", look
        ) from None


def require_truth(value: Any) -> bool:
    """Return what a reader's function returned as True or False.

    Args:
        value: What it returned.

    Raises:
        Rejection: If it is neither.
    """
    try:
        return bool(value)
    except Exception:  # As above.
        raise Rejection(
            f"Your function returned {shown(value)}, which is neither true nor false.",
            "Return True or False.",
        ) from None


def require_arrays(found: Any, expected: Sequence[jax.Array], what: str) -> None:
    """Reject all but a list of JAX arrays that are close to the expected ones.

    Args:
        found: What a reader's function returned.
        expected: What is right.
        what: What was asked for, as it should be printed: `"a result for each batch"`.

    Raises:
        Rejection: If it is something else.
    """
    if not isinstance(found, list | tuple) or len(found) != len(expected):
        try:
            size = f" of {len(found)}"
        except TypeError:  # An array of JAX has a __len__, also if it has no shape.
            size = ""
        raise Rejection(
            f"Your function returned {type(found).__name__}{size}, where {what} was expected, a "
            f"list of {len(expected)}.",
            "Which results does the exercise ask for, and in which order?",
        )
    for number, (mine, right) in enumerate(zip(found, expected, strict=True)):
        require_array(mine, right, f"Item {number} of what your function returned")


def require_array(found: Any, expected: jax.Array, what: str) -> None:
    """Reject all but a JAX array that is close to the expected one.

    Args:
        found: What a reader's function returned.
        expected: What is right.
        what: What it is, as a sentence begins with it: `"What your function returned"`.

    Raises:
        Rejection: If it is something else.
    """
    if isinstance(found, np.ndarray | np.generic | float):
        whose = "NumPy's" if isinstance(found, np.ndarray | np.generic) else "Python's"
        raise Rejection(
            f"{what} is {whose}, not JAX's ({type(found).__name__}).",
            "To convert it, Python had to wait for it. Return the array that JAX gave you.",
        )
    if isinstance(found, jax.core.Tracer):
        raise Rejection(
            f"{what} is a tracer, which stands for an array while JAX traces and has no value.",
            "Let the jitted function return it; do not carry it out in another way.",
        )
    if isinstance(found, jax.Array) and found.is_deleted():
        raise Rejection(
            f"{what} is an array that was deleted or donated, so there is nothing in it.",
            "Return an array that is still there.",
        )
    if not isinstance(found, jax.Array):
        raise Rejection(
            f"{what} is of type {type(found).__name__}, not an array of JAX.",
            "Return the array itself.",
        )
    if found.shape != expected.shape:
        raise Rejection(
            f"{what} has the shape {found.shape}, but {expected.shape} was expected.",
            "Is it the result of another function, or of several?",
        )
    if not jnp.issubdtype(found.dtype, jnp.number) and found.dtype != bool:
        raise Rejection(
            f"{what} has the dtype {found.dtype}, but {expected.dtype} was expected.",
            "Is it the result of another function?",
        )
    try:
        difference = np.abs(np.asarray(found) - np.asarray(expected)).max()
    except Exception as error:  # What went wrong while it was computed is raised only now.
        raise _rejection_of(error) from None
    if not difference <= 1e-3:
        raise Rejection(
            f"{what} is wrong: it differs from the right one by up to {difference:.2g}.",
            "First get it right: does each call take the result that it should?",
        )


def shown(value: Any) -> str:
    """Return what a reader's function returned as a message shows it: in one line, and not long.

    Args:
        value: What it returned. A deleted array cannot be shown; then its type is named.
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return _kind(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def require_callable(function: Any, cases: list[tuple], usage: str) -> None:
    """Refuse what cannot be called as the check calls it.

    Args:
        function: What the reader has handed over.
        cases: The arguments of each call.
        usage: How it is called, as it should be printed.

    Raises:
        Rejection: If it cannot.
    """
    if not callable(function):
        name, _, _ = usage.partition("(")
        raise Rejection(
            f"The check was given {_kind(function)}, which cannot be called.",
            f"Pass the function itself, {name}, and not what it returns, {usage}.",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some built-in functions tell no signature.
        return
    try:
        for case in cases:
            signature.bind(*case)
    except TypeError:
        raise Rejection(
            f"The check calls {usage}, but your function takes {signature}.",
            "Let it take the same arguments in the same order.",
        ) from None


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


class _Printed(io.TextIOBase):
    """What a function prints, of which only the beginning is kept."""

    def __init__(self):
        self._kept = ""
        self._more = 0

    def write(self, text: str) -> int:
        room = SHOWN - len(self._kept)
        self._kept += text[:room]
        self._more += max(0, len(text) - room)
        return len(text)

    def show(self) -> None:
        if self._more:
            print(f"{self._kept} ... (and {self._more} more characters)")
        elif self._kept:
            print(self._kept.removesuffix("\n"))


def _rejection_of(error: BaseException) -> Rejection:
    if isinstance(error, Rejection):  # From a function that the check has handed in.
        return error
    if isinstance(error, CompilationError):
        return Rejection(
            f"XLA compiles in each call of your function: {str(error).split(' was ')[0]}.",
            "jit remembers what it has compiled for a function. Make the jitted function once, "
            "not anew in each call.",
        )
    message = next(iter(str(error).strip().splitlines()), "")
    what = f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_readers(frame)]
    where = f", at `{frames[-1].line}`" if frames and frames[-1].line else ""
    look = "Call it yourself with small arguments to see where that comes from."
    if isinstance(error, D2lparError):
        look = "The check needs no other device than those of the arrays that it hands in."
    elif isinstance(error, jax.errors.JAXTypeError):
        look = "Something under jit or vmap needs a value, and while JAX traces there is none."
    return Rejection(f"Your function raised {what}{where}", look)


def _is_readers(frame: traceback.FrameSummary) -> bool:
    return not any(Path(frame.filename).is_relative_to(folder) for folder in _INSTALLED)
