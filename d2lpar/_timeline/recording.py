"""Record a timeline of a function with JAX's profiler: what each device ran, and when.

How it works. `record_trace` runs the function under JAX's profiler, inside an annotation of its
own, and reads the trace back with `jax.profiler.ProfileData`. (A trace is an XSpace, the protocol
buffer that TensorBoard and Perfetto read.) The host has a line of events for each thread, and a GPU
one for each stream. From these lines, where time goes to the right::

    main thread   [d2lpar.record_trace                         ]
                    [PjitFunction(f)] [d2lpar.wait float    ]
    worker              [dot][tanh][wait for completion]
    other worker             [dot][end: dot]
    watching                           [d2lpar.watch_results]

come these rows. Of nested calls, Python's row has the outermost. Operators of a CPU carry the
numbers of their device and their run. All of one run, here of f, belong together, and the run lasts
until its other threads are done::

    Python          [dispatch f     ] [wait float           ]
    CPU 0               [dot][tanh][other threads      ]
                             [dot]

JAX records no event where Python waits. So functions that wait for a value, such as `float`, are
annotated during a recording. The recorded function's own annotations get a prefix, which tells them
from the runtime's. Some work leaves no event either, such as copies between CPU devices. So a
thread for each device waits for its results, one after the other, and notes when each is ready.
"""

import contextlib
import math
import re
import sys
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
from d2lpar._jax.profiler import annotating_module, read_lines, stop_trace, without_tensorflow
from d2lpar._jax.reads import array_type, replaced
from d2lpar._jax.state import require_values
from d2lpar._measure.waiting import ExplainDonation, unwrap_key, wait_all, wait_for
from d2lpar._plain.cores import Control
from d2lpar._plain.errors import CompilationError, D2lparError, require_count, require_function
from d2lpar._timeline.timeline import ANNOTATION, COPY, COPY_CALL, PYTHON, Event, Timeline, in_order

# Names of events in the trace: the recorded call and a thread that watches results; then prefixes,
# of a call that waits and of an annotation of the recorded function, before which Python's name of
# the thread stands. (A trace has only the system's names of threads.)
RECORDED = "d2lpar.record_trace"
WATCHING = "d2lpar.watch_results"
WAITING = "d2lpar.wait "
ANNOTATED = "d2lpar.annotation "
# The head of a field 1 to 4 of a protocol buffer: its key, and its length, 7 bits in each byte.
_FIELD = re.compile(rb"[\x0a\x12\x1a\x22]([\x80-\xff]*[\x00-\x7f])")
# The names of threads to which the program has given none.
_UNNAMED = re.compile(r"|MainThread|(Thread|Dummy|ThreadPoolExecutor)-\d.*")

# The methods of an array that wait for its value.
_WAITS = ("block_until_ready", "item", "tolist", "__float__", "__int__", "__bool__")


