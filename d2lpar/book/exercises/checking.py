"""Judge a reader's answer by its behavior: call it, log its calls, compare, and report.

exercise("X2")              makes a Report of the outcome.
 '- check_x2(my_epoch)      judges log and result, and raises a Rejection for a fault.
     '- call_answer         runs the answer in a daemon thread, within a time limit.
         '- my_epoch        is the reader's function.
             '- step        comes from CallLog.watch, and logs each call.
"""

import contextlib
import functools
import inspect
import io
import itertools
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._jax.devices import cpu, device_name
from d2lpar._plain.errors import CompilationError, D2lparError, DeviceError
from d2lpar._plain.format import plural
from d2lpar.book.notebook import VERDICTS, with_code
from d2lpar.book.workloads import chain

# --- What a check says ------------------------------------------------------------------------

MIME_TYPE = "application/vnd.d2lpar.exercise+json"
"""MIME type of a report in a notebook, for the tests."""

_VERDICTS = {
    "accepted": ("accepted", VERDICTS["holds"][1]),
    "not yet": ("not yet", VERDICTS["inconclusive"][1]),
    "not there": ("not there", VERDICTS["untestable"][1]),
    "untestable": ("cannot be checked here", VERDICTS["untestable"][1]),
}


@dataclass(frozen=True, repr=False)
class Report:
    """The outcome of a check.

    Attributes:
        exercise: Such as `"X2"`.
        verdict: `"accepted"`, `"not yet"`, `"untestable"` where this machine cannot tell, or
            `"not there"` if a file lacks the answer.
        saw: A sentence on how the answer behaved.
        look: Where to look for the fault; empty if the answer is accepted.
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
    """An answer is not right yet: how it behaved and where to look, in a sentence or two each."""

    def __init__(self, saw: str, look: str):
        super().__init__(saw)
        self.saw = saw
        self.look = look


def exercise(name: str, *takes: str):
    """Make a report of the sentence that a check returns, or of the exception that it raises.

    A `D2lparError` means that this machine, or a recording under way, hides the behavior. The
    report's function has the names of the answers that the check `takes`, such as `"my_epoch"`.
    """

    def decorate(check: Callable[..., str]) -> Callable[..., Report]:
        @functools.wraps(check)
        def checked(*args, **kwargs) -> Report:
            try:
                return Report(name, "accepted", check(*args, **kwargs))
            except Rejection as rejection:
                return Report(name, "not yet", rejection.saw, rejection.look)
            except D2lparError as reason:
                return Report(name, "untestable", str(reason))

        checked.takes = takes
        return checked

    return decorate


# --- Calling an answer, and requirements on its result -----------------------------------------

LIMIT = 30.0  # Seconds for all calls of a reader's function together.
SHOWN = 1000  # Number of printed characters that the check passes on.

# Traceback frames in these folders are not the reader's code.
_INSTALLED = [
    Path(__file__).parents[2],  # d2lpar
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
]


def call_answer(
    function: Callable,
    cases: Sequence[tuple],
    usage: str,
    *,
    probe: Callable[[], object] = lambda: None,
) -> list[Any]:
    """Call a reader's function once for each case, and return its results.

    The function runs in a daemon thread, so that the check can give up on a function that hangs.
    The beginning of its printed output is shown, and the rest is counted.

    Args:
        function: The reader's function.
        cases: The arguments of each call.
        usage: The call as a message prints it: `"my_epoch(step, batches)"`.
        probe: Called right after each call, in the same thread and so behind the same queue.

    Raises:
        Rejection: If the function cannot be called like that, raises an exception, does not end
            within the limit, or returns None.
        D2lparError: If the function records while another recording is under way.
    """
    require_callable(function, cases[0], usage)
    results: list[Any] = []
    raised: list[BaseException] = []

    def run():
        try:
            for case in cases:
                results.append(function(*case))
                probe()
        except BaseException as error:  # SystemExit as well.
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
            "Is there a loop that never ends, or a wait for something that was never dispatched?",
        )
    if raised:
        raise rejection_of(raised[0]) from None
    if any(result is None for result in results):
        raise Rejection(
            "Your function returned None.", f"Does every path through {usage} end in a `return`?"
        )
    return results


def require_number(value: Any, look: str = "Return seconds.") -> float:
    """Return the result of a reader's function as a float, or reject it."""
    try:
        if isinstance(value, str):  # float() would parse a string.
            raise TypeError
        return float(value)
    except Exception:  # Such as OverflowError for 10**400, or RuntimeError for a deleted array.
        raise Rejection(
            f"Your function returned {shown(value)}, which is not a number.", look
        ) from None


