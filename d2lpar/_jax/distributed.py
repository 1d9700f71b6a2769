"""Join JAX's processes on this machine, or have the script's own `initialize()` join them."""

import functools
import importlib.abc
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def join(settings: dict[str, Any]) -> None:
    """Set JAX up for several processes, or have `jax.distributed.initialize()` do it later."""
    if settings["initialize"]:
        import jax

        joining(jax.distributed.initialize, settings)()
        jax.devices()  # Waits for all other processes.
    else:

        def change(module: ModuleType) -> None:
            module.initialize = joining(module.initialize, settings)

        sys.meta_path.insert(0, AtImport("jax._src.distributed", change))


def leave_without_waiting() -> None:
    """Let this process exit before the others; JAX's exit function would wait for them."""
    if distributed := sys.modules.get("jax._src.distributed"):
        distributed.shutdown = lambda: None


class AtImport(importlib.abc.MetaPathFinder):
    """Changes a module right after its import, and does not import it now."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that also applies the change."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self._change(module)

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
