"""`python -m d2lpar watch`: run a script, and report the lines that keep its devices waiting."""

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
from d2lpar._plain.format import plural, write_whole
from d2lpar._plain.script import Script
from d2lpar._watch.report import KINDS, Watched
from d2lpar._watch.sampler import Watcher
from d2lpar._watch.shares import FEWEST

_SECONDS_OF_A_WINDOW = 0.3  # With the pause that follows, at first.

# Variables with the number and the count of the processes. JAX detects the first two launchers. A
# batch script of Slurm has a number, but no SLURM_STEP_NUM_TASKS: it belongs to no step.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
)


def watch(options: argparse.Namespace) -> int:
    """Run a script in this process, and report which of its lines keep the device waiting."""
    script = script_to_run(options)
    if options.json and (number := process_number()) is not None:
        options.json = path_for_process(options.json, number)
    report = Report(options.json, options.fail_over, options.after, everything=options.all)
    return run_and_report(script, report)


def script_to_run(options: argparse.Namespace) -> Script:
    """Return the script; refuse one that is missing, and a report that cannot be written."""
    if not options.module and not Path(options.script).is_file():
        options.refuse(f"there is no script {options.script!r}")
    json = options.json
    if json and (json.is_dir() or not os.access(json.parent, os.W_OK)):
        options.refuse(f"the report cannot be written to {str(json)!r}")
    return Script(options.script, options.module, options.arguments)


def run_and_report(script: Script, report: "Report | None") -> int:
    """Run a script in this process, wait for its threads, report, and return its exit status."""
    if package := script.installed_package():
        belongs_to_the_user(package)
    if report:
        report.begin()
    status = script.run()
    with suppress(KeyboardInterrupt):
        threading._shutdown()  # Join the threads of the script, as Python does at its exit.
    return report.end(status) if report else status


def process_number() -> int | None:
    """Return the number of this process if a launcher has started several, else None."""
    for number, count in _LAUNCHERS:
        if int(os.environ.get(count, 1)) > 1 and number in os.environ:
            return int(os.environ[number])
    return None


def path_for_process(path: Path, number: int) -> Path:
    """Return the file for one of several processes: `report.3.json` for `report.json`."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


class Report:
    """Watches a script, and reports when it ends: normally, by an error, or by a signal."""

    def __init__(
        self,
        json: Path | None,
        fail_over: float | None = None,
        after: float | None = None,
        prints: bool = True,
        everything: bool = False,
    ) -> None:
        self._json = json.absolute() if json else None
        self._fail_over, self._prints, self._everything = fail_over, prints, everything
        self._process = os.getpid()
        self._watcher = Watcher(after=after, on_sample=self._write_now_and_then, gives_way=True)
        self._due = time.monotonic() + 10
        # Duplicate standard error, since the script may close or redirect it. Start at 200, out of
        # the way of the descriptors that the script's own files get.
        self._stderr = 2
        with suppress(OSError, ValueError):
            self._stderr = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 200)

    def begin(self) -> None:
        """Start watching; report also if the script calls `os._exit` or receives SIGTERM."""
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
        """Report once, and return the exit status; a forked child reports nothing."""
        if os.getpid() != self._process or self._watcher is None:
            return status
        watcher, self._watcher = self._watcher, None
        with suppress(Exception):
            sys.stdout.flush()
        watcher.stop()
        watched = watcher.watched
        self._print(f"\n{watched.report(self._everything)}")
        if watcher.error:
            self._print(f"\nWatching ended early: {watcher.error!r}")
        if self._json:
            write_whole(self._json, watched.to_json())
        return status or int(self._fails(watched))

    def _fails(self, watched: Watched) -> bool:
        if self._fail_over is None:
            return False
        too_much = watched.losses(self._fail_over)
        for finding in too_much:
            self._print(
                f"\nMore than {self._fail_over:.0%}: {finding.place} {KINDS[finding.kind][0]}, "
                f"which costs {watched.loss(finding):.1%} of the time."
            )
        if watched.windows >= FEWEST and watched.unseen_seconds < 0.5 * watched.judged_seconds:
            return bool(too_much)
        if watched.judged_seconds < (needed := _SECONDS_OF_A_WINDOW * FEWEST):
            self._print(
                f"\nToo short to judge: {plural(watched.windows, 'window')} of the profiler came "
                f"after the start. {FEWEST} are needed, which takes about {needed:.0f} seconds."
            )
            return False
        self._print(f"\nIt cannot be judged. {' '.join(watched.notes)}")
        return True

    def _print(self, text: str) -> None:
        for descriptor in (self._stderr, 2) if self._prints else ():
            with suppress(OSError):
                os.write(descriptor, f"{text}\n".encode())
                break

    def _write_now_and_then(self) -> None:
        """Write the report up to now, ever more rarely: the process may be killed at any time."""
        watcher = self._watcher  # The main thread may be in `end`, which forgets it.
        if self._json and watcher and time.monotonic() > self._due:
            began = time.monotonic()
            watcher.report()
            write_whole(self._json, watcher.watched.to_json())
            self._due = time.monotonic() + max(10.0, 50 * (time.monotonic() - began))
