"""Give two devices work of a fair size."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from d2lpar.barriers import block
from d2lpar.devices import device_name
from d2lpar.measurement import measure

_MOST_CALLS = 30
"""Python may run ahead of a CPU device by 32 calls. The next would make it wait, which no overlap
of two devices survives."""


@dataclass(frozen=True)
class Repeated:
    """A number of equal calls, none of which needs another.

    Attributes:
        function: What is called.
        argument: With what.
        count: How often.
    """

    function: Callable[[jax.Array], jax.Array]
    argument: jax.Array
    count: int

    def __call__(self) -> list[jax.Array]:
        """Ask for all of them, and return their results, which are not there yet."""
        return [self.function(self.argument) for _ in range(self.count)]

    def __str__(self):
        (device,) = self.argument.devices()
        rows, columns = self.argument.shape
        return f"{device_name(device)}: {self.count} times {rows} x {columns}"


def fair_matrix(
    function: Callable[[jax.Array], jax.Array], device: jax.Device, size: int
) -> tuple[jax.Array, float]:
    """Make a matrix that is small enough for a function to be called ten times in a tenth second.

    Args:
        function: What is to be done with it.
        device: Where.
        size: Rows and columns of the original, which are halved until it is fast enough.

    Returns:
        The matrix, and how many seconds one call takes.
    """
    rng = np.random.default_rng(0)
    while True:
        x = jax.device_put(rng.standard_normal((size, size), dtype=np.float32), device)
        seconds = measure(function, x, repeats=3).total.median
        if 10 * seconds < 0.1 or size <= 250:
            return x, seconds
        size //= 2


def fair_calls(
    function: Callable[[jax.Array], jax.Array],
    devices: Sequence[jax.Device],
    sizes: Sequence[int],
) -> list[Repeated]:
    """Make calls for each device so that all devices take about as long.

    Args:
        function: What is called, with a square matrix.
        devices: Where.
        sizes: Rows and columns of the original on each of them.

    Returns:
        For each device ten calls, or more of them where it is faster than another. Devices of one
        kind get the same, whatever noise there is in their times.
    """
    if len({(device.platform, size) for device, size in zip(devices, sizes, strict=True)}) == 1:
        x, _ = fair_matrix(function, devices[0], sizes[0])
        return [Repeated(function, jax.device_put(x, device), 10) for device in devices]
    made = [
        fair_matrix(function, device, size) for device, size in zip(devices, sizes, strict=True)
    ]
    slowest = max(seconds for _, seconds in made)
    return [
        Repeated(function, x, min(_MOST_CALLS, round(10 * slowest / seconds)))
        for x, seconds in made
    ]


def cores_busy(function: Callable[[], Any], times: int = 5) -> float:
    """Return how many cores a function keeps busy: processor time over the time that passes.

    Args:
        function: What to run. It must return what it computes. Nothing else may run meanwhile in
            this process.
        times: How often to run it.

    Example:
        >>> cores_busy(lambda: time.sleep(0.01)) < 0.5
        True
    """
    block(function())
    processor, passed = time.process_time(), time.perf_counter()
    for _ in range(times):
        block(function())
    return (time.process_time() - processor) / (time.perf_counter() - passed)
