"""Where each process of a hanging program stands, and which one the others are waiting for.

How it works. In each process a daemon thread samples the stacks of the other threads, fifty times a
second, and writes the result into memory shared with the process that started it. The reader asks
for no reply. So a process is reported even if it was stopped, or if C++ code holds its GIL: its
last state is there, with an old time. The verdict is an inference: a process that waits
in JAX is taken to wait for the others, so a process that does not wait is missing. A process that
waits for a long computation of its own looks the same.
"""

import inspect
import json
import mmap
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from d2lpar._jax.profiler import last_step
from d2lpar._jax.stack import (
    CodePosition,
    Place,
    StackSample,
    cell_of,
    current_frames,
    may_dispatch,
    owner_of,
    processor_time,
    sample_stack,
)
from d2lpar._plain.format import format_seconds, process_list

SAMPLE_INTERVAL = 0.02
"""Seconds between two samples."""

UNRESPONSIVE_AFTER = 3.0
"""Seconds without a sample until a process counts as unresponsive."""

_HALF = 1 << 15
_BLOCKED_AFTER = 1.0  # Seconds at one line until a call into JAX counts as waiting.
# Seconds of CPU time between two samples. A thread that waits in JAX uses less: JAX wakes up five
# times a second, for 20 us, to check for signals.
_IDLE_CPU = 1e-4
_OTHERS = "the others"
_IN_CALL = ("jax", "slow call", "puts", "perhaps jax")
_IN_JAX = ("value", "barrier", "compiles", "checks", *_IN_CALL)
_ACTIVITIES = {
    "value": "waiting for a value",
    "barrier": "waiting at a barrier",
    "sleeps": "sleeping",
    "input": "waiting for input",
    "locks": "waiting for another thread or process",
    "compiles": "compiling",
    "callback": "in a callback of the device",
    "checks": "waiting while JAX checks the results",
    "jax": "in a JAX call",
    "slow call": "in a JAX call",
    "puts": "copying to a device",
    "perhaps jax": "in a call, perhaps of JAX,",
    "call": "in a call",
}


