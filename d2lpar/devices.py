"""Find the CPUs and GPUs JAX sees, under d2l's names, with a clear error."""

import jax

from d2lpar.errors import DeviceError, require_count


def cpu(index: int = 0) -> jax.Device:
    """Return the CPU device with this index.

    Args:
        index: Which of JAX's CPU devices; there is one unless you ask for more.

    Raises:
        DeviceError: If there are not that many.
        ArgumentError: If `index` is negative or no integer.

    Example:
        >>> cpu().platform
        'cpu'
    """
    require_count("index", index, at_least=0)
    way_out = f"Call d2lpar.use_cpu_devices({index + 1}) before anything else of JAX."
    return _pick("cpu", _devices_of("cpu"), index, way_out)


def gpu(index: int = 0) -> jax.Device:
    """Return the GPU with this index.

    Args:
        index: Which of the GPUs that JAX sees.

    Raises:
        DeviceError: If there are not that many.
        ArgumentError: If `index` is negative or no integer.
    """
    require_count("index", index, at_least=0)
    return _pick("gpu", _gpus(), index, "Use d2lpar.try_gpu(), which falls back to the CPU.")


def num_gpus() -> int:
    """Return how many GPUs JAX sees.

    Example:
        >>> num_gpus() >= 0
        True
    """
    return len(_gpus())


def try_gpu(index: int = 0) -> jax.Device:
    """Return the GPU with this index if there is one, else the first CPU device.

    Args:
        index: Which of the GPUs that JAX sees.

    Raises:
        ArgumentError: If `index` is negative or no integer.

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
    return _gpus() or [cpu()]


def use_cpu_devices(count: int) -> None:
    """Let JAX split this machine's CPU into `count` devices.

    The devices share the cores; each has a queue of its own. This must run before JAX is first
    used, since JAX makes its devices then and keeps them.

    Args:
        count: How many CPU devices to have, at least 1.

    Raises:
        ArgumentError: If `count` is no integer of at least 1.
        DeviceError: If JAX has already started with another number of CPU devices.
    """
    require_count("count", count, at_least=1)
    try:
        jax.config.update("jax_num_cpu_devices", int(count))
    except RuntimeError as error:
        found = len(jax.local_devices(backend="cpu"))
        if found != count:
            raise DeviceError(
                f"use_cpu_devices({count}) came too late: JAX has already started with {found} "
                f"CPU device{'s' * (found > 1)}. Restart Python (in a notebook: the kernel) and "
                "call it before anything else of JAX, or set the environment variable "
                f"JAX_NUM_CPU_DEVICES={count}."
            ) from error


def _gpus() -> list[jax.Device]:
    return _devices_of("gpu")


def _devices_of(kind: str) -> list[jax.Device]:
    try:
        return jax.local_devices(backend=kind)
    except RuntimeError:  # How JAX says that there is no such back end; JAX_PLATFORMS may hide it.
        return []


def _pick(kind: str, devices: list[jax.Device], index: int, way_out: str) -> jax.Device:
    if index < len(devices):
        return devices[index]
    found = f"JAX sees {len(devices)} {kind.upper()} device{'s' * (len(devices) != 1)}"
    raise DeviceError(f"{kind}({index}) was asked for, but {found}. {way_out}")
