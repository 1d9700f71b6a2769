"""Run a command while no other holds the same lock: one_at_a_time.py LOCK COMMAND...

The system lets go of the lock when the process ends, however it ends: a file that was left behind
locks nobody out.
"""

import fcntl
import subprocess
import sys

with open(sys.argv[1], "w") as lock:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another make is doing the same in this folder; waiting for it ...", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)
    sys.exit(subprocess.run(sys.argv[2:]).returncode)
