"""What each of `Workers` runs: `python -m d2lpar._processes.worker SOCKET FILE`.

JAX is not imported before what is asked for does, as a script may set first what JAX reads then.
"""

import functools
import linecache
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from d2lpar._jax import distributed
from d2lpar._processes.hang import Board, Recorder


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
    answer(connection, lambda: pickle.dumps(distributed.join(settings)))
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
                from d2lpar._processes.workers import COOKIE, end_all_with

                end_all_with(os.environ[COOKIE], [os.getpid()])
            os.killpg(0, signal.SIGKILL)


def serve(request: bytes, kept: dict[int, Any]) -> bytes:
    """Run the function that is asked for, and return its result as it is to be sent."""
    import cloudpickle

    from d2lpar._processes.workers import Kept

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


def answer(connection: Connection, function: Callable[[], bytes]) -> None:
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
    """Return a traceback without its first frames, which are of how a function gets here."""
    ours = __file__, distributed.__file__
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