def require_truth(value: Any) -> bool:
    """Return the result of a reader's function as True or False, or reject it."""
    try:
        return bool(value)
    except Exception:  # As above.
        raise Rejection(
            f"Your function returned {shown(value)}, which is neither true nor false.",
            "Return True or False.",
        ) from None


def require_arrays(arrays: Any, expected: Sequence[jax.Array], name: str) -> None:
    """Reject any result but a list of JAX arrays that are close to the expected ones.

    Messages call the expected list `name`: `"a result for each batch"`.
    """
    size = f" of {len(arrays)}" if isinstance(arrays, list | tuple) else ""
    if not size or len(arrays) != len(expected):
        raise Rejection(
            f"Your function returned {kind_of(arrays)}{size}; the exercise asks for a list of "
            f"{len(expected)}: {name}.",
            "Which results does the exercise ask for, and in which order?",
        )
    for number, (array, right) in enumerate(zip(arrays, expected, strict=True)):
        require_array(array, right, f"Item {number} of your function's result")


def require_array(array: Any, expected: jax.Array, name: str) -> None:
    """Reject any result but a JAX array that is close to the expected one.

    Messages begin with `name`: `"Your function's result"`.
    """
    if isinstance(array, jax.core.Tracer):
        raise Rejection(
            f"{name} is a tracer, which stands for an array while JAX traces and has no value.",
            "Return it from the jitted function; do not pass it out in any other way.",
        )
    if not isinstance(array, jax.Array):
        look = "Return the array itself."
        if isinstance(array, np.ndarray | np.generic | float):
            look = "To convert it, Python had to wait for it. Return the array that JAX gave you."
        raise Rejection(f"{name} is {kind_of(array)}, not a JAX array.", look)
    if array.is_deleted():
        raise Rejection(
            f"{name} is an array that was deleted or donated, so it holds nothing.",
            "Return an array that still exists.",
        )
    if array.shape != expected.shape or jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise Rejection(
            f"{name} has the shape {array.shape} and the dtype {array.dtype}; the right one has "
            f"{expected.shape} and {expected.dtype}.",
            "Is it the result of another function, or of several?",
        )
    try:
        difference = np.abs(np.asarray(array) - np.asarray(expected)).max()
    except Exception as error:  # JAX raises an error of the computation only now.
        raise rejection_of(error) from None
    if not difference <= 1e-3:  # NaN as well.
        raise Rejection(
            f"{name} is wrong: it differs from the right one by up to {difference:.2g}.",
            "First get it right: does each call take the result that it should?",
        )


