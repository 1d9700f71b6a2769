"""The program of each process of `Workers`: `python -m d2lpar._processes.worker SOCKET FILE`.

This file does not import JAX: a script may first set the variables that JAX reads at import.
"""

import functools
import linecache
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from d2lpar._jax import distributed
from d2lpar._plain.script import without_frames_of
from d2lpar._processes.hang import Sampler, SharedState


def main() -> None:
    """Join the other processes, and serve requests until the connection closes."""
    socket, file = map(int, sys.argv[1:])
    sampler = Sampler(SharedState(file).write)
    sampler.start()
    os.close(file)
    os.set_inheritable(socket, False)  # The socket must close when this process dies.
    connection = Connection(socket)
    settings = connection.recv()
    os.environ.pop("PYTHONPATH", None)  # It may hold the path of this Python, for this process.
    if settings["path"] is not None:
        os.environ["PYTHONPATH"] = settings["path"]
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen, args=[connection, requests], daemon=True).start()
    kept: dict[int, Any] = {}
    send = functools.partial(send_outcome, connection, os.getpid())
    send(lambda: pickle.dumps(distributed.join(settings)))
    while True:
        send(functools.partial(serve, requests.get(), kept, sampler))


def listen(connection: Connection, requests: "queue.SimpleQueue[bytes]") -> None:
    """Queue all requests; when the connection closes, kill this process and its descendants.

    Runs in a thread of its own, since the main thread may wait for another process forever.
    """
    while True:
        try:
            requests.put(connection.recv_bytes())
        except (EOFError, OSError):
            with suppress(Exception):
                from d2lpar._processes.workers import COOKIE, kill_all

                kill_all(os.environ[COOKIE], [os.getpid()])
            os.killpg(0, signal.SIGKILL)


def serve(request: bytes, kept: dict[int, Any], sampler: Sampler) -> bytes:
    """Call the function of a request, and return its result pickled; or keep the result."""
    import cloudpickle

    from d2lpar._processes.workers import Kept, place_of

    call, sources, keep = pickle.loads(request)
    for file, lines in sources.items():
        linecache.cache[file] = sum(map(len, lines)), None, lines, file

    def value_of(argument: Any) -> Any:
        return kept[argument.number] if isinstance(argument, Kept) else argument

    function, args, kwargs = pickle.loads(call)
    function = value_of(function)
    kwargs = {name: value_of(argument) for name, argument in kwargs.items()}
    sampler.announce(function)
    result = function(*map(value_of, args), **kwargs)
    if keep is not None:
        kept[keep.number] = result
        result = None
    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(
            f"{type(result).__name__} cannot be sent, the result of {place_of(function)}: "
            f"{str(error).removesuffix('.')}. Return numbers or NumPy arrays; of an array that "
            "spans processes, return the local part (x.addressable_data(0)); or keep it in the "
            "workers: workers.keep(...)."
        ) from error


def send_outcome(connection: Connection, owner: int, function: Callable[[], bytes]) -> None:
    """Send the result of a function, or its exit status, or its error.

    A child that the function has forked ends here, and sends nothing: only its parent, the process
    `owner`, has an outcome.
    """
    status = 0
    try:
        outcome = ("result", function())
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
        outcome = ("exit", (status, *getattr(error, "__notes__", ())))
    except BaseException as error:
        status = 1
        own = __file__, distributed.__file__
        error = error.with_traceback(without_frames_of(own, error.__traceback__))
        lines = traceback.format_exception(error, chain=False)
        outcome = ("error", "".join(lines[1:] if error.__traceback__ else lines))
    ended = time.monotonic()
    forked = os.getpid() != owner
    if forked and outcome[0] == "error":
        print(outcome[1], end="", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # It may be closed.
            stream.flush()
    if forked:
        os._exit(status)
    connection.send_bytes(pickle.dumps((*outcome, ended)))


if __name__ == "__main__":
    main()
