"""Judge a reader's answer by its behavior: call it, note its calls, compare, and report.

A check hands the reader's function something to call (`CallLog`), calls it on a thread of its own
(`call_answer`), and raises a `Rejection` that says what it saw and where to look. The decorator
`exercise` makes a `Report` of that.
"""

import contextlib
import functools
import inspect
import io
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._jax.devices import cpu, device_name
from d2lpar._plain.errors import CompilationError, D2lparError, DeviceError
from d2lpar._plain.format import plural
from d2lpar.book.notebook import VERDICT_COLORS, with_code
from d2lpar.book.workloads import chain

# --- What a check says ------------------------------------------------------------------------

MIME_TYPE = "application/vnd.d2lpar.exercise+json"
"""The type under which a notebook keeps a report for the tests."""

_VERDICTS = {
    "accepted": ("accepted", VERDICT_COLORS["holds"]),
    "not yet": ("not yet", VERDICT_COLORS["inconclusive"]),
    "untestable": ("cannot be checked here", VERDICT_COLORS["untestable"]),
}


@dataclass(frozen=True, repr=False)
class Report:
    """What a check has found.

    Attributes:
        exercise: Such as `"X2"`.
        verdict: `"accepted"`, `"not yet"`, or `"untestable"` where this machine cannot tell.
        saw: What the check saw the answer do.
        look: Where to look; empty if it is accepted.
    """

    exercise: str
    verdict: str
    saw: str
    look: str = ""

    def __repr__(self):
        head = f"Exercise {self.exercise}: {_VERDICTS[self.verdict][0]}"
        return "\n  ".join(filter(None, (head, self.saw, self.look)))

    def _repr_mimebundle_(self, include=None, exclude=None):
        words, color = _VERDICTS[self.verdict]
        look = f"<li>{with_code(self.look)}</li>" if self.look else ""
        # Inline, because Colab keeps an output's own styles and nothing else.
        box = (
            f'<div class="d2lpar-exercise" data-verdict="{self.verdict}" style="border-left: 0.3em '
            f'solid {color}; padding: 0.2em 0 0.2em 0.8em; margin: 0.5em 0">'
            f'{self.exercise} <strong style="background: {color}; border-radius: 0.25em; '
            f'color: white; padding: 0 0.4em">{words}</strong> {with_code(self.saw)}'
            f'<ul style="margin: 0.2em 0; font-size: 0.85em">{look}</ul></div>'
        )
        return {
            "text/plain": repr(self),
            "text/html": box,
            MIME_TYPE: {"exercise": self.exercise, "verdict": self.verdict, "saw": self.saw},
        }


class Rejection(Exception):
    """An answer is not right yet: what was seen, and where to look; a sentence or two each."""

    def __init__(self, saw: str, look: str):
        super().__init__(saw)
        self.saw = saw
        self.look = look


class Untestable(Exception):
    """This machine cannot show what the check looks for."""


def exercise(name: str):
    """Let a check return what it saw, or say by an exception what is wrong with the answer."""

    def decorate(check: Callable[..., str]) -> Callable[..., Report]:
        @functools.wraps(check)
        def checked(*args, **kwargs) -> Report:
            try:
                return Report(name, "accepted", check(*args, **kwargs))
            except Rejection as rejection:
                return Report(name, "not yet", rejection.saw, rejection.look)
            except (Untestable, D2lparError) as missing:
                return Report(name, "untestable", str(missing))

        return checked

    return decorate


# --- Calling an answer, and what is asked of what it returns ----------------------------------

LIMIT = 30.0
"""Seconds after which a reader's function is given up, all its calls together."""

SHOWN = 1000
"""How many characters of what a reader's function prints are shown."""

# Whatever lies below these is not the reader's code.
_INSTALLED = [
    Path(__file__).parents[2],  # d2lpar
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
]


