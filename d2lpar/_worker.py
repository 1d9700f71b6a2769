"""What each of `Workers` runs: `python -m d2lpar._worker SOCKET`."""

import functools
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import jax


def main() -> None:
    """Join the others, and run what is asked for, until the connection ends."""
    socket = int(sys.argv[1])
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
            os.killpg(0, signal.SIGKILL)


def join(settings: dict[str, Any]) -> bytes:
    """Set JAX up for several processes, or have `jax.distributed.initialize()` do it later."""
    initialize = functools.partial(
        jax.distributed.initialize,
        settings["address"],
        settings["count"],
        settings["number"],
        local_device_ids=[settings["number"]] if settings["gpus"] else None,
        coordinator_bind_address=settings["address"],  # For this machine only.
        cluster_detection_method="deactivate",
    )
    if settings["initialize"]:
        initialize()
        jax.devices()  # Waits until all others are there.
    else:
        jax.distributed.initialize = initialize
    return pickle.dumps(None)


def serve(request: bytes, kept: dict[int, Any]) -> bytes:
    """Run the function that is asked for, and return its result as it is to be sent."""
    import cloudpickle

    from d2lpar._workers import Kept

    call, keep = pickle.loads(request)
    function, args = pickle.loads(call)
    # A name for what has been kept stands in for it, also for the function.
    function, *args = (kept[it.number] if isinstance(it, Kept) else it for it in (function, *args))
    result = function(*args)
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
    except BaseException as error:
        frames = traceback.extract_tb(begun(error.__traceback__))
        where = [(f.filename, f.lineno, f.name) for f in frames]
        message = ("error", where, "".join(traceback.format_exception_only(error)))
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
