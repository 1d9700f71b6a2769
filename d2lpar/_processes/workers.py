"""Run one program in several processes (SPMD), each with a JAX of its own.

The processes are on this machine, and behave as if they were on as many machines: each has its own
Python and its own queue, and a program over all devices needs all processes. The process that
starts them stays outside of JAX's distributed runtime. That runtime ends a process that waits in
vain for the others, and must not end a notebook's kernel.

How it works. Each process is a `python -m d2lpar._processes.worker` in a session of its own. Its
output comes by a pipe; requests and outcomes go by a socket. A request is a function and its
arguments, pickled by cloudpickle, which can send functions of a notebook. An outcome is a result or
an error with its traceback. `_collect` waits for all sockets and pipes at once
(`multiprocessing.connection.wait`), and prints all output. It ends all processes if one dies, if
one fails while others wait for it, or at the deadline. Even then the line of each process can be
read, from memory that the worker shares with this process. A worker ends when its socket closes, so
it cannot outlive this process, even after kill -9. Programs that a worker has started inherit an
environment variable with a random value, by which they are found in any session.

Why no library: ipyparallel 9.2 runs JAX in its engines as well, but takes eleven seconds to start
two where this takes four, and when the kernel is killed, its controller and engines live on.
"""

import codecs
import inspect
import io
import itertools
import linecache
import math
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from types import CodeType, FunctionType
from typing import Any, ClassVar, NamedTuple

import psutil

from d2lpar._plain.cores import usable_cores
from d2lpar._plain.errors import (
    D2lparError,
    WorkerError,
    needs,
    require_count,
    require_function,
    require_posix,
    require_seconds,
)
from d2lpar._plain.format import exit_status, format_seconds, plural, process_list
from d2lpar._plain.script import PYTHON
from d2lpar._processes.hang import (
    ProcessStatus,
    SharedState,
    diagnosis,
    place_at,
    stalled_since,
    with_code,
)

GRACE = 5.0
"""Seconds that the others get after one has failed, since they may wait for it forever."""

COOKIE = "D2LPAR_WORKERS"
"""The environment variable that marks all processes that one `Workers` has started."""

_LAST_LINES = 20
_PAUSE = 0.5  # Seconds between two looks for a stall, which must agree before a process is blamed.
_TOKENS = itertools.count()
# Gloo, which carries messages between CPUs, prints this for each process that it connects to.
_GREETING = re.compile(r"\[Gloo\] Rank \d+ is connected to ")


class Kept(NamedTuple):
    """Stands for the value that each process keeps after `Workers.keep`, in a later call."""

    workers: int  # Identifies the `Workers` that keep the value.
    number: int  # Identifies the value among theirs.


class Ended(NamedTuple):
    """Returned by a script: it has closed its connections, so that others may have failed."""

    when: float  # Before it closed them, by time.monotonic().


