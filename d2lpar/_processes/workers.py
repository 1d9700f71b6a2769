"""Run one program in several processes (SPMD), each with a JAX of its own.

The processes are on this machine, but what they do is what they would do on as many machines: each
has its own Python and its own queue, and only together can they run a program over all devices.
JAX is not set up for several processes in the process that starts them. It ends a process that
waits in vain for the others, and that must not be a notebook's kernel.

How it works. Each process is a `python -m d2lpar._processes.worker`, started in a session of its
own, with a pipe for what it prints and a socket for requests and answers. A request is a function
and its arguments, pickled by cloudpickle, so that functions of a notebook can be sent; an answer is
the result or the error, with the frames of its traceback. `_collect` waits for all sockets and
pipes at once (`multiprocessing.connection.wait`), shows all output, and ends all processes if one
dies, fails while others wait for it, or has not answered in time. Where each of them stands then is
read from memory that it shares with this process (`_hang`). A process ends when its socket does, so
none outlives this one, even if that is killed; what they have started is known by a variable of its
environment, whatever session it is in.

Why no library: ipyparallel 9.2 runs JAX in its engines as well, but takes eleven seconds to start
two where this takes four, and when the kernel is killed, its controller and engines live on.
"""

import codecs
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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from types import CodeType
from typing import Any, ClassVar, NamedTuple

import psutil

from d2lpar._plain.cores import usable_cores
from d2lpar._plain.errors import (
    D2lparError,
    WorkerError,
    needs,
    require_count,
    require_function,
    require_seconds,
)
from d2lpar._plain.format import exit_status, format_seconds, plural
from d2lpar._processes.hang import Board, Process, diagnosis, numbers

GRACE = 5.0
"""Seconds that the others have left when one has failed; they may be waiting for it for ever."""

COOKIE = "D2LPAR_WORKERS"
"""The variable of the environment that tells what the processes of one `Workers` have started."""

_LAST_LINES = 20
_TOKENS = itertools.count()
# Gloo, which carries the messages between CPUs, greets each process it finds.
_GREETING = re.compile(r"\[Gloo\] Rank \d+ is connected to ")


class Kept(NamedTuple):
    """What each process keeps after `Workers.keep`, to be passed to a later call or called.

    Attributes:
        workers: Tells these workers from others.
        number: Counts what they have kept.
    """

    workers: int
    number: int


