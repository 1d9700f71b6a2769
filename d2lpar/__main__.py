"""Say what JAX sees here; watch, run or compare programs: `python -m d2lpar`.

Nothing is imported before it is needed: `--help` takes no time, and a script imports JAX by itself,
after it has set the variables that JAX reads then.
"""

import argparse
import ast
import atexit
import builtins
import fcntl
import gc
import importlib.util
import os
import re
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from d2lpar._errors import D2lparError
from d2lpar._format import write_whole

if TYPE_CHECKING:
    from d2lpar._watched import Watched


def main() -> None:
    """Print the machine and the versions here, or do what the command asks for."""
    asked = _parser().parse_args()
    sys.exit(asked.do(asked))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="d2lpar",
        description="Say what JAX sees on this machine; or watch a script, run it in several "
        "processes, or compare two versions of it.",
    )
    parser.add_argument("--version", action="store_true", help="print the version of d2lpar")
    parser.set_defaults(do=show)
    commands = parser.add_subparsers(metavar="watch | run | merge | compare")
    watching = commands.add_parser(
        "watch",
        help="run a script, and say which of its lines keep the device waiting",
        description="Run a script as Python would, and say which of its lines keep the device "
        "waiting. The report goes to standard error; the exit status is the script's own.",
    )
    watching.add_argument(
        "--json", type=Path, metavar="FILE", help="write the report there as well"
    )
    watching.add_argument(
        "--fail-over",
        type=share,
        metavar="SHARE",
        help="exit with 1 if one line loses more of the time after the start, for example 5%%; or "
        "if that cannot be seen",
    )
    watching.add_argument(
        "--after",
        type=seconds,
        metavar="TIME",
        help="count as the start what comes before, for example 30s",
    )
    running = commands.add_parser(
        "run",
        help="run a script in several processes of this machine",
        description="Run a script in several processes of this machine, as mpirun or Slurm would: "
        "jax.distributed.initialize(), called without arguments, joins them. If one fails, all "
        "are ended, and the exit status is 1.",
    )
    running.add_argument("-n", "--processes", type=int, default=2, help="how many (2)")
    running.add_argument(
        "--pin", action="store_true", help="give each a CPU core of its own (Linux)"
    )
    running.add_argument("--gpus", action="store_true", help="give each a GPU of its own")
    running.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="end them if they take longer"
    )
    running.add_argument(
        "--stalled-after",
        type=seconds,
        metavar="TIME",
        help="say at which line each process stands if nothing has moved for so long, for example "
        "60s; so do Ctrl-C, the signal SIGUSR1, and --timeout",
    )
    running.add_argument(
        "--watch",
        action="store_true",
        help="watch each, and say which was late and at which of its lines",
    )
    running.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="with --watch, write the report of each: FILE with its number before the suffix",
    )
    for command, do in ((watching, watch), (running, run)):
        command.add_argument("script", help="a file; with -m, a module such as package.train")
        command.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
        command.set_defaults(do=do, refuse=command.error)
    merging = commands.add_parser(
        "merge",
        help="say which process was late, from the reports of all",
        description="Say which of several processes was late and at which of its lines, from the "
        "files that `watch --json` has written of each, for example under mpirun or srun.",
    )
    merging.add_argument("files", nargs="+", type=Path, help="such as report.*.json")
    merging.set_defaults(do=lambda asked: merge(asked.files))
    comparing = commands.add_parser(
        "compare",
        help="say which of two versions of a program is faster",
        description="Say which of two versions of a program is faster, and by how much: from two "
        "files that Comparison.to_json has written; or of two commits, whose script is run in turn "
        "and prints that as its last line.",
        usage="d2lpar compare [-h] before.json after.json\n"
        "       d2lpar compare [-h] --before COMMIT [--after COMMIT] [--rounds N] "
        "[--fail-over SHARE] [-m] script [arguments]",
    )
    comparing.add_argument("--before", metavar="COMMIT", help="run the script of this commit")
    comparing.add_argument(
        "--after", metavar="COMMIT", help="and of this one; without it, of the files as they are"
    )
    comparing.add_argument(
        "--rounds", type=int, metavar="N", help="how often to run each (6; fewer give no interval)"
    )
    comparing.add_argument(
        "--fail-over",
        type=share,
        metavar="SHARE",
        help="exit with 1 if a result is surely later by more, for example 5%%, and with 2 if that "
        "cannot be said",
    )
    comparing.add_argument("script", help="the first file; with --before, a script")
    comparing.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the second file; or what the script is given"
    )
    comparing.set_defaults(do=compare, refuse=comparing.error)
    for command in (watching, running, comparing):
        command.add_argument(
            "-m", dest="module", action="store_true", help="the script is a module, as for Python"
        )
    return parser


