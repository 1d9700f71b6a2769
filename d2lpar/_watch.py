"""Find the lines of a program at which it loses time, by sampling its threads and its devices.

How it works. A thread looks at the stacks of all others, a hundred times a second. Now and then it
opens JAX's profiler for a short window (`_windows`), looks a thousand times a second meanwhile, and
so learns what each device did while Python was at which line. In a window, each moment in which a
device is idle is charged to the line of the thread that feeds that device, whatever it did there;
so the losses of all lines add up to the idle time of the device. Shares are of what comes after
the start, which ends with the first compilations, and carry an interval, as windows are a sample.
What compiles is heard from `jax.monitoring`, in the thread that compiles, whose stack says where.
"""

import _thread
import functools
import html
import json
import math
import os
import signal
import sys
import threading
import time
import weakref
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

from d2lpar._errors import D2lparError, renamed, require_seconds, require_values
from d2lpar._format import HOST, as_table, format_seconds, in_two_lines, plural, share_bar
from d2lpar._stack import (
    Place,
    Sight,
    Site,
    frames_outward,
    owner_of,
    processor_time,
    reads,
    sight_of,
)
from d2lpar._windows import Spans, Window, Windows

_BOOK = "https://d2lpar.github.io/d2lpar/book"
_CHAPTER = f"{_BOOK}/asynchronous-computation.html"
_RECIPES = f"{_BOOK}/in-your-own-code.html"

KINDS = {
    "value": (
        "waits for a value",
        "Keep the array, and read it a few steps later, when it is there already.",
        f"{_RECIPES}#a-loss-that-you-want-to-see",
    ),
    "barrier": (
        "waits at a barrier",
        "Leave it out, unless you stop a clock here; to bound memory, d2lpar.InFlight waits less.",
        f"{_CHAPTER}#barriers-and-blockers",
    ),
    "compilation": (
        "compiles again",
        "Keep shapes and dtypes the same from step to step, and call jax.jit once, not in a loop.",
        f"{_RECIPES}#an-evaluation-between-two-epochs",
    ),
    "device idle": (
        "keeps the device idle",
        "Do this ahead, in a thread; or let no line wait for the device in each turn, so that it "
        "has work meanwhile.",
        f"{_RECIPES}#a-value-that-decides-what-comes-next",
    ),
    "host wait": (
        "waits for another thread",
        "Make that one faster, or let it begin earlier.",
        f"{_RECIPES}#a-value-that-decides-what-comes-next",
    ),
    "dispatch": (
        "prepares and dispatches",
        "The calls cost Python more than the device: make fewer and larger ones, with jax.jit "
        "around several, or jax.lax.scan over the steps.",
        f"{_RECIPES}#many-small-steps",
    ),
    "callback": (
        "runs inside a program of the device, which waits for it",
        "Return the values, and do this outside the jitted function: some steps later or, if it "
        "takes longer than a step, in threads.",
        f"{_RECIPES}#a-loss-that-you-want-to-see",
    ),
    "first compilation": (
        "compiles for the first time",
        "Nothing is lost here: every program is compiled once.",
        f"{_BOOK}/measuring-asynchronous-code.html#the-first-call",
    ),
    "check": (
        "waits while JAX checks the results",
        "Switch jax_debug_nans or jax_debug_infs off when it has found what it was to find.",
        f"{_RECIPES}#an-array-that-is-gone",
    ),
    "queue": (
        "waits inside a call for the device",
        "Python is ahead of the device here, and the device is what takes the time.",
        _CHAPTER,
    ),
}
"""What a line can be at, in words, what to do about it, and where the book says why."""

_SEEN = 0.005
"""The share of the time from which a line is told."""

_WAITS = {"value", "barrier", "queue", "host wait", "check"}
_FOR_A_DEVICE = {"value", "barrier", "checks"}
_SWITCHES = {
    "jax_debug_nans": "jax_debug_nans is on: each call waits for its results and looks at them",
    "jax_debug_infs": "jax_debug_infs is on: each call waits for its results and looks at them",
    "jax_disable_jit": "jax_disable_jit is on: each operator is a call of its own",
}


@dataclass
class Finding:
    """A line that takes time.

    Attributes:
        kind: One of `KINDS`: what costs most there.
        place: Where it stands.
        operation: What Python was at, as it is written there.
        thread: The name of the thread.
        seconds: How long Python was there, after the start.
        times: How often it was seen to come there; at least that often.
        lost: Seconds of them in which the device was idle.
        surely_lost: The lower end of the 95 % interval of `lost`.
        callers: The lines that called it, and in how many looks each was seen.
        detail: What is known beyond that, for example which shape has changed.
    """

    kind: str
    place: Place
    operation: str
    thread: str
    seconds: float = 0.0
    times: int = 0
    lost: float = 0.0
    surely_lost: float = 0.0
    callers: dict[str, int] = field(default_factory=dict)
    detail: str = ""


