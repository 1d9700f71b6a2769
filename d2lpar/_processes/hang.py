"""Where each process of a run stands: what a program that hangs does not say by itself.

How it works. In each process a thread looks at the other threads of that process, fifty times a
second, and writes where they stand into memory that it shares with the process that has started it.
Nobody has to answer when that is read. So it also tells where a process was when it was stopped, or
when something in C++ began to keep the GIL: what is written there is old then. The verdict is an
inference. It takes for granted that whoever waits in JAX waits for the others, so the one that does
not wait is missing; one that waits for a long computation of its own looks the same.
"""

import json
import mmap
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from d2lpar._jax.stack import (
    CodePosition,
    Place,
    StackSample,
    cell_of,
    current_frames,
    may_dispatch,
    processor_time,
    sample_stack,
)
from d2lpar._plain.format import format_seconds

LOOK = 0.02
"""Seconds between two looks."""

DEAF = 3.0
"""Seconds without a look after which nothing new is to be learned from a process."""

_SIZE = 1 << 15
_STILL = 1.0  # Seconds at one place after which a call is told to wait.
# Seconds of processor time between two looks. Who waits uses less: JAX wakes up five times a
# second, for 20 us, to see whether there was a signal.
_NONE_USED = 1e-4
_OF_JAX = ("value", "barrier", "compiles", "checks", "jax", "puts", "perhaps jax")
_DOING = {
    "value": "waiting for a value",
    "barrier": "waiting at a barrier",
    "sleeps": "sleeping",
    "locks": "waiting for another thread or process",
    "compiles": "compiling",
    "callback": "in a callback of the device",
    "checks": "waiting while JAX checks the results",
    "jax": "in a JAX call",
    "puts": "copying to a device",
    "perhaps jax": "in a call, perhaps of JAX,",
    "call": "in a call",
}