class Workers:
    """Several processes on this machine that run one JAX program together.

    Each has called `jax.distributed.initialize`, and waits for functions to run. A function runs
    in all of them at once, since a program over all devices needs all processes. Their output is
    shown with the number of the process in front.

    No process outlives this object, nor the process that made it, however that ends. Calls from
    several threads take turns.

    Args:
        count: How many processes.
        devices: How many CPU devices each process has; None leaves that to the functions that run.
            They run on CPUs unless `gpus` is set, or unless `devices` is None and the variable
            JAX_PLATFORMS says otherwise.
        pin: Whether each process is confined to one CPU core, as if it were on a machine of its
            own: number 0 to the first core that this process may use, number 1 to the second, and
            so on from the beginning. Needs Linux.
        gpus: Whether each has one GPU, number 0 the first, instead of CPU devices.
        initialize: Whether they call `jax.distributed.initialize` before they are ready. If not,
            the function that runs calls it, without arguments, as under mpirun or Slurm.
        timeout: Seconds until all have to be ready.

    Raises:
        WorkerError: If they do not start; the message says which process failed, and its last
            output.
        D2lparError: If this system cannot start them, or cannot pin them, or has too few GPUs.
        ValueError: If a number makes no sense.
        ImportError: If cloudpickle is not installed.

    Example:
        >>> def who():
        ...     import jax
        ...     return jax.process_index(), jax.device_count()
        >>> with Workers(2) as workers:
        ...     workers.run(who)
        [(0, 2), (1, 2)]
    """

    def __init__(
        self,
        count: int,
        *,
        devices: int | None = 1,
        pin: bool = False,
        gpus: bool = False,
        initialize: bool = True,
        timeout: float = 60.0,
    ) -> None:
        for name, value in (("count", count), ("devices", 1 if devices is None else devices)):
            require_count(name, value, at_least=1)
        require_seconds("timeout", timeout)
        require_posix("Workers")  # Passes a socket to another process.
        if pin and not hasattr(os, "sched_setaffinity"):
            raise D2lparError("pin=True needs Linux: this system cannot keep a process on a core.")
        if gpus and (available := _gpus_here()) < count:
            raise D2lparError(
                f"Each process is to have a GPU of its own, but there are {count} processes, and "
                f"JAX finds {plural(available, 'GPU')} here. Ask for fewer, or for no GPUs."
            )
        self.count = count
        settings = {"count": count, "devices": devices, "gpus": gpus, "initialize": initialize}
        if count > usable_cores() and not gpus:
            print(f"{count} processes share {plural(usable_cores(), 'CPU core')}.")
        self._token, self._kept = next(_TOKENS), 0
        self._workers: list[_Worker] = []
        self._outcomes: dict[int, Any] = {}
        self._end_by = math.inf
        self._lock = threading.Lock()
        cookie = f"{os.getpid()}.{self._token}"
        cores = sorted(os.sched_getaffinity(0)) if pin else [None]
        self._port = _reserved()
        # Called once: by the user, by the garbage collector, or when this process exits.
        self.close = weakref.finalize(self, _end, self._workers, os.getpid(), cookie, self._port)
        address = "{}:{}".format(*self._port.getsockname())
        try:
            for number in range(count):
                core = cores[number % len(cores)]
                own = {"address": address, "core": core, "cookie": cookie}
                self._workers.append(_Worker.start(number, settings | own))
            self._check(self._collect(timeout), "start")
        except BaseException:
            self.close()
            raise

    def run(
        self,
        function: Callable[..., Any] | Kept,
        /,
        *args: Any,
        timeout: float | None = 60.0,
        stalled_after: float | None = None,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Call a function in all processes at once, and return the results of all.

        Each call sends the function and the globals that it uses anew, unless they belong to a
        module that the processes import. `jax.jit` takes them for new ones, and compiles again:
        `keep` a jitted function, and data, in the processes to make them once.

        Args:
            function: The function to call, sent with the global variables that it uses; or a
                function that the processes have kept. Its result comes back; an array that spans
                processes cannot be sent.
            *args: Sent, and passed on; for something kept, each process passes its own value.
            timeout: Seconds until all have to be done; None for no limit.
            stalled_after: Seconds. Print `diagnose` when a process waits in JAX, and none is seen
                dispatching for so many seconds; the call goes on. Compiling, and computing inside a
                call, as on a CPU, count as dispatching; a loop in Python that polls does not.
                None for never.
            return_exceptions: Whether to return an error in the place of a result, as
                `asyncio.gather` does, instead of raising it.
            **kwargs: Passed on like `args`, except for the names above.

        Returns:
            Their results, in the order of the processes.

        Raises:
            WorkerError: If a process raises, dies, does not answer in time, or returns a value that
                cannot be sent; the message says which process and why, and its last output. Of
                several errors the first is raised. After a timeout or a death all are ended, and
                these workers cannot be used again.
            TypeError: If the function or an argument cannot be sent; the message names it.
            ValueError: If a number of seconds makes no sense, or something was kept by other
                workers.
        """
        outcomes = self._call(function, args, kwargs, timeout, stalled_after)
        if not return_exceptions:
            self._check(outcomes, getattr(function, "__name__", "run"))
        return outcomes

    def keep(
        self,
        function: Callable[..., Any] | Kept,
        /,
        *args: Any,
        timeout: float | None = 60.0,
        **kwargs: Any,
    ) -> Kept:
        """Call a function in all processes, and have each keep its result.

        Args:
            function: As for `run`; its result is not sent, so it may be anything.
            *args: As for `run`.
            timeout: As for `run`.
            **kwargs: As for `run`.

        Returns:
            An object to pass to later calls, in the place of the result.

        Raises:
            WorkerError, TypeError, ValueError: As for `run`.
        """
        self._kept += 1
        kept = Kept(self._token, self._kept)
        self._check(self._call(function, args, kwargs, timeout, kept=kept), "keep")
        return kept

    def diagnose(self) -> str:
        """Return where each process stands, and which one is missing where the others wait.

        `run` reports this when it ends by its timeout or by Ctrl-C; while it runs, another thread
        can call this method. It works while the processes hang, since none has to reply. Only lines
        of your own code are shown, no library's.

        Example:
            >>> with Workers(1) as workers:
            ...     print(workers.diagnose())  # doctest: +ELLIPSIS
            [0] has finished ... ago
            No verdict: no process was seen at a line of the program.
        """
        return diagnosis(self._statuses(), time.monotonic())

    def _statuses(self) -> list[ProcessStatus]:
        return [worker.status(self._outcomes) for worker in self._workers]

    def _terminate(self, grace: float) -> None:
        """Send SIGTERM to all, for a handler of signals; `run` ends those that live much longer."""
        self._end_by = time.monotonic() + grace
        for worker in self._workers:
            worker.process.terminate()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.count} workers{'' if self._workers else ', ended'}>"

    def _call(
        self,
        function: Callable[..., Any] | Kept,
        args: tuple,
        kwargs: dict[str, Any],
        timeout: float | None,
        stalled_after: float | None = None,
        kept: Kept | None = None,
    ) -> list[Any]:
        if not isinstance(function, Kept):
            require_function("run", function)
        for name, value in (("timeout", timeout), ("stalled_after", stalled_after)):
            if value is not None:
                require_seconds(name, value)
        values = function, *args, *kwargs.values()
        if any(isinstance(value, Kept) and value.workers != self._token for value in values):
            raise ValueError("This has been kept by other workers; only they have it.")
        if not self._workers:
            raise WorkerError("These workers have ended. Make new ones: Workers(...).")
        request = pickle.dumps((*_pickled(function, args, kwargs), kept))
        with self._lock:
            try:
                for worker in self._workers:
                    worker.last_lines.clear()
                    worker.ended = math.inf
                    with suppress(OSError):  # The worker has died; _collect reports that.
                        worker.connection.send_bytes(request)
                return self._collect(timeout, stalled_after)
            except BaseException as error:
                # The next call must not read outcomes of this one.
                if isinstance(error, KeyboardInterrupt):
                    print(f"\n{self.diagnose()}", file=sys.stderr, flush=True)
                self.close()
                raise

    def _collect(self, timeout: float | None, stalled_after: float | None = None) -> list[Any]:
        """Print the output of the workers until all have an outcome, and return the outcomes."""
        self._outcomes = outcomes = {}
        stall_is_new = stalls(stalled_after, self._statuses)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        failed = False
        while pending := {w.connection: w for w in self._workers if w.number not in outcomes}:
            outputs = {worker.output: worker for worker in self._workers if not worker.output_ended}
            # For a second at most: a child of a dead worker may hold its socket open forever.
            remaining = min(deadline, self._end_by) - time.monotonic()
            dead = [worker for worker in pending.values() if not worker.alive]
            ready = wait([*pending, *outputs], 0 if dead else max(0.0, min(remaining, 1.0)))
            for source in ready:
                if source in outputs:
                    outputs[source].print_output()
                    continue
                with suppress(TimeoutError):  # The deadline came in the middle of a message.
                    worker = pending[source]
                    outcomes[worker.number] = worker.receive(remaining)
            outcomes |= {w.number: w.death() for w in dead if w.connection not in ready}
            failed = any(isinstance(outcome, WorkerError) for outcome in outcomes.values())
            if failed and math.isinf(self._end_by):  # After SIGTERM, the others may be saving.
                deadline = min(deadline, time.monotonic() + GRACE)
            if next(stall_is_new):
                # A sample may miss a dispatch, which takes microseconds.
                stalled = f"For {format_seconds(stalled_after)}, no process was seen dispatching."
                print(f"{stalled}\n{self.diagnose()}", file=sys.stderr, flush=True)
            if remaining <= 0:
                break
        for worker in self._workers:
            worker.print_rest()
        silent = [worker for worker in self._workers if worker.number not in outcomes]
        terminated = time.monotonic() >= self._end_by
        if silent and (terminated or not failed):
            have = ("has", "have")[len(silent) > 1]
            names = process_list(worker.number for worker in silent)
            limit = "SIGTERM" if terminated else f"{timeout:g} s"
            message = f"{names} {have} not ended after {limit}.\n{self.diagnose()}"
            if terminated:
                raise WorkerError(message, silent[0].number, 128 + signal.SIGTERM)
        self._name_those_before(outcomes)
        for worker in silent:
            outcomes[worker.number] = (
                worker.error("had to be stopped: it was waiting for one that has failed.")
                if failed
                else WorkerError(message, worker.number)
            )
        if silent or not all(worker.alive for worker in self._workers):
            self.close()
        return [outcomes[number] for number in range(self.count)]

    def _name_those_before(self, outcomes: dict[int, Any]) -> None:
        """Add to each error which scripts had ended before: it may have waited for them."""
        errors = [outcome for outcome in outcomes.values() if isinstance(outcome, WorkerError)]
        for worker in self._workers:
            script = outcomes.get(worker.number)
            for error in errors:
                if isinstance(script, Ended) and script.when < error.ended:
                    before = format_seconds(error.ended - script.when)
                    text = f"{error}\nProcess {worker.number} had ended {before} before."
                    error.args = (text + worker.last_seen(in_jax=True),)

    def _check(self, outcomes: list[Any], name: str) -> None:
        errors = [outcome for outcome in outcomes if isinstance(outcome, WorkerError)]
        if errors:
            # The first is the cause: a death makes others fail, a failure makes others wait.
            error = min(errors, key=lambda error: error.ended)
            if also := [other.worker for other in errors if other is not error]:
                error.add_note(f"{name}: {process_list(also).lower()} failed as well.")
            raise error


class _Worker:
    """A process, with this side's end of its connection, its output, and its shared state."""

    def __init__(
        self, number: int, process: subprocess.Popen, connection: Connection, shared: SharedState
    ) -> None:
        self.number, self.process, self.connection = number, process, connection
        self._shared, self._receiver = shared, ThreadPoolExecutor(1)
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.ended = math.inf  # When its last outcome came about, by time.monotonic().
        self.may_exit = False  # By `os._exit(0)`, as a script may that avoids JAX's own exit.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._partial_line, self.output_ended = "", False
        self.output = process.stdout
        os.set_blocking(self.output.fileno(), False)

    @classmethod
    def start(cls, number: int, settings: dict[str, Any]) -> "_Worker":
        settings = settings | {"number": number, "path": os.environ.get("PYTHONPATH")}
        connection, workers_end = Pipe()
        shared = SharedState()
        descriptors = workers_end.fileno(), shared.file.fileno()
        process = subprocess.Popen(
            [*PYTHON, "-m", "d2lpar._processes.worker", *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(settings),
            pass_fds=descriptors,
            # Keeps Ctrl-C in this process, and makes a group to kill.
            start_new_session=True,
            bufsize=0,
        )
        workers_end.close()  # The socket must close when the worker dies.
        if settings["core"] is not None:  # Threads inherit it, and there is only one so far.
            os.sched_setaffinity(process.pid, {settings["core"]})
        worker = cls(number, process, connection, shared)
        with suppress(OSError):
            connection.send(settings)
        return worker

    def close(self) -> None:
        self._receiver.shutdown()  # Returns, since the process at the other end is dead.
        self.connection.close()
        self.output.close()
        self._shared.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def status(self, outcomes: dict[int, Any]) -> ProcessStatus:
        """Return where the process stands, as far as this side knows."""
        fate = ""
        if self.number in outcomes:
            failed = isinstance(outcomes[self.number], WorkerError)
            ago = format_seconds(max(time.monotonic() - self.ended, 0.0))
            fate = f"has {'failed' if failed else 'finished'} {ago} ago"
        elif not self.alive:
            fate = f"has died: {exit_status(self.process.returncode)}"
        elif psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED:
            fate = "is stopped (SIGSTOP); SIGCONT resumes it"
        printed = self.last_lines[-1] if self.last_lines else ""
        return ProcessStatus(self.number, self._shared.read(), fate, printed)

    def receive(self, seconds: float) -> Any:
        """Return the result that the worker sends, or the error.

        Raises:
            TimeoutError: If the message has begun, but is not complete after so many seconds, or
                `GRACE` if that is longer.
        """
        try:
            # In a thread, which can time out: a message larger than the socket's buffer arrives
            # only as fast as the worker sends.
            message = self._receiver.submit(self.connection.recv_bytes).result(
                None if math.isinf(seconds) else max(GRACE, seconds)
            )
        except (EOFError, ConnectionError):
            return self.death()
        kind, content, self.ended = pickle.loads(message)
        if kind == "exit":
            status, *notes = content
            message = f"ended with the exit status {status}."
            self.print_rest()
            if self.last_lines:
                message += f" It last printed: {self.last_lines[-1]}"
            message = "\n".join([message, *notes])
            return self.error(message, status=status & 255, with_output=False)
        if kind == "error":
            return self.error(f"failed:\n{content.rstrip().removesuffix('.')}.", raised=True)
        try:
            return pickle.loads(content)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".removesuffix(".")
            return self.error(f"has sent a result that cannot be read here: {reason}.")

    def death(self) -> WorkerError | Ended:
        """Return the outcome of a worker whose process or socket has ended by itself."""
        state = self._shared.read()
        # The other processes fail by this death after the last sample, and may be heard of earlier.
        self.ended = state["sampled"] if state else time.monotonic()
        try:
            status = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:  # The function has closed all files, and goes on.
            return self.error("has closed its connection, and cannot be reached.")
        if status == 0 and self.may_exit:
            return Ended(self.ended)
        message = f"has died: {exit_status(status)}.{self.last_seen()}"
        return self.error(message, status=status if status >= 0 else 128 - status)

    def last_seen(self, in_jax: bool = False) -> str:
        """Return a further line of a message: where the process was last seen, if anywhere."""
        state = self._shared.read() or {"threads": (), "last_in_jax": None}
        if in_jax:
            seen = state["last_in_jax"]
            return f"\nIt was last seen in JAX at {with_code(seen[1])}" if seen else ""
        if not state["threads"]:
            return ""
        main = state["threads"][0]
        called = "".join(f", called from {place_at(caller)}" for caller in main["callers"])
        return f"\nIt was last seen at {with_code(main['line'])}{called}"

    def error(
        self, message: str, *, status: int = 1, raised: bool = False, with_output: bool = True
    ) -> WorkerError:
        self.print_rest()
        message = f"Process {self.number} {message}"
        if with_output and self.last_lines:
            message += "\nThe last lines it printed:"
            message += "".join(f"\n  {line}" for line in self.last_lines)
        return WorkerError(message, self.number, status, self.ended, raised)

    def print_output(self) -> None:
        """Print the complete lines that have arrived, with the number of the process."""
        try:
            output = self.output.read(1 << 16)
        except OSError:
            output = b""
        if output is None:  # Nothing has arrived: the pipe does not block.
            return
        self.output_ended = not output
        *lines, self._partial_line = (self._partial_line + self._decode(output)).split("\n")
        self._print(lines)

    def print_rest(self) -> None:
        """Print all output that has arrived, with a last line that has no end."""
        for _ in range(100):  # Bounded, since the process may print all the time.
            if self.output_ended or not wait([self.output], 0):
                break
            self.print_output()
        self._print([self._partial_line] if self._partial_line else [])
        self._partial_line = ""

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            if not _GREETING.match(line):
                self.last_lines.append(line)
                print(f"[{self.number}] {line}", flush=True)


def stalls(
    after: float | None,
    look: Callable[[], Sequence[ProcessStatus]],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bool]:
    """Yield whether the processes have just been stalled for so long: True once for each stall."""
    next_look, began, reported = math.inf if after is None else 0.0, None, None
    while True:
        is_new, now = False, clock()
        if now >= next_look:
            next_look = now + _PAUSE
            before, began = began, stalled_since(look(), now)
            if began is not None and began == before and now - began >= after:
                is_new, reported = began != reported, began
        yield is_new


def _end(workers: list[_Worker], owner: int, cookie: str, port: socket.socket) -> None:
    """Kill the workers and everything that they have started."""
    if os.getpid() != owner:  # A forked child has copies of its parent's objects.
        return
    interrupted = None
    while workers:
        try:
            kill_all(cookie, [worker.process.pid for worker in workers if worker.alive])
            for worker in workers:
                with suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
                worker.process.wait()
                worker.close()
            workers.clear()
        except KeyboardInterrupt as error:  # A second Ctrl-C must not leave workers alive.
            interrupted = error
    port.close()  # Also after a start that failed, without a single worker.
    if interrupted:
        raise interrupted


def kill_all(cookie: str, pids: Sequence[int]) -> None:
    """Kill these processes and everything that they have started, but not the calling process.

    Descendants are found by their parents, and by the cookie in their environment: a daemon has a
    session of its own and no parent anymore. All kills are sent before any is waited for, the
    youngest process first: so if two processes clean up at once, neither is killed by the other
    before it has sent its kills.
    """
    for _ in range(9):  # New processes may start meanwhile.
        processes = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # The process has ended, or is another user's.
                if process.pid in pids or process.environ().get(COOKIE) == cookie:
                    processes.add(process)
        for process in [*processes]:
            with suppress(psutil.Error):
                processes |= {*process.children(recursive=True)}
        processes = {p for p in processes if p.pid != os.getpid() and _is_alive(p)}
        if not processes:
            break
        for process in sorted(processes, key=lambda p: p.create_time(), reverse=True):
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, 0.2)


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _environment(settings: dict[str, Any]) -> dict[str, str]:
    own = {
        "PYTHONUNBUFFERED": "1",  # Output must arrive before the process hangs or dies.
        COOKIE: settings["cookie"],
        "D2LPAR_PROCESS": str(settings["number"]),
        "RANK": str(settings["number"]),
        "LOCAL_RANK": str(settings["number"]),
        "WORLD_SIZE": str(settings["count"]),
    }
    if settings["devices"] is not None:
        flags = os.environ.get("XLA_FLAGS", "")
        own |= {
            # For the worker alone, which puts it back: other Pythons would take this one's library.
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "XLA_FLAGS": re.sub(r"--xla_force_host_platform_device_count=\d+", "", flags),
            "JAX_NUM_CPU_DEVICES": str(settings["devices"]),
        }
    if not settings["gpus"] and (settings["devices"] or "JAX_PLATFORMS" not in os.environ):
        own["JAX_PLATFORMS"] = "cpu"  # Else all of them reserve memory of the same GPU.
    return os.environ | own


def _pickled(function: Any, args: tuple, kwargs: dict) -> tuple[bytes, dict[str, list[str]]]:
    """Pickle a function and its arguments; return with it the source of code that has no file.

    cloudpickle replaces the file names of functions by "<dynamic-code>". They are put back, since
    errors and `diagnose` show them.
    """
    with needs("processes"):
        import cloudpickle
    sources: dict[str, list[str]] = {}
    reducers = cloudpickle.Pickler.dispatch_table

    def reduce_code(code: CodeType) -> tuple:
        file = code.co_filename
        if not os.path.exists(file):  # The cell of a notebook.
            sources[file] = linecache.getlines(file)
        constructor, args = reducers[CodeType](code)
        return constructor, tuple(file if str(arg) == "<dynamic-code>" else arg for arg in args)

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar = ChainMap({CodeType: reduce_code}, reducers)

    def pickled(value: Any) -> bytes:
        buffer = io.BytesIO()
        Pickler(buffer).dump(value)
        return buffer.getvalue()

    try:
        return pickled((function, args, kwargs)), sources
    except Exception as error:
        arguments = dict(enumerate(args, 1)) | kwargs
        with suppress(TypeError, ValueError):  # A wrong number of them, or a function in C.
            arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        place, reason = place_of(function), str(error).removesuffix(".")
        values = {f"The argument {name!r} of {place}": value for name, value in arguments.items()}
        raise TypeError(
            f"{_unsendable(values | {place: function}, pickled)} cannot be sent: {reason}. Make it "
            "in the function, or keep it in the processes: workers.keep(...)."
        ) from error


def _unsendable(
    values: dict[str, Any], pickled: Callable[[Any], bytes], callers: tuple[int, ...] = ()
) -> str:
    """Return the name of the value that cannot be pickled: for a function, a variable it uses."""
    for name, value in values.items():
        try:
            pickled(value)
        except Exception:
            if id(value) in callers:  # A recursive function.
                continue
            if not isinstance(value, FunctionType):
                return name
            used, place = inspect.getclosurevars(value), place_of(value)
            used = (used.nonlocals | used.globals).items()
            variables = {f"The variable {name!r} in {place}": inner for name, inner in used}
            return _unsendable(variables, pickled, (*callers, id(value))) or name
    return ""


def place_of(function: Any) -> str:
    """Return the name of a function, and where it is defined, if that is known."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"{name} ({place_at([code.co_filename, code.co_firstlineno, ''])})" if code else name


def _gpus_here() -> int:
    """Return how many GPUs JAX finds, without setting JAX up in this process."""
    program = "import d2lpar; print(d2lpar.num_gpus())"
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    counted = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | own, capture_output=True, text=True
    )
    return int(counted.stdout.split()[-1]) if counted.stdout.strip() else 0


def _reserved() -> socket.socket:
    """Return a socket that reserves a free port of this machine for JAX.

    JAX's coordinator binds its port with SO_REUSEPORT (gRPC's default). So two programs with the
    same port would both bind it, and their processes would meet each other.
    """
    keeper = socket.socket()
    keeper.bind(("127.0.0.1", 0))
    # From here on JAX's coordinator can bind the port, but no socket without SO_REUSEPORT, and no
    # other keeper: one sets the option after it has bound.
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return keeper
