"""Join JAX's processes on this machine; wait for all of them, and name those that do not come."""

import functools
import importlib.abc
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from d2lpar._plain.errors import D2lparError, require_seconds
from d2lpar._plain.format import format_seconds, plural, process_list

# JAX keeps the outcome of a barrier, for processes that come late, until its id is used again. So
# an id is used again only after 16 calls. An id for each call would fill the coordinator's memory.
_IDS = 16
_MOST_MILLISECONDS = 2**31 - 1


def join(settings: dict[str, Any]) -> None:
    """Set JAX up for several processes, or have `jax.distributed.initialize()` do it later."""
    if settings["initialize"]:
        import jax

        joining(jax.distributed.initialize, settings)()
        jax.devices()  # Waits for all other processes.
    else:
        sys.meta_path.insert(0, _JoinAfterImport(settings))


def leave_without_waiting() -> None:
    """Let this process exit before the others; JAX's exit function would wait for them."""
    if distributed := sys.modules.get("jax._src.distributed"):
        distributed.shutdown = lambda: None


def number_and_count() -> tuple[int, int] | None:
    """Return the number of this process and how many there are, once JAX has joined them."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is None:
        return None
    return state.process_id, state.num_processes


class _JoinAfterImport(importlib.abc.MetaPathFinder):
    """Changes `jax.distributed` right after its import, and does not import it now."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "jax._src.distributed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            module.initialize = joining(module.initialize, self._settings)

        spec.loader.exec_module = execute_and_change
        return spec


def joining(initialize: Callable[..., None], settings: dict[str, Any]) -> Callable[..., None]:
    """Return JAX's `initialize` with its defaults filled in, as under a launcher such as Slurm."""

    @functools.wraps(initialize)
    def initialize_here(*args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(initialize).bind(*args, **kwargs).arguments
        given = {name: value for name, value in bound.items() if value is not None}
        defaults = {"num_processes": settings["count"], "process_id": settings["number"]}
        for name, value in defaults.items():
            if given.get(name, value) != value:
                raise ValueError(
                    f"jax.distributed.initialize() was given {name}={given[name]!r} in process "
                    f"{settings['number']} of {settings['count']}: leave it out, or read it from "
                    "the variables RANK and WORLD_SIZE."
                )
        defaults["cluster_detection_method"] = "deactivate"
        if "coordinator_address" not in given:
            defaults["coordinator_address"] = settings["address"]
            # Without this, JAX listens on all network interfaces.
            defaults["coordinator_bind_address"] = settings["address"]
        if settings["gpus"]:
            defaults["local_device_ids"] = [settings["number"]]
        with without_proxies():
            initialize(**defaults | given)

    return initialize_here


@contextmanager
def without_proxies() -> Iterator[None]:
    """Hide proxies of the environment: none leads to this machine, and JAX warns of each."""
    proxies = {name: value for name, value in os.environ.items() if "_proxy" in name.lower()}
    for name in proxies:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(proxies)


def barrier(name: str, seconds: float) -> None:
    """Wait until all processes have come here, or raise an error that names the missing ones.

    All of them, on however many machines, have to call it equally often with the same name. It
    waits for the processes alone, not for their devices, which may still compute what was
    dispatched before. (`multihost_utils.sync_global_devices` is a program on all devices. It has
    no limit of time, and names nobody.)

    The time begins when the first process comes, and JAX looks at the clock once a second. When the
    time is up, each process that waits gets the error, and one that comes later gets it at once.
    Until then Ctrl-C has no effect. After an error that nothing catches, JAX holds the process at
    its exit until the missing ones exit too, or for five minutes: end it by `os._exit(1)`, or start
    the script by `python -m d2lpar run`, which ends all processes.

    Without `jax.distributed.initialize` there is just this process, and nothing to wait for.

    Args:
        name: The name of the barrier, for the error; it can be used again, also after an error.
        seconds: How many seconds to wait.

    Raises:
        D2lparError: If a process has not come in time, or if this JAX has no such barrier.
        ValueError: If the time is no finite, positive number of seconds.

    Example:
        >>> barrier("the checkpoint is written", 30)
    """
    require_seconds("seconds", seconds)
    try:
        from jax._src.distributed import global_state as state

        if not (client := state.client):
            return
        count, read = client.key_value_increment, client.key_value_dir_get
        wait_at_barrier = client.wait_at_barrier  # The name by which `watch` and `run` know it.
        process, processes = state.process_id, state.num_processes
    except (ImportError, AttributeError) as error:
        raise D2lparError(
            f"barrier() needs a private name that JAX does not have here: {error}. Install JAX "
            "0.7.2 or newer (0.12 is the last one tried), or call "
            "multihost_utils.sync_global_devices(name), which names nobody."
        ) from error
    key = f"d2lpar.barrier({name!r})"
    call = count(f"{key}/{process}", 1)
    try:
        milliseconds = min(math.ceil(seconds * 1000), _MOST_MILLISECONDS)
        wait_at_barrier(f"{key} {call % _IDS}", milliseconds)
    except RuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        came = {int(k.rpartition("/")[2]) for k, calls in read(f"{key}/") if int(calls) >= call}
        missing = missing_processes(str(error), {*range(processes)} - came)
        raise D2lparError(
            f"{missing} did not come to the barrier {name!r} within {format_seconds(seconds)}. The "
            "output of a missing process, or `py-spy dump --pid` on its machine, shows where it "
            "is. If it only takes longer, wait for more seconds."
        ) from error


def missing_processes(message: str, not_yet: set[int]) -> str:
    """Return which processes JAX's error is about; some may have come since.

    JAX names two at most, and JAX 0.7 names them otherwise::

        # of tasks that reached the barrier: 1/5.
        The first task at the barrier: 0. Some timed out task names:
        2                                       or /job:jax_worker/replica:0/task:2
        4                                       or /job:jax_worker/replica:0/task:4
    """
    named = map(int, re.findall(r"^(?:/job:.*:)?(\d+)$", message, re.MULTILINE))
    missing = sorted(not_yet | {*named})
    if counts := re.search(r" (\d+)/(\d+)\.$", message, re.MULTILINE):
        more = int(counts[2]) - int(counts[1]) - len(missing)
        missing += [plural(more, "other")] if more > 0 else []
    return process_list(missing)
