"""Record a timeline: what a function does on every device, and when, from JAX's profiler.

How it works. `record_trace` runs the function under JAX's profiler, inside an annotation of its
own, and reads the trace (an XSpace, the protocol buffer that TensorBoard and Perfetto are given)
back with `jax.profiler.ProfileData`. Each thread of the host is a line of events there: calls of
jitted functions make Python's row, operators of a CPU device carry its number, and a GPU has a line
for each stream. Waiting leaves no event, so what waits for a value, such as `float`, is annotated
while a recording is under way, and the annotations of the recorded function itself get names by
which they can be told from the runtime's own. Some work leaves no event either, such as copies
between CPU devices: so a thread for each device also notes when its results become ready, one after
the other.
"""

import contextlib
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from d2lpar._jax.compilations import listed, record_compilations
from d2lpar._jax.devices import device_name
from d2lpar._jax.profiler import (
    annotating_module,
    can_read_traces,
    read_lines,
    without_tensorflow,
)
from d2lpar._jax.reads import array_type, replaced
from d2lpar._jax.state import require_values
from d2lpar._measure.waiting import ExplainDonation, unwrap_key, wait_all, wait_for
from d2lpar._plain.cores import Control
from d2lpar._plain.errors import (
    CompilationError,
    D2lparError,
    require_count,
    require_function,
)
from d2lpar._timeline.timeline import ANNOTATION, COPY, COPY_CALL, PYTHON, Event, Timeline, in_order

# What the profiler calls the call that is being recorded, the time that one of our threads watches
# its results, that Python waits, in a call of that name, and what is annotated, by that name.
RECORDED = "d2lpar.record_trace"
WATCHING = "d2lpar.watch_results"
WAITING = "d2lpar.wait "
ANNOTATED = "d2lpar.annotation "

# What waits for a value of an array, of the class of arrays.
_WAITS = ("block_until_ready", "item", "tolist", "__float__", "__int__", "__bool__")


