"""Assert that in a block of code nothing waits for a device, and nothing compiles.

How it works. `_reads` tells of each read of an array in the thread that reads it, and JAX of each
compilation in the thread that compiles; the stack says at which line of the program that is. What
Python 3.11 hides is sampled: a thread looks every millisecond whether the one of the block stands
still in a call that can only read.
"""

import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

from d2lpar._jax.compilations import compilations_heard
from d2lpar._jax.reads import current_listener, hears_all, reads_heard, require_hearing
from d2lpar._jax.stack import (
    CodePosition,
    StackSample,
    current_frames,
    frames_outward,
    only_reads,
    owner_of,
    processor_time,
    sample_stack,
)
from d2lpar._jax.state import require_values
from d2lpar._measure.waiting import to_ask
from d2lpar._plain.errors import WaitError
from d2lpar._plain.format import plural
from d2lpar._watch.report import KINDS, Finding

_SAMPLED = (
    "Python 3.11 hides some reads (np.dot, np.isnan, y[mask]), of which only long ones were found."
)


def no_waits(
    *, no_compilations: bool = False, allow_ready: bool = False
) -> AbstractContextManager[None]:
    """Assert that no line in a `with` block waits for a device, or reads an array, on CPUs too.

    Every read counts: `float(x)`, `x.item()`, `if x > 0:`, `f"{x}"`, `np.asarray(x)`, a barrier;
    in your code and in what it calls. It counts even if the array was ready, since whether it is
    depends on the machine, and a test should not; so keep a value that you need again as a number.
    A read that is meant stands in `with d2lpar.waits_allowed():`, and what `InFlight` waits for is
    allowed. What waits without reading an array does not count, such as a call that finds the queue
    of the device full, or one of a program with a callback.

    The error comes at the end of the block, which runs as it would without: so one run finds all
    the lines, and no `except Exception` in a loop hides them. If the block raises an error of its
    own, that goes on, and its notes name the lines.

    It holds for the thread that enters the block, as `jax.transfer_guard` does: a thread that
    writes logs or checkpoints may wait. While a generator or a coroutine stands inside its block,
    whatever else its thread runs counts as well. Of nested blocks, the innermost tells.

    From Python 3.12 on, every read is seen. Python 3.11 hides some, for which it is sampled; the
    error says so. A read costs some 10 µs more in the block, and nothing outside.

    Args:
        no_compilations: Whether nothing may be compiled either. Call each function once before,
            with arguments of the same shapes, dtypes and devices.
        allow_ready: Whether to read an array that is ready is allowed, for a loop that asks
            `x.is_ready()`, or reads what was computed long before. Then a test depends on how fast
            the machine is.

    Returns:
        A context manager.

    Raises:
        WaitError: At the end of the block, if a line has waited or compiled.
        D2lparError: If JAX traces, or this version of it reads in a way that is not seen.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones(3)
        >>> with no_waits():
        ...     loss = (x * x).sum()
        >>> with no_waits():  # doctest: +IGNORE_EXCEPTION_DETAIL
        ...     loss = float(loss)
        Traceback (most recent call last):
        ...
        d2lpar.WaitError: 1 line found in a block in which nothing should wait for a device: ...
    """
    return _NoWaits(no_compilations, allow_ready)


