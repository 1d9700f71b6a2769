"""Watch when results become ready, for what the profiler does not see."""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from d2lpar.barriers import block
from d2lpar.devices import device_name
from d2lpar.timeline import COPY, COPY_CALL, Event


class Result(NamedTuple):
    """An array that a function returned, and when it was ready.

    `seen` tells whether anybody saw it become ready, or found it so when the function returned.
    Of a copy, `source_ready` is when its array was ready; 0 if nobody saw that.
    """

    device: str
    ready: int
    seen: bool
    source_ready: int | None


def watch_results(result: Any, began: int) -> list[Result]:
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

    def watch(device: str) -> None:
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

    def ready_at(array: jax.Array) -> int:
        times = () if id(array) in unseen else ready.get(id(array), {}).values()
        return max(times, default=0)

    return [
        Result(
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