def show(asked: argparse.Namespace) -> None:
    """Print the version, or the machine and the packages here."""
    if asked.version:
        print(f"d2lpar {version('d2lpar')}")
        return
    from d2lpar._devices import this_machine, versions

    rows = this_machine().rows | {"Packages": ", ".join(map(" ".join, versions().items()))}
    for name, value in rows.items():
        print(f"{name:<12}{value}")


def watch(asked: argparse.Namespace) -> int:
    """Run a script in this process, and say which of its lines keep the device waiting."""
    from d2lpar._reports import of_process, process_number

    script = _script(asked)
    if asked.json and (number := process_number()) is not None:
        asked.json = of_process(asked.json, number)
    return run_and_report(script, Report(asked.json, asked.fail_over, asked.after))


def run(asked: argparse.Namespace) -> int | str:
    """Run a script in several processes, and return the exit status, or what went wrong."""
    from d2lpar._reports import of_process
    from d2lpar._workers import Workers

    script = _script(asked)
    if asked.json and not asked.watch:
        asked.refuse("--json needs --watch: it writes what that has seen")
    options = {"pin": asked.pin, "gpus": asked.gpus, "initialize": False, "devices": None}
    limits = {"timeout": asked.timeout, "stalled_after": asked.stalled_after}
    with tempfile.TemporaryDirectory() as folder:
        json = (asked.json or Path(folder, "report.json")).absolute() if asked.watch else None
        files = [of_process(json, n) for n in range(asked.processes)] if json else []
        for file in files:
            file.unlink(missing_ok=True)  # Of an earlier run.
        ended: int | str = 0
        workers = None

        def say_where(*_: object) -> None:
            said = workers.diagnose() if workers else "The processes are being started."
            # No print: the signal may have come during one, which Python then refuses.
            os.write(sys.stderr.fileno(), f"{said}\n".encode(errors="backslashreplace"))

        def say_where_and_end(*_: object) -> None:
            say_where()
            sys.exit(128 + signal.SIGTERM)

        signal.signal(signal.SIGUSR1, say_where)
        signal.signal(signal.SIGTERM, say_where_and_end)
        try:
            with Workers(asked.processes, **options) as workers:
                workers.run(run_in_worker, script, json, **limits)
        except (D2lparError, ImportError, ValueError) as error:
            ended = str(error)
        except KeyboardInterrupt:
            ended = 128 + signal.SIGINT
        if written := [file for file in files if file.exists()]:
            merge(written)
    return ended


def _script(asked: argparse.Namespace) -> "Script":
    """Return the script, or refuse what cannot be run, or reported of."""
    if not asked.module and not Path(asked.script).is_file():
        asked.refuse(f"there is no script {asked.script!r}")
    if asked.json and not os.access(asked.json.parent, os.W_OK):
        missing = "cannot write to the" if asked.json.parent.is_dir() else "there is no"
        asked.refuse(f"{missing} folder {str(asked.json.parent)!r} for the report")
    if asked.json and asked.json.is_dir():
        asked.refuse(f"{str(asked.json)!r} is a folder, and no file for the report")
    return Script(asked.script, asked.module, asked.arguments)


def run_and_report(script: "Script", report: "Report | None") -> int:
    """Run a script in this process to the end of its threads, report, and return its status."""
    if report:
        report.begin()
    status = script.run()
    with suppress(KeyboardInterrupt):
        threading._shutdown()  # Python waits for the threads of a program before it ends.
    return report.end(status) if report else status


def run_in_worker(script: "Script", json: Path | None) -> None:
    """Run a script in one of several processes, watched if there is a file; exit as it does."""
    from d2lpar._reports import of_process

    number = int(os.environ["RANK"])
    report = Report(of_process(json, number), prints=False) if json else None
    status = run_and_report(script, report)
    # A worker never ends by itself. After a failure, JAX would wait for what can never be done.
    if not status:
        if distributed := sys.modules.get("jax._src.distributed"):
            # It would wait for the others; these go on all the same.
            distributed.shutdown = lambda: None
        atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()  # Which closes the files that are open.
    gc.collect()
    if status:
        sys.exit(status)