def record_trace(
    function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> tuple[Any, Timeline]:
    """Record a timeline of a function with JAX's profiler, until its results are ready.

    The times come from JAX's profiler. A device that has results but no events there, which is so
    for copies between CPU devices and on a back end without a profiler, gets its row from when its
    results became ready: each from when the one before it was ready. Where results come in pairs
    `(array, copy)`, of one shape on two devices, the copy starts no earlier than its array is ready
    and Python asks for it; so return the pairs in the order in which you ask for the copies. What
    is ready when the function returns, since the function waited for it, is drawn as the call that
    asked for it.

    Python's row shows where it dispatches, where it waits for a value (`jax.block_until_ready`,
    `float`, `int`, `bool`, `item`, `tolist`, `np.asarray`, `np.array`), and whatever else the
    function gives a name to: `with jax.profiler.TraceAnnotation("read"):`. Other threads that
    dispatch or annotate have rows of their own.

    Recording takes time: on a machine with two cores some 0.4 µs for each operator that runs, 2 µs
    for each call, and half a millisecond besides. So it matters where operators or calls are small:
    a loop of 5,000 products of 64 x 64 matrices took 1.3 times as long. How much slower yours
    was, `timeline.slowdown(measure(f, x).total)` says.

    Args:
        function: What to record. Call it once before, so that nothing compiles now. If it donates
            an argument, hand over `carried(function, ...)`, which can be called twice.
        *args: Its arguments.
        **kwargs: Likewise, by name.

    Returns:
        What the function returned, ready, and the timeline.

    Raises:
        CompilationError: If XLA compiles something meanwhile.
        D2lparError: If a recording is already under way, since JAX has one profiler; or if JAX
            traces.
        TypeError: If `function` cannot be called.
        ValueError: If it needs an array that was deleted, or donated to an earlier call.
        Exception: Whatever the function raises; the recording is ended before.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from d2lpar import cpu
        >>> product = jax.jit(lambda x: x @ x)
        >>> x = jax.block_until_ready(product(jax.device_put(jnp.ones((500, 500)), cpu())))
        >>> y, timeline = record_trace(product, x)
        >>> timeline.busy("CPU 0") > 0
        True
    """
    require_function("record_trace", function)
    require_values("record_trace()")
    recording = _record(function, *args, **kwargs)
    return recording.result, recording.timeline


def _record(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "_Recording":
    """Record a function; what the profiler has written is not read yet, which takes longest."""
    name = getattr(function, "__name__", type(function).__name__)
    wait_all()  # What is still queued is not part of it.
    with tempfile.TemporaryDirectory() as folder:
        with _profiler(folder), record_compilations() as compiled:
            began = time.perf_counter_ns()
            with ExplainDonation(name), jax.profiler.TraceAnnotation(RECORDED):
                result = function(*args, **kwargs)
                with jax.profiler.TraceAnnotation(f"{WAITING}block_until_ready"):
                    results, took = watch_results(result, began)
        if compiled:
            raise CompilationError(
                f"{listed(compiled)} was compiled while it was being recorded, so the "
                "timeline would show the compiler. Call the function once before, with arguments "
                "of the same shapes, dtypes and devices."
            )
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        data = files[-1].read_bytes() if files and can_read_traces() else b""
    return _Recording(result, results, data, took / 1e9)


def record_typical(
    function: Callable[..., Any],
    /,
    *args: Any,
    times: int = 5,
    control: Control | None = None,
    **kwargs: Any,
) -> tuple[Any, Timeline]:
    """Record a function several times, and return the recording of median length.

    A single recording may be disturbed: if another process had the core for some milliseconds, a
    picture of it shows a pause that the program does not have. Until the last recording is done,
    the results of all of them are kept.

    Args:
        function: What to record, as for `record_trace`.
        *args: Its arguments.
        times: How many times to record it; of an even number, the shorter of the middle two counts.
        control: What decides which recordings count, such as `free_cores(2)`; it is asked after
            each. If it never held, all of them do.
        **kwargs: Arguments of the function, by name.

    Returns:
        What the function returned in that recording, ready, and the timeline.

    Raises:
        ValueError: If `times` is no integer of at least 1.
        Exception: Whatever `record_trace` raises.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from d2lpar import cpu
        >>> product = jax.jit(lambda x: x @ x)
        >>> x = jax.block_until_ready(product(jax.device_put(jnp.ones((500, 500)), cpu())))
        >>> y, timeline = record_typical(product, x, times=3)
        >>> timeline.busy("CPU 0") > 0
        True
    """
    require_function("record_typical", function)
    require_count("times", times, at_least=1)
    require_values("record_typical()")
    every, held = [], []
    for _ in range(times):
        every.append(_record(function, *args, **kwargs))
        if control and control.probe() < control.below:
            held.append(every[-1])
    by_length = sorted(held or every, key=lambda recording: recording.seconds)
    typical = by_length[(len(by_length) - 1) // 2]
    return typical.result, typical.timeline


class _Recording(NamedTuple):
    """What a function returned, when its results were ready, and what the profiler has written."""

    result: Any
    results: Sequence["Result"]
    data: bytes
    seconds: float

    @property
    def timeline(self) -> Timeline:
        """What the profiler has seen, and rows for devices of which it has seen nothing."""
        events = read_events(self.data) if self.data else ()
        seen = {event.device for event in events}
        watched = {result.device for result in self.results} - seen
        events = in_order([*events, *rows_of(self.results, watched, events)])
        return Timeline(events, frozenset(watched), self.seconds)


def read_trace(path: str | Path) -> Timeline:
    """Read a trace that `jax.profiler.trace` has written.

    Args:
        path: An `.xplane.pb` file, or the folder that was given to the profiler, of which the
            newest trace is taken.

    Returns:
        The timeline, in which 0 is the start of the first event.

    Raises:
        D2lparError: If there is no trace, the file is cut off or something else, it has no event
            of a device, or this version of JAX cannot read traces.

    Example:
        >>> read_trace("nowhere")
        Traceback (most recent call last):
        ...
        d2lpar.D2lparError: There is no trace at nowhere: name an .xplane.pb file, or the \
folder that was given to jax.profiler.trace.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.rglob("*.xplane.pb"))
    if not files:
        raise D2lparError(
            f"There is no trace at {path}: name an .xplane.pb file, or the folder that was given "
            "to jax.profiler.trace."
        )
    if not can_read_traces():
        raise D2lparError(f"jax {jax.__version__} cannot read traces; it takes 0.7.1 or newer.")
    newest = max(files, key=lambda file: file.stat().st_mtime)
    data = newest.read_bytes()
    if not looks_complete(data):
        raise D2lparError(
            f"{newest} is no complete trace: it is cut off, or another kind of file. Record it "
            "again, and let the program end the recording (jax.profiler.stop_trace)."
        )
    try:
        events = read_events(data)
    except RuntimeError as error:
        raise D2lparError(f"{newest} is no trace that this JAX can read: {error}") from error
    if all(event.device.startswith(PYTHON) for event in events):
        raise D2lparError(
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
        with without_tensorflow():
            jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise D2lparError(
            "record_trace() was called while a recording is under way, and JAX has one "
            "profiler: end the other one first, or record the whole with one call."
        ) from error
    try:
        with _telling():
            yield
    finally:
        with without_tensorflow():
            jax.profiler.stop_trace()


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Have waits leave events, and annotations such as can be told, for the length of a block."""
    waits = [(jax, "block_until_ready"), *((array_type(), name) for name in _WAITS)]
    # They read an array on a CPU device without asking Python, so there is no method to annotate.
    waits += [(np, "asarray"), (np, "array")]
    # The class itself, which `from jax.profiler import TraceAnnotation` has as well.
    annotations = _named_annotations(jax.profiler.TraceAnnotation)
    with replaced(waits, _saying_so), annotations:
        yield


def _saying_so(owner: Any, name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that annotates its waiting, if it is for an array."""
    only, name = array_type() if owner is np else object, name.strip("_")

    def wait_and_say_so(*args: Any, **kwargs: Any) -> Any:
        if not (args and isinstance(args[0], only)):
            return wait(*args, **kwargs)
        with jax.profiler.TraceAnnotation(WAITING + name):
            return wait(*args, **kwargs)

    return wait_and_say_so


@contextlib.contextmanager
def _named_annotations(annotation: type) -> Iterator[None]:
    """Have annotations that are not JAX's own say so in their names."""
    own, inherited = vars(annotation).get("__init__"), annotation.__init__

    def init(self: Any, name: str, **kwargs: Any) -> None:
        mine = annotating_module(sys._getframe(1)).startswith(("jax.", "d2lpar._"))
        inherited(self, name if mine else ANNOTATED + name, **kwargs)

    annotation.__init__ = init
    try:
        yield
    finally:
        if own:
            annotation.__init__ = own
        else:
            del annotation.__init__


class Result(NamedTuple):
    """An array that a function returned, and when it was ready.

    `seen` tells whether anybody saw it become ready, or found it so when the function returned.
    Of a copy, `source_ready` is when its array was ready; 0 if nobody saw that.
    """

    device: str
    ready: int
    seen: bool
    source_ready: int | None


def watch_results(result: Any, began: int) -> tuple[list[Result], int]:
    """Wait for all arrays of a tree, on a thread for each device, and note when each is ready.

    And when all of them were: the threads, which look at one after the other, may be later.
    """
    found = jax.tree.map(unwrap_key, jax.tree.leaves(result, is_leaf=_is_array_and_copy))
    source_of = {id(leaf[1]): leaf[0] for leaf in found if isinstance(leaf, tuple)}
    arrays = [
        array
        for array in jax.tree.leaves(found)
        if isinstance(array, jax.Array) and not array.is_deleted()  # A donated one has gone.
    ]
    ready: dict[int, dict[str, int]] = {id(array): {} for array in arrays}
    unseen = {id(array) for array in arrays if array.is_ready()}
    queues = defaultdict(list)
    for array in arrays:
        for device in array.devices():
            queues[device_name(device)].append(array)

    def watch(device: str) -> None:
        # The caller waits as well, and meets what goes wrong.
        with jax.profiler.TraceAnnotation(WATCHING), contextlib.suppress(Exception):
            for array in queues[device]:
                wait_for(array)
                ready[id(array)][device] = time.perf_counter_ns() - began

    threads = [threading.Thread(target=watch, args=(device,)) for device in queues]
    for thread in threads:
        thread.start()
    try:
        wait_for(arrays)
        took = time.perf_counter_ns() - began
    finally:
        for thread in threads:
            thread.join()

    def ready_at(array: jax.Array) -> int:
        times = () if id(array) in unseen else ready.get(id(array), {}).values()
        return max(times, default=0)

    results = [
        Result(
            device, at, key not in unseen, ready_at(source_of[key]) if key in source_of else None
        )
        for key, times in ready.items()
        for device, at in times.items()
    ]
    return results, took


def _is_array_and_copy(tree: Any) -> bool:
    """Say whether a tree is an array and a copy of it on another device."""
    return (
        isinstance(tree, tuple)
        and len(tree) == 2
        and all(isinstance(array, jax.Array) and not array.is_deleted() for array in tree)
        and tree[0].shape == tree[1].shape
        and tree[0].dtype == tree[1].dtype
        and tree[0].devices() != tree[1].devices()
    )


def rows_of(
    results: Sequence[Result], devices: set[str], events: Iterable[Event]
) -> Iterator[Event]:
    """Yield a row for each of these devices: its results, one after the other."""
    copies = sum(result.source_ready is not None for result in results)
    calls = [(e.start, e.end) for e in events if (e.program, e.operator) == COPY_CALL]
    calls = iter(calls if len(calls) == copies else [(0, 0)] * copies)
    spans = []
    for device, ready, seen, source_ready in results:
        is_copy = source_ready is not None
        asked, returned = next(calls) if is_copy else (0, ready)
        # What was ready when the function returned is drawn as the call itself, if it had one.
        span = (max(asked, source_ready or 0), ready) if seen else (asked, returned)
        if device in devices:
            spans.append((*reversed(span), device, is_copy))
    previous = dict.fromkeys(devices, 0)
    for number, (end, start, device, is_copy) in enumerate(sorted(spans)):
        start = min(max(start, previous[device]), end)
        previous[device] = end
        what = ("device_put", COPY) if is_copy else ("result", "")
        yield Event(device, *what, number, start, end - start)


def looks_complete(data: bytes) -> bool:
    """Say whether the bytes are a sequence of whole fields 1 to 4, as an XSpace is.

    JAX 0.7 ends the process if they are not.
    """
    position = 0
    while position < len(data):
        if data[position] not in (0x0A, 0x12, 0x1A, 0x22):  # Field 1 to 4, of stated length.
            return False
        length, shift, position = 0, 0, position + 1
        while position < len(data) and data[position] & 0x80:
            length |= (data[position] & 0x7F) << shift
            shift, position = shift + 7, position + 1
        if position >= len(data):
            return False
        position += 1 + (length | data[position] << shift)
    return position == len(data) and bool(data)


def read_events(data: bytes) -> tuple[Event, ...]:
    """Return the events of a serialized XSpace."""
    events, window = [], None
    for device, lines in read_lines(data):
        if device:
            events += _gpu_events(device, lines)
        else:
            of_host, window = _host_events(lines)
            events += of_host
    if window is None:  # Somebody else recorded it.
        began = min((event.start for event in events), default=0)
        over = max((event.end for event in events), default=0) + 1
    else:
        began, over = window
    kept = (event for event in events if began <= event.start < over)
    return in_order(event._replace(start=event.start - began) for event in kept)


def _host_events(lines: Iterable[Any]) -> tuple[list[Event], tuple[int, int] | None]:
    """Return what Python and the CPU devices did, and the window of `record_trace` if it is there.

    Each line is a thread. An operator of a CPU device says so in the statistics of its event; it
    may come in pieces, on several threads.
    """
    events, threads, runs, waits, window = [], [], {}, [], None
    for line in lines:
        calls, recorded = [], False
        for event in line.events:
            name = event.name
            if name.startswith(("end: ", "ThreadpoolListener")):
                continue
            start, duration = round(event.start_ns), round(event.duration_ns)
            if name == RECORDED:
                window, recorded = (start, start + duration), True
            elif call := _call(name):
                calls.append((start, -duration, *call))
            else:
                stats = dict(event.stats)
                if "device_ordinal" not in stats:
                    continue
                # A number of a run may come again on another device (jax 0.7).
                key = (f"CPU {stats['device_ordinal']}", stats.get("run_id"))
                if "hlo_op" in stats:
                    program, run = runs.setdefault(key, (_program(stats), len(runs)))
                    events.append(Event(key[0], program, stats["hlo_op"], run, start, duration))
                else:  # The program is waiting for pieces of it that other threads compute.
                    waits.append((key, start, duration))
        if any(kind in ("dispatch", ANNOTATION) for *_, kind in calls):  # Else it only waits.
            threads.insert(0 if recorded else len(threads), calls)
    for key, start, duration in waits:
        if key in runs:
            program, run = runs[key]
            events.append(Event(key[0], program, "other threads", run, start, duration))
    for number, calls in enumerate(threads):
        events += _of_python(PYTHON if number == 0 else f"{PYTHON} {number + 1}", calls)
    return events, window


def _call(name: str) -> tuple[str, str] | None:
    """Return the function and the kind of a call that Python makes, or None if it is another."""
    if name.startswith(WAITING):
        return name.removeprefix(WAITING), "wait"
    if name.startswith(ANNOTATED):
        return name.removeprefix(ANNOTATED), ANNOTATION
    if name == WATCHING:  # By a thread of ours, which may have the number of one that has ended.
        return "", ""
    if name == "np.asarray(jax.Array)":  # JAX's own; whatever else asks for a value.
        return "asarray", "wait"
    if name.startswith("PjitFunction("):
        return name[len("PjitFunction(") : -1], "dispatch"
    if name.startswith("DevicePut"):
        return COPY_CALL
    return None


def _of_python(row: str, calls: list[tuple[int, int, str, str]]) -> Iterator[Event]:
    """Yield all annotations, and the calls that are not made inside another call."""
    end = -1
    for number, (start, negative, program, kind) in enumerate(sorted(calls)):
        if kind == ANNOTATION or start >= end:
            end = end if kind == ANNOTATION else start - negative
            if kind:
                yield Event(row, program, kind, number, start, -negative)


def _gpu_events(device: str, lines: Iterable[Any]) -> Iterator[Event]:
    """Yield what the streams of a GPU did; copies to and from the host get rows of their own."""
    rows = {"MemcpyD2H": f"{device} to host", "MemcpyH2D": f"{device} from host"}
    first, run, copies = None, -1, 0
    for event in sorted(
        (event for line in lines for event in line.events), key=lambda event: event.start_ns
    ):
        start, duration = round(event.start_ns), round(event.duration_ns)
        stats = dict(event.stats)
        if event.name in rows:
            copies += 1
            yield Event(rows[event.name], event.name, COPY, copies, start, duration)
            continue
        operator = stats.get("hlo_op", event.name)
        began_with = (stats.get("hlo_module"), operator)
        # No number tells the runs of a program apart. One has begun where its first operator
        # comes again, or another program's operator comes.
        if first is None or began_with == first or began_with[0] != first[0]:
            first, run = began_with, run + 1
        yield Event(device, _program(stats), operator, run, start, duration)


def _program(stats: Mapping[str, str]) -> str:
    """Return the name of the jitted function behind an XLA module, `jit_` and the name."""
    name = stats.get("hlo_module", "").removeprefix("jit_")
    return "<lambda>" if name in ("_lambda", "_lambda_") else name