class Board:
    """Memory that two processes share, with the last state that one of them has written there.

    Args:
        descriptor: Of the file behind it, which may be closed then; that of a new one if None.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.file = None
        if descriptor is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the board.
            self.file.truncate(1 + 2 * _SIZE)
            descriptor = self.file.fileno()
        self._memory = mmap.mmap(descriptor, 1 + 2 * _SIZE)

    def write(self, state: dict[str, Any]) -> None:
        """Replace the state; of one that is too long, only the first threads are kept."""
        while len(text := json.dumps(state).encode()) > _SIZE - 4:
            state = state | {"threads": state["threads"][:-1]}
        # In the half that nobody reads.
        half = 1 - self._memory[0]
        start = 1 + half * _SIZE
        self._memory[start : start + 4 + len(text)] = len(text).to_bytes(4, "little") + text
        self._memory[0] = half

    def read(self) -> dict[str, Any] | None:
        """Return the state, or None if there is none yet."""
        for _ in range(3):  # Both halves may have been written meanwhile.
            start = 1 + self._memory[0] * _SIZE
            length = int.from_bytes(self._memory[start : start + 4], "little")
            try:
                return json.loads(self._memory[start + 4 : start + 4 + length])
            except ValueError:
                continue
        return None

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        if self.file:
            self.file.close()


class Recorder:
    """Writes down where the threads of this process stand, and which line called JAX last."""

    def __init__(self, board: Board, clock: Callable[[], float] = time.monotonic) -> None:
        self._board, self._clock = board, clock
        self._seen: dict[int, tuple[StackSample, float, float]] = {}
        self._in_jax: list[Any] | None = None
        self._leading = {threading.main_thread().ident}
        self._cores: deque[tuple[float, float]] = deque(maxlen=round(_STILL / LOOK))

    def start(self) -> None:
        """Look from now on, until the process ends."""
        threading.Thread(target=self._run, daemon=True, name="d2lpar").start()

    def _run(self) -> None:
        while True:
            time.sleep(LOOK)
            self.look()

    def look(self) -> None:
        """Look once."""
        now = self._clock()
        named = {thread.ident: thread for thread in threading.enumerate()}
        seen, threads = {}, []
        for ident, frame in current_frames().items():
            sample = sample_stack(frame)
            if sample is None or ident == threading.get_ident():
                continue
            used = processor_time(named.get(ident)) or 0.0
            before, since, used_before = self._seen.get(ident, (sample, now, used))
            if before.fingerprint != sample.fingerprint or used - used_before > _NONE_USED:
                since = now
            seen[ident] = sample, since, used
            doing = sample.activity
            if doing == "call" and may_dispatch(sample, frame.f_globals):
                doing = "perhaps jax" if _may_wait_in_xla(named.get(ident)) else "call"
            if doing in _OF_JAX:
                self._leading.add(ident)
                self._in_jax = [now, _written(sample.position)]
            threads.append(
                {
                    "name": named[ident].name if ident in named else "a thread of XLA",
                    "leads": ident in self._leading,
                    "doing": doing,
                    "since": since,
                    "at": _written(sample.position),
                    "callers": [_written(caller) for caller in sample.callers],
                }
            )
        self._seen = seen
        threads.sort(key=lambda thread: thread["name"] != "MainThread")
        self._cores.append((now, time.process_time()))
        (then, before), (_, used) = self._cores[0], self._cores[-1]
        cores = (used - before) / max(now - then, LOOK)
        state = {"looked": now, "threads": threads, "in_jax": self._in_jax, "cores": cores}
        self._board.write(state)


def _written(position: CodePosition) -> list[Any]:
    return [position.code.co_filename, position.place.line, position.place.code[:200]]


def _may_wait_in_xla(thread: threading.Thread | None) -> bool:
    """Return whether a thread that waits may do so in XLA, which waits for nothing but threads.

    Linux tells in which of its functions a thread waits, where it may be asked.
    """
    try:
        at = Path(f"/proc/self/task/{thread.native_id}/wchan").read_text()
    except (AttributeError, OSError):
        return True
    return at in ("", "0") or "futex" in at


class Process(NamedTuple):
    """One of the processes of a run.

    Attributes:
        number: Which.
        state: What its recorder has written last.
        fate: Why it does nothing more, in words, as `"has finished"`; "" if it goes on.
        printed: The last line that it has printed.
    """

    number: int
    state: dict[str, Any] | None = None
    fate: str = ""
    printed: str = ""

    def is_deaf(self, now: float) -> bool:
        """Return whether it has not looked for so long that it cannot."""
        return self.state is not None and now - self.state["looked"] > DEAF

    def waits(self, now: float) -> bool:
        """Return whether it waits for what a device is to do."""
        if self.fate or self.state is None or self.is_deaf(now):
            return False
        return any(_waits(thread, now) for thread in self.state["threads"])

    def moved(self) -> float:
        """Return when it came to where it stands; 0 if that is not known.

        What compiles does not stand still; threads that never dispatch do not count.
        """
        threads = self.state["threads"] if self.state else ()
        return max(
            (
                self.state["looked"] if thread["doing"] == "compiles" else thread["since"]
                for thread in threads
                if thread["leads"]
            ),
            default=0.0,
        )


def _waits(thread: dict[str, Any], now: float) -> bool:
    if thread["doing"] in ("value", "barrier"):
        return True
    # A call of JAX may wait as well, for room in a queue or for what it computes before.
    return now - thread["since"] >= _STILL and thread["doing"] in ("jax", "puts", "perhaps jax")


def diagnosis(processes: Sequence[Process], now: float) -> str:
    """Return where each process stands, and who has not reached what the others are waiting for.

    Args:
        processes: All of them.
        now: Seconds, of the clock of their recorders.
    """
    if not processes:
        return "They have ended."
    lines = []
    for process in processes:
        first, *more = _standing(process, now)
        lines += [f"[{process.number}] {first}", *(f"    {line}" for line in more)]
    return "\n".join([*lines, _verdict(processes, now)])


def _standing(process: Process, now: float) -> Iterator[str]:
    state, lost = process.state, process.is_deaf(now)
    if process.fate:
        yield f"{process.fate}"
    elif state is None:
        yield "not begun"
    elif lost:
        yield (
            f"cannot be asked: Python has not run there for {_ago(state['looked'], now)}; "
            "something in C++ keeps the GIL, or it gets no core"
        )
    elif not state["threads"]:
        yield "at no line of the program"
    for thread in state["threads"] if state else ():
        whose = "" if thread["name"] == "MainThread" else f"in {thread['name']}: "
        doing = "last seen" if lost or process.fate else _doing(thread, now)
        yield f"{whose}{doing} at {_line(thread['at'])}"
        if thread["callers"]:
            yield f"called from {', '.join(str(_place(at)) for at in thread['callers'])}"
    if state and state["in_jax"]:
        when, at = state["in_jax"]
        if at not in [thread["at"] for thread in state["threads"]]:
            yield f"last seen in JAX {_ago(when, now)} ago at {_line(at)}"
    if state and state["cores"] >= 0.2 and not (lost or process.fate):
        yield f"using {state['cores']:.1f} CPU cores"
    if process.printed:
        yield f"last printed: {process.printed}"


def _doing(thread: dict[str, Any], now: float) -> str:
    still = now - thread["since"] >= _STILL
    words = _DOING.get(thread["doing"], "standing still" if still else "running")
    return f"{words} for {_ago(thread['since'], now)}" if still else words


def _ago(then: float, now: float) -> str:
    return format_seconds(max(now - then, 0.0))


def _place(at: list[Any]) -> Place:
    file, line, code = at
    return Place(cell_of(file) or file, line, code)


def _line(at: list[Any]) -> str:
    place = _place(at)
    return f"{place}  {place.code}"


def _verdict(processes: Sequence[Process], now: float) -> str:
    waiting = [process for process in processes if process.waits(now)]
    others = [process for process in processes if process not in waiting]
    if not waiting and not any(process.state and process.state["threads"] for process in others):
        return "Nothing can be said: none of them is seen at a line of the program."
    if not waiting:
        return "None of them is seen to wait for a device, or for another process by JAX."
    if others:
        have, are = ("has", "have")[len(others) > 1], ("is", "are")[len(waiting) > 1]
        there = numbers(process.number for process in waiting).lower()
        absent = numbers(process.number for process in others)
        return f"{absent} {have} not reached what {there} {are} waiting for."
    if len(processes) == 1:
        return "It waits for its device."
    places: dict[str, list[int]] = {}
    for process in waiting:
        places.setdefault(_waits_at(process, now), []).append(process.number)
    if len(places) == 1:
        return (
            "All wait at the same line: one of them may be a turn behind, or ahead; or what they "
            "wait for takes that long."
        )
    # Those that most are at need no mention.
    rare = sorted(places.items(), key=lambda item: len(item[1]))
    if len(rare[0][1]) < len(rare[-1][1]):
        rare = rare[:-1]
    each = "; ".join(f"{numbers(there).lower()} at {place}" for place, there in rare)
    return (
        f"All wait, but not at the same line: {each}. Somebody has left out, or done once more, "
        "what all have to do together; or one of them computes by itself, and takes long."
    )


def _waits_at(process: Process, now: float) -> str:
    return next(str(_place(t["at"])) for t in process.state["threads"] if _waits(t, now))


def numbers(processes: Iterable[int]) -> str:
    """Return the processes in words.

    Example:
        >>> numbers([0, 2, 3]), numbers([1])
        ('Processes 0, 2 and 3', 'Process 1')
    """
    *most, last = map(str, processes)
    return f"Processes {', '.join(most)} and {last}" if most else f"Process {last}"
