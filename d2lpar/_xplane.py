"""Read the profile that XLA writes, an XSpace, into events."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from d2lpar.barriers import WAITING
from d2lpar.timeline import COPY, COPY_CALL, PYTHON, Event, in_order

RECORDED = "d2lpar.record_trace"  # What the profiler calls the call that is being recorded.


def can_read() -> bool:
    """Say whether this version of JAX can read traces."""
    return hasattr(jax.profiler, "ProfileData")


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


def read(data: bytes) -> tuple[Event, ...]:
    """Return the events of a serialized XSpace."""
    with warnings.catch_warnings():
        # Python 3.13 deprecates how these types were built.
        warnings.simplefilter("ignore", DeprecationWarning)
        events, window = [], None
        for plane in jax.profiler.ProfileData.from_serialized_xspace(data).planes:
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
        return COPY_CALL
    return None


def _outermost(row: str, calls: list[tuple[int, int, str, str]]) -> Iterator[Event]:
    """Yield the calls that are not made inside another one."""
    end = -1
    for number, (start, negative, program, kind) in enumerate(sorted(calls)):
        if start >= end:
            end = start - negative
            yield Event(row, program, kind, number, start, -negative)


def _gpu_events(device: str, lines: Iterable[Any]) -> Iterator[Event]:
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


def _program(stats: Mapping[str, str]) -> str:
    """Return the name of the jitted function behind an XLA module, `jit_` and the name."""
    name = stats.get("hlo_module", "").removeprefix("jit_")
    return "<lambda>" if name in ("_lambda", "_lambda_") else name
