"""`python -m d2lpar watch`: run a script, and report its lines however it ends."""

import argparse
import fcntl
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from d2lpar._jax.stack import belongs_to_the_user
from d2lpar._plain.format import write_whole
from d2lpar._plain.script import Script
from d2lpar._watch.report import KINDS, Watched
from d2lpar._watch.sampler import Watcher

# As JAX finds out, and where it cannot. A batch script of Slurm has a number, but is in no step.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
)


def watch(asked: argparse.Namespace) -> int:
    """Run a script in this process, and say which of its lines keep the device waiting."""
    script = script_to_run(asked)
    if asked.json and (number := process_number()) is not None:
        asked.json = path_for_process(asked.json, number)
    return run_and_report(script, Report(asked.json, asked.fail_over, asked.after))


def script_to_run(asked: argparse.Namespace) -> Script:
    """Return the script, or refuse what cannot be run, or reported of."""
    if not asked.module and not Path(asked.script).is_file():
        asked.refuse(f"there is no script {asked.script!r}")
    if asked.json and not os.access(asked.json.parent, os.W_OK):
        missing = "cannot write to the" if asked.json.parent.is_dir() else "there is no"
        asked.refuse(f"{missing} folder {str(asked.json.parent)!r} for the report")
    if asked.json and asked.json.is_dir():
        asked.refuse(f"{str(asked.json)!r} is a folder, and no file for the report")
    return Script(asked.script, asked.module, asked.arguments)


def run_and_report(script: Script, report: "Report | None") -> int:
    """Run a script in this process to the end of its threads, report, and return its status."""
    if package := script.installed_package():
        belongs_to_the_user(package)
    if report:
        report.begin()
    status = script.run()
    with suppress(KeyboardInterrupt):
        threading._shutdown()  # Python waits for the threads of a program before it ends.
    return report.end(status) if report else status


def process_number() -> int | None:
    """Return which of the processes this is that a launcher has started; None if it is alone."""
    for number, count in _LAUNCHERS:
        if int(os.environ.get(count, 1)) > 1 and number in os.environ:
            return int(os.environ[number])
    return None


def path_for_process(path: Path, number: int) -> Path:
    """Return the file of one process, where `path` is asked for.

    Example:
        >>> path_for_process(Path("runs/report.json"), 3).as_posix()
        'runs/report.3.json'
    """
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


class Report:
    """What `watch` prints and writes when a script has ended, however it ends."""

    def __init__(
        self,
        json: Path | None,
        fail_over: float | None = None,
        after: float | None = None,
        prints: bool = True,
    ) -> None:
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

    def _fails(self, watched: Watched) -> bool:
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
