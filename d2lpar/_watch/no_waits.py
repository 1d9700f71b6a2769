"""Assert that in a block of code nothing waits for a device, and nothing compiles.

How it works. `_jax/reads.py` calls a listener before each read of an array, and JAX calls one after
each compilation, both in the thread concerned. The stack of that thread then shows the line of the
program. Python 3.11 hides some reads, and sampling finds part of them: every millisecond, another
thread checks whether the thread of the block rests in a call that can only read.
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
from d2lpar._measure.waiting import unwrap_key
from d2lpar._plain.errors import WaitError
from d2lpar._plain.format import plural
from d2lpar._watch.report import KINDS, Finding

HIDDEN = (
    "Python 3.11 hides some reads: long ones are found where the line names a function such as "
    "np.dot, or has y[mask], those of hashlib or jnp.repeat never. Python 3.12 hides none."
)


def no_waits(*, no_compilations: bool = False) -> AbstractContextManager[None]:
    """Assert that no line in a `with` block waits for a device, or reads an array, on CPUs too.

    Every read counts: `float(x)`, `x.item()`, `if x > 0:`, `f"{x}"`, `np.asarray(x)`, a barrier;
    in your code and in the code that it calls. A read counts even if the array was ready. Whether
    it is ready depends on the machine, and a test should not. So keep a value that you need again
    as a number. Put an intended read into `with d2lpar.waits_allowed():`. The waits of `InFlight`
    are allowed. A call that waits without reading an array does not count, such as one that finds
    the device's queue full, or one of a program with a callback.

    The error comes at the end of the block, which runs as usual. So one run finds all the lines,
    and no `except Exception` in a loop hides them. If the block raises an error of its own, that
    error goes on, and its notes name the lines.

    The assertion covers the thread that enters the block, as `jax.transfer_guard` does: a thread
    that writes logs or checkpoints may wait. While a generator or a coroutine is suspended inside
    its block, everything else in the same thread counts as well. The innermost of nested blocks
    raises the error.

    From Python 3.12 on, every read is seen. Python 3.11 hides some, of functions of JAX as well,
    and sampling finds only part of the long ones; the error says so, and so does pytest at the end
    of a session. A read costs some 10 µs more in the block, and nothing outside.

    Args:
        no_compilations: Whether nothing may be compiled either. Call each function once before,
            with arguments of the same shapes, dtypes and devices.

    Returns:
        A context manager.

    Raises:
        WaitError: At the end of the block, if a line has waited or compiled.
        D2lparError: If JAX traces, or d2lpar cannot see the reads of this version of JAX.

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
    return _NoWaits(no_compilations)


class _NoWaits:
    def __init__(self, no_compilations: bool) -> None:
        self._no_compilations = no_compilations

    def __enter__(self) -> None:
        require_values("no_waits()")
        require_hearing()
        self._findings: dict[Any, Finding] = {}
        self._by_position: dict[Any, Finding | None] = {}
        self._thread = threading.current_thread()
        with ExitStack() as stack:
            is_listening = stack.enter_context(reads_heard(self._note_read))
            if self._no_compilations:
                stack.enter_context(compilations_heard(self._note_compilation))
            if not hears_all():
                stack.enter_context(_hidden_reads(self._thread, is_listening, self._note))
            self._open = stack.pop_all()

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        __tracebackhide__ = True  # pytest shows the line that ends here, the block's.
        self._open.close()
        if not (findings := list(self._findings.values())):
            return
        forbidden = "wait for a device" + " or compile" * self._no_compilations
        waits = WaitError(_message(findings, forbidden), findings, hears_all())
        # GeneratorExit closes a suspended generator, and is no error of the block.
        if error is None or isinstance(error, GeneratorExit):
            raise waits from None
        error.add_note(str(waits))

    def _note_read(self, kind: str, read: Any) -> None:
        arrays = [unwrap_key(array) for array in (read if isinstance(read, list) else [read])]
        self._note(_positions(sys._getframe(2)), kind, _described(arrays))

    def _note_compilation(self, name: str) -> None:
        if current_listener() == self._note_read:  # Not in another thread, nor allowed.
            self._note((name, *_positions(sys._getframe(1))), "compilation", name)

    def _note(self, at: Any, kind: str, detail: str, sample: StackSample | None = None) -> None:
        if at not in self._by_position:
            sample = sample or sample_stack(sys._getframe(2))
            self._by_position[at] = None
            # Reading the constants of a program is part of compiling.
            if kind == "compilation" or not (sample and sample.activity == "compiles"):
                finding = self._finding(kind, detail, at, sample)
                # Python specializes frequent code, which moves a call to another instruction.
                key = kind, finding.place, finding.operation, detail
                self._by_position[at] = self._findings.setdefault(key, finding)
        if finding := self._by_position[at]:
            finding.times += 1

    def _finding(self, kind: str, detail: str, at: Any, sample: StackSample | None) -> Finding:
        *_, inner, user = at
        kind = "check" if sample and sample.activity == "checks" else kind
        if inner.owner == "library" and inner != user:
            detail += f", in {inner.place}  {inner.place.code}"
        finding = Finding(kind, user.place, user.operation, self._thread.name, detail=detail)
        for caller in sample.callers[:1] if sample else ():
            finding.callers[str(caller.place)] = 1
        return finding


