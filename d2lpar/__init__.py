"""Measure and bound asynchronous computation in JAX: the companion package of the book.

`d2lpar.plot` draws and needs matplotlib, `d2lpar.explore` Altair; `d2lpar.graph` and `d2lpar.trace`
need networkx. They are imported on their own, so that `import d2lpar` costs little more than
`import jax`.
"""

from importlib.metadata import version as _version

from d2lpar.barriers import block as block, blocks as blocks, wait_all as wait_all
from d2lpar.claims import Claim as Claim, claim as claim
from d2lpar.compilation import record_compilations as record_compilations
from d2lpar.devices import (
    cpu as cpu,
    device_name as device_name,
    gpu as gpu,
    num_gpus as num_gpus,
    try_all_gpus as try_all_gpus,
    try_gpu as try_gpu,
    two_devices as two_devices,
    use_cpu_devices as use_cpu_devices,
)
from d2lpar.errors import (
    ArgumentError as ArgumentError,
    ClaimError as ClaimError,
    CompilationError as CompilationError,
    D2lparError as D2lparError,
    DeviceError as DeviceError,
    ResultsError as ResultsError,
    TraceError as TraceError,
)
from d2lpar.experiments import keep as keep
from d2lpar.inflight import InFlight as InFlight
from d2lpar.machine import usable_cores as usable_cores
from d2lpar.measurement import (
    Comparison as Comparison,
    Measurement as Measurement,
    compare as compare,
    measure as measure,
)
from d2lpar.memory import (
    PeakMemory as PeakMemory,
    device_memory as device_memory,
    host_memory as host_memory,
)
from d2lpar.overlap import OverlapScore as OverlapScore, overlap_score as overlap_score
from d2lpar.quantity import Predicate as Predicate, Quantity as Quantity, counted as counted
from d2lpar.timer import Benchmark as Benchmark, Timer as Timer
from d2lpar.units import format_bytes as format_bytes, format_seconds as format_seconds

__version__ = _version("d2lpar")
