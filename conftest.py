"""Give the tests and the examples in docstrings what some need: three CPU devices, and signals."""

import signal

from d2lpar import use_cpu_devices

use_cpu_devices(3)
# What a script starts with `&` ignores SIGINT, and what nohup starts SIGHUP. Programs inherit that,
# but not a handler: with one here, those that the tests start and signal ignore neither.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
