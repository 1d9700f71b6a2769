"""Record a profiler trace and read it back as a timeline of events."""

import contextlib
import re
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import networkx as nx

from d2lpar.barriers import WAITING, block, wait_all
from d2lpar.compilation import listed, record_compilations
from d2lpar.devices import device_name
from d2lpar.errors import ArgumentError, CompilationError, TraceError
from d2lpar.graph import critical_path
from d2lpar.units import format_seconds

PYTHON = "Python"
"""The row of a timeline that shows what the Python thread did."""

COPY = "memory copy"
"""What stands for the operator where data is copied; XLA has operators of the name `copy`."""

_RECORDED = "d2lpar.record_trace"  # What the profiler calls the call that is being recorded.
_COPY_CALL = ("device_put", "dispatch")


class Event(NamedTuple):
    """Something that a device, or Python, was busy with.

    Attributes:
        device: The row: `"Python"`, a device such as `"CPU 0"`, or a copy engine of a GPU.
        program: The jitted function; in Python's row the function that was called.
        operator: What XLA calls the operator; in Python's row `"dispatch"` or `"wait"`;
            `"memory copy"` for a copy between devices; empty for a whole program.
        run: Counts the runs of programs, so that operators of one run can be told from the next.
        start: Nanoseconds from the start of the recording.
        duration: Nanoseconds.
    """

    device: str
    program: str
    operator: str
    run: int
    start: int
    duration: int

    @property
    def end(self) -> int:
        """When it was over, in nanoseconds from the start of the recording."""
        return self.start + self.duration