class SharedState:
    """The last state of a process, in memory that this process shares with the one that started it.

    The memory has two halves, each with JSON that a zero byte ends:

        byte  0          1                    1 + _HALF            1 + 2 * _HALF
              +----------+--------------------+--------------------+
              | 0 or 1   | half 0             | half 1             |
              +----------+--------------------+--------------------+
                   +----> the half to read; the writer fills the other one, then flips this byte

    There is no lock, since a stopped process would hold it forever. A read is torn only if the
    writer fills both halves meanwhile. Torn JSON rarely parses, and the reader tries again. The
    memory is that of a file, which may be closed afterwards; without a descriptor, of a new one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.file = None
        if descriptor is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it.
            self.file.truncate(1 + 2 * _HALF)
            descriptor = self.file.fileno()
        self._memory = mmap.mmap(descriptor, 1 + 2 * _HALF)

    def write(self, state: dict[str, Any]) -> None:
        """Replace the state; if it is too long, keep only the first threads."""
        while len(text := json.dumps(state).encode() + b"\0") > _HALF:
            state = state | {"threads": state["threads"][:-1]}
        half = 1 - self._memory[0]
        start = 1 + half * _HALF
        self._memory[start : start + len(text)] = text
        self._memory[0] = half

    def read(self) -> dict[str, Any] | None:
        """Return the state, or None if none has been written."""
        for _ in range(3):
            start = 1 + self._memory[0] * _HALF
            with suppress(ValueError):
                return json.loads(self._memory[start : start + _HALF].partition(b"\0")[0])
        return None

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
        if self.file:
            self.file.close()


class Sampler:
    """Samples the threads of this process: their lines, and the line that called JAX last."""

    def __init__(
        self, publish: Callable[[dict[str, Any]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._publish, self._clock = publish, clock
        # For each thread its last sample, when it last moved or computed, and its CPU time.
        self._previous: dict[int, tuple[StackSample, float, float]] = {}
        self._last_in_jax: list[Any] | None = None
        self._last_dispatch = 0.0  # When a thread in JAX last moved or computed.
        samples = round(_BLOCKED_AFTER / SAMPLE_INTERVAL)
        self._cpu_times: deque[tuple[float, float]] = deque(maxlen=samples)

    def start(self) -> None:
        """Sample in a thread of its own until the process ends."""
        threading.Thread(target=self._run, daemon=True, name="d2lpar").start()

    def _run(self) -> None:
        while True:
            time.sleep(SAMPLE_INTERVAL)
            self.sample()

    def sample(self) -> None:
        """Sample every thread but the calling one, and publish the result."""
        now = self._clock()
        by_ident = {thread.ident: thread for thread in threading.enumerate()}
        current, threads = {}, []
        for ident, frame in current_frames().items():
            sample = sample_stack(frame)
            if sample is None or ident == threading.get_ident():
                continue
            thread = by_ident.get(ident)  # None for a thread that XLA has started.
            cpu = processor_time(thread) or 0.0
            before, since, cpu_before = self._previous.get(ident, (sample, now, cpu))
            if before.fingerprint != sample.fingerprint or cpu - cpu_before > _IDLE_CPU:
                since = now
            current[ident] = sample, since, cpu
            activity = sample.activity
            if activity == "call" and may_dispatch(sample, frame.f_globals):
                activity = "perhaps jax" if _may_wait_in_xla(thread) else "call"
            line = _line_of(sample.position)
            if activity in _IN_JAX:
                self._last_in_jax = [now, line]
                dispatched = now if activity == "compiles" else since
                self._last_dispatch = max(self._last_dispatch, dispatched)
            threads.append(
                {
                    "name": thread.name if thread else "a thread of XLA",
                    "activity": activity,
                    "since": since,
                    "line": line,
                    "callers": [_line_of(caller) for caller in sample.callers],
                }
            )
        self._previous = current
        threads.sort(key=lambda thread: thread["name"] != "MainThread")
        self._publish_threads(threads, now)

    def announce(self, function: Callable[..., Any]) -> None:
        """Publish where a function begins, before it may keep the GIL from its first line on."""
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is None or owner_of(code.co_filename) != "user":
            return
        now, line = self._clock(), _line_of(CodePosition(code, 0))
        thread = {"name": "MainThread", "activity": "call", "since": now, "line": line}
        self._publish_threads([thread | {"callers": []}], now)

    def _publish_threads(self, threads: list[dict[str, Any]], now: float) -> None:
        self._cpu_times.append((now, time.process_time()))
        (first, cpu_first), (last, cpu_last) = self._cpu_times[0], self._cpu_times[-1]
        state = {
            "sampled": now,
            "threads": threads,
            "last_in_jax": self._last_in_jax,
            "last_dispatch": self._last_dispatch,
            "step": last_step(),
            "cores": (cpu_last - cpu_first) / max(last - first, SAMPLE_INTERVAL),
        }
        self._publish(state)


def _line_of(position: CodePosition) -> list[Any]:
    """Return a line as JSON holds it: file, number, and the first 200 characters of its code."""
    return [position.code.co_filename, position.place.line, position.place.code[:200]]


def _may_wait_in_xla(thread: threading.Thread | None) -> bool:
    """Return whether a thread, by the kernel function that it sleeps in, may be waiting in XLA.

    XLA waits for nothing but other threads, by a futex. On Linux, `wchan` names the kernel function
    of a sleeping thread; "" and "0" mean that it is running, or that the name may not be read.
    """
    try:
        waits_in = Path(f"/proc/self/task/{thread.native_id}/wchan").read_text()
    except (AttributeError, OSError):
        return True
    return waits_in in ("", "0") or "futex" in waits_in


class ProcessStatus(NamedTuple):
    """One process of a run, as seen by the process that started it, or from its file."""

    number: int  # From 0.
    state: dict[str, Any] | None = None  # The last one that its sampler has written.
    fate: str = ""  # Why it makes no progress, such as "has finished"; "" while it runs.
    printed: str = ""  # The last line that it has printed.
    where: str = ""  # Its process id, and its machine if there are several; "" on this one.

    def is_unresponsive(self, now: float) -> bool:
        """Return whether the last sample is so old that Python cannot be running there."""
        return self.state is not None and now - self.state["sampled"] > UNRESPONSIVE_AFTER

    def waits(self, now: float) -> bool:
        """Return whether one of its threads waits for a device."""
        if self.fate or self.state is None or self.is_unresponsive(now):
            return False
        return any(_waits(thread, now) for thread in self.state["threads"])


def _waits(thread: dict[str, Any], now: float) -> bool:
    if thread["activity"] in ("value", "barrier"):
        return True
    # A long call into JAX waits too: for room in the device's queue, or for its arguments.
    blocked = now - thread["since"] >= _BLOCKED_AFTER
    return blocked and thread["activity"] in _IN_CALL


def stalled_since(processes: Sequence[ProcessStatus], now: float) -> float | None:
    """Return since when no process has dispatched anything; None if none waits in JAX.

    Compiling counts as dispatching all the time. A process that is busy in Python, or polls for a
    file, dispatches nothing.
    """
    if not any(process.waits(now) for process in processes):
        return None
    return max(process.state["last_dispatch"] for process in processes if process.state)


def diagnosis(processes: Sequence[ProcessStatus], now: float) -> str:
    """Return where each process stands now, and which is missing where the others wait."""
    if not processes:
        return "All processes have ended."
    lines = []
    for process in processes:
        first, *more = _status_lines(process, now)
        name = f"{process.number}, {process.where}" if process.where else process.number
        lines += [f"[{name}] {first}", *(f"    {line}" for line in more)]
    return "\n".join([*lines, _verdict(processes, now)])


def _status_lines(process: ProcessStatus, now: float) -> Iterator[str]:
    state, unresponsive = process.state, process.is_unresponsive(now)
    if process.fate:
        yield process.fate
    elif state is None:
        yield "has not started"
    elif unresponsive:
        dead = "is dead, stopped" if process.where else "is stopped"  # A file does not tell.
        yield (
            f"does not respond: it has run no Python for {_elapsed(state['sampled'], now)}; "
            f"C++ code holds the GIL, or the process {dead} or gets no core"
        )
    elif not state["threads"]:
        yield "outside the program's lines"
    if state:
        for thread in state["threads"]:
            name = "" if thread["name"] == "MainThread" else f"in {thread['name']}: "
            current = not (unresponsive or process.fate)
            activity = _activity(thread, now) if current else "last seen"
            yield f"{name}{activity} at {with_code(thread['line'])}"
            if thread["callers"]:
                yield f"called from {', '.join(str(place_at(line)) for line in thread['callers'])}"
        if state["last_in_jax"]:
            when, line = state["last_in_jax"]
            if line not in [thread["line"] for thread in state["threads"]]:
                yield f"last seen in JAX {_elapsed(when, now)} ago at {with_code(line)}"
        if state["step"] is not None:
            yield f"at step {state['step']}"
        if state["cores"] >= 0.2 and not (unresponsive or process.fate):
            yield f"using {state['cores']:.1f} CPU cores"
    if process.printed:
        yield f"last printed: {process.printed}"


def _activity(thread: dict[str, Any], now: float) -> str:
    blocked = now - thread["since"] >= _BLOCKED_AFTER
    words = _ACTIVITIES.get(thread["activity"], "not moving" if blocked else "running")
    return f"{words} for {_elapsed(thread['since'], now)}" if blocked else words


def _elapsed(then: float, now: float) -> str:
    return format_seconds(max(now - then, 0.0))


def place_at(line: list[Any]) -> Place:
    """Return the place of a line that a state holds."""
    file, number, code = line
    return Place(cell_of(file) or file, number, code)


def with_code(line: list[Any]) -> str:
    """Return the place of a line and its code."""
    place = place_at(line)
    return f"{place}  {place.code}"


def _verdict(processes: Sequence[ProcessStatus], now: float) -> str:
    waiting = [process for process in processes if process.waits(now)]
    others = [process for process in processes if process not in waiting]
    if not waiting and not any(process.state and process.state["threads"] for process in others):
        return "No verdict: no process was seen at a line of the program."
    if not waiting:
        return "No process was seen waiting in JAX, for a device or for another process."
    if others:
        have, are = ("has", "have")[len(others) > 1], ("is", "are")[len(waiting) > 1]
        present = process_list(process.number for process in waiting).lower()
        absent = process_list(process.number for process in others)
        return f"{absent} {have} not reached what {present} {are} waiting for."
    if len(processes) == 1:
        return "It is waiting for its device."
    lines = _by(waiting, lambda process: _waits_at(process, now))
    steps = _by(waiting, lambda process: process.state["step"])
    if None in steps:  # A process that annotates none may be in any.
        steps = {}
    if len(lines) == 1 and len(steps) < 2:
        return (
            "All are waiting at the same line: one may be an iteration behind or ahead; or the "
            "computation takes that long."
        )
    verdict = "All are waiting at the same line."
    if len(lines) > 1:
        shown = 3 if len({path[0] for path in lines}) < len(lines) else 1  # With two callers.
        each = "; ".join(
            f"{names.lower()} at {', called from '.join(map(str, path[:shown]))}"
            for path, names in lines.items()
            if names != _OTHERS
        )
        verdict = (
            f"All are waiting, but not at the same line: {each}. One of them has skipped or "
            "repeated something that all must do together; or one is computing alone, and takes "
            "long."
        )
    if len(steps) > 1:
        each = ", ".join(f"{names.lower()} at {step}" for step, names in steps.items())
        verdict += f" They are at different steps: {each}."
    return verdict


def _by(processes: Sequence[ProcessStatus], key: Callable[[ProcessStatus], Any]) -> dict[Any, str]:
    """Return processes in words, by a key of each, the fewest first; most are "the others"."""
    numbers: dict[Any, list[int]] = {}
    for process in processes:
        numbers.setdefault(key(process), []).append(process.number)
    by_count = sorted(numbers.items(), key=lambda item: len(item[1]))
    names = {value: process_list(group) for value, group in by_count}
    if len(by_count) > 1 and len(by_count[-2][1]) < len(by_count[-1][1]):
        names[by_count[-1][0]] = _OTHERS
    return names


def _waits_at(process: ProcessStatus, now: float) -> tuple[Place, ...]:
    """Return the line at which a process waits, and its callers."""
    thread = next(thread for thread in process.state["threads"] if _waits(thread, now))
    return tuple(place_at(line) for line in (thread["line"], *thread["callers"]))
