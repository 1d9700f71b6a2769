"""What several test files need."""

import os
import subprocess
import sys

import pytest
from fakes import FakeClock


@pytest.fixture
def clock():
    """A clock that moves only when told to."""
    return FakeClock()


@pytest.fixture
def run_python():
    """A function that runs a program in a fresh Python and returns what it prints."""

    def run(program, **environment):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
