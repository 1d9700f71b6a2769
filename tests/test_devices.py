import jax
import pytest

from d2lpar import (
    ArgumentError,
    DeviceError,
    cpu,
    gpu,
    num_gpus,
    try_all_gpus,
    try_gpu,
    use_cpu_devices,
)

CPUS = jax.local_devices(backend="cpu")


def test_every_cpu_device_has_its_index():
    assert [cpu(index) for index in range(len(CPUS))] == CPUS
    assert cpu() == CPUS[0]


def test_without_a_gpu_the_cpu_takes_its_place():
    assert try_gpu(num_gpus()) == cpu()
    assert try_all_gpus() == ([gpu(i) for i in range(num_gpus())] or [cpu()])


def test_a_gpu_that_is_not_there_is_an_error_with_a_way_out():
    n = num_gpus()
    with pytest.raises(DeviceError) as caught:
        gpu(n)
    assert str(caught.value) == (
        f"gpu({n}) was asked for, but JAX sees {n} GPU device{'s' * (n != 1)}. "
        "Use d2lpar.try_gpu(), which falls back to the CPU."
    )


def test_a_cpu_index_out_of_range_is_an_error_with_a_way_out():
    n = len(CPUS)
    with pytest.raises(DeviceError) as caught:
        cpu(n)
    assert str(caught.value) == (
        f"cpu({n}) was asked for, but JAX sees {n} CPU device{'s' * (n != 1)}. "
        f"Call d2lpar.use_cpu_devices({n + 1}) before anything else of JAX."
    )


@pytest.mark.parametrize("pick", [cpu, gpu, try_gpu])
@pytest.mark.parametrize("index", [-1, True, 0.0, "0"])
def test_an_index_that_is_no_count_is_refused(pick, index):
    with pytest.raises(ArgumentError, match=f"index must be .* at least 0, found {index!r}"):
        pick(index)


@pytest.mark.parametrize("count", [0, -2, 2.0])
def test_a_number_of_devices_must_be_a_positive_integer(count):
    with pytest.raises(ArgumentError, match=f"count must be .* at least 1, found {count!r}"):
        use_cpu_devices(count)


def test_other_cpu_devices_cannot_be_had_once_jax_has_started():
    n = len(CPUS)
    with pytest.raises(DeviceError) as caught:
        use_cpu_devices(n + 1)
    assert str(caught.value) == (
        f"use_cpu_devices({n + 1}) came too late: JAX has already started with {n} CPU "
        f"device{'s' * (n > 1)}. Restart Python (in a notebook: the kernel) and call it before "
        f"anything else of JAX, or set the environment variable JAX_NUM_CPU_DEVICES={n + 1}."
    )


def test_as_many_cpu_devices_as_there_are_can_always_be_had():
    use_cpu_devices(len(CPUS))
    assert jax.local_devices(backend="cpu") == CPUS


def test_cpu_devices_can_be_had_before_jax_starts(run_python):
    program = "from d2lpar import *; use_cpu_devices(2); print(cpu(1).id, len(try_all_gpus()))"
    assert run_python(program, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="1") == "1 1"


def test_two_cpu_devices_from_the_environment_are_as_good(run_python):
    program = "from d2lpar import *; cpu(1); use_cpu_devices(2); print(cpu(1).id)"
    assert run_python(program, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="2") == "1"
