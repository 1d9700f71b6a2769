"""Measure and bound asynchronous computation in JAX: the companion package of the book.

`d2lpar.plot` draws and needs matplotlib, `d2lpar.explore` Altair; `d2lpar.graph` and `d2lpar.trace`
need networkx. They are imported on their own, so that `import d2lpar` costs little more than
`import jax`.
"""

from importlib.metadata import version as _version

from d2lpar.barriers import block as block
from d2lpar.barriers import blocks as blocks
from d2lpar.barriers import wait_all as wait_all
from d2lpar.claims import Claim as Claim
from d2lpar.claims import claim as claim
from d2lpar.compilation import record_compilations as record_compilations
from d2lpar.devices import (
    cpu as cpu,
)
from d2lpar.devices import (
    device_name as device_name,
)
from d2lpar.devices import (
    gpu as gpu,
)
from d2lpar.devices import (
    num_gpus as num_gpus,
)
from d2lpar.devices import (
    try_all_gpus as try_all_gpus,
)
from d2lpar.devices import (
    try_gpu as try_gpu,
)
from d2lpar.devices import (
    two_devices as two_devices,
)
from d2lpar.devices import (
    use_cpu_devices as use_cpu_devices,
)
from d2lpar.errors import (
    ArgumentError as ArgumentError,
)
from d2lpar.errors import (
    ClaimError as ClaimError,
)
from d2lpar.errors import (
    CompilationError as CompilationError,
)
from d2lpar.errors import (
    D2lparError as D2lparError,
)
from d2lpar.errors import (
    DeviceError as DeviceError,
)
from d2lpar.errors import (
    ResultsError as ResultsError,
)
from d2lpar.errors import (
    TraceError as TraceError,
)
from d2lpar.experiments import keep as keep
from d2lpar.inflight import InFlight as InFlight
from d2lpar.machine import usable_cores as usable_cores
from d2lpar.measurement import (
    Comparison as Comparison,
)
from d2lpar.measurement import (
    Measurement as Measurement,
)
from d2lpar.measurement import (
    compare as compare,
)
from d2lpar.measurement import (
    measure as measure,
)
from d2lpar.memory import (
    PeakMemory as PeakMemory,
)
from d2lpar.memory import (
    device_memory as device_memory,
)
from d2lpar.memory import (
    host_memory as host_memory,
)
from d2lpar.overlap import OverlapScore as OverlapScore
from d2lpar.overlap import overlap_score as overlap_score
from d2lpar.quantity import Predicate as Predicate
from d2lpar.quantity import Quantity as Quantity
from d2lpar.quantity import counted as counted
from d2lpar.timer import Benchmark as Benchmark
from d2lpar.timer import Timer as Timer
from d2lpar.units import format_bytes as format_bytes
from d2lpar.units import format_seconds as format_seconds

__version__ = _version("d2lpar")
