"""Give the tests and the examples in docstrings what some need: three CPU devices, and signals."""

import signal

from d2lpar import use_cpu_devices

use_cpu_devices(3)
# A shell has `make test &` and `nohup make test` ignore these, and programs inherit that. A handler
# is not inherited, so the programs that tests start, and send them to, do not ignore them.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