@dataclass(frozen=True, repr=False)
class Timeline:
    """What ran where, and when.

    Attributes:
        events: In the order in which they started.
        watched: The rows that come from watching when results were ready. All others come from
            JAX's profiler.
    """

    events: tuple[Event, ...]
    watched: frozenset[str] = frozenset()

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows, Python first, then the devices in the order of their numbers."""
        found = {event.device for event in self.events}
        return tuple(sorted(found, key=lambda row: (not row.startswith(PYTHON), _natural(row))))

    @property
    def source(self) -> str:
        """Where the times of the devices come from, in words."""
        if not self.watched:
            return "from JAX's profiler"
        if self.watched.issuperset(self.rows):
            return "from watching when results were ready"
        rows = ", ".join(sorted(self.watched, key=_natural))
        return f"from JAX's profiler; {rows} from watching when results were ready"

    @property
    def programs(self) -> "Timeline":
        """The same timeline with one event for each run of a program, without its operators."""
        spans: dict[tuple, list[int]] = {}
        for device, program, operator, run, start, duration in self.events:
            kept = operator if operator in ("dispatch", "wait", COPY) else ""
            key = (device, program, kept, run)
            span = spans.setdefault(key, [start, start + duration])
            span[1] = max(span[1], start + duration)  # They are in the order of their starts.
        merged = (Event(*key, start, end - start) for key, (start, end) in spans.items())
        return Timeline(_in_order(merged), self.watched)

    @property
    def elapsed(self) -> float:
        """Seconds from the start of the recording to the end of the last event."""
        return max((event.end for event in self.events), default=0) / 1e9

    def row(self, name: str) -> tuple[Event, ...]:
        """Return the events of one row, in order.

        Args:
            name: One of `rows`.

        Raises:
            ArgumentError: If there is no such row.
        """
        events = tuple(event for event in self.events if event.device == name)
        if not events:
            raise ArgumentError(
                f"The timeline has no row {name!r}; it has {', '.join(self.rows) or 'none'}."
            )
        return events

    def busy(self, row: str) -> float:
        """Return for how many seconds a row had something under way.

        Args:
            row: One of `rows`.
        """
        return sum(end - start for start, end in self._spans(row)) / 1e9

    def idle(self, row: str) -> float:
        """Return for how many seconds of the recording a row had nothing under way.

        Args:
            row: One of `rows`.
        """
        return self.elapsed - self.busy(row)

    def overlap(self, row: str, other: str) -> float:
        """Return for how many seconds two rows had something under way at the same time.

        Args:
            row: One of `rows`.
            other: Another one.

        Raises:
            ArgumentError: If they are the same: a row overlaps with itself all the time.
        """
        if row == other:
            raise ArgumentError(f"The overlap of {row!r} with itself was asked for; name two rows.")
        total, others = 0, iter(self._spans(other))
        span = next(others, None)
        for start, end in self._spans(row):
            while span and span[1] <= start:
                span = next(others, None)
            while span:
                total += max(0, min(end, span[1]) - max(start, span[0]))
                if span[1] > end:
                    break
                span = next(others, None)
        return total / 1e9

    def seconds_of(self, graph: nx.DiGraph) -> dict[int, float]:
        """Return how long each operator of a graph took, as far as the timeline shows it.

        The n-th call of a function on a device in the program is its n-th run there. What has no
        run of its own, such as an input, is left out.

        Args:
            graph: The graph of the recorded function, from `computation_graph`. A node without a
                device is taken to have run on the only device of its program.

        Returns:
            Seconds for each node.
        """
        runs = defaultdict(list)
        for event in self.programs.events:
            if not event.device.startswith(PYTHON):
                runs[event.program, event.device].append(event.duration / 1e9)
                runs[event.program, None].append(event.duration / 1e9)
        turns = defaultdict(int)
        found = {}
        for node, of in graph.nodes.items():
            key = (of["operator"], of["device"])
            if turns[key] < len(runs[key]):
                found[node] = runs[key][turns[key]]
            turns[key] += 1
        return found

    def critical_path_share(self, graph: nx.DiGraph) -> float:
        """Return which share of the elapsed time the critical path needs.

        At 1, no further device could have made the run shorter. What is missing to 1 was spent on
        dispatch, on copies that the profiler does not show, and on waiting for a device.

        Args:
            graph: The graph of the recorded function, from `computation_graph`.

        Raises:
            ArgumentError: If the timeline shows none of the graph's operators.
        """
        seconds = self.seconds_of(graph)
        if not seconds:
            raise ArgumentError(
                "The timeline shows no operator of this graph: give the graph of the function "
                "that was recorded, made of jitted functions."
            )
        return sum(seconds.get(node, 0.0) for node in critical_path(graph, seconds)) / self.elapsed

    def __repr__(self):
        lines = [f"timeline of {format_seconds(self.elapsed)}, {self.source}"]
        programs = self.programs
        for row in self.rows:
            runs = [event for event in programs.row(row) if event.operator != "wait"]
            what = "calls" if row.startswith(PYTHON) else "runs"
            busy = f"{format_seconds(self.busy(row))} busy, {format_seconds(self.idle(row))} idle"
            lines.append(f"  {row:<8} {len(runs):>4} {what}, {busy}")
        return "\n".join(lines)

    def _spans(self, row: str) -> Iterator[tuple[int, int]]:
        """Yield the times when the row is busy, without gaps of no length, in order."""
        events = self.row(row)
        start, end = events[0].start, events[0].end
        for event in events:
            if event.start > end:
                yield start, end
                start, end = event.start, event.end
            end = max(end, event.end)
        yield start, end


def record_trace(function: Callable, /, *args, **kwargs) -> tuple[Any, Timeline]:
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
        >>> from d2lpar import cpu
        >>> product = jax.jit(lambda x: x @ x)
        >>> x = block(product(jax.device_put(jnp.ones((500, 500)), cpu())))
        >>> y, timeline = record_trace(product, x)
        >>> timeline.busy("CPU 0") > 0
        True
    """
    if not callable(function):
        raise ArgumentError(
            f"record_trace() needs a function to call, found {type(function).__name__}: pass f "
            "and its arguments, record_trace(f, x), not its result, record_trace(f(x))."
        )
    wait_all()  # What is still queued is not part of it.
    with tempfile.TemporaryDirectory() as folder:
        with _profiler(folder), record_compilations() as compiled:
            began = time.perf_counter_ns()
            with jax.profiler.TraceAnnotation(_RECORDED):
                result = function(*args, **kwargs)
                with jax.profiler.TraceAnnotation(WAITING):
                    results = _watch(result, began)
        if compiled:
            raise CompilationError(
                f"{listed(compiled)} was compiled while it was being recorded, so the "
                "timeline would show the compiler. Call the function once before, with arguments "
                "of the same shapes, dtypes and devices."
            )
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        events = _read(files[-1].read_bytes()) if files and _profile_data() else ()
    seen = {event.device for event in events}
    watched = {result.device for result in results} - seen
    events = _in_order([*events, *_rows_of(results, watched, events)])
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
    if not _profile_data():
        raise TraceError(f"jax {jax.__version__} cannot read traces; it takes 0.7 or newer.")
    newest = max(files, key=lambda file: file.stat().st_mtime)
    data = newest.read_bytes()
    if not _looks_like_a_trace(data):
        raise TraceError(
            f"{newest} is no complete trace: it is cut off, or another kind of file. Record it "
            "again, and let the program end the recording (jax.profiler.stop_trace)."
        )
    try:
        events = _read(data)
    except RuntimeError as error:
        raise TraceError(f"{newest} is no trace that this JAX can read: {error}") from error
    if all(event.device.startswith(PYTHON) for event in events):
        raise TraceError(
            f"{newest} has no event of a device. Record while something is computed, and wait for "
            "it (jax.block_until_ready) before the recording ends."
        )
    return Timeline(events)


# --- From the profiler ------------------------------------------------------------------------


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


def _profile_data():
    return getattr(jax.profiler, "ProfileData", None)


