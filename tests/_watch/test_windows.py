import random
import signal
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from fakes import raising

from d2lpar import watch
from d2lpar._watch.sampler import Watcher
from d2lpar._watch.windows import Events, Recording, Window, Windows, _with_ends, merged


def test_a_window_tells_when_a_device_was_busy_and_python_called_and_holds_no_other_program():
    kept = [jax.jit(lambda x, n=n: x * n + 1) for n in range(50)]
    for function in kept:
        function(jnp.ones(3))
    product, x = jax.jit(lambda x: x @ x), jnp.ones((300, 300))
    jax.block_until_ready(product(x))
    windows = Windows()
    record(windows, lambda window: jax.block_until_ready(product(x)))
    windows.end()
    (window,) = windows.closed
    (busy,) = [spans for device, spans in window.events.busy.items() if device.endswith(" 0")]
    for spans in (window.events.calls, busy):
        assert window.began <= spans[0][0] <= spans[-1][1] <= window.over
    assert len(window.recording.data) < 50_000  # With the 50 programs, more than 100,000.


def test_windows_come_often_at_first_and_then_ever_more_rarely():
    windows = Windows()
    windows._began -= 1000
    jnp.ones(3) + 1
    assert windows.is_due()
    record(windows)
    windows.end()
    assert 24 < windows.due - time.perf_counter() < 76  # Random, so that no loop keeps in step.
    assert not windows.is_due()


@pytest.fixture
def windows(clock, monkeypatch):
    """Windows of ten seconds that were due at 50, by a clock that is at 100."""
    jnp.ones(3) + 1
    clock.now = 50.0
    monkeypatch.setattr("d2lpar._watch.windows.time", SimpleNamespace(perf_counter=clock))
    windows = Windows()
    clock.now, windows._length = 100.0, 10.0
    return windows


@pytest.mark.parametrize(("due", "until"), [(50.0, 50.0), (99.95, 100.0)])
def test_a_window_stands_for_the_time_until_it_was_due_or_began(windows, clock, due, until):
    windows.due = due
    record(windows, lambda window: clock.advance(1))
    (window,) = windows.closed
    assert (window.began, window.over, window.stands_for) == (100.0, 111.0, [(50.0, until)])


def test_a_window_that_is_late_ends_as_planned_and_one_that_is_too_late_is_left_out(windows, clock):
    windows.record(lambda window: clock.advance(1), threading.Event(), 1e-3, late=11.0)
    assert windows.closed == []
    assert 100.0 <= windows.due < 100.5
    clock.now = 105.0
    windows.due = 105.0
    windows.record(lambda window: clock.advance(1), threading.Event(), 1e-3, late=6.0)
    (window,) = windows.closed
    assert (window.began, window.over) == (105.0, 105.0 + 10.0 - 6.0 + 1.0)
    assert window.stands_for == [(50.0, 50.0), (100.0, 105.0)]


def test_behind_a_recording_of_the_program_the_next_window_comes_at_a_random_time(
    windows, monkeypatch
):
    windows.due = 60.0
    for is_recording in (True, False):
        monkeypatch.setattr("d2lpar._jax.state.is_recording", lambda now=is_recording: now)
        assert not windows.is_due()
    assert 100.0 <= windows.due < 100.5


def test_the_random_numbers_of_the_program_stay_as_they_are(windows, clock):
    before = random.getstate()
    record(windows, lambda window: clock.advance(1))
    windows.record(lambda window: None, threading.Event(), 1e-3, late=11.0)
    assert len(windows.closed) == 1  # The other one was left out.
    assert random.getstate() == before


def test_a_window_that_was_cut_is_sampled_to_its_end_and_the_next_stands_for_its_time(
    windows, clock
):
    done, samples = threading.Event(), []
    done.set()
    windows.due = 100.0
    windows.record(samples.append, done, 1e-3)
    assert len(samples) == 2  # At its beginning, and at its end.
    clock.now = windows.due = 120.0
    record(windows, lambda window: clock.advance(1))
    assert [window.is_cut for window in windows.closed] == [True, False]
    assert windows.closed[1].stands_for == [(50.0, 100.0), (100.0, 100.0), (100.0, 120.0)]


def test_a_profiler_that_cannot_be_used_is_no_error_and_is_told(monkeypatch):
    refuse = raising(RuntimeError("another one has it"))
    monkeypatch.setattr("jax._src.lib._profiler.ProfilerSession", refuse)
    windows = Windows()
    record(windows)
    windows.end()
    assert windows.closed == []
    assert "not be opened (another one has it)" in windows.obstacle()


@pytest.fixture
def beside_a_gpu(monkeypatch):
    """A function that makes windows with a session of the profiler, as beside a GPU."""
    monkeypatch.setattr("d2lpar._jax.state.has_accelerator", lambda: True)

    def windows_with(session):
        windows = Windows()
        windows.LENGTH = windows._length = 0.001
        monkeypatch.setattr(windows._sessions, "open", lambda: session)
        return windows

    return windows_with


class Session:
    """Stands in for a session of JAX's profiler, and remembers which thread closed it."""

    def __init__(self, on_stop=lambda: None):
        self.closed_by, self._on_stop = None, on_stop

    def stop(self):
        self.closed_by = threading.current_thread()
        self._on_stop()
        return b""


def record(windows, take_sample=lambda window: None):
    windows.record(take_sample, threading.Event(), 1e-3)


