"""Time that moves only when told to, and arrays that are ready at a given time."""

import itertools
from types import SimpleNamespace

from d2lpar import Comparison, Control, Measurement, Quantity


class FakeClock:
    """A clock that stands still until someone waits or lets it advance."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds

    def advance_to(self, time):
        self.now = max(self.now, time)


class FakeArray:
    """What JAX asks of an array. Waiting for it moves the clock to when it is ready."""

    def __init__(self, clock, ready_at, device="a device"):
        self._clock = clock
        self._ready_at = ready_at
        self.sharding = SimpleNamespace(addressable_devices={device})
        self._deleted = False

    def block_until_ready(self):
        self._refuse_if_deleted()
        self._clock.advance_to(self._ready_at)
        return self

    def is_ready(self):
        self._refuse_if_deleted()
        return self._clock.now >= self._ready_at

    def is_deleted(self):
        return self._deleted

    def delete(self):
        self._deleted = True

    def _refuse_if_deleted(self):
        # JAX before 0.11.2 kills the process here.
        if self._deleted:
            raise RuntimeError("Array has been deleted.")


class FakeDevice:
    """A queue that works in order, beside the host that fills it."""

    id = 0

    def __init__(self, clock):
        self._clock = clock
        self._free_at = 0

    def run(self, work, *, dispatch=0):
        """Keep the host for `dispatch` seconds, then the device for `work` seconds."""
        self._clock.advance(dispatch)
        self._free_at = max(self._free_at, self._clock.now) + work
        return FakeArray(self._clock, self._free_at, device=self)


def raising(error):
    """Return a function that raises an error, whatever it is given."""

    def function(*_, **__):
        raise error

    return function


def crowded_in(rounds):
    count = itertools.count()
    return Control(lambda: float(next(count) in rounds), 0.5, "two free cores")


def run_of(machine="mine", needs=None, level=0.95, warnings=(), **times):
    """Return a run in which functions took so many seconds; `(times, bytes)` observes memory."""
    measured = []
    for name, given in times.items():
        samples, memory = given if isinstance(given[0], tuple) else (given, None)
        total, dispatch = (
            Quantity(name, tuple(share * s for s in samples), "s", level=level)
            for share in (1.0, 0.1)
        )
        observed = {"memory": Quantity("memory", memory, "B")} if memory else {}
        devices = frozenset({"CPU 0"})
        measured.append(Measurement(name, dispatch, total, warnings, devices, observed))
    return Comparison(measured, level, 0, needs, machine)


SLOW = 2.0, 2.1, 2.2, 1.9, 2.3, 1.8, 2.4, 1.7, 9.0
FAST = tuple(s / 2 for s in SLOW)