def _looks_like_a_trace(data: bytes) -> bool:
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


def _read(data: bytes) -> tuple[Event, ...]:
    """Return the events of a serialized XSpace."""
    with warnings.catch_warnings():
        # Python 3.13 deprecates how these types were built.
        warnings.simplefilter("ignore", DeprecationWarning)
        events, window = [], None
        for plane in _profile_data().from_serialized_xspace(data).planes:
            if plane.name == "/host:CPU":
                of_host, window = _host_events(plane.lines)
                events += of_host
            elif gpu := re.fullmatch(r"/device:GPU:(\d+)", plane.name):
                events += _gpu_events(f"GPU {gpu[1]}", plane.lines)
    if window is None:  # Somebody else recorded it.
        began = min((event.start for event in events), default=0)
        over = max((event.end for event in events), default=0) + 1
    else:
        began, over = window
    kept = (event for event in events if began <= event.start < over)
    return _in_order(event._replace(start=event.start - began) for event in kept)


def _host_events(lines) -> tuple[list[Event], tuple[int, int] | None]:
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
            if name == _RECORDED:
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
        if any(kind == "dispatch" for *_, kind in calls):  # Else it only waits.
            threads.insert(0 if recorded else len(threads), calls)
    for key, start, duration in waits:
        if key in runs:
            program, run = runs[key]
            events.append(Event(key[0], program, "other threads", run, start, duration))
    for number, calls in enumerate(threads):
        events += _outermost(PYTHON if number == 0 else f"{PYTHON} {number + 1}", calls)
    return events, window


def _call(name: str) -> tuple[str, str] | None:
    """Return the function and the kind of a call that Python makes, or None if it is another."""
    if name == WAITING:
        return "block", "wait"
    if name.startswith("PjitFunction("):
        return name[len("PjitFunction(") : -1], "dispatch"
    if name.startswith("DevicePut"):
        return _COPY_CALL
    return None


def _outermost(row: str, calls: list[tuple]) -> Iterator[Event]:
    """Yield the calls that are not made inside another one."""
    end = -1
    for number, (start, negative, program, kind) in enumerate(sorted(calls)):
        if start >= end:
            end = start - negative
            yield Event(row, program, kind, number, start, -negative)


def _gpu_events(device: str, lines) -> Iterator[Event]:
    """Yield what the streams of a GPU did; copies to and from the host get rows of their own."""
    rows = {"MemcpyD2H": f"{device} to host", "MemcpyH2D": f"{device} from host"}
    first, run, copies = None, -1, 0
    # A line that is no stream repeats what the streams did.
    streams = (line for line in lines if line.name.startswith("Stream"))
    for event in sorted(
        (event for line in streams for event in line.events), key=lambda event: event.start_ns
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


def _program(stats: dict) -> str:
    """Return the name of the jitted function behind an XLA module, `jit_` and the name."""
    name = stats.get("hlo_module", "").removeprefix("jit_")
    return "<lambda>" if name in ("_lambda", "_lambda_") else name


# --- From watching ----------------------------------------------------------------------------


class _Result(NamedTuple):
    """An array that a function returned, and when it was ready.

    `seen` tells whether anybody saw it become ready, or found it so when the function returned.
    Of a copy, `source_ready` is when its array was ready; 0 if nobody saw that.
    """

    device: str
    ready: int
    seen: bool
    source_ready: int | None


def _watch(result: Any, began: int) -> list[_Result]:
    """Wait for all arrays of a tree, on a thread for each device, and note when each is ready."""
    found = jax.tree.leaves(result, is_leaf=_is_array_and_copy)
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

    def watch(device):
        with contextlib.suppress(Exception):  # The caller waits as well, and meets it.
            for array in queues[device]:
                block(array)
                ready[id(array)][device] = time.perf_counter_ns() - began

    threads = [threading.Thread(target=watch, args=(device,)) for device in queues]
    for thread in threads:
        thread.start()
    try:
        block(arrays)
    finally:
        for thread in threads:
            thread.join()

    def ready_at(array):
        times = () if id(array) in unseen else ready.get(id(array), {}).values()
        return max(times, default=0)

    return [
        _Result(
            device, at, key not in unseen, ready_at(source_of[key]) if key in source_of else None
        )
        for key, times in ready.items()
        for device, at in times.items()
    ]


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


def _rows_of(results: Sequence[_Result], devices: set[str], events) -> Iterator[Event]:
    """Yield a row for each of these devices: its results, one after the other."""
    copies = sum(result.source_ready is not None for result in results)
    calls = [(e.start, e.end) for e in events if (e.program, e.operator) == _COPY_CALL]
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


# --- Both -------------------------------------------------------------------------------------


def _in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    return tuple(sorted(events, key=lambda event: event.start))


def _natural(row: str) -> list:
    """Return a key that sorts GPU 10 behind GPU 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row)]