def record_trace(
    function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> tuple[Any, Timeline]:
    """Record a timeline of a function with JAX's profiler, until its results are ready.

    The times come from JAX's profiler. Some devices have results but no events in the profile: with
    copies between CPU devices, and on a back end without a profiler. A thread then watches when
    their results are ready, and each result's bar begins where the one before it ends. If a result
    is a pair `(array, copy)`, of one shape on two devices, the copy's bar begins no earlier than
    the array is ready and Python asks for the copy. So ask for the copies in the order of the pairs
    that you return. A copy that is ready when the function returns, since the function waited
    for it, is drawn as the call that asked for it.

    Python's row shows where it dispatches, where it waits for a value (`jax.block_until_ready`,
    `float`, `int`, `bool`, `item`, `tolist`, `np.asarray`, `np.array`), and each part to which the
    function gives a name: `with jax.profiler.TraceAnnotation("read"):`. Other threads that dispatch
    or annotate have rows of their own. The row of a thread that annotates has the name that the
    program gives to the thread, as with `ThreadPoolExecutor(3, "reader")`. Other waits leave a gap:
    in a function that was imported by its name (`from numpy import asarray`, or `from jax import
    block_until_ready` for several arrays), and in `memoryview`, `np.from_dlpack` or `np.exp` of an
    array on a CPU device.

    Recording takes time: on a machine with two cores some 0.4 µs for each operator that runs, 2 µs
    for each call, and half a millisecond besides. So it matters where operators or calls are small:
    a loop of 5,000 products of 64 x 64 matrices took 30% longer. Your own function took
    `timeline.seconds / measure(f, x).total.median` times as long as without recording.

    Args:
        function: The function to record. Call it once before, so that nothing compiles now. If it
            donates an argument, pass `carried(function, ...)`, which can be called twice.
        *args: Its arguments.
        **kwargs: Likewise, by name.

    Returns:
        The result of the function, ready, and the timeline.

    Raises:
        CompilationError: If XLA compiles something meanwhile.
        D2lparError: If a recording is already under way, since JAX has one profiler; or if JAX is
            tracing.
        TypeError: If `function` cannot be called.
        ValueError: If it needs an array that was deleted, or donated to an earlier call.
        Exception: Any exception of the function, once the recording has ended.

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
    """Record a function, but leave the trace unread: reading takes longest."""
    name = getattr(function, "__name__", type(function).__name__)
    wait_all()  # Earlier work that is still queued is not part of the recording.
    with _profiler() as recorded, record_compilations() as compiled:
        began = time.perf_counter_ns()
        with ExplainDonation(name), jax.profiler.TraceAnnotation(RECORDED):
            result = function(*args, **kwargs)
            with jax.profiler.TraceAnnotation(f"{WAITING}block_until_ready"):
                results, took = watch_results(result, began)
    if compiled:
        raise CompilationError(
            f"{listed(compiled)} was compiled while it was being recorded, so the timeline would "
            "show the compiler. Call the function once before, with arguments of the same shapes, "
            "dtypes and devices."
        )
    return _Recording(result, results, *recorded, took / 1e9)


def record_typical(
    function: Callable[..., Any],
    /,
    *args: Any,
    times: int = 5,
    control: Control | None = None,
    **kwargs: Any,
) -> tuple[Any, Timeline]:
    """Record a function several times, and return the recording of median length.

    A single recording may be disturbed: if another process had the core for some milliseconds, its
    picture shows a pause that the program does not have. The results of all recordings are kept
    until the last one is done.

    Args:
        function: The function to record, as for `record_trace`.
        *args: Its arguments.
        times: How many times to record it; of an even number, the shorter of the middle two counts.
        control: A control that decides after each recording whether the recording counts, such as
            `free_cores(2)`. If it never held, all recordings count.
        **kwargs: Arguments of the function, by name.

    Returns:
        The result of the function in that recording, ready, and the timeline.

    Raises:
        TypeError: If `function` cannot be called.
        ValueError: If `times` is no integer of at least 1.
        Exception: Any exception of `record_trace`.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.sort(jnp.ones(99))
        >>> y, timeline = record_typical(jnp.sort, x, times=3)
        >>> timeline.elapsed > 0
        True
    """
    require_function("record_typical", function)
    require_count("times", times, at_least=1)
    require_values("record_typical()")
    recordings, undisturbed = [], []
    for _ in range(times):
        recordings.append(_record(function, *args, **kwargs))
        if control and control.probe() < control.below:
            undisturbed.append(recordings[-1])
    by_length = sorted(undisturbed or recordings, key=lambda recording: recording.seconds)
    typical = by_length[(len(by_length) - 1) // 2]
    return typical.result, typical.timeline


class _Recording(NamedTuple):
    """The result of a function, when its arrays were ready, and the trace."""

    result: Any
    results: Sequence["Result"]
    trace: Any  # A `jax.profiler.ProfileData`.
    seconds: float

    @property
    def timeline(self) -> Timeline:
        """The events of the trace, and rows for devices that have none there."""
        events = read_events(self.trace)
        watched = {result.device for result in self.results} - {event.device for event in events}
        events = in_order([*events, *rows_of(self.results, watched, events)])
        return Timeline(events, frozenset(watched), self.seconds)


def read_trace(path: str | Path) -> Timeline:
    """Read a trace that `jax.profiler.trace` has written.

    Args:
        path: An `.xplane.pb` file, or the folder that was given to the profiler; its newest trace
            is read.

    Returns:
        The timeline. Its first event starts at 0.

    Raises:
        D2lparError: If there is no trace, the file is cut off or something else, or it has no
            event of a device.

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
    newest = max(files, key=lambda file: file.stat().st_mtime)
    data = newest.read_bytes()
    if not looks_complete(data):
        raise D2lparError(
            f"{newest} is not a complete trace: it is cut off, or another kind of file. Record it "
            "again, and end the recording in the program (jax.profiler.stop_trace)."
        )
    try:
        events = read_events(data)
    except RuntimeError as error:
        raise D2lparError(f"{newest} is no trace that this JAX can read: {error}") from error
    if all(event.device.startswith(PYTHON) for event in events):
        raise D2lparError(
            f"{newest} has no device events. Record while something is computed, and wait for "
            "it (jax.block_until_ready) before the recording ends."
        )
    return Timeline(events)


@contextlib.contextmanager
def _profiler() -> Iterator[list[Any]]:
    """Record a block, with its waits and annotations; yield a list that then gets the trace."""
    waits = [(jax, "block_until_ready"), *((array_type(), name) for name in _WAITS)]
    # NumPy reads an array on a CPU device through the buffer protocol, where no method of the array
    # could be annotated.
    waits += [(np, "asarray"), (np, "array")]
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Otherwise each call in Python is an event.
    try:
        with without_tensorflow():
            jax.profiler.start_trace(None, profiler_options=options)
    except RuntimeError as error:
        raise D2lparError(
            "record_trace() was called during another recording, and JAX has only one profiler: "
            "end the other recording first, or record everything with one call."
        ) from error
    recorded = []
    try:
        with replaced(waits, _annotated), _named_annotations(jax.profiler.TraceAnnotation):
            yield recorded
    finally:
        recorded.append(stop_trace())


def _annotated(owner: Any, name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that annotates its waiting, if its argument is a JAX array."""
    only, name = array_type() if owner is np else object, name.strip("_")

    def annotated_wait(*args: Any, **kwargs: Any) -> Any:
        if not (args and isinstance(args[0], only)):
            return wait(*args, **kwargs)
        with jax.profiler.TraceAnnotation(WAITING + name):
            return wait(*args, **kwargs)

    return annotated_wait


@contextlib.contextmanager
def _named_annotations(annotation: type) -> Iterator[None]:
    """Give annotations a prefix in the trace, unless JAX or this package makes them.

    The class itself is changed, as `from jax.profiler import TraceAnnotation` has it as well.
    """
    own, inherited = vars(annotation).get("__init__"), annotation.__init__

    def init(self: Any, name: str, **kwargs: Any) -> None:
        internal = annotating_module(sys._getframe(1)).startswith(("jax.", "d2lpar._"))
        thread = threading.current_thread().name
        inherited(self, name if internal else f"{ANNOTATED}{thread}\t{name}", **kwargs)

    annotation.__init__ = init
    try:
        yield
    finally:
        if own:
            annotation.__init__ = own
        else:
            del annotation.__init__


class Result(NamedTuple):
    """An array that a function returned, and when it was ready, in nanoseconds from the call.

    `late` tells whether the array became ready after the function had returned. For a copy,
    `source_ready` is when its original was ready, or 0 if that was before the function returned;
    for other arrays, None.
    """

    device: str
    ready: int
    late: bool
    source_ready: int | None


def watch_results(result: Any, began: int) -> tuple[list[Result], int]:
    """Wait for all arrays of a tree, on a thread for each device, and note when each is ready.

    Also return when all were ready, as the calling thread sees it: the other threads, which wait
    for one array after the other, may notice later.
    """
    leaves = jax.tree.map(unwrap_key, jax.tree.leaves(result, is_leaf=_is_array_and_copy))
    source_of = {id(leaf[1]): leaf[0] for leaf in leaves if isinstance(leaf, tuple)}
    arrays = [
        array
        for array in jax.tree.leaves(leaves)
        if isinstance(array, jax.Array) and not array.is_deleted()  # A donated array is deleted.
    ]
    ready: dict[int, dict[str, int]] = {id(array): {} for array in arrays}
    ready_at_return = {id(array) for array in arrays if array.is_ready()}
    queues = defaultdict(list)
    for array in arrays:
        for device in array.devices():
            queues[device_name(device)].append(array)

    def watch(device: str) -> None:
        # An exception of the array reaches the caller, which waits for it as well.
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

    def source_ready(key: int) -> int | None:
        if key not in source_of:
            return None
        source = id(source_of[key])
        times = () if source in ready_at_return else ready.get(source, {}).values()
        return max(times, default=0)

    results = [
        Result(device, at, key not in ready_at_return, source_ready(key))
        for key, times in ready.items()
        for device, at in times.items()
    ]
    return results, took


def _is_array_and_copy(tree: Any) -> bool:
    """Return whether a tree is an array and a copy of it on another device."""
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
    bars = []
    for device, ready, late, source_ready in results:
        if source_ready is None:
            kind, start, end = ("result", ""), 0, ready
        else:
            kind, (start, end) = ("device_put", COPY), next(calls)
            if late:  # Otherwise the bar of the copy is the call that asked for it.
                start, end = max(start, source_ready), ready
        if device in devices:
            bars.append(Event(device, *kind, 0, start, end - start))
    previous = dict.fromkeys(devices, 0)
    for number, bar in enumerate(sorted(bars, key=lambda bar: (bar.end, bar.start))):
        start = min(max(bar.start, previous[bar.device]), bar.end)
        previous[bar.device] = bar.end
        yield bar._replace(run=number, start=start, duration=bar.end - start)


def looks_complete(data: bytes) -> bool:
    """Return whether the bytes are a sequence of whole fields 1 to 4, as an XSpace is.

    Check before reading: JAX 0.7 ends the process if they are not.
    """
    position = 0
    while field := _FIELD.match(data, position):
        length = sum((byte & 0x7F) << 7 * n for n, byte in enumerate(field[1]))
        position = field.end() + length
    return 0 < position == len(data)


def read_events(trace: Any) -> tuple[Event, ...]:
    """Return the events of a `ProfileData`, or of a serialized XSpace."""
    events, window = [], None
    for device, lines in read_lines(trace):
        if device:
            events += _gpu_events(device, lines)
        else:
            host_events, window = _host_events(lines)
            events += host_events
    # A trace without the annotation of record_trace() counts as a whole.
    began, ended = window or (min((event.start for event in events), default=0), math.inf)
    inside = (event for event in events if began <= event.start < ended)
    return in_order(event._replace(start=event.start - began) for event in inside)


def _host_events(lines: Iterable[Any]) -> tuple[list[Event], tuple[int, int] | None]:
    """Return the events of Python and the CPU devices, and the window of `record_trace`, if any.

    Each line is a thread. The events of a run of a CPU device may lie on several threads.
    """
    events, threads, runs, waits, window = [], [], {}, [], None
    for line in lines:
        calls, recorded, thread = [], False, ""
        for event in line.events:
            name = event.name
            if name.startswith(("end: ", "ThreadpoolListener")):
                continue
            start, duration = round(event.start_ns), round(event.duration_ns)
            if name == RECORDED:
                window, recorded = (start, start + duration), True
            elif call := _call(name):
                before, tab, after = call[0].partition("\t")
                thread = before if tab else thread
                calls.append(Event("", after or before, call[1], 0, start, duration))
            else:
                stats = dict(event.stats)
                if "device_ordinal" not in stats:
                    continue
                device = f"CPU {stats['device_ordinal']}"
                key = device, stats.get("run_id")  # In jax 0.7, two devices may share a number.
                if "hlo_op" in stats:
                    program, run = runs.setdefault(key, (_program(stats), len(runs)))
                    events.append(Event(device, program, stats["hlo_op"], run, start, duration))
                else:  # The run waits for its operators on other threads.
                    waits.append((key, start, duration))
        # A thread that only waits, such as the one that watches results, gets no row.
        if any(call.operator in ("dispatch", ANNOTATION) for call in calls):
            named = "" if recorded else thread.replace("_", " ")
            threads.insert(0 if recorded else len(threads), (named, calls))
    for key, start, duration in waits:
        if key in runs:
            events.append(
                Event(key[0], runs[key][0], "other threads", runs[key][1], start, duration)
            )
    for number, (named, calls) in enumerate(threads, start=1):
        row = PYTHON if number == 1 else f"{PYTHON} {number}"
        unnamed = _UNNAMED.fullmatch(named)
        events += _python_events(row if unnamed else f"{PYTHON} {named}", calls)
    return events, window


def _call(name: str) -> tuple[str, str] | None:
    """Return the function and the operator of a call that Python makes, or None for other events.

    A watching thread may have the number, and so the line, of a thread that has ended. Its event
    becomes a call without an operator, which hides the waits inside.
    """
    if name == WATCHING:
        return "", ""
    if name == "np.asarray(jax.Array)":  # By JAX, for all other ways of reading a value.
        return "asarray", "wait"
    if name.startswith("DevicePut"):
        return COPY_CALL
    if name.startswith("PjitFunction("):
        return name[len("PjitFunction(") : -1], "dispatch"
    for prefix, operator in ((WAITING, "wait"), (ANNOTATED, ANNOTATION)):
        if name.startswith(prefix):
            return name.removeprefix(prefix), operator
    return None


def _python_events(row: str, calls: list[Event]) -> Iterator[Event]:
    """Yield all annotations, and the calls that are not made inside another call."""
    end = -1
    # Of calls with the same start, the outer one is longer.
    for number, call in enumerate(sorted(calls, key=lambda call: (call.start, -call.duration))):
        if call.operator == ANNOTATION or call.start >= end:
            if call.operator != ANNOTATION:
                end = call.end
            if call.operator:
                yield call._replace(device=row, run=number)


def _gpu_events(device: str, lines: Iterable[Any]) -> Iterator[Event]:
    """Yield the events of a GPU's streams; copies to and from the host get rows of their own."""
    copy_rows = {"MemcpyD2H": f"{device} to host", "MemcpyH2D": f"{device} from host"}
    first, run, copies = None, -1, 0
    for event in sorted(
        (event for line in lines for event in line.events), key=lambda event: event.start_ns
    ):
        start, duration = round(event.start_ns), round(event.duration_ns)
        if event.name in copy_rows:
            copies += 1
            yield Event(copy_rows[event.name], event.name, COPY, copies, start, duration)
            continue
        stats = dict(event.stats)
        module, operator = stats.get("hlo_module"), stats.get("hlo_op", event.name)
        # A GPU's events carry no number of a run. A run begins where the first operator of the
        # last run comes again, or where an operator of another program comes.
        if first is None or (module, operator) == first or module != first[0]:
            first, run = (module, operator), run + 1
        yield Event(device, _program(stats), operator, run, start, duration)


def _program(stats: Mapping[str, str]) -> str:
    """Return the name of the jitted function; XLA's module is called `jit_` and the name."""
    name = stats.get("hlo_module", "").removeprefix("jit_")
    return "<lambda>" if name in ("_lambda", "_lambda_") else name
