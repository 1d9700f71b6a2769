"""What each of `Workers` runs: `python -m d2lpar._worker SOCKET FILE`.

JAX is not imported before what is asked for does, as a script may set first what JAX reads then.
"""

import functools
import importlib.abc
import importlib.util
import inspect
import linecache
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from types import ModuleType, TracebackType
from typing import Any

from d2lpar._hang import Board, Recorder


def main() -> None:
    """Join the others, and run what is asked for, until the connection ends."""
    socket, file = map(int, sys.argv[1:])
    Recorder(Board(file)).start()
    os.close(file)
    os.set_inheritable(socket, False)  # It has to end with this process, not with a child of it.
    connection = Connection(socket)
    settings = connection.recv()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen, args=[connection, requests], daemon=True).start()
    kept: dict[int, Any] = {}
    answer(connection, functools.partial(join, settings))
    while True:
        answer(connection, functools.partial(serve, requests.get(), kept))


def listen(connection: Connection, requests: "queue.SimpleQueue[bytes]") -> None:
    """Read what is asked for; end this process, and what it has started, with the one that asks.

    In a thread, for the main one may be waiting for a process that never answers.
    """
    while True:
        try:
            requests.put(connection.recv_bytes())
        except (EOFError, OSError):
            with suppress(Exception):
                from d2lpar._workers import COOKIE, end_all_with

                end_all_with(os.environ[COOKIE], [os.getpid()])
            os.killpg(0, signal.SIGKILL)


def join(settings: dict[str, Any]) -> bytes:
    """Set JAX up for several processes, or have `jax.distributed.initialize()` do it later."""
    if settings["initialize"]:
        import jax

        joining(jax.distributed.initialize, settings)()
        jax.devices()  # Waits until all others are there.
    else:

        def change(module: ModuleType) -> None:
            module.initialize = joining(module.initialize, settings)

        sys.meta_path.insert(0, AtImport("jax._src.distributed", change))
    return pickle.dumps(None)


class AtImport(importlib.abc.MetaPathFinder):
    """Changes a module when it has been imported."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module where it is, and have it changed after it has run."""
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
    """Return JAX's `initialize` with what is left out filled in, as it does under a launcher."""

    @functools.wraps(initialize)
    def initialize_here(*args: Any, **kwargs: Any) -> None:
        asked = inspect.signature(initialize).bind(*args, **kwargs).arguments
        asked = {name: value for name, value in asked.items() if value is not None}
        ours = {"num_processes": settings["count"], "process_id": settings["number"]}
        for name, value in ours.items():
            if asked.get(name, value) != value:
                raise ValueError(
                    f"jax.distributed.initialize() was given {name}={asked[name]!r} in process "
                    f"{settings['number']} of {settings['count']}: leave it out, or read it from "
                    "the variables RANK and WORLD_SIZE."
                )
        ours["cluster_detection_method"] = "deactivate"
        if "coordinator_address" not in asked:
            ours["coordinator_address"] = settings["address"]
            ours["coordinator_bind_address"] = settings["address"]  # For this machine only.
        if settings["gpus"]:
            ours["local_device_ids"] = [settings["number"]]
        with without_proxies():
            initialize(**ours | asked)

    return initialize_here


@contextmanager
def without_proxies() -> Iterator[None]:
    """Take proxies out of the environment: to this machine no proxy leads, and JAX warns of any."""
    proxies = {name: value for name, value in os.environ.items() if "_proxy" in name.lower()}
    for name in proxies:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(proxies)


def serve(request: bytes, kept: dict[int, Any]) -> bytes:
    """Run the function that is asked for, and return its result as it is to be sent."""
    import cloudpickle

    from d2lpar._workers import Kept

    call, sources, keep = pickle.loads(request)
    for file, lines in sources.items():
        linecache.cache[file] = sum(map(len, lines)), None, lines, file
    function, args, kwargs = pickle.loads(call)

    def found(it: Any) -> Any:
        # A name for what has been kept stands in for it, also for the function.
        return kept[it.number] if isinstance(it, Kept) else it

    named = {name: found(it) for name, it in kwargs.items()}
    result = found(function)(*map(found, args), **named)
    if keep is not None:
        kept[keep.number] = result
        result = None
    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(
            f"{type(result).__name__} cannot be sent: {error} Return numbers or NumPy arrays, of "
            "an array that spans processes the part that is here (x.addressable_data(0)), or keep "
            "it in the workers: workers.keep(...)."
        ) from error


def answer(connection: Connection, function: "functools.partial[bytes]") -> None:
    """Send what a function returns, or what it raises."""
    try:
        message = ("result", function())
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
        message = ("exit", status if isinstance(status, int) else 1)
    except BaseException as error:
        error = error.with_traceback(begun(error.__traceback__))
        message = ("error", "".join(traceback.format_exception(error, chain=False)[1:]))
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send_bytes(pickle.dumps(message))


def begun(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame on that is not of this file."""
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