def record_aside(windows, and_then=lambda: None):
    """Record a window in another thread, while the main thread executes bytecodes."""
    aside = threading.Thread(target=lambda: (record(windows), and_then()))
    aside.start()
    while aside.is_alive():
        time.sleep(0)


def test_beside_a_gpu_the_main_thread_closes_the_profiler_between_two_bytecodes(beside_a_gpu):
    windows = beside_a_gpu(session := Session())
    # Another thread may also end the watching, and leaves this to the main thread for a second.
    for closed, and_then in enumerate((lambda: None, windows.close), start=1):
        session.closed_by = None
        record_aside(windows, and_then)
        assert session.closed_by is threading.main_thread()
        assert len(windows.closed) == closed


def test_the_profiler_stays_open_while_a_window_is_sampled(beside_a_gpu, monkeypatch):
    windows = beside_a_gpu(Session())
    record(windows, lambda window: windows.close())
    assert [window.over > window.began for window in windows.closed] == [True]


def test_the_sampling_thread_does_not_wait_for_the_one_that_closes_the_profiler(beside_a_gpu):
    windows = beside_a_gpu(Session())
    with windows._session_lock:
        record_aside(windows)
    assert windows.closed == []


def test_a_window_has_of_a_recording_what_lies_in_it():
    recording = Recording(session=None)
    busy = {"GPU 0": [(0.0, 1.5), (1.6, 1.7), (1.9, 3.0)], "GPU 1": [(2.5, 2.6)]}
    recording.events = Events(busy, {}, calls=[(2.1, 2.2)], copies=[(1.1, 1.2)], functions=[])
    window = Window(1.0, 2.0, recording=recording)
    assert window.events.busy == {"GPU 0": [(1.0, 1.5), (1.6, 1.7), (1.9, 2.0)]}
    assert window.events.calls == [(1.1, 1.2)]  # A copy counts, since the call came later.


def test_an_error_of_a_signal_handler_while_the_profiler_is_closed_is_raised(beside_a_gpu):
    session = Session(lambda: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, raising(RuntimeError("of the program")))
    try:
        with pytest.raises(RuntimeError, match="of the program"):
            record_aside(beside_a_gpu(session))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_s_handler_may_pause_the_watching_while_the_profiler_is_closed(
    beside_a_gpu, monkeypatch
):
    paused = []

    def pause():
        if not paused:
            paused.append(True)
            Watcher._running.pause()  # As before a fork.
            Watcher._running.resume()

    monkeypatch.setattr("d2lpar._jax.profiler.Sessions.open", lambda self: Session(pause))
    monkeypatch.setattr(Windows, "LENGTH", 0.01)
    with watch(0.001):
        while not paused:
            jnp.ones(3).sum()


def test_while_the_main_thread_is_in_a_call_windows_are_cut_out_of_one_recording(
    beside_a_gpu, monkeypatch
):
    windows, scheduled = Windows(), []
    windows._length = 0.02
    monkeypatch.setattr("d2lpar._watch.windows._MAIN_THREAD.call", scheduled.append)
    step = jax.jit(lambda x: x + 1)
    float(step(0.0))
    for _ in range(2):
        record(windows, lambda window: float(step(0.0)))
        float(step(0.0))  # Between two windows, and after the last.
        time.sleep(0.01)
    assert windows.closed == []
    scheduled[0]()
    windows.end()
    first, second = windows.closed
    assert first.recording is second.recording
    for window in windows.closed:
        assert window.events.calls
        for spans in (window.events.calls, *window.events.busy.values()):
            assert window.began <= spans[0][0] <= spans[-1][1] <= window.over


@pytest.mark.parametrize("has_accelerator", [False, True])
def test_a_program_is_watched_in_any_thread_and_may_use_the_profiler_itself(
    has_accelerator, monkeypatch, tmp_path
):
    monkeypatch.setattr("d2lpar._jax.state.has_accelerator", lambda: has_accelerator)
    reports = []

    def program():
        with watch(0.001) as watched:
            end = time.perf_counter() + 0.5
            while time.perf_counter() < end:
                float(jnp.ones(3).sum())
            with jax.profiler.trace(tmp_path):
                float(jnp.ones(3).sum())
        reports.append(watched)

    program()
    other = threading.Thread(target=program)
    other.start()
    other.join()  # The main thread is in this call, and closes nothing.
    assert [watched.observed_seconds > 0 for watched in reports] == [True, True]
    assert list(tmp_path.rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("spans", "ends", "lasted"),
    [
        ([(1, 2)], [], [(1, 2)]),
        ([(1, 2)], [5], [(1, 5)]),
        ([(1, 2), (6, 7)], [5, 9], [(1, 5), (6, 9)]),
        ([(1, 2), (6, 7)], [5], [(1, 5), (6, 10)]),
        ([(6, 7)], [3, 9], [(0, 3), (6, 9)]),
    ],
    ids=["no end", "an end", "in turn", "under way when it closed", "under way when it opened"],
)
def test_an_operator_lasts_until_its_end_is_seen(spans, ends, lasted):
    found = _with_ends([(*span, "CPU 0") for span in spans], ends, opened=0, closed=10)
    assert list(found) == [(*span, "CPU 0") for span in lasted]


def test_spans_that_overlap_are_one():
    assert merged([(3, 4), (0, 2), (1, 1.5), (4, 5)], 10) == [(10, 12), (13, 15)]