@dataclass
class Watched:
    """What `watch` has seen; complete when its block has ended.

    Attributes:
        seconds: How long it watched.
        start_seconds: How long the start took: imports and first compilations.
        looks: How often it looked at Python.
        observed_seconds: For how long, after the start, it knew what the devices did.
        devices: For how many seconds after the start each device was idle, by its name.
        interval: Between which shares of that time the one that works most was idle (95 %).
        findings: The lines that cost time; those that lost most of it first.
        notes: What else a reader has to know: a switch of JAX, or what could not be seen.
    """

    TOO_SHORT: ClassVar[float] = 2.0  # Seconds after the start below which nothing is judged.

    seconds: float = 0.0
    start_seconds: float = 0.0
    looks: int = 0
    observed_seconds: float = 0.0
    devices: dict[str, float] = field(default_factory=dict)
    interval: tuple[float, float] = (0.0, 1.0)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def judged_seconds(self) -> float:
        """What comes after the start; shares are of that."""
        return max(self.seconds - self.start_seconds, 1e-9)

    @property
    def idle_seconds(self) -> float:
        """For how long the device that works most was idle."""
        return min(self.devices.values(), default=0.0)

    def share(self, finding: Finding) -> float:
        """Return the share of the time that Python was at a finding's line."""
        return finding.seconds / self.judged_seconds

    def loss(self, finding: Finding) -> float:
        """Return the share of the time in which the device was idle for this line.

        What compiles for the first time loses nothing, since each program has to be compiled once.
        """
        return 0.0 if finding.kind == "first compilation" else finding.lost / self.judged_seconds

    def losses(self, over: float = 0.0) -> list[Finding]:
        """Return the findings that have surely lost more than a share of the time."""
        return [
            found
            for found in self.findings
            if self.loss(found) and found.surely_lost / self.judged_seconds > over
        ]

    def advice(self, finding: Finding) -> str:
        """Return what to do about a finding, in a sentence; nothing where it loses nothing."""
        if finding.kind in _WAITS and self.loss(finding) <= _SEEN:
            return "Nothing is lost here: the device worked meanwhile."
        if finding.kind == "compilation" and self.loss(finding) <= _SEEN:
            return "Nothing is lost after the start; there, keep shapes and dtypes the same."
        return KINDS[finding.kind][1]

    def to_json(self) -> str:
        """Return all of it as JSON, with durations in seconds."""
        findings = [
            asdict(finding)
            | {"share": self.share(finding), "loss": self.loss(finding)}
            | {"advice": self.advice(finding), "link": KINDS[finding.kind][2]}
            for finding in self.findings
        ]
        whole = asdict(self) | {"idle_seconds": self.idle_seconds, "findings": findings}
        return json.dumps(whole, indent=1)

    def __str__(self) -> str:
        lines = list(self._head())
        for found in self.findings:
            lines += [
                "",
                f"{self.loss(found):6.1%} lost  {found.place}  {found.place.code}",
                f"             {KINDS[found.kind][0]}{self._operation_of(found)}",
                f"             {self._time_of(found)}",
                *(f"             {line}" for line in self._more(found)),
                f"             {self.advice(found)}",
                f"             {KINDS[found.kind][2]}",
            ]
        return "\n".join(lines)

    def _head(self) -> Iterator[str]:
        after = (
            ""
            if self.start_seconds < 0.05
            else (
                f", of which the start took {format_seconds(self.start_seconds)} (imports, first "
                "compilations); the shares are of the rest"
            )
        )
        yield f"Watched for {format_seconds(self.seconds)}{after}."
        if self.observed_seconds:
            low, high = self.interval
            idle = {name: s / self.judged_seconds for name, s in self.devices.items()}
            least = min(idle, key=idle.get)
            yield (
                f"{least} had nothing to do for {idle.pop(least):.0%} of that ({low:.0%} to "
                f"{high:.0%})" + "".join(f", {name} for {s:.0%}" for name, s in idle.items()) + "."
            )
        yield (
            f"Looked {self.looks} times at Python, and for "
            f"{format_seconds(self.observed_seconds)} at the devices, which is a sample."
        )
        if any(map(self.loss, self.findings)):
            yield "Lost: the share of the time in which the device was idle while Python was there."
        yield from self.notes
        if not self.findings:
            yield "No line took long enough to be seen."

    def _operation_of(self, found: Finding) -> str:
        return f": {found.operation}" if found.kind in _WAITS else ""

    def _time_of(self, found: Finding) -> str:
        thread = "" if found.thread == "MainThread" else f", in {found.thread}"
        return (
            f"Python was there for {self.share(found):.1%} of the time "
            f"({format_seconds(found.seconds)}, at least {plural(found.times, 'time')}){thread}"
        )

    def _more(self, found: Finding) -> Iterator[str]:
        if found.detail:
            yield found.detail
        if found.callers:
            called = sorted(found.callers.items(), key=lambda item: -item[1])[:3]
            looks = sum(found.callers.values())
            several = [f"{at} ({n / looks:.0%})" for at, n in called if n > 0.005 * looks]
            yield f"Called from {', '.join(several) if len(several) > 1 else called[0][0]}."

    def _repr_html_(self) -> str:
        rows = []
        for found in self.findings:
            what, _, link = KINDS[found.kind]
            where = str(found.place).rsplit("/", 1)[-1]
            more = " ".join([*self._more(found), self.advice(found)])
            rows.append(
                [
                    in_two_lines(where, found.place.code),
                    share_bar(self.loss(found), HOST, f"{self.loss(found):.1%}"),
                    in_two_lines(f"{self.loss(found):.1%}", f"there for {self.share(found):.1%}"),
                    f"{html.escape(what)}: <code>{html.escape(found.operation)}</code><br>"
                    f'{html.escape(more)} <a href="{link}">Why?</a>',
                ]
            )
        return as_table(["line", "", "lost", "what it is at"], rows, self._head())


