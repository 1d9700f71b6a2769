"""What several test files need."""

import os
import subprocess
import sys
import time

import jax
import psutil
import pytest
from commands import python_with
from fakes import FakeClock
from run_notebook import ROOT

from d2lpar._processes import worker


@pytest.fixture
def clock():
    """A clock that moves only when told to."""
    return FakeClock()


@pytest.fixture
def run_python():
    """A function that runs a program in a fresh Python and returns what it prints."""

    def run(program, **environment):
        done = python_with("-c", program, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def new_function():
    """A jitted function that XLA has not seen yet."""

    def new_function(x):
        return 2 * x + 1

    return jax.jit(new_function)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A function that writes a script; what running one in this process changes is put back."""
    monkeypatch.setattr(sys, "argv", ["d2lpar"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def write(program):
        path = tmp_path / "script.py"
        path.write_text(program)
        return path

    return write


@pytest.fixture
def left_of():
    """A function that says which processes are still there when time is up; the dead are not."""

    def is_alive(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def left_of(pids, patience=20.0):
        end = time.monotonic() + patience
        while left := [pid for pid in pids if is_alive(pid)]:
            if time.monotonic() > end:
                return left
            time.sleep(0.05)
        return []

    return left_of


@pytest.fixture(scope="session", autouse=True)
def _no_worker_outlives_the_tests():
    """Fail at the end if a process of `Workers` that a test or a notebook has started is left."""
    yield
    children = psutil.Process().children(recursive=True)
    commands = [" ".join(child.cmdline()) for child in children if child.is_running()]
    assert not [command for command in commands if worker.__name__ in command]


@pytest.fixture(scope="session")
def html():
    """The folder of the built book."""
    # The flags of the `make` that runs this test are not those of the book.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    # Once set up, it needs no network: whoever asks for one is sent to a port that is closed.
    closed = "http://127.0.0.1:9"
    environment |= dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"], closed)
    command = ["make", "book", f"PYTHON={sys.executable}"]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-8000:] + built.stderr[-8000:]
    return ROOT / "_build" / "html"