class Workers:
    """Several processes of this machine in which JAX runs one program.

    Each has called `jax.distributed.initialize`, and waits for functions to run. A function runs
    in all of them at once, for none can run a program over all devices without the others. What
    they print is shown with the number of the process in front.

    No process outlives this object, nor the process that made it, however that ends. Calls from
    several threads take turns.

    Args:
        count: How many processes.
        devices: How many CPU devices each of them has; None leaves that to what they run. They run
            on CPUs unless `gpus` is set, or with None the variable JAX_PLATFORMS says otherwise.
        pin: Whether each has a CPU core of its own and no other, as if it were on a machine of its
            own: number 0 the first core that this process may use, number 1 the second, and so on
            from the beginning. Only Linux can do that.
        gpus: Whether each has one GPU, number 0 the first, instead of CPU devices.
        initialize: Whether they call `jax.distributed.initialize` before they are ready. If not,
            what they run calls it, without arguments, as it would under mpirun or Slurm.
        port: Where number 0 listens for the others, on this machine only; the system chooses one
            that is free if it is 0.
        timeout: Seconds until all have to be ready.

    Raises:
        WorkerError: If they do not start; it says which, and what that one has printed last.
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
        port: int = 0,
        timeout: float = 60.0,
    ) -> None:
        for name, value in (("count", count), ("devices", 1 if devices is None else devices)):
            require_count(name, value, at_least=1)
        require_count("port", port, at_least=0)
        if sys.platform == "win32":
            raise D2lparError(
                "Workers needs what Linux and macOS have to hand a socket to another process; on "
                "Windows, use the Windows Subsystem for Linux."
            )
        if pin and not hasattr(os, "sched_setaffinity"):
            raise D2lparError("pin=True needs Linux: this system cannot keep a process on a core.")
        if gpus and (found := _gpus_here()) < count:
            raise D2lparError(
                f"gpus=True gives each process a GPU of its own, but there are {count} processes, "
                f"and JAX finds {plural(found, 'GPU')} here. Ask for fewer, or leave it out."
            )
        self.count = count
        settings = {"count": count, "devices": devices, "gpus": gpus, "initialize": initialize}
        if count > usable_cores() and not gpus:
            print(f"{count} processes share {plural(usable_cores(), 'CPU core')}.")
        self._token, self._kept = next(_TOKENS), 0
        self._workers: list[_Worker] = []
        self._answers: dict[int, Any] = {}
        self._lock = threading.Lock()
        cookie = f"{os.getpid()}.{self._token}"
        cores = sorted(os.sched_getaffinity(0)) if pin else [None]
        self._port = _reserved(port)
        # Also at the end of this process, and when nobody has the object any more; once.
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
        """Call a function in all processes at once, and return what each has returned.

        Each call sends the function and the globals that it uses anew, unless they are those of a
        module that the processes import. What arrives is new to `jax.jit`, which compiles it again:
        have the processes `keep` a jitted function, and data, that are to be made once.

        Args:
            function: Is sent to them, with the global variables that it uses, unless they have
                kept it; so are its arguments, and what it returns comes back. An array that spans
                processes cannot be sent.
            *args: Passed on to it; in the place of something kept, what that process has kept.
            timeout: Seconds until all have to be done; None if they may take for ever.
            stalled_after: Print `diagnose` when, for so many seconds, no process has moved to
                another line or printed anything; the call goes on. To compile counts as moving, to
                wait for a long computation does not. None for never.
            return_exceptions: Whether to return an error in the place of a result, as
                `asyncio.gather` does, instead of raising it.
            **kwargs: Passed on as well, by name; those above are never.

        Returns:
            Their results, in the order of the processes.

        Raises:
            WorkerError: If one raises, dies, does not answer in time, or returns what cannot be
                sent; it says which and why, and what that one has printed last. After a timeout or
                a death all are ended, and these workers cannot be used again.
        """
        outcomes = self._ask(function, args, kwargs, timeout, stalled_after=stalled_after)
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
        """Call a function in all processes, and have each keep what it returns.

        Args:
            function: As for `run`; what it returns is not sent, so it may be anything.
            *args: As for `run`.
            timeout: As for `run`.
            **kwargs: As for `run`.

        Returns:
            What to pass to later calls in its place.

        Raises:
            WorkerError: As for `run`.
        """
        self._kept += 1
        kept = Kept(self._token, self._kept)
        self._check(self._ask(function, args, kwargs, timeout, keep=kept), "keep")
        return kept

    def diagnose(self) -> str:
        """Return where each process stands, and who has not reached what the others wait for.

        `run` says so where it ends by its timeout, or by Ctrl-C; while it runs, another thread can
        ask. No process has to answer for this, so it works while they hang. Only lines of your own
        code are shown, not those of libraries.

        Example:
            >>> with Workers(1) as workers:
            ...     print(workers.diagnose())
            [0] has finished
            Nothing can be said: none of them is seen at a line of the program.
        """
        return diagnosis(
            [worker.where(self._answers) for worker in self._workers], time.monotonic()
        )

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.count} workers{'' if self._workers else ', ended'}>"

    def _ask(
        self,
        function: Callable[..., Any] | Kept,
        args: tuple,
        kwargs: dict[str, Any],
        timeout: float | None,
        keep: Kept | None = None,
        stalled_after: float | None = None,
    ) -> list[Any]:
        if not isinstance(function, Kept):
            require_function("run", function)
        for name, value in (("timeout", timeout), ("stalled_after", stalled_after)):
            if value is not None:
                require_seconds(name, value)
        sent = function, *args, *kwargs.values()
        if any(isinstance(it, Kept) and it.workers != self._token for it in sent):
            raise ValueError("This has been kept by other workers; only they have it.")
        if not self._workers:
            raise WorkerError("These workers have ended. Make new ones: Workers(...).")
        request = pickle.dumps((*_pickled((function, args, kwargs)), keep))
        with self._lock:
            try:
                for worker in self._workers:
                    worker.last.clear()
                    with suppress(OSError):  # It has died; _collect finds out, and says so.
                        worker.connection.send_bytes(request)
                return self._collect(timeout, stalled_after)
            except BaseException as error:  # Nobody will read their answers.
                if isinstance(error, KeyboardInterrupt):
                    print(f"\n{self.diagnose()}", file=sys.stderr, flush=True)
                self.close()
                raise

    def _collect(self, timeout: float | None, stalled_after: float | None = None) -> list[Any]:
        """Show what the workers print until all have answered, and return the answers."""
        self._answers = answers = {}
        stalls = _Stalls(stalled_after or math.inf)
        end = math.inf if timeout is None else time.monotonic() + timeout
        while missing := {w.connection: w for w in self._workers if w.number not in answers}:
            pipes = {worker.output: worker for worker in self._workers if not worker.said_all}
            # Now and then, for if a child of one that has died holds its connection, nothing ends.
            left = end - time.monotonic()
            ready = wait([*missing, *pipes], max(0.0, min(left, 1.0)))
            for each in ready:
                if each in pipes:
                    pipes[each].show()
                else:
                    worker = missing[each]
                    with suppress(TimeoutError):  # Its answer is not whole, and the time is up.
                        answers[worker.number] = worker.answer(end - time.monotonic())
                    if isinstance(answers.get(worker.number), WorkerError):
                        end = min(end, time.monotonic() + GRACE)
            if not ready:
                gone = [worker for worker in missing.values() if not worker.alive]
                answers |= {worker.number: worker.died() for worker in gone}
                if gone:
                    end = min(end, time.monotonic() + GRACE)
            if stalls.begin(ready, missing.values()):
                still = f"No process has moved for {format_seconds(stalled_after)}."
                print(f"{still}\n{self.diagnose()}", file=sys.stderr, flush=True)
            if left <= 0:
                break
        for worker in self._workers:
            worker.show_rest()
        failed = any(isinstance(answer, WorkerError) for answer in answers.values())
        silent = [worker for worker in self._workers if worker.number not in answers]
        if silent and not failed:
            have = ("has", "have")[len(silent) > 1]
            who = numbers(worker.number for worker in silent)
            late = f"{who} {have} not ended after {timeout:g} s.\n{self.diagnose()}"
        for worker in silent:
            answers[worker.number] = (
                worker.error("had to be ended, as it went on waiting for one that has failed")
                if failed
                else WorkerError(late, worker.number, 2)
            )
        if silent or not all(worker.alive for worker in self._workers):
            self.close()
        return [answers[number] for number in range(self.count)]

    def _check(self, outcomes: list[Any], what: str) -> None:
        errors = [outcome for outcome in outcomes if isinstance(outcome, WorkerError)]
        if errors:
            # Who has died is the reason why others failed, and who waits is none.
            error = min(errors, key=lambda error: error.rank)
            if also := [str(other.worker) for other in errors if other is not error]:
                error.add_note(f"{what}: number {', '.join(also)} failed as well.")
            raise error


@dataclass
class _Worker:
    number: int
    process: subprocess.Popen
    connection: Connection
    board: Board
    said_all: bool = False

    def __post_init__(self) -> None:
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._begun = ""
        self._receiver = ThreadPoolExecutor(1)
        self.output = self.process.stdout
        os.set_blocking(self.output.fileno(), False)

    @classmethod
    def start(cls, number: int, settings: dict[str, Any]) -> "_Worker":
        ours, theirs = Pipe()
        board = Board()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "d2lpar._processes.worker"),
                *map(str, handed := (theirs.fileno(), board.file.fileno())),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(settings | {"number": number}),
            pass_fds=handed,
            start_new_session=True,  # Ctrl-C is for this process, and what they start ends as well.
            bufsize=0,
        )
        theirs.close()  # So that the end of either process is the end of the connection.
        if settings["core"] is not None:  # Before there is a second thread.
            os.sched_setaffinity(process.pid, {settings["core"]})
        worker = cls(number, process, ours, board)
        with suppress(OSError):
            ours.send(settings | {"number": number})
        return worker

    def close(self) -> None:
        self._receiver.shutdown()  # The process has ended, and so has what it was sending.
        self.connection.close()
        self.output.close()
        self.board.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def where(self, answers: dict[int, Any]) -> Process:
        """Return where it stands, as far as that is known from here."""
        fate = ""
        if self.number in answers:
            fate = "has failed" if isinstance(answers[self.number], WorkerError) else "has finished"
        elif not self.alive:
            fate = f"has died: {exit_status(self.process.returncode)}"
        elif psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED:
            fate = "is stopped (SIGSTOP), and goes on with SIGCONT"
        return Process(self.number, self.board.read(), fate, self.last[-1] if self.last else "")

    def answer(self, seconds: float) -> Any:
        """Return what it has answered, or the error.

        Raises:
            TimeoutError: If the answer has begun, but is not whole after so many seconds, or five.
        """
        try:
            # In a thread: an answer larger than a pipe holds takes as long as its sender does. One
            # that has begun with the deadline is still waited for a little.
            message = self._receiver.submit(self.connection.recv_bytes).result(
                None if math.isinf(seconds) else max(GRACE, seconds)
            )
        except (EOFError, ConnectionError):
            return self.died()
        kind, *answer = pickle.loads(message)
        if kind == "result":
            return pickle.loads(answer[0])
        if kind == "exit":
            return self.error(f"ended with the exit status {answer[0]}.", rank=1, said=False)
        return self.error(f"failed:\n{answer[0]}".rstrip(), rank=1)

    def died(self) -> WorkerError:
        """Return the error of one that has ended by itself."""
        try:
            status = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:  # What it ran has closed all files, and lives.
            return self.error("has closed its connection, and can no longer be asked", rank=0)
        return self.error(f"has died: {exit_status(status)}", rank=0)

    def error(self, what: str, rank: int = 2, said: bool = True) -> WorkerError:
        self.show_rest()
        last = "".join(f"\n  {line}" for line in self.last if said)
        last = f".\nThe last that it printed:{last}" if last else "." * said
        return WorkerError(f"Process {self.number} {what}{last}", self.number, rank)

    def show(self) -> None:
        """Show what it has printed, as far as that has come."""
        try:
            read = self.output.read(1 << 16)
        except OSError:
            read = b""
        if read is None:  # Nothing more for now.
            return
        self.said_all = not read
        *lines, self._begun = (self._begun + self._decode(read)).split("\n")
        self._show(lines)

    def show_rest(self) -> None:
        """Show what it has printed by now, also a line without an end."""
        for _ in range(100):  # It may be printing all the time.
            if self.said_all or not wait([self.output], 0):
                break
            self.show()
        self._show([self._begun] if self._begun else [])
        self._begun = ""

    def _show(self, lines: Iterable[str]) -> None:
        for line in lines:
            if not _GREETING.match(line):
                self.last.append(line)
                print(f"[{self.number}] {line}", flush=True)


class _Stalls:
    """Tells when nothing has moved for so long, once each time."""

    def __init__(self, after: float) -> None:
        self._after, self._heard, self._told = after, time.monotonic(), 0.0

    def begin(self, heard: bool, workers: Iterable[_Worker]) -> bool:
        """Return whether nothing has moved in any of them for that long, for the first time."""
        if heard or math.isinf(self._after):
            self._heard = time.monotonic()
            return False
        moved = max(Process(worker.number, worker.board.read()).moved() for worker in workers)
        last = max(self._heard, moved)
        if last == self._told or time.monotonic() - last < self._after:
            return False
        self._told = last
        return True


def _end(workers: list[_Worker], owner: int, cookie: str, port: socket.socket) -> None:
    """End the processes and what they have started; they have nothing that has not been sent."""
    if os.getpid() != owner:  # A forked child ends, and has copies of the objects of its parent.
        return
    interrupted = None
    while workers:
        try:
            end_all_with(cookie, [worker.process.pid for worker in workers if worker.alive])
            for worker in workers:
                with suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
                worker.process.wait()
                worker.close()
            workers.clear()
        except KeyboardInterrupt as error:  # Who presses Ctrl-C twice wants them to end as well.
            interrupted = error
    port.close()  # Also if none of them could be started.
    if interrupted:
        raise interrupted


def end_all_with(cookie: str, pids: Sequence[int]) -> None:
    """End processes and all that they have started, but not this one.

    These are known by their parents, and by the cookie in their environment: some have a session of
    their own, and no parent any more. The youngest are ended first, and none is waited for before
    all are: so of two that do this, none ends the other before what is left.
    """
    for _ in range(9):  # They may start further ones meanwhile.
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # It is another user's, or has ended.
                if process.pid in pids or process.environ().get(COOKIE) == cookie:
                    found.add(process)
        for process in [*found]:
            with suppress(psutil.Error):
                found |= {*process.children(recursive=True)}
        found = {process for process in found if process.pid != os.getpid() and _lives(process)}
        if not found:
            break
        for process in sorted(found, key=lambda process: process.create_time(), reverse=True):
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, 0.2)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _environment(settings: dict[str, Any]) -> dict[str, str]:
    own = {
        "PYTHONUNBUFFERED": "1",  # What a process has printed before it hangs or dies is shown.
        COOKIE: settings["cookie"],
        "D2LPAR_PROCESS": str(settings["number"]),
        "RANK": str(settings["number"]),
        "LOCAL_RANK": str(settings["number"]),
        "WORLD_SIZE": str(settings["count"]),
    }
    if settings["devices"] is not None:
        flags = os.environ.get("XLA_FLAGS", "")
        own |= {
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "XLA_FLAGS": re.sub(r"--xla_force_host_platform_device_count=\d+", "", flags),
            "JAX_NUM_CPU_DEVICES": str(settings["devices"]),
        }
    if not settings["gpus"] and (settings["devices"] or "JAX_PLATFORMS" not in os.environ):
        own["JAX_PLATFORMS"] = "cpu"  # All of them would reserve memory of the same GPU.
    return os.environ | own


def _pickled(call: tuple) -> tuple[bytes, dict[str, list[str]]]:
    """Pickle a function and its arguments, and find the source of what is in no file.

    Functions keep the names of their files, which cloudpickle leaves out: errors name them, and so
    does `diagnose`.
    """
    with needs("processes"):
        import cloudpickle
    sources: dict[str, list[str]] = {}
    known = cloudpickle.Pickler.dispatch_table

    def reduced(code: CodeType) -> tuple:
        file = code.co_filename
        if not os.path.exists(file):  # The cell of a notebook.
            sources[file] = linecache.getlines(file)
        kind, given = known[CodeType](code)
        return kind, tuple(file if str(it) == "<dynamic-code>" else it for it in given)

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar = ChainMap({CodeType: reduced}, known)

    buffer = io.BytesIO()
    Pickler(buffer).dump(call)
    return buffer.getvalue(), sources


def _gpus_here() -> int:
    """Return how many GPUs JAX finds, in a process of its own: here it may not be set up yet."""
    program = "import d2lpar; print(d2lpar.num_gpus())"
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    asked = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | own, capture_output=True, text=True
    )
    return int(asked.stdout.split()[-1]) if asked.stdout.strip() else 0


def _reserved(port: int) -> socket.socket:
    """Return a socket that keeps a port, the given one or with 0 one that is free, for JAX.

    JAX's coordinator shares its port with whoever wants it as well (gRPC sets SO_REUSEPORT), and
    the processes of two programs with the same port would meet each other.
    """
    keeper = socket.socket()
    try:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Though it was just in use.
        keeper.bind(("127.0.0.1", port))
        # From now on nobody gets it who does not share it: neither do two that come this way.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except (OSError, OverflowError) as error:
        keeper.close()
        raise WorkerError(
            f"The processes cannot meet at 127.0.0.1:{port}: {error}. Choose another port, or "
            "leave it out."
        ) from error
    return keeper