@renamed(every="interval")
@contextmanager
def watch(interval: float = 0.01) -> Iterator[Watched]:
    """Profile this program by sampling: at which lines of your code is the device kept waiting?

    Lines at which Python was for less than a two-hundredth of the time are left out. What the
    devices do is seen in short windows of JAX's profiler, so the first second or two tell little;
    if the program uses the profiler itself, that takes precedence.

    Args:
        interval: Seconds between two looks outside the windows.

    Yields:
        What has been seen, filled in when the block ends, also by an error.

    Raises:
        D2lparError: If the program is being watched already, or watching it failed.
        ValueError: If `interval` is no positive number of seconds, or JAX traces.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with watch() as found:
        ...     _ = float(jnp.ones(()))
        >>> found.seconds > 0
        True
    """
    require_seconds("interval", interval)
    require_values("watch()")
    watcher = Watcher(interval)
    watcher.start()
    try:
        yield watcher.watched
    finally:
        watcher.stop()
    if watcher.error:
        raise D2lparError("Watching ended early.") from watcher.error


class _Look(NamedTuple):
    """What the threads did for half of the time between two looks.

    Where a thread has moved between them, it was at the one place for half of that time, and at the
    other for the rest: who looks may have been kept from its core.

    Attributes:
        start: Seconds of `time.perf_counter`, as `end`.
        at: When the threads were seen, which is one of both.
        threads: By their number: name, place, whether it moved on, whether it used its processor.
        others: How many cores were used by threads which are not Python's.
    """

    start: float
    end: float
    at: float
    threads: dict[int, tuple[str, Sight, bool, bool]]
    others: float


class _Compiled(NamedTuple):
    """A program that was compiled: in which thread, at which line, for which arguments, and when.

    Attributes:
        callers: The positions in the code that led there, the user's own line first.
        library: Whether a library's code is between that line and JAX.
        own: Whether the function is a library's, such as those of `jax.numpy`.
        moved: Whether the thread was seen elsewhere since it compiled the one before.
    """

    thread: int
    name: str
    callers: tuple[Site, ...]
    library: bool
    own: bool
    moved: bool
    arguments: tuple | None
    function: Any
    code: Any
    began: float
    over: float


