import re
from types import SimpleNamespace

import jax
import pytest

from d2lpar import cpu, gpu, num_gpus, try_all_gpus, try_gpu, two_devices, use_cpu_devices
from d2lpar._jax.devices import this_machine
from d2lpar._plain.errors import DeviceError

CPUS = jax.local_devices(backend="cpu")


def test_every_cpu_device_has_its_index():
    assert [cpu(index) for index in range(len(CPUS))] == CPUS
    assert cpu() == CPUS[0]


def test_without_a_gpu_the_cpu_takes_its_place():
    assert try_gpu(num_gpus()) == cpu()
    assert try_all_gpus() == ([gpu(i) for i in range(num_gpus())] or [cpu()])


@pytest.mark.parametrize(
    ("device", "count", "way_out"),
    [(cpu, len(CPUS), rf"Call .*use_cpu_devices\({len(CPUS) + 1}\)"), (gpu, num_gpus(), "try_gpu")],
)
def test_a_device_that_is_not_there_is_an_error_with_a_way_out(device, count, way_out):
    message = rf"{device.__name__}\({count}\) was asked for, but JAX sees {count} .*\. .*{way_out}"
    with pytest.raises(DeviceError, match=message):
        device(count)


def test_other_cpu_devices_cannot_be_had_once_jax_has_started():
    n = len(CPUS)
    message = rf"{n + 1}\) came too late: JAX has already started.*JAX_NUM_CPU_DEVICES={n + 1}"
    with pytest.raises(DeviceError, match=message):
        use_cpu_devices(n + 1)


@pytest.mark.parametrize(
    ("program", "environment", "found"),
    [
        ("use_cpu_devices(2)", "8", "8"),
        ("use_cpu_devices(3); use_cpu_devices(2); cpu(2); use_cpu_devices(3)", "1", "3"),
    ],
)
def test_more_cpu_devices_than_needed_are_kept(run_python, program, environment, found):
    program = f"from d2lpar import *; {program}; import jax; print(len(jax.local_devices()))"
    assert run_python(program, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=environment) == found


@pytest.fixture
def machine(monkeypatch):
    def machine(cpus, gpus):
        seen = {"cpu": cpus, "gpu": gpus}
        monkeypatch.setattr(jax, "local_devices", lambda backend: seen[backend])

    return machine


@pytest.mark.parametrize(
    ("cpus", "gpus", "pairs", "chosen"),
    [
        (2, 0, [], ("c0", "c1")),
        (0, 2, [], ("g0", "g1")),
        (1, 1, [], ("c0", "g0")),
        (2, 2, ["gpu+cpu"], ("g0", "c0")),
        (2, 2, ["gpu+gpu", "cpu+cpu"], ("g0", "g1")),
        (2, 1, ["gpu+gpu", "cpu+cpu"], ("c0", "c1")),
    ],
)
def test_two_devices_are_the_first_pair_that_the_machine_has(machine, cpus, gpus, pairs, chosen):
    machine(["c0", "c1"][:cpus], ["g0", "g1"][:gpus])
    assert two_devices(*pairs) == chosen


@pytest.mark.parametrize("pair", ["cpu", "cpu+", "cpu+tpu", "cpu+gpu+cpu", "CPU+GPU", None])
def test_a_pair_that_is_written_in_another_way_is_refused(pair):
    with pytest.raises(ValueError, match=re.escape(f'"cpu+gpu" or the like, found {pair!r}')):
        two_devices(pair)


def test_two_devices_that_are_not_there_are_an_error_with_a_way_out(machine):
    machine(["c0"], ["g0"])
    message = r"gpu\+gpu or cpu\+cpu, but JAX sees 1 CPU.* 1 GPU device\..*use_cpu_devices\(2\)"
    with pytest.raises(DeviceError, match=message):
        two_devices("gpu+gpu", "cpu+cpu")


def test_devices_are_counted_by_kind(machine):
    kinds = "H200", "T4", "H200"
    machine([], [SimpleNamespace(device_kind=kind) for kind in kinds])
    assert this_machine().devices == "2 x H200, 1 x T4"


@pytest.mark.parametrize(
    ("script", "driver"),
    [
        ("echo ' 570.124.06 '; echo 570.124.06", "570.124.06"),
        # nvidia-smi writes its errors to standard output.
        ("echo 'NVIDIA-SMI has failed because it could not reach the driver'; exit 9", ""),
    ],
)
def test_the_driver_is_the_first_line_of_nvidia_smi_unless_it_fails(
    tmp_path, monkeypatch, script, driver
):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert this_machine().driver == driver