def call_answer(
    function: Callable,
    cases: Iterable[tuple],
    usage: str,
    *,
    probe: Callable[[], Any] | None = None,
) -> list[Any]:
    """Call a reader's function once for each case, and return its answers.

    It runs on a thread of its own, so that it can be given up. Of what it prints, the beginning
    is shown and the rest is counted.

    Args:
        function: What the reader has written.
        cases: The arguments of each call.
        usage: How it is called, as it should be printed: `"my_epoch(step, batches)"`.
        probe: What to ask right after each call, on the same thread and so behind the same queue.
            With one, the answers are pairs of what was returned and what the probe said.

    Raises:
        Rejection: If it cannot be called like that, raises something, does not end within the
            limit, or returns None.
        D2lparError: If it records while another recording is under way.
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
        thread.join(LIMIT)
    printed.show()
    if thread.is_alive():
        raise Rejection(
            f"Your function did not return within {LIMIT:g} seconds, and is still running: restart "
            "Python before you measure anything.",
            "Is there a loop that never ends, or a wait for something that nobody dispatched?",
        )
    if raised and type(raised[0]) is D2lparError:
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
    """Return what a reader's function returned as a number, or reject it."""
    try:
        if isinstance(value, str):  # float() would read it.
            raise TypeError
        return float(value)
    except Exception:  # Not only TypeError and ValueError: think of 10**400, or a deleted array.
        raise Rejection(
            f"Your function returned {shown(value)}, which is no number.", look
        ) from None


def require_truth(value: Any) -> bool:
    """Return what a reader's function returned as True or False, or reject it."""
    try:
        return bool(value)
    except Exception:  # As above.
        raise Rejection(
            f"Your function returned {shown(value)}, which is neither true nor false.",
            "Return True or False.",
        ) from None


