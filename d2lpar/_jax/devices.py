"""Find the CPUs and GPUs that JAX sees, under d2l's names, and describe the machine."""

import platform
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from d2lpar._plain.cores import usable_cores
from d2lpar._plain.errors import DeviceError, require_count
from d2lpar._plain.format import format_bytes, plural


def cpu(index: int = 0) -> jax.Device:
    """Return the CPU device with this index.

    Args:
        index: Which of JAX's CPU devices; there is one unless you ask for more.

    Raises:
        DeviceError: If there are not that many.
        ValueError: If `index` is negative or no integer.

    Example:
        >>> cpu().platform
        'cpu'
    """
    require_count("index", index, at_least=0)
    way_out = f"Call d2lpar.use_cpu_devices({index + 1}) before any other use of JAX."
    return _pick("cpu", index, way_out)


def gpu(index: int = 0) -> jax.Device:
    """Return the GPU with this index.

    Args:
        index: Which of the GPUs that JAX sees.

    Raises:
        DeviceError: If there are not that many.
        ValueError: If `index` is negative or no integer.
    """
    require_count("index", index, at_least=0)
    return _pick("gpu", index, "Use d2lpar.try_gpu(), which falls back to the CPU.")


def num_gpus() -> int:
    """Return how many GPUs JAX sees.

    Example:
        >>> num_gpus() >= 0
        True
    """
    return len(_devices_of("gpu"))


def try_gpu(index: int = 0) -> jax.Device:
    """Return the GPU with this index if there is one, else the first CPU device.

    Args:
        index: Which of the GPUs that JAX sees.

    Raises:
        ValueError: If `index` is negative or no integer.

    Example:
        >>> try_gpu().platform in ("cpu", "gpu")
        True
    """
    require_count("index", index, at_least=0)
    return gpu(index) if index < num_gpus() else cpu()


def try_all_gpus() -> list[jax.Device]:
    """Return every GPU, or a list of the first CPU device if there is none.

    Example:
        >>> len(try_all_gpus()) >= 1
        True
    """
    return _devices_of("gpu") or [cpu()]


def all_devices() -> list[jax.Device]:
    """Return every CPU and GPU device that JAX sees, the CPUs first."""
    return _devices_of("cpu") + _devices_of("gpu")


def two_devices(*pairs: str) -> tuple[jax.Device, jax.Device]:
    """Return two devices that can work at the same time.

    Args:
        *pairs: Which pairs will do, the most welcome first, as kinds joined by a plus sign:
            `"cpu+gpu"`, `"gpu+gpu"` or `"cpu+cpu"`. All three in this order if none is given.

    Returns:
        The first pair that this machine has, in the order of its kinds.

    Raises:
        ValueError: If a pair is written in another way.
        DeviceError: If this machine has no such pair.

    Example:
        >>> use_cpu_devices(2)
        >>> first, second = two_devices("cpu+cpu")
        >>> first == second
        False
    """
    pairs = pairs or ("cpu+gpu", "gpu+gpu", "cpu+cpu")
    for pair in pairs:
        kinds = pair.split("+") if isinstance(pair, str) else []
        if len(kinds) != 2 or not {"cpu", "gpu"}.issuperset(kinds):
            raise ValueError(f'A pair is written "cpu+gpu" or the like, found {pair!r}.')
        first, second = (_devices_of(kind) for kind in kinds)
        if kinds[0] == kinds[1]:
            second = second[1:]
        if first and second:
            return first[0], second[0]
    raise DeviceError(
        f"two_devices() was asked for {' or '.join(pairs)}, but JAX sees "
        f"{_count('cpu')} and {_count('gpu')}. Call d2lpar.use_cpu_devices(2) before any other "
        "use of JAX: two CPU devices are enough for most of the book."
    )


def device_name(device: jax.Device) -> str:
    """Return how the book names a device in figures and messages.

    Args:
        device: A device of JAX.

    Returns:
        Its kind and its number.

    Raises:
        TypeError: If it is no device.

    Example:
        >>> device_name(cpu())
        'CPU 0'
    """
    require_device(device, "device_name()")
    return f"{device.platform.upper()} {device.id}"


def require_device(device: Any, caller: str) -> None:
    """Refuse an object that is no device; the message begins with the caller's name."""
    if not (hasattr(device, "platform") and hasattr(device, "memory_stats")):
        raise TypeError(
            f"{caller} needs a device of JAX, such as d2lpar.cpu() or x.devices().pop(), found "
            f"{device!r}."
        )


def use_cpu_devices(count: int) -> None:
    """Let JAX split this machine's CPU into `count` devices, or JAX_NUM_CPU_DEVICES if more.

    (A number in XLA_FLAGS, `--xla_force_host_platform_device_count`, is overridden.) The devices
    share the cores; each has a queue of its own. This must run before JAX is first used, since JAX
    makes its devices then and keeps them.

    Args:
        count: How many CPU devices are needed, at least 1.

    Raises:
        ValueError: If `count` is no integer of at least 1.
        DeviceError: If JAX has already started with fewer.

    Example:
        >>> import jax
        >>> use_cpu_devices(2)
        >>> len(jax.devices("cpu")) >= 2
        True
    """
    require_count("count", count, at_least=1)
    try:
        # A larger JAX_NUM_CPU_DEVICES stays; -1 stands for not set.
        more = max(int(count), jax.config.jax_num_cpu_devices)
        jax.config.update("jax_num_cpu_devices", more)
    except RuntimeError as error:
        existing = len(jax.local_devices(backend="cpu"))
        if existing < count:
            raise DeviceError(
                f"use_cpu_devices({count}) came too late: JAX has already started with "
                f"{plural(existing, 'CPU device')}. Restart Python (in a notebook: the kernel) and "
                "call it before any other use of JAX, or set the environment variable "
                f"JAX_NUM_CPU_DEVICES={count}."
            ) from error


def _devices_of(kind: str) -> list[jax.Device]:
    try:
        return jax.local_devices(backend=kind)
    except RuntimeError:  # JAX has no such back end, or JAX_PLATFORMS hides it.
        return []


def _pick(kind: str, index: int, way_out: str) -> jax.Device:
    devices = _devices_of(kind)
    if index < len(devices):
        return devices[index]
    raise DeviceError(f"{kind}({index}) was asked for, but JAX sees {_count(kind)}. {way_out}")


def _count(kind: str) -> str:
    return plural(len(_devices_of(kind)), f"{kind.upper()} device")


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement; `memory` in bytes, `devices` such as `"3 x cpu"`."""

    processor: str
    cores: int
    memory: int
    system: str
    devices: str
    driver: str = ""

    @property
    def rows(self) -> dict[str, str]:
        """The facts that a reader should know, in words, by name."""
        return {
            "Processor": f"{self.processor}, {plural(self.cores, 'core')}",
            "Memory": format_bytes(self.memory),
            "System": self.system,
            "JAX devices": f"{self.devices}, driver {self.driver}" if self.driver else self.devices,
        }


def this_machine() -> Machine:
    """Describe this machine. JAX starts, if it has not started yet."""
    import psutil  # Not at the head: psutil takes a third of the time of importing this module.

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
    """Return the versions of Python and of the packages that a measurement depends on."""
    packages = ("d2lpar", "jax", "jaxlib", "numpy", "scipy")
    return {"Python": platform.python_version()} | {p: metadata.version(p) for p in packages}


def _processor() -> str:
    # On Linux `platform` knows the architecture alone; the model is in /proc.
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _driver() -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    return done.stdout.strip().partition("\n")[0].strip() if done.returncode == 0 else ""