def shown(value: Any) -> str:
    """Return a result as a message shows it: in one line, and not long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # A deleted array has no repr.
        return kind_of(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def require_callable(function: Any, args: tuple, usage: str) -> None:
    """Reject an answer that cannot be called with these arguments; `usage` prints the call."""
    if not callable(function):
        name, _, _ = usage.partition("(")
        raise Rejection(
            f"The check was given {kind_of(function)}, which cannot be called.",
            f"Pass the function itself, {name}, not its result, {usage}.",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some built-in functions have no signature.
        return
    try:
        signature.bind(*args)
    except TypeError:
        raise Rejection(
            f"The check calls {usage}, but your function takes {signature}.",
            "It has to take the same arguments in the same order.",
        ) from None


def kind_of(value: Any) -> str:
    """Return the type of a result with its article: `"a list"`, `"a JAX array"`."""
    if value is None:
        return "None"
    if isinstance(value, jax.Array):
        return "a JAX array"
    kind = type(value)
    name = f"NumPy {kind.__name__}" if kind.__module__ == "numpy" else kind.__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


class _Printed(io.StringIO):
    """Keeps the beginning of the printed output, so that an endless loop does not fill memory."""

    more = 0  # Number of characters that are not kept.

    def write(self, text: str) -> int:
        self.more += len(text) - super().write(text[: SHOWN - self.tell()])
        return len(text)

    def show(self) -> None:
        if self.more:
            print(f"{self.getvalue()} ... (and {self.more} more characters)")
        elif kept := self.getvalue():
            print(kept.removesuffix("\n"))


def rejection_of(error: BaseException, of: str = "function") -> Exception:
    """Return the rejection of an answer that raises this error, or whose file does."""
    # Functions of the check raise a Rejection. record_trace raises a D2lparError inside another
    # recording; the answer is not to blame.
    if isinstance(error, Rejection) or type(error) is D2lparError:
        return error
    if isinstance(error, CompilationError):
        return Rejection(
            f"XLA compiles in each call of your function: {str(error).split(' was ')[0]}.",
            "jit keeps the program that it has compiled for a function. Make the jitted function "
            "once, not in each call.",
        )
    message = next(iter(str(error).strip().splitlines()), "")
    summary = f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        installed = any(Path(frame.filename).is_relative_to(folder) for folder in _INSTALLED)
        if frame.line and not installed:
            where = f", at `{frame.line}`"
    look = "Call it yourself with small arguments to see where that comes from."
    if isinstance(error, DeviceError):
        look = "The check needs no devices other than those of the arrays that it passes."
    elif isinstance(error, jax.errors.JAXTypeError):
        look = "Something under jit or vmap needs a value, and while JAX traces there is none."
    return Rejection(f"Your {of} raised {summary}{where}", look)


# --- The log of an answer's calls -------------------------------------------------------------


class Call(NamedTuple):
    """A call made by a reader's function.

    Attributes:
        label: Name of the called function, as a message prints it: `"step()"`.
        number: Index among the calls with this label, from 0.
        result: The array that the call returned.
        thread: Identifier of the calling Python thread.
        earlier: All calls before this one.
        unfinished: The earlier calls whose result was not ready when this one was made.
    """

    label: str
    number: int
    result: jax.Array
    thread: int
    earlier: tuple["Call", ...]
    unfinished: tuple["Call", ...]

    def found_busy(self, label: str) -> bool:
        """Say whether an earlier call with this label was unfinished."""
        return any(call.label == label for call in self.unfinished)


def refuse_tracers(label: str, *args: Any) -> None:
    """Reject an answer that calls the function with this label while JAX traces."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
        raise Rejection(
            f"{label} was called while JAX was tracing, so all its calls became one program.",
            "Do without jit, vmap or scan around it: here each call has to be separate.",
        )


def require_called(label: str, calls: object, missing: str, look: str) -> None:
    """Reject an answer that never called a function; `missing` says: `"nothing was copied"`.

    Require this first: a message about the number of calls or a wrong result would mislead.
    """
    if not calls:
        raise Rejection(f"{label} was never called: {missing}.", look)


class CallLog:
    """The calls that a reader's function makes of the functions that the check passes to it."""

    def __init__(self):
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def watch(self, label: str, function: Callable) -> Callable:
        """Return a function that does the same, and logs each of its calls."""

        def watched(*args, **kwargs):
            refuse_tracers(label, args, kwargs)
            # A thread that waits for a copy of an array may wake up before the array itself is
            # marked as ready, at least on a single core. Give the device's thread time to do so.
            time.sleep(5e-4)
            with self._lock:  # Calls from several threads get one order.
                earlier = tuple(self.calls)
                # is_ready() of a deleted array crashes Python.
                alive = (call for call in earlier if not call.result.is_deleted())
                unfinished = tuple(call for call in alive if not call.result.is_ready())
                result = function(*args, **kwargs)
                number, thread = len(self.of(label)), threading.get_ident()
                self.calls.append(Call(label, number, result, thread, earlier, unfinished))
            return result

        return watched

    def of(self, label: str) -> list[Call]:
        """Return the calls of one function."""
        return [call for call in self.calls if call.label == label]

    def require_count(self, label: str, count: int) -> None:
        """Reject an answer that made another number of calls of a function."""
        calls = len(self.of(label))
        if calls != count:
            raise Rejection(
                f"{label} was called {plural(calls, 'time')}; it takes {count} calls.",
                "Does your loop take each item once, including the first and the last?",
            )

    def require_device(self, label: str, item: str, device: jax.Device, look: str) -> None:
        """Reject an answer that ran calls of a function on another device."""
        for call in self.of(label):
            if call.result.devices() != {device}:
                places = " and ".join(sorted(map(device_name, call.result.devices())))
                raise Rejection(
                    f"{label} of {item} {call.number} ran on {places}, but has to run on "
                    f"{device_name(device)}.",
                    look,
                )

    def require_overlap(self, look: str) -> int:
        """Return how many calls overlapped with an earlier one; reject if only half or fewer."""
        overlapping = sum(bool(call.unfinished) for call in self.calls)
        if overlapping <= len(self.calls) / 2:
            raise Rejection(
                f"Only {overlapping} of {len(self.calls)} calls of {self.calls[0].label} were made "
                "while the one before was running.",
                look,
            )
        return overlapping


