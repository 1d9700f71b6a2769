"""Run a command once no other holds the same lock: one_at_a_time.py LOCK COMMAND...

The lock is on an open file, which the command inherits. The system releases it when the command
ends, for any reason, so a lock file left behind blocks no later command.
"""

import fcntl
import os
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the wait.
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("Another make is doing the same in this folder; waiting for it ...", file=sys.stderr)
    fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
os.execvp(sys.argv[2], sys.argv[2:])
