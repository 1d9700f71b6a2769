"""Measure and bound asynchronous computation in JAX, on one CPU as on GPUs.

What is below is what one needs from day to day; `d2lpar.plot`, which draws it with matplotlib, and
`d2lpar.graph`, which reads a program's graph with networkx, are imported at their first use. What
only the book needs is in `d2lpar.book`.
"""

import importlib
from importlib.metadata import version as _version
from types import ModuleType

from d2lpar.barriers import block, makes_wait, wait_all
from d2lpar.compilation import record_compilations
from d2lpar.devices import (
    cpu,
    device_name,
    gpu,
    num_gpus,
    try_all_gpus,
    try_gpu,
    two_devices,
    use_cpu_devices,
)
from d2lpar.errors import D2lparError
from d2lpar.inflight import InFlight
from d2lpar.machine import usable_cores
from d2lpar.measurement import compare, measure
from d2lpar.memory import PeakMemory, device_memory, host_memory
from d2lpar.overlap import overlap_score
from d2lpar.quantity import Quantity, counted
from d2lpar.timer import Benchmark, Timer
from d2lpar.trace import read_trace, record_trace
from d2lpar.units import format_bytes, format_seconds
from d2lpar.watching import watch

__version__ = _version("d2lpar")

__all__ = [
    "Benchmark",
    "D2lparError",
    "InFlight",
    "PeakMemory",
    "Quantity",
    "Timer",
    "block",
    "compare",
    "counted",
    "cpu",
    "device_memory",
    "device_name",
    "format_bytes",
    "format_seconds",
    "gpu",
    "host_memory",
    "makes_wait",
    "measure",
    "num_gpus",
    "overlap_score",
    "read_trace",
    "record_compilations",
    "record_trace",
    "try_all_gpus",
    "try_gpu",
    "two_devices",
    "usable_cores",
    "use_cpu_devices",
    "wait_all",
    "watch",
]


def __getattr__(name: str) -> ModuleType:
    # So that `import d2lpar` costs little more than `import jax`, and `d2lpar.plot` works all the
    # same.
    if name in ("plot", "graph"):
        return importlib.import_module(f"d2lpar.{name}")
    raise AttributeError(f"module 'd2lpar' has no attribute {name!r}")