def _positions(frame: FrameType) -> tuple[CodePosition, CodePosition, CodePosition]:
    """Return the positions of the read, of the innermost library or user code, and of the user's.

    The last one is the library's if no frame is the user's.
    """
    inner = user = None
    for outer in frames_outward(frame):
        owner = owner_of(outer.f_code.co_filename)
        if owner in ("user", "library"):
            inner = inner or outer
        if owner == "user":
            user = outer
            break
    inner, user = inner or frame, user or inner or frame
    read, inner, user = (CodePosition(f.f_code, f.f_lasti) for f in (frame, inner, user))
    return read, inner, user


def _message(findings: Collection[Finding], forbidden: str) -> str:
    lines = len({finding.place for finding in findings})
    parts = [f"{plural(lines, 'line')} found in a block in which nothing should {forbidden}:"]
    for finding in findings:
        does = "compiles" if finding.kind == "compilation" else f"{KINDS[finding.kind][0]},"
        does = f"{does} {finding.detail}" if finding.detail else does.rstrip(",")
        called = "".join(f", called from {caller}" for caller in finding.callers)
        parts.append(
            f"  {finding.place}  {finding.place.code}\n"
            f"      {does}, {plural(finding.times, 'time')}: {finding.operation}{called}"
        )
    for kind in dict.fromkeys(finding.kind for finding in findings):
        _, advice, link = KINDS[kind]
        parts += [advice, link]
    parts.append("Put an intended read into `with d2lpar.waits_allowed():`.")
    return "\n".join(parts if hears_all() else [*parts, HIDDEN])


def _is_ready(array: Any) -> bool:
    # Before jax 0.11.2, `is_ready` of a deleted array crashes. Reading one is an error anyway.
    return not hasattr(array, "is_ready") or array.is_deleted() or array.is_ready()


def _described(arrays: list[Any]) -> str:
    if len(arrays) != 1:
        return plural(len(arrays), "array")
    shape = ",".join(map(str, getattr(arrays[0], "shape", ())))
    return f"{arrays[0].dtype}[{shape}]" if hasattr(arrays[0], "dtype") else ""


@contextmanager
def _hidden_reads(thread: threading.Thread, is_listening: Any, note: Any) -> Iterator[None]:
    """Sample a thread every millisecond, and note where it rests in a call that can only read."""
    done = threading.Event()

    def sample_until_done() -> None:
        last, used, noted = None, None, False
        while not done.wait(1e-3):
            sample = sample_stack(current_frames().get(thread.ident))
            before, used = used, processor_time(thread)
            rests = bool(last and sample and sample.fingerprint == last.fingerprint)
            rests = rests and (used is None or before is None or used - before < 2e-4)
            if rests and not noted and _may_read(sample) and is_listening() and _any_unready():
                note((sample.position, sample.position), "value", "", sample)
                noted = True
            noted = noted and rests
            last = sample

    sampler = threading.Thread(target=sample_until_done, name="d2lpar.no_waits", daemon=True)
    sampler.start()
    try:
        yield
    finally:
        done.set()
        sampler.join()


def _may_read(sample: StackSample) -> bool:
    # NumPy's functions whose names contain "file" read a file.
    is_file = "file" in sample.innermost.called_name()
    return sample.activity == "call" and only_reads(sample.innermost) and not is_file


def _any_unready() -> bool:
    return not all(map(_is_ready, map(unwrap_key, sys.modules["jax"].live_arrays())))
