"""`python -m d2lpar watch`: run a script, and report the lines that keep its devices waiting."""

import argparse
import fcntl
import functools
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from d2lpar._jax.stack import belongs_to_the_user
from d2lpar._measure.mean_share import FEWEST
from d2lpar._plain.format import can_be_written, is_stream, plural, write_whole
from d2lpar._plain.script import Script
from d2lpar._watch.report import KINDS, Watched
from d2lpar._watch.sampler import Watcher

_SECONDS_OF_A_WINDOW = 0.3  # With the pause that follows, at first.

# Programs that run the user's code, and are not the user's.
_RUNNERS = {"pytest", "coverage", "IPython", "ipykernel_launcher"}

# Variables with the number and the count of the processes. JAX detects the first two launchers. A
# batch script of Slurm has a number, but no SLURM_STEP_NUM_TASKS: it belongs to no step.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
)


def watch(options: argparse.Namespace, state_file: Any = None) -> int:
    """Run a script in this process, and report which of its lines keep the device waiting."""
    script = script_to_run(options)
    launched, json = number_and_count(), options.json
    if json and launched and not is_stream(json):
        json = path_for_process(json, launched[0])
    limits = options.fail_over, options.after
    more = {"everything": options.all, "state_file": state_file}
    return run_and_report(script, Report(json, *limits, **more))


def script_to_run(options: argparse.Namespace) -> Script:
    """Return the script; refuse one that is missing, and a report that cannot be written."""
    if not options.module and not Path(options.script).is_file():
        options.refuse(f"there is no script {options.script!r}")
    if options.json and not can_be_written(options.json):
        options.refuse(f"the report cannot be written to {str(options.json)!r}")
    return Script(options.script, options.module, options.arguments)


def run_and_report(script: Script, report: "Report | None") -> int:
    """Run a script in this process, wait for its threads, report, and return its exit status."""
    package = script.installed_package()
    if package and package not in _RUNNERS:
        belongs_to_the_user(package)
    if report:
        report.begin()
    status = script.run()
    with suppress(KeyboardInterrupt):
        threading._shutdown()  # Join the threads of the script, as Python does at its exit.
    return report.end(status) if report else status


def number_and_count() -> tuple[int, int] | None:
    """Return the number of this process and their count if a launcher has started several."""
    for number, count in _LAUNCHERS:
        if int(os.environ.get(count, 1)) > 1 and number in os.environ:
            return int(os.environ[number]), int(os.environ[count])
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
        state_file: Any = None,  # A `_processes.hang_files.StateFile`.
    ) -> None:
        self._json = json.absolute() if json else None
        # Interim reports would fill a pipe, or follow one another in the output.
        self._writes_interim = json is not None and not is_stream(json)
        self._fail_over, self._prints, self._everything = fail_over, prints, everything
        self._process, self._state_file = os.getpid(), state_file
        self._watcher = Watcher(after=after, on_sample=self._write_now_and_then, gives_way=True)
        self._due = time.monotonic() + 10
        # Duplicate standard error, since the script may close or redirect it. Start at 200, out of
        # the way of the descriptors that the script's own files get.
        self._stderr = 2
        with suppress(OSError, ValueError):
            self._stderr = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 200)

    def begin(self) -> None:
        """Start watching; report also before `os._exit`, `os.execv`, and after SIGTERM."""
        exit_at_once = os._exit

        def report_and_terminate(*_: object) -> None:
            self.end(128 + signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

        os._exit = lambda status: exit_at_once(self.end(status))
        for name in ("execv", "execve"):  # All others of `os` call one of these.
            setattr(os, name, functools.partial(self._replace_process, getattr(os, name)))
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, report_and_terminate)
        if self._state_file:
            self._state_file.start()
        self._watcher.start()

    def _replace_process(
        self, replace: Callable[..., Any], path: Any, argv: Sequence[Any], *env: Any, **named: Any
    ) -> None:
        """Report before the process becomes a program that is not watched."""
        program = f"/dev/fd/{path}" if isinstance(path, int) else path
        # `os.execvp` tries the folders of PATH in turn, so most of its programs are missing.
        if self._is_open() and os.path.isfile(program) and os.access(program, os.X_OK):
            words = shlex.join(map(os.fsdecode, argv))
            note = f"The report ends where the script replaces its process by `{words}`."
            self.end(int(self._fail_over is not None), f"{note} That is not watched.")
            if self._fail_over is not None:
                self._print("\nThat program cannot be judged, so it has not been started.")
                os._exit(1)
        replace(path, argv, *env, **named)

    def _is_open(self) -> bool:
        """Return whether the report is still to come, and from this process, no forked child."""
        return os.getpid() == self._process and self._watcher is not None

    def end(self, status: int, *notes: str) -> int:
        """Report once, and return the exit status; a forked child reports nothing."""
        if not self._is_open():
            return status
        watcher, self._watcher = self._watcher, None
        if self._state_file:
            self._state_file.end(status)
        with suppress(Exception):
            sys.stdout.flush()
        watcher.stop()
        watched = watcher.watched
        watched.notes += notes
        self._print(f"\n{watched.report(self._everything)}")
        if watcher.error:
            self._print(f"\nWatching ended early: {watcher.error!r}")
        if self._json:
            write_whole(self._json, watched.to_json())
        return status or int(self._fails(watched))

    def _fails(self, watched: Watched) -> bool:
        if self._fail_over is None:
            return False
        needed = _SECONDS_OF_A_WINDOW * FEWEST
        is_unseen = watched.unseen_seconds > 0.5 * watched.judged_seconds
        if is_unseen and watched.judged_seconds >= needed:
            self._print(f"\nThis run cannot be judged. {' '.join(watched.notes)}")
            return True
        if is_unseen or watched.windows < FEWEST:
            self._print(
                f"\nToo short to judge: {plural(watched.windows, 'window')} of the profiler fell "
                f"after the start. At least {FEWEST} are needed, {needed:.0f} seconds or more."
            )
            return False
        too_much = watched.losses(self._fail_over)
        for finding in too_much:
            self._print(
                f"\nMore than {self._fail_over:.0%}: {finding.place} has lost "
                f"{watched.loss(finding):.1%} of the time ({KINDS[finding.kind][0]})."
            )
        return bool(too_much)

    def _print(self, text: str) -> None:
        for descriptor in (self._stderr, 2) if self._prints else ():
            with suppress(OSError):
                os.write(descriptor, f"{text}\n".encode(errors="backslashreplace"))
                break

    def _write_now_and_then(self) -> None:
        """Write the report up to now, ever more rarely: the process may be killed at any time."""
        watcher = self._watcher  # The main thread may be in `end`, which forgets it.
        if self._writes_interim and watcher and time.monotonic() > self._due:
            began = time.monotonic()
            watcher.report()
            write_whole(self._json, watcher.watched.to_json())
            self._due = time.monotonic() + max(10.0, 50 * (time.monotonic() - began))
