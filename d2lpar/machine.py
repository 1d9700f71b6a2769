"""Describe the machine and the versions that a measurement was made with."""

import os
import platform
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from d2lpar.devices import all_devices
from d2lpar.units import format_bytes

PACKAGES = ("d2lpar", "jax", "jaxlib", "numpy", "scipy")
"""What a measurement may depend on, beside Python."""

# Microseconds of computing in so many microseconds, or "max"; of a container, with cgroup 2.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return how many CPU cores this process may use, which can be fewer than there are.

    A part of a core, which the quota of a container may add, does not count.

    Example:
        >>> usable_cores() >= 1
        True
    """
    affinity = hasattr(os, "sched_getaffinity")  # Not on macOS.
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="utf-8").split()
    except OSError:
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


@dataclass(frozen=True)
class Machine:
    """What a measurement was made on.

    Attributes:
        processor: The name of the CPU.
        cores: How many of its cores the process may use.
        memory: Bytes of memory.
        system: The operating system.
        devices: The devices of JAX, by kind, such as `"3 x cpu"`.
        driver: The version of the GPU's driver, or nothing.
    """

    processor: str
    cores: int
    memory: int
    system: str
    devices: str
    driver: str = ""

    @property
    def rows(self) -> dict[str, str]:
        """What a reader should know of it, in words, by name."""
        return {
            "Processor": f"{self.processor}, {self.cores} cores",
            "Memory": format_bytes(self.memory),
            "System": self.system,
            "JAX devices": self.devices + f", driver {self.driver}" * bool(self.driver),
        }


def this_machine() -> Machine:
    """Describe this machine. JAX starts, if it has not started yet.

    Example:
        >>> this_machine().memory > 0
        True
    """
    import psutil  # Not above: it is a third of the time of `import d2lpar`.

    kinds = Counter(device.device_kind for device in all_devices())
    return Machine(
        processor=_processor(),
        cores=usable_cores(),
        memory=psutil.virtual_memory().total,
        system=platform.platform(terse=True),
        devices=", ".join(f"{count} x {kind}" for kind, count in kinds.items()),
        driver=_driver(),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a measurement depends on.

    Example:
        >>> sorted(versions())
        ['Python', 'd2lpar', 'jax', 'jaxlib', 'numpy', 'scipy']
    """
    return {"Python": platform.python_version()} | {
        name: metadata.version(name) for name in PACKAGES
    }


def _processor() -> str:
    # On Linux only /proc knows more than the architecture.
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _driver() -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True)
    return answer.stdout.strip().partition("\n")[0].strip() if answer.returncode == 0 else ""
