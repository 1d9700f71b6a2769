"""Open JAX's profiler for `watch`, share it with the program, and read what it recorded.

How it works. JAX has one profiler in a process. While `watch` has it open, the program may ask for
a recording of its own (`jax.profiler.trace`). So the class of sessions that JAX creates is
replaced. A session of the program first closes the one of `watch`.
"""

import functools
import itertools
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


def last_step() -> int | None:
    """Return the number of the last step that the program has annotated, since the first call."""
    annotation = getattr(sys.modules.get("jax.profiler"), "StepTraceAnnotation", None)
    if annotation is not None and not hasattr(annotation, "last_step"):
        original, annotation.last_step = annotation.__init__, None

        @functools.wraps(original)
        def noted(self: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(number := kwargs.get("step_num"), int):
                annotation.last_step = number
            original(self, *args, **kwargs)

        annotation.__init__ = noted
    return getattr(annotation, "last_step", None)


class Sessions:
    """Sessions of JAX's profiler that make way when the program opens one.

    `make_way` returns a context manager that closes an open session of `watch` and keeps others
    from opening; the program's session is created inside it.
    """

    def __init__(self, make_way: Callable[[], AbstractContextManager[None]]) -> None:
        self.why_none = ""  # Why the last attempt to open one failed, in words.
        self._make_way = make_way
        self._original: Callable[..., Any] | None = None

    def open(self) -> Any:
        """Return an open session, which ends with `stop()`, or None if JAX gives none."""
        self.why_none = ""
        try:
            from jax._src.lib import _profiler

            if self._original is None:
                self._replace(_profiler)
            options = _profiler.ProfileOptions()
            options.python_tracer_level = 0
            # The default records all compiled programs, idle ones too: with 2,000 of them, closing
            # a session took half a second.
            options.enable_hlo_proto = False
            with without_tensorflow():
                return self._original(options)
        except Exception as error:
            self.why_none = f"JAX's profiler could not be opened ({error})"
            return None

    def _replace(self, profiler: types.ModuleType) -> None:
        self._original = original = profiler.ProfilerSession

        def session_of_the_program(*args: Any, **kwargs: Any) -> Any:
            with self._make_way():
                return original(*args, **kwargs)

        self._replacement = profiler.ProfilerSession = session_of_the_program

    def restore(self) -> None:
        """Put JAX's class back, unless another watcher has replaced it since."""
        if self._original is not None:
            from jax._src.lib import _profiler

            if _profiler.ProfilerSession is self._replacement:
                _profiler.ProfilerSession = self._original


def stop_trace() -> Any:
    """End what `jax.profiler.start_trace(None)` began, and return it, a `ProfileData`.

    JAX returns one from 0.12 on. Before, it writes files, which takes longer than all else.
    """
    from jax._src.profiler import _profile_state as state

    with without_tensorflow():
        if (session := getattr(state, "profile_session", None)) is None:
            return sys.modules["jax"].profiler.stop_trace()  # Raises if nothing is under way.
        trace = session.stop_and_get_profile_data()
        state.reset()
        return trace


def read_lines(data: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lines of a `ProfileData`, or serialized XSpace: for the host, "", and each GPU.

    The host has a line for each thread. A GPU has a line for each stream, and further lines that
    repeat the same events. Those are left out.
    """
    with warnings.catch_warnings():
        # JAX builds these types in a way that Python 3.13 deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        if isinstance(data, bytes):
            data = sys.modules["jax"].profiler.ProfileData.from_serialized_xspace(data)
        for plane in data.planes:
            if plane.name == "/host:CPU":
                yield "", list(plane.lines)
            elif gpu := re.fullmatch(r"/device:GPU:(\d+)", plane.name):
                yield (
                    f"GPU {gpu[1]}",
                    [line for line in plane.lines if line.name.startswith("Stream")],
                )


def annotating_module(caller: types.FrameType) -> str:
    """Return the module that creates a `TraceAnnotation`, given the caller's frame."""
    module = caller.f_globals.get("__name__", "")
    if module == "jax._src.profiler":  # StepTraceAnnotation, or a wrapper of annotate_function.
        module = getattr(caller.f_locals.get("func"), "__module__", "")
    return module or ""


@contextmanager
def without_tensorflow() -> Iterator[None]:
    """Keep the profiler of JAX 0.7 from importing TensorFlow, or complaining that it cannot."""
    names = []
    if sys.modules["jax"].__version_info__ < (0, 8) and "tensorflow" not in sys.modules:
        names = ["tensorflow", *itertools.accumulate(["tensorflow.python", ".profiler", ".trace"])]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