def merge(files: Sequence[Path]) -> int | str:
    """Say on standard error which process was late, and what was seen of each."""
    from d2lpar._reports import compared
    from d2lpar._watched import Watched

    reports = {}
    for place, file in enumerate(files):
        found = re.search(r"\.(\d+)\.[^.]*$", file.name)
        number = int(found[1]) if found else place
        if number in reports:
            return f"{file}: there is another report of process {number}."
        try:
            reports[number] = Watched.from_json(file.read_text())
        except (OSError, ValueError) as error:
            return f"{file}: {error}"
    print(f"\n{compared(reports)}", file=sys.stderr)
    return 0


_OF_TWO_COMMITS = {"--before", "--after", "--rounds", "--fail-over"}


def compare(asked: argparse.Namespace) -> int:
    """Say which of two versions is faster; 1 if one is too slow, and 2 if that cannot be said."""
    if "" in (asked.before, asked.after):
        asked.refuse("--before and --after need a commit, found ''")
    behind = [one for one in asked.arguments if one.split("=")[0] in _OF_TWO_COMMITS]
    if asked.before and not asked.module and not Path(asked.script).is_file():
        asked.refuse(f"there is no script {asked.script!r}")
    if asked.before and behind:
        print(f"{behind[0]} stands behind the script, so it goes to the script.", file=sys.stderr)
    if asked.fail_over is not None and asked.rounds is not None and asked.rounds < 6:
        asked.refuse("--fail-over needs six rounds: fewer have no interval, and nothing would fail")
    if not asked.before:
        if behind:
            asked.refuse(f"{behind[0]} has to stand before the script")
        only = {"--after": asked.after, "--rounds": asked.rounds, "--fail-over": asked.fail_over}
        only["-m"] = asked.module or None
        if given := [name for name, value in only.items() if value is not None]:
            asked.refuse(
                f"{given[0]} needs --before COMMIT: of two files it would say nothing sure"
            )
        if len(asked.arguments) != 1:
            asked.refuse("give two files, or --before COMMIT and a script")
    with _ended_by_signals():
        return _compare(asked)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let each signal that ends a program end it after cleaning up, which no other one disturbs."""
    here = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heard = [one for one, handler in here.items() if handler != signal.SIG_IGN]

    def end(number: int, _: object) -> None:
        for one in heard:
            signal.signal(one, signal.SIG_IGN)
        sys.exit(128 + number)

    for one in heard:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in heard:
            signal.signal(one, here[one])


def _compare(asked: argparse.Namespace) -> int:
    from d2lpar import _versions

    try:
        if asked.before:
            program = _versions.Program(asked.script, asked.module, asked.arguments)
            rounds = 6 if asked.rounds is None else asked.rounds
            names, runs, notes = _versions.in_turn(program, asked.before, asked.after, rounds)
            found = _versions.changes_in_turn(runs)
        else:
            names = asked.script, asked.arguments[0]
            runs = [(_versions.read(Path(names[0])), _versions.read(Path(names[1])))]
            _versions.require_common(names, *runs[0])
            found, notes = _versions.changes(*runs[0]), [_versions.TWO_RUNS]
    except (D2lparError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(_versions.report(names, runs, found, notes))
    if asked.fail_over is None:
        return 0
    if any(change.needs for change in found):
        return 2
    return int(any(change.is_surely_later(1 + asked.fail_over) for change in found))


def share(given: str) -> float:
    """Read a share between 0 and 1, or one in per cent."""
    try:
        number = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"a share lies between 0 % and 100 %, found {given!r}")
    return number


def seconds(given: str) -> float:
    """Read a time in seconds or, with `m` behind it, in minutes."""
    try:
        number = float(given.rstrip("sm")) * (60 if given.endswith("m") else 1)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"a time is a number of seconds, as 30s, found {given!r}")
    return number


class Report:
    """What `watch` prints and writes when a script has ended, however it ends."""

    def __init__(
        self,
        json: Path | None,
        fail_over: float | None = None,
        after: float | None = None,
        prints: bool = True,
    ) -> None:
        from d2lpar._watch import Watcher

        self._json = json.absolute() if json else None
        self._fail_over, self._prints = fail_over, prints
        self._process = os.getpid()
        self._watcher = Watcher(after=after, on_look=self._write_now_and_then, of_command=True)
        self._due = time.monotonic() + 10
        # The script may close its standard error, or send it elsewhere. Far from the numbers that
        # its own files get.
        self._stderr = 2
        with suppress(OSError, ValueError):
            self._stderr = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 200)

    def begin(self) -> None:
        """Watch from now on, and see to it that the report comes."""
        exit_at_once = os._exit

        def report_and_exit(status: int) -> None:
            exit_at_once(self.end(status))

        def report_and_terminate(*_: object) -> None:
            self.end(128 + signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

        os._exit = report_and_exit
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, report_and_terminate)
        self._watcher.start()

    def end(self, status: int) -> int:
        """Report, once, and return the exit status; a forked child reports nothing."""
        if os.getpid() != self._process or self._watcher is None:
            return status
        watcher, self._watcher = self._watcher, None
        with suppress(Exception):
            sys.stdout.flush()
        watcher.stop()
        watched = watcher.watched
        self._print(f"\n{watched}")
        if watcher.error:
            self._print(f"\nWatching ended early: {watcher.error!r}")
        if self._json:
            write_whole(self._json, watched.to_json())
        return status or int(self._fails(watched))

    def _fails(self, watched: "Watched") -> bool:
        from d2lpar._watched import KINDS

        if self._fail_over is None:
            return False
        if watched.judged_seconds < watched.TOO_SHORT:
            self._print("\nToo short to judge: less than two seconds came after the start.")
            return False
        too_much = watched.losses(self._fail_over)
        for found in too_much:
            self._print(
                f"\nMore than {self._fail_over:.0%}: {found.place} {KINDS[found.kind][0]}, which "
                f"costs {watched.loss(found):.1%} of the time."
            )
        if not watched.observed_seconds:
            self._print(f"\nIt cannot be judged. {watched.notes[-1]}")
        return bool(too_much) or not watched.observed_seconds

    def _print(self, text: str) -> None:
        for descriptor in (self._stderr, 2) if self._prints else ():
            with suppress(OSError):
                os.write(descriptor, f"{text}\n".encode())
                break

    def _write_now_and_then(self) -> None:
        """Write the report so far, for whoever is killed; ever more rarely."""
        if self._json and time.monotonic() > self._due:
            began = time.monotonic()
            self._watcher.report()
            write_whole(self._json, self._watcher.watched.to_json())
            self._due = time.monotonic() + max(10.0, 50 * (time.monotonic() - began))


class Script:
    """A script or a module that is to run as the main program, as Python would run it."""

    def __init__(self, name: str, is_module: bool, arguments: list[str]) -> None:
        self.name, self.is_module, self.arguments = name, is_module, arguments

    def installed_package(self) -> str:
        """Return the installed package that the program is, or ""."""
        if self.is_module:
            return self.name.split(".")[0]
        if Path(self.name).absolute().parent != Path(sysconfig.get_path("scripts")):
            return ""
        with suppress(SyntaxError, UnicodeDecodeError):
            # A console script imports the function that it calls, and nothing else but Python's.
            for node in ast.walk(ast.parse(Path(self.name).read_bytes())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    return node.module.split(".")[0]
        return ""

    def run(self) -> int:
        """Run it in this process, and return its exit status."""
        if package := self.installed_package():
            from d2lpar._stack import belongs_to_the_user

            belongs_to_the_user(package)
        status = 0
        try:
            self._execute()
        except SystemExit as exit:
            if exit.code is None or isinstance(exit.code, int):
                status = exit.code or 0
            else:
                print(exit.code, file=sys.stderr)
                status = 1
        except BaseException as error:
            # From the script on: how it was started is no concern of its author.
            traceback = error.__traceback__
            while traceback and traceback.tb_frame.f_code.co_filename == __file__:
                traceback = traceback.tb_next
            status = 130 if isinstance(error, KeyboardInterrupt) else 1
            with suppress(SystemExit):
                sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return status

    def _execute(self) -> None:
        main_module = types.ModuleType("__main__")
        vars(main_module).update(__builtins__=builtins, __annotations__={}, __cached__=None)
        sys.modules["__main__"] = main_module
        sys.path[0] = os.getcwd() if self.is_module else str(Path(self.name).resolve().parent)
        if self.is_module:
            spec = importlib.util.find_spec(self.name)
            if spec and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{self.name}.__main__")
            if spec is None or spec.loader is None:
                sys.exit(f"There is no module {self.name!r} to run.")
            code, file = spec.loader.get_code(spec.name), spec.origin
            main_module.__spec__, main_module.__package__ = spec, spec.parent
            main_module.__loader__ = spec.loader
        else:
            file = os.path.abspath(self.name)
            code = compile(Path(file).read_bytes(), file, "exec")
            main_module.__loader__ = SourceFileLoader("__main__", file)
        main_module.__file__ = file
        sys.argv = [file if self.is_module else self.name, *self.arguments]
        exec(code, main_module.__dict__)


if __name__ == "__main__":
    # What is sent to other processes is found there by the name of this module.
    from d2lpar.__main__ import main

    main()