class Watcher:
    """Looks at this program from a thread of its own."""

    _running: "Watcher | None" = None
    _lock = threading.Lock()
    _hears = False

    def __init__(
        self,
        interval: float = 0.01,
        *,
        after: float | None = None,
        on_look: Callable[[], None] = lambda: None,
        of_command: bool = False,
    ) -> None:
        self.watched = Watched()
        self.error: BaseException | None = None
        self.windows = Windows()
        self.compiled: list[_Compiled] = []
        self.outside: Counter[tuple[str, Site, str]] = Counter()
        self.callers: dict[Site, Counter[Site]] = defaultdict(Counter)
        self.times: Counter[Site] = Counter()
        self.after = after
        self._of_command, self._outer = of_command, None
        self._interval, self._on_look = interval, on_look
        self._last: dict[int, tuple[tuple[int, int], Sight | None, float | None]] = {}
        self._clocks = (0.0, 0.0, 0.0)
        self._moved: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=1000))
        self._parts: dict[int, dict[str, Any]] = defaultdict(dict)
        self._done = threading.Event()
        self._ended = threading.Event()
        self._ident = 0

    def start(self) -> None:
        """Begin to look."""
        with Watcher._lock:
            # A script that watches itself has the way.
            self._outer = Watcher._running
            if self._outer is not None and not self._outer._of_command:
                raise D2lparError("The program is being watched already. One watch() is enough.")
            if self._outer is not None:
                self._outer.pause()
            Watcher._running = self
        self.began = time.perf_counter()
        self.go_on()

    def stop(self) -> None:
        """Look no longer, and fill in what has been seen."""
        try:
            self.pause()
        finally:
            with Watcher._lock:
                Watcher._running = self._outer
            self.windows.end()
            if self._outer is not None:
                self._outer.go_on()
        self.report()

    def pause(self) -> None:
        """End the thread that looks."""
        self._done.set()
        self._ended.wait()

    def go_on(self) -> None:
        """Look from a new thread."""
        self._done.clear()
        self._ended.clear()
        # The program's signals are not for it; and who counts or joins all threads does not see it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._ident = _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def report(self) -> None:
        """Fill in what has been seen so far."""
        self.watched.seconds = time.perf_counter() - self.began
        _Account(self).fill(self.watched)

    # --- Looking ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            pause = self._interval
            while not self._done.wait(pause):
                self._listen()
                if self.windows.is_due():
                    self.windows.record(self._look, self._done, min(self._interval, 1e-3))
                used = time.thread_time()
                self._look()
                self._on_look()
                # A look costs more where there are more threads, but never a part of the time.
                pause = max(self._interval, 20 * (time.thread_time() - used))
        except BaseException as error:  # It is raised where the block ends.
            self.error = error
        finally:
            self._ended.set()

    def _look(self, window: Window | None = None) -> None:
        now, process, python = time.perf_counter(), time.process_time(), time.thread_time()
        before, process_before, python_before = self._clocks
        seconds = max(now - before, 1e-9)
        named = {thread.ident: thread for thread in threading.enumerate()}
        first, second, last = {}, {}, {}
        for ident, frame in sys._current_frames().items():
            if ident == self._ident:
                continue
            used = processor_time(named.get(ident))
            python += used or 0.0
            top = id(frame), frame.f_lasti
            old = self._last.get(ident)
            # A frame may be where an earlier one was, but what used no processor has not moved.
            rests = old and used and old[0] == top and used - (old[2] or 0.0) < 1e-5
            sight = old[1] if rests else sight_of(frame)
            last[ident] = top, sight, used
            if sight and not (old and old[1] and old[1].site == sight.site):
                self.times[sight.site] += 1
            if old and old[1]:
                spent = (used or 0.0) - (old[2] or 0.0)
                moved = sight is None or sight.at != old[1].at or spent > 2e-5
                works = moved if used is None else spent > 0.2 * seconds
                name = named[ident].name if ident in named else "a thread of XLA"
                first[ident] = name, old[1], moved, works
                if sight:
                    second[ident] = name, sight, moved, works
                if sight is None or sight.site != old[1].site:
                    self._moved[ident].append(now)
                self.callers[old[1].site].update(old[1].callers[:1])
                if window is None:
                    self.outside[name, old[1].site, old[1].doing] += seconds
        self.watched.looks += 1
        if window is not None and before:
            others = (process - process_before - python + python_before) / seconds
            middle = now - seconds / 2
            window.looks.append(_Look(before, middle, before, first, others))
            window.looks.append(_Look(middle, now, now, second, others))
        self._last, self._clocks = last, (now, process, python)

    # --- Hearing what compiles ----------------------------------------------------------------

    def _listen(self) -> None:
        # A single listener cannot be unregistered in jax 0.7, so there is one for the process.
        monitoring = sys.modules.get("jax._src.monitoring")
        register = getattr(monitoring, "register_event_duration_secs_listener", None)
        if register and not Watcher._hears:
            Watcher._hears = True
            register(_note)

    def note(self, event: str, seconds: float, name: str) -> None:
        """Take down a step of compiling, in the thread that compiles."""
        now, ident = time.perf_counter(), threading.get_ident()
        parts = self._parts[ident]
        # Tracing, lowering and compiling follow each other; what was only traced is forgotten.
        if now - seconds > parts.get("until", now) + 0.05:
            parts.clear()
        parts["began"] = min(parts.get("began", now), now - seconds)
        parts["until"] = now
        inner, mine = [], []
        for frame in frames_outward(sys._getframe(2)):
            owner = owner_of(frame.f_code.co_filename)
            if not mine and owner != "user":
                inner.append(owner)
                if owner == "jax":
                    parts |= _arguments_in(frame)
            elif owner in ("user", "library"):
                mine.append(Site(frame.f_code, frame.f_lasti))
        while mine and mine[-1].owner != "user":  # What started the program has loops of its own.
            mine.pop()
        if event.endswith("backend_compile_duration"):
            del self._parts[ident]
            last = next((c.over for c in reversed(self.compiled) if c.thread == ident), 0.0)
            function, code = parts.get("function"), parts.get("code", 0)
            # While they live, two functions of one code are two, and neither is made in each turn;
            # but of its own ones, JAX makes and keeps one for each shape.
            for other in reversed(self.compiled) if not parts.get("own") else ():
                if other.code == code and other.function and other.function is not function:
                    code = (code, id(function)) if other.function() is not None else code
                    break
            if mine:
                self.compiled.append(
                    _Compiled(
                        ident,
                        name,
                        tuple(mine),
                        "library" in inner,
                        parts.get("own", False),
                        # While JAX traces, it is in the function itself.
                        any(last < at < parts["began"] for at in list(self._moved[ident])),
                        parts.get("arguments"),
                        function,
                        code,
                        parts["began"],
                        now,
                    )
                )


def _around_fork(go_on: bool) -> None:
    # A child would inherit half of a window, and Python 3.12 warns of the thread.
    if watcher := Watcher._running:
        watcher.go_on() if go_on else watcher.pause()


os.register_at_fork(
    before=functools.partial(_around_fork, False),
    after_in_parent=functools.partial(_around_fork, True),
)


