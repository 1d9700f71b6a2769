"""Record what a function does on every device, or read such a recording back."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from d2lpar import _arrivals, _xplane
from d2lpar._tracing import require_values
from d2lpar.barriers import WAITING, wait_all
from d2lpar.compilation import listed, record_compilations
from d2lpar.errors import CompilationError, TraceError, require_function
from d2lpar.timeline import PYTHON, Timeline, in_order


def record_trace(
    function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> tuple[Any, Timeline]:
    """Call a function and record what ran where and when, until its results are ready.

    The times come from JAX's profiler. It does not see everything: a copy from one CPU device to
    another leaves no event, nor does anything on a back end without a profiler. So a thread for
    each device also watches when the results become ready, one after the other, and a device that
    has results but no events gets its row from that: each result from when the one before it was
    ready to when it was ready itself. Where results come in pairs `(array, copy)`, of one shape
    on two devices, the copy starts no earlier than its array is ready and Python asks for it; so
    return the pairs in the order in which you ask for the copies. What
    is ready when the function returns, since the function waited for it, is drawn as the call that
    asked for it.

    Args:
        function: What to record. Call it once before, so that nothing compiles now.
        *args: Its arguments.
        **kwargs: Likewise, by name.

    Returns:
        What the function returned, ready, and the timeline.

    Raises:
        CompilationError: If XLA compiles something meanwhile.
        TraceError: If a recording is already under way: JAX has one profiler.
        ArgumentError: If `function` cannot be called.
        Exception: Whatever the function raises; the recording is ended before.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from d2lpar import block, cpu
        >>> product = jax.jit(lambda x: x @ x)
        >>> x = block(product(jax.device_put(jnp.ones((500, 500)), cpu())))
        >>> y, timeline = record_trace(product, x)
        >>> timeline.busy("CPU 0") > 0
        True
    """
    require_function("record_trace", function)
    require_values("record_trace()")
    wait_all()  # What is still queued is not part of it.
    with tempfile.TemporaryDirectory() as folder:
        with _profiler(folder), record_compilations() as compiled:
            began = time.perf_counter_ns()
            with jax.profiler.TraceAnnotation(_xplane.RECORDED):
                result = function(*args, **kwargs)
                with jax.profiler.TraceAnnotation(WAITING):
                    results = _arrivals.watch_results(result, began)
        if compiled:
            raise CompilationError(
                f"{listed(compiled)} was compiled while it was being recorded, so the "
                "timeline would show the compiler. Call the function once before, with arguments "
                "of the same shapes, dtypes and devices."
            )
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        events = _xplane.read(files[-1].read_bytes()) if files and _xplane.can_read() else ()
    seen = {event.device for event in events}
    watched = {result.device for result in results} - seen
    events = in_order([*events, *_arrivals.rows_of(results, watched, events)])
    return result, Timeline(events, frozenset(watched))


def read_trace(path: str | Path) -> Timeline:
    """Read a trace that `jax.profiler.trace` has written.

    Args:
        path: An `.xplane.pb` file, or the folder that was given to the profiler, of which the
            newest trace is taken.

    Returns:
        The timeline, in which 0 is the start of the first event.

    Raises:
        TraceError: If there is no trace, the file is cut off or something else, it has no event
            of a device, or this version of JAX cannot read traces.

    Example:
        >>> read_trace("nowhere")
        Traceback (most recent call last):
        ...
        d2lpar.errors.TraceError: There is no trace at nowhere: name an .xplane.pb file, or the \
folder that was given to jax.profiler.trace.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.rglob("*.xplane.pb"))
    if not files:
        raise TraceError(
            f"There is no trace at {path}: name an .xplane.pb file, or the folder that was given "
            "to jax.profiler.trace."
        )
    if not _xplane.can_read():
        raise TraceError(f"jax {jax.__version__} cannot read traces; it takes 0.7 or newer.")
    newest = max(files, key=lambda file: file.stat().st_mtime)
    data = newest.read_bytes()
    if not _xplane.looks_complete(data):
        raise TraceError(
            f"{newest} is no complete trace: it is cut off, or another kind of file. Record it "
            "again, and let the program end the recording (jax.profiler.stop_trace)."
        )
    try:
        events = _xplane.read(data)
    except RuntimeError as error:
        raise TraceError(f"{newest} is no trace that this JAX can read: {error}") from error
    if all(event.device.startswith(PYTHON) for event in events):
        raise TraceError(
            f"{newest} has no event of a device. Record while something is computed, and wait for "
            "it (jax.block_until_ready) before the recording ends."
        )
    return Timeline(events)


@contextlib.contextmanager
def _profiler(folder: str) -> Iterator[None]:
    """Run JAX's profiler for the length of a `with` block."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Otherwise each call in Python is an event.
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise TraceError(
            "record_trace() was called while a recording is under way, and JAX has one "
            "profiler: end the other one first, or record the whole with one call."
        ) from error
    try:
        yield
    finally:
        jax.profiler.stop_trace()