RUNS = 5  # At most, to tell a barrier from a busy machine.


def require_overlap_in_all(run: Callable[[], CallLog], look: str) -> int:
    """Return how many calls overlapped in the last run; reject if a call did in none of several.

    `run` runs the answer, and returns its calls. A busy machine delays one call or another, but not
    the same one in each run.
    """
    late = set(range(1, STEPS))  # Calls without an overlap so far; a run makes STEPS at most.
    for _ in range(RUNS):
        log = run()
        late &= {call.number for call in log.calls[1:] if not call.unfinished}
        if not late:
            break
    overlapping = log.require_overlap(look)
    if late:
        raise Rejection(
            f"In each of {RUNS} runs, call {min(late)} of {log.calls[0].label} was made when the "
            "one before was done.",
            look,
        )
    return overlapping


# --- Work that keeps one core busy long enough to be seen unfinished ---------------------------

LINKS = 2000  # About ten milliseconds on one core, much longer than Python takes to wake up.
STEPS = 12  # Number of steps of a training loop.


@functools.partial(jax.jit, static_argnums=1)
def work(x: jax.Array, links: int = LINKS) -> jax.Array:
    """Keep one core busy for a while; the result tells its inputs and their order apart.

    More links take longer and change nothing else: a long chain ends near zero.
    """
    return 0.9 * x + chain(x, links)


def inputs(count: int, device: jax.Device, seed: int = 0) -> list[jax.Array]:
    """Return ready matrices that differ from each other."""
    draws = np.random.default_rng(seed).standard_normal((count, 64, 64), dtype=np.float32)
    return jax.block_until_ready([jax.device_put(draw, device) for draw in draws])


@functools.cache
def right_results(count: int, device: jax.Device, seed: int = 0) -> tuple[jax.Array, ...]:
    """Return the results of `work` for these inputs, as arrays that no answer can touch."""
    return tuple(jax.block_until_ready([work(x) for x in inputs(count, device, seed)]))


def require_asynchrony() -> None:
    """Refuse to judge where nothing is dispatched asynchronously."""
    x = inputs(1, cpu())[0]
    jax.block_until_ready(work(x))
    if all(ready_at_once(work, x) for _ in range(3)):
        raise D2lparError(
            "Calls are not dispatched asynchronously here: each is done when it returns. Restart "
            "Python without jax_cpu_enable_async_dispatch=False."
        )


def ready_at_once(function: Callable, x: jax.Array) -> bool:
    """Say whether a result is ready when the call returns."""
    result = function(x)
    ready = result.is_ready()
    jax.block_until_ready(result)
    return ready


@functools.partial(jax.jit, static_argnums=2)
def training_step(parameters: jax.Array, batch: jax.Array, links: int = LINKS) -> jax.Array:
    """Stand for a step of training, which needs the parameters from the step before."""
    return work(parameters, links) + batch


@jax.jit
def training_loss(parameters: jax.Array) -> jax.Array:
    """Stand for the loss after a step of training."""
    return jnp.mean(jnp.abs(parameters))


@functools.cache
def right_parameters() -> tuple[jax.Array, ...]:
    """Return the parameters after each step of a training loop over `inputs(1 + STEPS, cpu())`."""
    _, *after_each = itertools.accumulate(inputs(1 + STEPS, cpu()), training_step)
    return tuple(jax.block_until_ready(after_each))


def require_all_steps(log: CallLog) -> None:
    """Reject an answer that did not call `step()` once for each batch of a training loop."""
    look = "What computes the new parameters from a batch?"
    require_called("step()", log.calls, "no step was dispatched", look)
    log.require_count("step()", STEPS)