def require_arrays(found: Any, expected: Sequence[jax.Array], what: str) -> None:
    """Reject all but a list of JAX arrays that are close to the expected ones.

    A message says in the words of `what` what was asked for: `"a result for each batch"`.
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

    A message begins with `what`: `"What your function returned"`.
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
    """Return what a reader's function returned as a message shows it: in one line, and not long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # A deleted array cannot be shown.
        return _kind(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def require_callable(function: Any, cases: list[tuple], usage: str) -> None:
    """Reject what cannot be called with the arguments of each case, as `usage` prints the call."""
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
    if isinstance(error, DeviceError):
        look = "The check needs no other device than those of the arrays that it hands in."
    elif isinstance(error, jax.errors.JAXTypeError):
        look = "Something under jit or vmap needs a value, and while JAX traces there is none."
    return Rejection(f"Your function raised {what}{where}", look)


def _is_readers(frame: traceback.FrameSummary) -> bool:
    return not any(Path(frame.filename).is_relative_to(folder) for folder in _INSTALLED)


# --- The calls that it makes, and what was unfinished then ------------------------------------


class Call(NamedTuple):
    """A call that a reader's function has made, and what had been called before.

    Attributes:
        label: What was called.
        number: Counts the calls of that, from 0.
        result: What it returned.
        thread: The Python thread that called.
        earlier: All calls before this one.
        unfinished: Those of them whose result was not ready then.
    """

    label: str
    number: int
    result: jax.Array
    thread: int
    earlier: tuple["Call", ...]
    unfinished: tuple["Call", ...]

    @property
    def where(self) -> str:
        """The names of the devices that its result lies on."""
        return " and ".join(sorted(map(device_name, self.result.devices())))

    def found_busy(self, label: str) -> bool:
        """Say whether earlier calls of what has this label were unfinished."""
        return any(call.label == label for call in self.unfinished)


def refuse_tracers(label: str, *given: Any) -> None:
    """Reject an answer that calls something while JAX traces, as what has this label."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(given)):
        raise Rejection(
            f"{label} was called while JAX was tracing, so all its calls became one program.",
            "Do without jit, vmap or scan around it: here each call is to be one of its own.",
        )


def require_called(label: str, count: int, missing: str, look: str) -> None:
    """Reject an answer that has never called something.

    Whoever has not gets a hint of its own: one about the number of calls, or about what they
    returned, would lead away from it.

    Args:
        label: What should have been called, as it is printed: `"send()"`.
        count: How many times it was.
        missing: What there is not for that, in words: `"nothing was copied"`.
        look: Where to look.
    """
    if not count:
        raise Rejection(f"{label} was never called: {missing}.", look)


class CallLog:
    """The calls that a reader's function makes of functions that the check has handed in."""

    def __init__(self):
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def watch(self, label: str, function: Callable) -> Callable:
        """Return a function that does the same, returns an array, and notes each of its calls."""

        def watched(*args, **kwargs):
            refuse_tracers(label, args, kwargs)
            # On a single core, whoever waits for a copy of an array may wake up before the thread
            # that made the copy has said that the array itself is ready. Let it.
            time.sleep(5e-4)
            with self._lock:  # So that calls of several threads are in some order.
                earlier = tuple(self.calls)
                unfinished = tuple(call for call in earlier if not _is_done(call.result))
                result = function(*args, **kwargs)
                number, thread = len(self.of(label)), threading.get_ident()
                self.calls.append(Call(label, number, result, thread, earlier, unfinished))
            return result

        return watched

    def of(self, label: str) -> list[Call]:
        """Return the calls of one function."""
        return [call for call in self.calls if call.label == label]

    def require_called(self, label: str, missing: str, look: str) -> None:
        """Reject an answer that has never called a function, and say what there is not for that."""
        require_called(label, len(self.of(label)), missing, look)

    def require_count(self, label: str, count: int) -> None:
        """Reject an answer that has not called a function so many times."""
        found = len(self.of(label))
        if not found and count:
            raise Rejection(
                f"{label} was never called; it takes {count} calls.",
                "Call what you are given: the check watches nothing else.",
            )
        if found != count:
            raise Rejection(
                f"{label} was called {plural(found, 'time')}; it takes {count} calls.",
                "Does your loop take each item once, the first and the last as well?",
            )

    def require_overlap(self, look: str) -> int:
        """Return how many steps found one before unfinished; reject half of them, or fewer."""
        overlapping = sum(bool(call.unfinished) for call in self.calls)
        if overlapping <= len(self.calls) / 2:
            raise Rejection(
                f"Only {overlapping} of {len(self.calls)} steps were dispatched while the one "
                "before was running.",
                look,
            )
        return overlapping


def _is_done(array: jax.Array) -> bool:
    return array.is_deleted() or array.is_ready()  # A deleted one must not be asked.


# --- Work for a device, long enough for one core to be seen unfinished ------------------------

LINKS = 2000  # Some ten milliseconds for one core: long beside a wake-up of Python.

STEPS = 12
"""How many steps a training loop has."""


@jax.jit
def work(x: jax.Array) -> jax.Array:
    """Keep one core busy for a while; the result tells its inputs and their order apart."""
    return 0.9 * x + chain(x, LINKS)


def inputs(count: int, device: jax.Device, seed: int = 0) -> list[jax.Array]:
    """Return ready matrices that differ from each other."""
    draws = np.random.default_rng(seed).standard_normal((count, 64, 64), dtype=np.float32)
    return jax.block_until_ready([jax.device_put(draw, device) for draw in draws])


@functools.cache
def right_results(count: int, device: jax.Device, seed: int = 0) -> tuple[jax.Array, ...]:
    """Return what `work` makes of the same inputs; no answer gets hold of these."""
    return tuple(jax.block_until_ready([work(x) for x in inputs(count, device, seed)]))


def require_asynchrony() -> None:
    """Refuse to judge where nothing is dispatched asynchronously."""
    x = inputs(1, cpu())[0]
    jax.block_until_ready(work(x))
    if all(ready_at_once(work, x) for _ in range(3)):
        raise Untestable(
            "Calls are not dispatched asynchronously here: each is done when it returns. Restart "
            "Python without jax_cpu_enable_async_dispatch=False."
        )


def ready_at_once(function: Callable, x: jax.Array) -> bool:
    """Say whether a result is ready when the call returns."""
    result = function(x)
    ready = result.is_ready()
    jax.block_until_ready(result)
    return ready


@jax.jit
def training_step(parameters: jax.Array, batch: jax.Array) -> jax.Array:
    """Stand for a step of training: it needs the parameters that the one before has returned."""
    return work(parameters) + batch


@functools.cache
def right_parameters() -> tuple[jax.Array, ...]:
    """Return the parameters after each step of a training loop over `inputs(1 + STEPS, cpu())`."""
    parameters, *batches = inputs(1 + STEPS, cpu())
    found = []
    for batch in batches:
        parameters = training_step(parameters, batch)
        found.append(parameters)
    return tuple(jax.block_until_ready(found))
