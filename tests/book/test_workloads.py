from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar import cpu, host_memory
from d2lpar.book import workloads

KEY = jax.random.key(0)


def test_a_training_step_is_forward_backward_and_update():
    draw = np.random.default_rng(0).normal
    # The biases are far enough from zero to matter.
    parameters = [(weights, bias + 0.1) for weights, bias in workloads.init_mlp(KEY, (5, 8, 7, 1))]
    inputs, targets = (draw(size=(16, units)).astype(np.float32) for units in (5, 1))

    def loss_of(parameters):
        activations = inputs
        for weights, bias in parameters[:-1]:
            activations = jnp.maximum(activations @ weights + bias, 0)
        weights, bias = parameters[-1]
        return jnp.mean((activations @ weights + bias - targets) ** 2) / 2

    loss, gradients = jax.value_and_grad(loss_of)(parameters)
    updated, found = workloads.train_step(parameters, inputs, targets, 0.5)
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    expected = jax.tree.map(lambda p, g: p - 0.5 * g, parameters, gradients)
    close = jax.tree.map(partial(np.allclose, rtol=1e-4, atol=1e-5), updated, expected)
    assert all(jax.tree.leaves(close))


def test_a_new_perceptron_has_layers_that_differ_and_keep_the_scale_of_their_inputs():
    sizes = (300, 300, 300, 200)
    parameters = workloads.init_mlp(KEY, sizes)
    assert {leaf.dtype for leaf in jax.tree.leaves(parameters)} == {np.dtype("float32")}
    for (weights, bias), inputs, units in zip(parameters, sizes, sizes[1:], strict=False):
        assert (weights.shape, bias.shape) == ((inputs, units), (units,))
        assert np.std(weights) == pytest.approx(np.sqrt(2 / inputs), rel=0.02)
        assert not bias.any()
    (first, _), (second, _), _ = parameters
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, workloads.init_mlp(jax.random.key(1), sizes)[0][0])


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_chain_is_a_loop(length):
    matrix = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    expected = matrix
    for _ in range(length):
        expected = np.tanh(expected @ matrix / 8)
    np.testing.assert_allclose(workloads.chain(matrix, length), expected, rtol=1e-4, atol=1e-6)


def test_a_random_product_is_the_square_of_a_normal_matrix():
    matrix = jax.random.normal(KEY, (50, 50))
    product = workloads.random_product(KEY, 50)
    np.testing.assert_allclose(product, matrix @ matrix, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (0, 3), (4, 3)])
def test_a_host_batch_is_an_equal_array_of_its_own(shape):
    template = np.arange(np.prod(shape)).reshape(shape).astype(np.float32)
    batch = workloads.host_batch(template)
    assert batch.dtype == np.float32
    np.testing.assert_array_equal(batch, template)
    assert not np.shares_memory(batch, template)


def test_the_memory_of_a_host_batch_goes_back_with_its_last_reference():
    template = np.ones(16_000_000, np.uint8)
    for _ in range(3):  # malloc would return the memory once, and keep it from then on.
        batch = workloads.host_batch(template)
        held = host_memory()
        del batch
        assert held - host_memory() > 0.9 * template.nbytes


def test_a_chain_is_put_into_the_first_rows_of_an_array_and_the_rest_stays():
    array, matrix = np.full((5, 3), 0.5, np.float32), np.eye(3, dtype=np.float32)
    result = np.asarray(workloads.chain_into(jnp.asarray(array), matrix, 4))
    np.testing.assert_array_equal(result[3:], array[3:])
    np.testing.assert_allclose(result[:3], workloads.chain(matrix + array[:3], 4), rtol=1e-6)


# --- Work -------------------------------------------------------------------------------------


@pytest.fixture
def take(monkeypatch):
    """A function that sets the seconds that each measurement finds."""

    def take(*seconds):
        # Every second probe is disturbed.
        totals = (SimpleNamespace(median=s, samples=(2 * s, s)) for s in seconds)
        found = (SimpleNamespace(total=total) for total in totals)
        monkeypatch.setattr(workloads, "measure", lambda *_, **__: next(found))

    return take


@pytest.fixture
def take_on_gpu(take, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu")])
    return take


@pytest.fixture
def work(take):
    """Work whose links take a millisecond each: the probe on a CPU has 500 of them."""
    take(0.5)
    return workloads.Work(cpu(1))


@pytest.mark.parametrize(
    ("seconds", "links"), [(0.02, 20), (0.0204, 20), (1e-9, 1), (0, 1), (3, 3000)]
)
def test_a_chain_has_as_many_links_as_fit_into_the_time_and_at_least_one(work, seconds, links):
    assert work.links(seconds) == links


def test_work_is_a_chain_on_its_device_with_a_matrix_too_small_to_be_split_over_cores(work):
    assert (work.matrix.shape, work.matrix.dtype) == ((64, 64), np.float32)
    result = work(0.003)
    assert result.devices() == {cpu(1)}
    np.testing.assert_array_equal(result, workloads.chain(work.matrix, 3))
    np.testing.assert_array_equal(work(0.003, after=result), workloads.chain(result, 3))


@pytest.mark.parametrize(("seconds", "rows"), [(0.01, 8192), (0.005, 16384), (100, 64)])
def test_a_gpu_gets_as_many_examples_as_take_it_five_milliseconds(take_on_gpu, seconds, rows):
    take_on_gpu(seconds)  # For 16384 examples.
    assert workloads.training_size(hidden=256) == ((32, 2048, 2048, 1), rows)


@pytest.mark.parametrize(("link", "side"), [(5e-5, 4096), (9e-5, 3072), (3e-4, 2048), (2e-3, 1024)])
def test_on_a_gpu_a_link_takes_more_than_its_launch_and_less_than_a_pause(take_on_gpu, link, side):
    take_on_gpu(20 * link, 20 * 4e-4)
    work = workloads.Work()
    assert work.matrix.shape == (side, side)
    assert work.links(8e-3) == (27 if side == 2048 else 20)