class _NoWaits:
    def __init__(self, no_compilations: bool, allow_ready: bool) -> None:
        self._no_compilations, self._allow_ready = no_compilations, allow_ready

    def __enter__(self) -> None:
        require_values("no_waits()")
        require_hearing()
        self._found: dict[Any, Finding] = {}
        self._found_at: dict[Any, Finding | None] = {}
        self._thread = threading.current_thread()
        with ExitStack() as stack:
            is_told = stack.enter_context(reads_heard(self._note_read))
            if self._no_compilations:
                stack.enter_context(compilations_heard(self._note_compilation))
            if not hears_all():
                stack.enter_context(_standing_still(self._thread, is_told, self._note))
            self._open = stack.pop_all()

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        __tracebackhide__ = True  # pytest shows the line that ends here, the block's.
        self._open.close()
        if not (found := list(self._found.values())):
            return
        what = "wait for a device" + " or compile" * self._no_compilations
        waits = WaitError(_told(found, what), found, hears_all())
        # A generator that is closed inside the block has no error of its own.
        if error is None or isinstance(error, GeneratorExit):
            raise waits from None
        error.add_note(str(waits))

    def _note_read(self, kind: str, read: Any) -> None:
        arrays = [to_ask(array) for array in (read if isinstance(read, list) else [read])]
        if not (self._allow_ready and all(map(_is_ready, arrays))):
            self._note(_positions(sys._getframe(2)), kind, _described(arrays))

    def _note_compilation(self, name: str) -> None:
        if current_listener() == self._note_read:  # Else in another thread, or allowed.
            self._note((name, *_positions(sys._getframe(1))), "compilation", name)

    def _note(self, at: Any, kind: str, detail: str, sample: StackSample | None = None) -> None:
        if at not in self._found_at:
            sample = sample or sample_stack(sys._getframe(2))
            self._found_at[at] = None
            # What JAX reads while it compiles, constants of the program, is part of compiling.
            if kind == "compilation" or not (sample and sample.activity == "compiles"):
                found = self._finding(kind, detail, at, sample)
                # Python specializes what runs often; then a call is at another instruction.
                key = kind, found.place, found.operation, detail
                self._found_at[at] = self._found.setdefault(key, found)
        if found := self._found_at[at]:
            found.times += 1

    def _finding(self, kind: str, detail: str, at: Any, sample: StackSample | None) -> Finding:
        *_, inner, mine = at
        kind = "check" if sample and sample.activity == "checks" else kind
        if inner.owner == "library" and inner != mine:
            detail += f", in {inner.place}  {inner.place.code}"
        found = Finding(kind, mine.place, mine.operation, self._thread.name, detail=detail)
        for caller in sample.callers[:1] if sample else ():
            found.callers[str(caller.place)] = 1
        return found


def _positions(frame: FrameType) -> tuple[CodePosition, CodePosition, CodePosition]:
    """Return what reads, whose code asks for that, and the user's own line that led there."""
    inner = mine = None
    for outer in frames_outward(frame):
        owner = owner_of(outer.f_code.co_filename)
        if owner in ("user", "library"):
            inner = inner or outer
        if owner == "user":
            mine = outer
            break
    inner = inner or frame
    first, second, third = (
        CodePosition(f.f_code, f.f_lasti) for f in (frame, inner, mine or inner)
    )
    return first, second, third


def _told(found: Collection[Finding], what: str) -> str:
    lines = len({finding.place for finding in found})
    parts = [f"{plural(lines, 'line')} found in a block in which nothing should {what}:"]
    for one in found:
        does = "compiles" if one.kind == "compilation" else f"{KINDS[one.kind][0]},"
        does = f"{does} {one.detail}" if one.detail else does.rstrip(",")
        called = "".join(f", called from {caller}" for caller in one.callers)
        parts.append(
            f"  {one.place}  {one.place.code}\n"
            f"      {does}, {plural(one.times, 'time')}: {one.operation}{called}"
        )
    for kind in dict.fromkeys(one.kind for one in found):
        _, advice, link = KINDS[kind]
        parts += [advice, link]
    parts.append("What is meant goes into `with d2lpar.waits_allowed():`.")
    return "\n".join(parts if hears_all() else [*parts, _SAMPLED])


def _is_ready(array: Any) -> bool:
    # A deleted one must not be asked before jax 0.11.2; to read it is an error anyway.
    return not hasattr(array, "is_ready") or array.is_deleted() or array.is_ready()


def _described(arrays: list[Any]) -> str:
    if len(arrays) != 1:
        return plural(len(arrays), "array")
    shape = ",".join(map(str, getattr(arrays[0], "shape", ())))
    return f"{arrays[0].dtype}[{shape}]" if hasattr(arrays[0], "dtype") else ""


@contextmanager
def _standing_still(thread: threading.Thread, is_told: Any, note: Any) -> Iterator[None]:
    """Look at a thread every millisecond, and note where it stands still in a call that reads."""
    done = threading.Event()

    def look() -> None:
        last, used, noted = None, None, False
        while not done.wait(1e-3):
            sample = sample_stack(current_frames().get(thread.ident))
            before, used = used, processor_time(thread)
            rests = bool(last and sample and sample.fingerprint == last.fingerprint)
            rests = rests and (used is None or before is None or used - before < 2e-4)
            if rests and not noted and _may_read(sample) and is_told() and _something_is_unready():
                note((sample.position, sample.position), "value", "", sample)
                noted = True
            noted = noted and rests
            last = sample

    looking = threading.Thread(target=look, name="d2lpar.no_waits", daemon=True)
    looking.start()
    try:
        yield
    finally:
        done.set()
        looking.join()


def _may_read(sample: StackSample) -> bool:
    # A file is read by functions of NumPy too.
    called = sample.innermost.calls() or ""
    return sample.activity == "call" and only_reads(sample.innermost) and "file" not in called


def _something_is_unready() -> bool:
    return not all(map(_is_ready, map(to_ask, sys.modules["jax"].live_arrays())))
