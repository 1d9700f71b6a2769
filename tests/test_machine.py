import os
import platform
from importlib import metadata
from types import SimpleNamespace

import jax
import psutil
import pytest

from d2lpar import __version__, machine, num_gpus, usable_cores
from d2lpar._devices import this_machine, versions


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """A function that makes a script the only `nvidia-smi` there is."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return write


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity here")
def test_cores_that_the_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert usable_cores() == len(allowed)


def test_without_affinity_all_cores_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cores() == 7


def test_a_number_of_cores_that_nobody_knows_is_one(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("150000 100000", 1), ("50000 100000", 1), ("300000 100000", 3), ("max 100000", 7)],
)
def test_the_quota_of_a_container_counts_in_whole_cores(monkeypatch, tmp_path, quota, cores):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    file = tmp_path / "cpu.max"
    file.write_text(f"{quota}\n")
    monkeypatch.setattr(machine, "_QUOTA", file)
    assert usable_cores() == cores


def test_this_machine_is_the_one_that_runs():
    found = this_machine()
    assert found.processor == found.processor.strip() != ""
    assert found.cores == usable_cores()
    assert found.memory == psutil.virtual_memory().total
    assert platform.system() in found.system
    cpus = len(jax.local_devices(backend="cpu"))
    assert found.devices.split(", ")[0] == f"{cpus} x cpu"
    assert sum(int(kind.split()[0]) for kind in found.devices.split(", ")) == cpus + num_gpus()


def test_devices_are_counted_by_kind(monkeypatch):
    gpus = [SimpleNamespace(device_kind=kind) for kind in ("H200", "T4", "H200")]
    cpus = jax.local_devices(backend="cpu")
    monkeypatch.setattr(jax, "local_devices", lambda backend: gpus if backend == "gpu" else cpus)
    assert this_machine().devices == f"{len(cpus)} x cpu, 2 x H200, 1 x T4"


def test_a_cpu_that_was_hidden_from_jax_is_no_device(monkeypatch):
    def hidden(backend):  # as JAX_PLATFORMS=cuda does
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return [SimpleNamespace(device_kind="H200")]

    monkeypatch.setattr(jax, "local_devices", hidden)
    assert this_machine().devices == "1 x H200"


@pytest.mark.usefixtures("on_path")
def test_a_machine_without_nvidia_smi_has_no_driver():
    assert this_machine().driver == ""


@pytest.mark.parametrize(
    ("script", "driver"),
    [
        ("echo 570.124.06", "570.124.06"),
        ("echo ' 570.124.06 '; echo 570.124.06", "570.124.06"),
        ("[ $1 = --query-gpu=driver_version ] && [ $2 = --format=csv,noheader ] && echo 1", "1"),
        ("true", ""),
        ("echo", ""),
        ("exit 9", ""),
        ("echo 'No devices were found' >&2; exit 6", ""),
        # It does say that on its standard output.
        ("echo 'NVIDIA-SMI has failed because it could not reach the driver'; exit 9", ""),
    ],
)
def test_the_driver_is_what_nvidia_smi_says_if_it_does(on_path, script, driver):
    on_path(script)
    assert this_machine().driver == driver


def test_versions_are_those_of_python_and_of_what_a_measurement_depends_on():
    assert versions() == {
        "Python": platform.python_version(),
        "d2lpar": __version__,
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "numpy": metadata.version("numpy"),
        "scipy": metadata.version("scipy"),
    }