def _note(event: str, seconds: float, **details: Any) -> None:
    watcher = Watcher._running
    if watcher and event.startswith("/jax/core/compile/"):
        with suppress(Exception):  # The program must not fail for it.
            watcher.note(event, seconds, str(details.get("fun_name", "a function")))


def _arguments_in(frame: Any) -> dict[str, Any]:
    """Return what a frame of JAX says of the arguments of the program that it compiles."""
    code, found = frame.f_code, {}
    if code.co_name == "lower_sharding_computation":
        of = frame.f_locals
        where = map(_placed, of["in_shardings"])
        given = [
            (_short(a), a.weak_type, w) for a, w in zip(of["global_in_avals"], where, strict=True)
        ]
        found["arguments"] = given, [_short(a) for a in of["global_out_avals"]]
    elif code.co_name == "cache_miss":
        with suppress(TypeError):  # Not everything that can be called has weak references.
            function = frame.f_locals["fun"]
            code = getattr(function, "__code__", None)
            found["code"] = id(code)
            found["own"] = code is not None and owner_of(code.co_filename) != "user"
            found["function"] = weakref.ref(function)
    return found


def _placed(sharding: Any) -> str:
    """Return where an argument was put, in words; "" if nobody has said where it is to be."""
    from d2lpar._devices import device_name  # JAX has been imported: it is compiling.

    devices = getattr(sharding, "device_set", ())
    if len(devices) == 1:
        return device_name(*devices)
    return f"{len(devices)} devices, {getattr(sharding, 'spec', sharding)}" if devices else ""


