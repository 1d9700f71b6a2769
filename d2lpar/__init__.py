"""Measure and bound asynchronous computation in JAX, on one CPU as on GPUs.

All that one types is a name of this module. A name is imported where it is first used, and JAX with
it, and matplotlib and networkx when something draws: `import d2lpar` costs next to nothing, and a
script that `python -m d2lpar` runs imports JAX itself, as it would without. What only the book
needs is in `d2lpar.book`.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

# What type checkers and editors read, which run nothing; a test compares it with the table below.
if TYPE_CHECKING:
    from d2lpar._cores import (
        Control as Control,
        free_cores as free_cores,
        usable_cores as usable_cores,
    )
    from d2lpar._devices import (
        cpu as cpu,
        device_name as device_name,
        gpu as gpu,
        num_gpus as num_gpus,
        try_all_gpus as try_all_gpus,
        try_gpu as try_gpu,
        two_devices as two_devices,
        use_cpu_devices as use_cpu_devices,
    )
    from d2lpar._errors import (
        CompilationError as CompilationError,
        D2lparError as D2lparError,
        DeviceError as DeviceError,
        WaitError as WaitError,
        WorkerError as WorkerError,
    )
    from d2lpar._format import format_bytes as format_bytes, format_seconds as format_seconds
    from d2lpar._graph import (
        computation_graph as computation_graph,
        critical_path as critical_path,
        seconds_of as seconds_of,
        width as width,
    )
    from d2lpar._measurement import (
        Comparison as Comparison,
        Measurement as Measurement,
        carried as carried,
        compare as compare,
        measure as measure,
    )
    from d2lpar._memory import (
        PeakMemory as PeakMemory,
        device_memory as device_memory,
        host_memory as host_memory,
        release_freed_memory as release_freed_memory,
    )
    from d2lpar._no_waits import no_waits as no_waits
    from d2lpar._overlap import (
        Overlap as Overlap,
        OverlapScore as OverlapScore,
        measure_overlap as measure_overlap,
        overlap_score as overlap_score,
    )
    from d2lpar._plot import (
        COLORS as COLORS,
        device_color as device_color,
        plot_curves as plot_curves,
        plot_graph as plot_graph,
        plot_timelines as plot_timelines,
        use_style as use_style,
    )
    from d2lpar._quantity import (
        Predicate as Predicate,
        Quantity as Quantity,
        exact as exact,
        once as once,
    )
    from d2lpar._reads import waits_allowed as waits_allowed
    from d2lpar._timeline import Event as Event, Timeline as Timeline
    from d2lpar._timing import (
        Benchmark as Benchmark,
        Timer as Timer,
        record_compilations as record_compilations,
    )
    from d2lpar._trace import (
        read_trace as read_trace,
        record_trace as record_trace,
        record_typical as record_typical,
    )
    from d2lpar._waiting import (
        InFlight as InFlight,
        blocks_host as blocks_host,
        wait_all as wait_all,
    )
    from d2lpar._watch import watch as watch
    from d2lpar._watched import Watched as Watched
    from d2lpar._workers import Workers as Workers

    __version__: str

_MODULES = {
    "_cores": "Control free_cores usable_cores",
    "_devices": "cpu device_name gpu num_gpus try_all_gpus try_gpu two_devices use_cpu_devices",
    "_errors": "CompilationError D2lparError DeviceError WaitError WorkerError",
    "_format": "format_bytes format_seconds",
    "_graph": "computation_graph critical_path seconds_of width",
    "_measurement": "Comparison Measurement carried compare measure",
    "_memory": "PeakMemory device_memory host_memory release_freed_memory",
    "_no_waits": "no_waits",
    "_overlap": "Overlap OverlapScore measure_overlap overlap_score",
    "_plot": "COLORS device_color plot_curves plot_graph plot_timelines use_style",
    "_quantity": "Predicate Quantity exact once",
    "_reads": "waits_allowed",
    "_timeline": "Event Timeline",
    "_timing": "Benchmark Timer record_compilations",
    "_trace": "read_trace record_trace record_typical",
    "_waiting": "InFlight blocks_host wait_all",
    "_watch": "watch",
    "_watched": "Watched",
    "_workers": "Workers",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)

# Names of version 0.2, for this version only: whoever uses one is told the new one.
_RENAMED = {
    "ArgumentError": "ValueError, or TypeError for what is of another kind",
    "ExtraError": "ImportError",
    "TraceError": "d2lpar.D2lparError",
    "WatchError": "d2lpar.D2lparError",
    "block": "jax.block_until_ready",
    "counted": "d2lpar.exact",
    "makes_wait": "d2lpar.blocks_host",
}
_OLD_MODULES = [
    "barriers",
    "compilation",
    "control",
    "devices",
    "errors",
    "graph",
    "inflight",
    "machine",
    "measurement",
    "memory",
    "overlap",
    "plot",
    "processes",
    "quantity",
    "timeline",
    "timer",
    "trace",
    "units",
    "watching",
]
_RENAMED |= dict.fromkeys(_OLD_MODULES, "private; what it had are names of d2lpar itself")


if not TYPE_CHECKING:  # To whom any name would be one of d2lpar.

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            module = importlib.import_module(f"d2lpar.{_MODULE_OF[name]}")
            found = globals()[name] = getattr(module, name)  # The next time it is simply there.
            return found
        if name == "__version__":
            from importlib.metadata import version

            return version("d2lpar")
        if name in _RENAMED:
            # `from d2lpar import` would make of an AttributeError one without the new name.
            raise ImportError(_renaming(name), name=name)
        raise AttributeError(f"module 'd2lpar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _renaming(name: str) -> str:
    return f"Since version 0.3, d2lpar.{name} is {_RENAMED[name]}."


class _Renamed:
    """What Python asks last of all for a module, which is where `import d2lpar.plot` ends."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        package, _, module = name.partition(".")
        if package == "d2lpar" and module in _OLD_MODULES:
            raise ModuleNotFoundError(_renaming(module), name=name)


sys.meta_path.append(_Renamed)
