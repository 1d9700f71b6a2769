from ._jax.compilations import record_compilations as record_compilations
from ._jax.devices import (
    cpu as cpu,
    device_name as device_name,
    gpu as gpu,
    num_gpus as num_gpus,
    try_all_gpus as try_all_gpus,
    try_gpu as try_gpu,
    two_devices as two_devices,
    use_cpu_devices as use_cpu_devices,
)
from ._jax.distributed import barrier as barrier
from ._jax.reads import waits_allowed as waits_allowed
from ._measure.clock import Benchmark as Benchmark, Timer as Timer
from ._measure.comparison import (
    Comparison as Comparison,
    Measurement as Measurement,
    carried as carried,
    compare as compare,
    measure as measure,
)
from ._measure.memory import (
    PeakMemory as PeakMemory,
    device_memory as device_memory,
    host_memory as host_memory,
    release_freed_memory as release_freed_memory,
)
from ._measure.overlap import (
    Overlap as Overlap,
    OverlapScore as OverlapScore,
    measure_overlap as measure_overlap,
    overlap_score as overlap_score,
)
from ._measure.quantity import (
    Predicate as Predicate,
    Quantity as Quantity,
    exact as exact,
    once as once,
)
from ._measure.waiting import InFlight as InFlight, blocks_host as blocks_host, wait_all as wait_all
from ._plain.cores import Control as Control, free_cores as free_cores, usable_cores as usable_cores
from ._plain.errors import (
    CompilationError as CompilationError,
    D2lparError as D2lparError,
    DeviceError as DeviceError,
    WaitError as WaitError,
    WorkerError as WorkerError,
)
from ._plain.format import format_bytes as format_bytes, format_seconds as format_seconds
from ._processes.workers import Workers as Workers
from ._timeline.graph import computation_graph as computation_graph, critical_path as critical_path
from ._timeline.plot import (
    COLORS as COLORS,
    device_color as device_color,
    plot_curves as plot_curves,
    plot_graph as plot_graph,
    plot_timelines as plot_timelines,
    use_style as use_style,
)
from ._timeline.recording import (
    read_trace as read_trace,
    record_trace as record_trace,
    record_typical as record_typical,
)
from ._timeline.timeline import Event as Event, Timeline as Timeline
from ._watch.no_waits import no_waits as no_waits
from ._watch.report import Watched as Watched
from ._watch.sampler import watch as watch

__version__: str