def _short(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


# --- Reckoning ------------------------------------------------------------------------------------


class _Account:
    """Charges what was seen to the lines of the program."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._compiled = list(watcher.compiled)
        self._again = _compiled_again(self._compiled)
        self._windows = [(window, *window.events) for window in watcher.windows.closed]
        self._start = self._end_of_start()
        self._devices = self._names()
        dispatching = [_dispatching(w.looks, calls) for w, _, calls in self._windows]
        self._called = [called for called, _ in dispatching]
        self._moved = [moved for _, moved in dispatching]
        # Of all windows, and, if none saw a call, where something was compiled.
        self._called_in_all = sum(self._called, Counter())
        self._moved_in_all = sum(self._moved, Counter())
        self._compiled_in = Counter(one.thread for one in self._compiled)
        self._unseen = 0.0
        values = getattr(getattr(sys.modules.get("jax"), "config", None), "values", {})
        self._synchronous = values.get("jax_cpu_enable_async_dispatch") is False
        self._compiling: dict[int, Spans] = defaultdict(list)
        for one in self._compiled:
            self._compiling[one.thread].append((one.began, one.over))
        # By line: shares of time there, and of time lost there, for each kind and by window.
        self._kinds: dict[tuple, Counter[str]] = defaultdict(Counter)
        self._kinds_lost: dict[tuple, Counter[str]] = defaultdict(Counter)
        self._there: dict[tuple, Counter[int]] = defaultdict(Counter)
        self._lost: dict[tuple, Counter[int]] = defaultdict(Counter)
        self._sites: dict[tuple, Counter[Site]] = defaultdict(Counter)
        self._others: dict[tuple, Counter[Place]] = defaultdict(Counter)

    def _end_of_start(self) -> float:
        """Return when those first compilations were over that follow each other closely."""
        began = end = self._watcher.began
        if self._watcher.after is not None:
            return min(began + self._watcher.after, time.perf_counter())
        ran = min(
            (
                spans[0][0]
                for _, busy, calls in self._windows
                for spans in (*busy.values(), calls)
                if spans
            ),
            default=math.inf,
        )
        first = latest = None
        again = 0.0
        before_any = began
        for number, one in enumerate(self._compiled):
            # What is compiled before anything runs, and what comes soon after that.
            soon = max(ran, began + 0.5) + 0.05
            if first is not None:
                soon = latest + max(0.5, 0.5 * (latest - first))
            if one.began > soon:
                break
            first, latest = first or one.began, one.over
            if number in self._again:
                again += one.over - one.began
            else:
                end = one.over
                before_any = end if not again else before_any
        # A program that goes on compiling never ends its start otherwise.
        over = began + self._watcher.watched.seconds
        return before_any if over - end < again else end

    def _names(self) -> list[str]:
        """Return the devices that had something to do, that with most of it first."""
        work = Counter()
        for _, busy, _ in self._windows:
            for device, spans in busy.items():
                work[device] += sum(end - start for start, end in spans)
        return [name for name, _ in work.most_common()] or ["The device"]

    def fill(self, watched: Watched) -> None:
        """Write it all down."""
        watched.start_seconds = self._start - self._watcher.began
        after = watched.judged_seconds
        idle: dict[str, dict[int, float]] = {device: {} for device in self._devices}
        weights, previous = {}, self._start
        watched.observed_seconds = 0.0
        for number, (window, busy, calls) in enumerate(self._windows):
            if window.over > self._start:
                seen, of_devices = self._charge(number, window, busy, calls)
                if seen > 0:
                    watched.observed_seconds += seen
                    # It stands for the time since the one before, of which it is a sample.
                    weights[number] = window.over - previous
                    previous = window.over
                    for device, seconds in of_devices.items():
                        idle[device][number] = seconds / seen
        if not any(busy for _, busy, _ in self._windows) and (
            sum(len(calls) for *_, calls in self._windows) > 20
        ):
            watched.observed_seconds, weights = 0.0, {}  # Whatever it recorded, it was not that.
        watched.devices, watched.findings = {}, []
        if weights:
            for device, shares in idle.items():
                share, error = _mean(shares, weights)
                watched.devices[device] = share * after
                if device == self._devices[0]:
                    watched.interval = max(share - error, 0.0), min(share + error, 1.0)
        watched.findings += self._of_lines(weights, after)
        watched.findings += self._of_compilations(watched.seconds)
        watched.findings.sort(key=lambda f: (watched.loss(f), f.seconds), reverse=True)
        watched.notes = list(self._notes(watched))

    def _charge(
        self, number: int, window: Window, busy: dict[str, Spans], calls: Spans
    ) -> tuple[float, dict[str, float]]:
        """Charge a window to the lines; return how long it was, and how long each device idle."""
        looks = [
            look._replace(
                start=max(look.start, window.began, self._start), end=min(look.end, window.over)
            )
            for look in window.looks
        ]
        looks = [look for look in looks if look.end > look.start]
        feeder = self._feeder(number)
        whole = sum(look.end - look.start for look in looks)
        idle = dict.fromkeys(self._devices, 0.0)
        edges = _edges(busy.get(self._devices[0], []))
        # The system tells how long a process has used its cores every few milliseconds.
        around = [looks[max(n - 6, 0) : n + 7] for n in range(len(looks))]
        for look, near in zip(looks, around, strict=True):
            seconds = look.end - look.start
            called_back = any(sight.doing == "callback" for _, sight, *_ in look.threads.values())
            called = _overlap(calls, look.at - 5e-5, look.at + 5e-5) > 0
            # While JAX traces, the lines of the function itself run.
            compiling = {
                ident
                for ident, (_, sight, *_) in look.threads.items()
                if sight.doing == "compiles" or _holds(self._compiling[ident], look.at)
            }
            seen_to_work = any(_overlap(s, look.start, look.end) for s in busy.values())
            lost = 0.0
            for device in self._devices:
                spans = busy.get(device, [])
                rest = seconds - _overlap(spans, look.start, look.end)
                if called_back:
                    rest = seconds
                elif (
                    device == self._devices[0]
                    and not (seen_to_work or compiling)
                    and _is_unseen(look, near, edges, self._synchronous)
                ):
                    self._unseen += rest
                    rest = 0.0
                idle[device] += rest
                if device == self._devices[0]:
                    lost = rest
            for ident, (name, sight, moved, used) in look.threads.items():
                if ident in compiling:
                    continue  # Its time is known from the events.
                kind = _kind(sight, not moved or not used, lost > 0.5 * seconds, called)
                key = "a callback" if kind == "callback" else name, sight.site.place
                self._kinds[key][kind] += seconds / whole
                self._sites[key][sight.site] += 1
                self._there[key][number] += seconds / whole
                if sight.doing == "callback" if called_back else ident == feeder:
                    self._kinds_lost[key][kind] += lost / whole
                    self._lost[key][number] += lost / whole
                    if kind == "host wait":
                        self._others[key].update(
                            other.site.place
                            for one, (_, other, *_) in look.threads.items()
                            if one != ident and other.doing != "locks"
                        )
        return whole, idle

    def _feeder(self, number: int) -> int:
        """Return the thread that most likely hands work to the devices."""
        for seen in (
            self._called[number],
            self._called_in_all,
            self._moved[number],
            self._moved_in_all,
            self._compiled_in,
        ):
            if seen:
                return seen.most_common(1)[0][0]
        return threading.main_thread().ident

    def _of_lines(self, weights: dict[int, float], after: float) -> Iterator[Finding]:
        watcher = self._watcher
        for (name, site, doing), seconds in watcher.outside.items():
            key = name, site.place
            # What no window fell on was seen by the looks between them, if its kind is known.
            if key not in self._kinds and doing in ("value", "barrier"):
                self._kinds[key][doing] = seconds
                self._there[key].update(dict.fromkeys(weights or [0], seconds / after))
                self._sites[key][site] += 1
        for key, kinds in self._kinds.items():
            # A call, and a library's Python, are part of dispatching where that is seen as well.
            sure = kinds["dispatch"] > 0.1 * kinds["perhaps dispatch"]
            kind = "dispatch" if sure else "device idle"
            for of in (kinds, self._kinds_lost[key]):
                of[kind] += of.pop("perhaps dispatch", 0.0)
            share, _ = _mean(self._there[key], weights or {0: 1.0})
            lost, error = _mean(self._lost[key], weights)
            if max(share, lost) < _SEEN:
                continue
            of = self._kinds_lost[key] if lost > 0.5 * share else kinds
            kind = max(kinds, key=lambda kind: (of[kind], kinds[kind]))
            if kind in ("device idle", "dispatch", "host wait") and lost < _SEEN:
                continue  # It takes time while the device works.
            name, place = key
            sites = self._sites[key]
            callers = Counter()
            for site in sites:
                for caller, looks in watcher.callers[site].items():
                    if caller.place != place:  # As that of a comprehension is.
                        callers[str(caller.place)] += looks
            yield Finding(
                kind,
                place,
                sites.most_common(1)[0][0].operation,
                name,
                share * after,
                max(sum(watcher.times[site] for site in sites), 1),
                lost * after,
                max(lost - error, 0.0) * after,
                dict(callers),
                self._meanwhile(key) if kind == "host wait" else "",
            )

    def _meanwhile(self, key: tuple) -> str:
        for place, _ in self._others[key].most_common(1):
            return f"Meanwhile another thread was at {place}  {place.code}"
        return ""

    def _of_compilations(self, seconds: float) -> Iterator[Finding]:
        lines = defaultdict(list)
        for number, one in enumerate(self._compiled):
            lines[one.callers[0].place].append((number in self._again, one))
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for place, all_of_it in lines.items():
            again = [one for is_again, one in all_of_it if is_again]
            later = [one for _, one in all_of_it if one.over > self._start]
            told = again or later
            took = sum(one.over - one.began for one in told)
            if took < _SEEN * seconds:
                continue
            lost = sum(
                one.over - max(one.began, self._start) for one in again if one.over > self._start
            )
            detail = f"That took {format_seconds(took)}."
            yield Finding(
                "compilation" if again else "first compilation",
                place,
                told[-1].callers[0].operation,
                names.get(told[-1].thread, "a thread"),
                lost if again else took,
                len(told),
                lost,
                lost,
                {},
                f"{_why(all_of_it)} {detail}" if again else detail,
            )

    def _notes(self, watched: Watched) -> Iterator[str]:
        config = getattr(sys.modules.get("jax"), "config", None)
        for switch, words in _SWITCHES.items():
            if getattr(config, switch, False):
                yield f"{words}."
        if self._synchronous:
            yield (
                "jax_cpu_enable_async_dispatch is off: a call computes before it returns. Switch "
                "it on, unless you know why it is off."
            )
        if len(self._devices) > 1 and self._unseen > 0.1 * watched.observed_seconds:
            yield (
                "Operators that take longer than one look at the devices were counted for "
                f"{self._devices[0]}; on which device they ran was not seen."
            )
        if not watched.observed_seconds:
            why = self._watcher.windows.why_none
            if self._windows:
                why = "JAX's profiler recorded nothing of them after the start"
            yield f"What the devices did is not known: {why}."


def _kind(sight: Sight, waits: bool, idle: bool, called: bool) -> str:
    """Return which of `KINDS` a thread is at."""
    known = {"checks": "check", "sleeps": "device idle", "locks": "host wait"}
    if sight.doing in ("value", "barrier", "callback", *known):
        return known.get(sight.doing, sight.doing)
    if waits and not idle and sight.doing in ("call", "jax", "puts"):
        return "value" if reads(sight.deepest) and not called else "queue"
    if sight.doing in ("jax", "puts") or called:
        return "queue" if not idle else "dispatch"
    return "perhaps dispatch" if sight.doing in ("library", "call") else "device idle"


def _dispatching(looks: list[_Look], calls: Spans) -> tuple[Counter[int], Counter[int]]:
    """Count how often each thread was seen where it can have dispatched, and to move meanwhile.

    Most calls are shorter than the time between two looks.
    """
    seen, moved = Counter(), Counter()
    for look in looks:
        in_call = _overlap(calls, look.at - 2e-5, look.at + 2e-5) > 0
        begins = bisect_left(calls, (look.start,)) < bisect_left(calls, (look.end,))
        for ident, (_, sight, has_moved, _) in look.threads.items():
            seen[ident] += in_call and sight.doing in ("call", "jax", "library", "compiles")
            moved[ident] += begins and has_moved
    return +seen, +moved


def _is_unseen(
    look: _Look, near: list[_Look], edges: tuple[float, float], synchronous: bool
) -> bool:
    """Return whether a device works on something that began before a window or ends after it.

    That leaves no event, so there may be work before the first one and after the last.
    """
    if edges[0] < look.end and look.start < edges[1]:
        return False
    waits = reading = computes = False
    for ident, (_, sight, moved, used) in look.threads.items():
        # Whoever computes may be kept from its core for a moment, and then stands still as well.
        rests = not moved and not any(x.threads[ident][3] for x in near if ident in x.threads)
        calls = sight.doing == "call" and reads(sight.deepest)
        waits |= rests and sight.doing in _FOR_A_DEVICE
        waits |= synchronous and used and sight.doing == "call" and not calls
        reading |= rests and calls
        computes |= used and calls  # NumPy has threads of its own.
    others = sum(x.others * (x.end - x.start) for x in near) / (near[-1].end - near[0].start)
    return waits or (others > (0.3 if reading else 0.5) and not computes)


def _edges(busy: Spans) -> tuple[float, float]:
    """Return when the first and the last operator were seen, but for those that take no time."""
    seen = [span for span in busy if span[1] - span[0] > 1e-4]
    return (seen[0][0], seen[-1][1]) if seen else (math.inf, -math.inf)


def _overlap(spans: Spans, start: float, end: float) -> float:
    """Return for how long there is a span between two times."""
    total = 0.0
    for number in range(max(bisect_left(spans, (start,)) - 1, 0), len(spans)):
        first, last = spans[number]
        if first >= end:
            break
        total += max(min(last, end) - max(first, start), 0.0)
    return total


def _holds(spans: Spans, at: float) -> bool:
    """Return whether there is a span at a time."""
    number = bisect_left(spans, (at, math.inf)) - 1
    return number >= 0 and at < spans[number][1]


def _mean(shares: dict[int, float], weights: dict[int, float]) -> tuple[float, float]:
    """Return the mean of what was seen in each window, and how far off it may be (95 %)."""
    whole = sum(weights.values())
    if not whole:
        return 0.0, 1.0
    mean = sum(shares.get(n, 0.0) * w for n, w in weights.items()) / whole
    spread = sum((w * (shares.get(n, 0.0) - mean)) ** 2 for n, w in weights.items())
    few = len(weights) / max(len(weights) - 1, 1)
    return mean, 2 * math.sqrt(few * spread) / whole if len(weights) > 1 else 1.0


def _compiled_again(compiled: list[_Compiled]) -> set[int]:
    """Return the numbers of those that were compiled at a line that had compiled them before."""
    again, last, times = set(), {}, Counter()
    for number, one in enumerate(compiled):
        # Another function, with other code, may have the same name.
        key = one.thread, one.name, one.callers[0], one.code
        times[key] += 1
        if key in last and _is_another_pass(compiled, last[key], number, times[key]):
            again.add(number)
        last[key] = number
    return again


def _is_another_pass(compiled: list[_Compiled], before: int, number: int, times: int) -> bool:
    """Return whether the program came to a line anew; what one pass compiles is never "again"."""
    old, one = compiled[before], compiled[number]
    if old.callers != one.callers:
        return True
    if not any(site.in_loop() for site in one.callers):
        return False
    between = compiled[before + 1 : number]
    if one.moved or any(
        other.thread == one.thread
        and other.callers != one.callers
        and other.callers[-1].code is one.callers[-1].code
        for other in between
    ):
        return True
    # A library, or a comprehension, may compile one for many shapes in a single pass, and a
    # function of JAX for a few.
    many = one.library or any(site.in_comprehension() for site in one.callers)
    return old.arguments == one.arguments or not (many or (one.own and times < 4))


def _why(compiled: list[tuple[bool, _Compiled]]) -> str:
    """Return what was compiled again at a line, and what had changed, as far as it was seen."""
    told = []
    for name, code in {(one.name, one.code) for is_again, one in compiled if is_again}:
        of_it = [pair for pair in compiled if (pair[1].name, pair[1].code) == (name, code)]
        *_, old, new = (one for _, one in of_it)
        again = [one for is_again, one in of_it if is_again]
        what = f"{name.removeprefix('jit(').removesuffix(')')} was compiled {1 + len(again)} times"
        changed = "; ".join(_changes(old, new))
        # What only makes an array of some shape, for the program that it is for, comes second.
        given = [one.arguments and one.arguments[0] for one in (old, new)]
        took = sum(one.over - one.began for one in again)
        why = f", last for {changed}." if changed else "; why was not seen."
        told.append((given[0] != given[1], took, what + why))
    return max(told)[-1]


def _changes(old: _Compiled, new: _Compiled) -> Iterator[str]:
    if not old.arguments or not new.arguments:
        return
    (given, results), (given_now, results_now) = old.arguments, new.arguments
    if len(given) != len(given_now):
        yield f"{plural(len(given_now), 'argument')} after {len(given)}"
        return
    pairs = [(a, b) for a, b in zip(given, given_now, strict=True) if a != b]
    shapes = dict.fromkeys((a[0], b[0]) for a, b in pairs if a[0] != b[0])
    for a, b in list(shapes)[:3]:
        yield f"{b} after {a}"
    weak = next((b for a, b in pairs if a[0] == b[0] and a[1] != b[1]), None)
    if weak:
        words = (
            "strongly typed after a weakly typed one",
            "weakly typed after a strongly typed one",
        )
        yield f"a {weak[0]} that is {words[weak[1]]} (a Python number makes a weak type)"
    placed = next(((a, b) for a, b in pairs if a[0] == b[0] and a[2] != b[2]), None)
    if placed:
        (*_, was), (kind, _, now) = placed
        now, was = (
            f"committed to {at}" if at else "not committed to a device" for at in (now, was)
        )
        yield f"a {kind} that is {now}, after one that is {was}"
    if not pairs and results != results_now:
        b, a = next(((b, a) for a, b in zip(results, results_now, strict=False) if a != b), (0, 0))
        yield f"a result {b} after {a}" if b else "other results"
    elif not pairs and old.function is not new.function:
        yield "the same shapes, but another function (made in each turn? make it once)"
