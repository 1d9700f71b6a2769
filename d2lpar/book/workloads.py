"""The matrix products and the MLP training step that the book measures."""

import functools
import itertools
import mmap
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._measure.comparison import measure

Parameters = list[tuple[jax.Array, jax.Array]]


@functools.partial(jax.jit, static_argnums=1)
def random_product(key: jax.Array, size: int) -> jax.Array:
    """Draw a matrix from the normal distribution and multiply it by itself.

    One jitted function, hence one dispatch: drawing and multiplying in two would double what
    Python has to do.
    """
    matrix = jax.random.normal(key, (size, size), jnp.float32)
    return matrix @ matrix


@functools.partial(jax.jit, static_argnums=1)
def chain(matrix: jax.Array, length: int) -> jax.Array:
    """Multiply and squash a matrix `length` times, each time needing the time before.

    With a 64x64 matrix no step is large enough to be split over the cores of a CPU, so the whole
    chain runs on one, for as long as you like: work that leaves the other cores alone. The length
    is static, because a GPU that does not know it has to ask the host after each step.
    """
    scale = 1 / matrix.shape[0]
    return jax.lax.fori_loop(0, length, lambda _, c: jnp.tanh(c @ matrix * scale), matrix)


class Work:
    """Work for one core of a CPU, or for a GPU, that takes about as long as one asks for.

    On a CPU its matrix is too small to be split over cores. On a GPU it is so large that Python,
    which launches each product, is far ahead of them.

    Example:
        >>> work = Work()
        >>> result = work(seconds=0.001)  # Python goes on at once.
        >>> work(seconds=0.001, after=result).shape == work.matrix.shape
        True
    """

    def __init__(self, device: jax.Device | None = None):
        on_cpu = (device or jax.devices()[0]).platform == "cpu"
        self._measure(*((64, 2000) if on_cpu else (2048, 20)), device)
        # On an H200 it takes 20 to 35 microseconds to launch a link.
        if not on_cpu and self._seconds_per_link < 2e-4:
            self._measure(4096, 20, device)

    def __call__(self, seconds: float, after: jax.Array | None = None) -> jax.Array:
        """Ask for a chain that takes so many seconds, if need be after another result."""
        return chain(self.matrix if after is None else after, self.links(seconds))

    def links(self, seconds: float) -> int:
        """Return how many links a chain needs to take so many seconds."""
        return max(1, round(seconds / self._seconds_per_link))

    def _measure(self, side: int, probe: int, device: jax.Device | None) -> None:
        matrix = jax.random.normal(jax.random.key(0), (side, side))
        self.matrix = jax.device_put(matrix, device)
        self._seconds_per_link = measure(chain, self.matrix, probe).total.median / probe


@functools.partial(jax.jit, static_argnums=2)
def chain_into(array: jax.Array, matrix: jax.Array, length: int) -> jax.Array:
    """Run a `chain` and put its result into the first rows of a large array.

    So the result is large, and yet most of the time goes into arithmetic on one core.
    """
    result = chain(matrix + array[: len(matrix)], length)
    return jax.lax.dynamic_update_slice(array, result, (0, 0))


def init_mlp(key: jax.Array, sizes: Sequence[int]) -> Parameters:
    """Make the weights and biases of a perceptron with so many units in each layer, inputs first.

    The weights are scaled for ReLU (He et al., 2015, Delving Deep into Rectifiers, eq. 10).
    """
    return _init_mlp(key, tuple(sizes))


@functools.partial(jax.jit, static_argnums=1)  # Eagerly, each shape would be compiled by itself.
def _init_mlp(key: jax.Array, sizes: tuple[int, ...]) -> Parameters:
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        key, draw = jax.random.split(key)
        weights = jax.random.normal(draw, (inputs, outputs), jnp.float32) * np.sqrt(2 / inputs)
        layers.append((weights.astype(jnp.float32), jnp.zeros(outputs, jnp.float32)))
    return layers


def mlp(parameters: Parameters, inputs: jax.Array) -> jax.Array:
    """Apply the perceptron, with ReLU between its layers."""
    *hidden, (weights, bias) = parameters
    for layer_weights, layer_bias in hidden:
        inputs = jax.nn.relu(inputs @ layer_weights + layer_bias)
    return inputs @ weights + bias


@jax.jit
def train_step(
    parameters: Parameters, inputs: jax.Array, targets: jax.Array, rate: float = 0.001
) -> tuple[Parameters, jax.Array]:
    """Do one step of stochastic gradient descent: forward, backward, update.

    Returns the new parameters, and the loss before the step, which is half the squared error
    averaged over the batch and the outputs.
    """

    def loss_of(parameters):
        return jnp.mean((mlp(parameters, inputs) - targets) ** 2) / 2

    loss, gradients = jax.value_and_grad(loss_of)(parameters)
    return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients), loss


def training_size(hidden: int) -> tuple[tuple[int, ...], int]:
    """Return a perceptron and a minibatch that keep JAX's default device busy for some time.

    They are the units of each layer, the inputs first, and the number of examples. On a CPU they
    are always the same; a GPU gets more units, and as many examples as take it five milliseconds in
    `train_step`.

    Example:
        >>> sizes, rows = training_size(hidden=256)
        >>> len(sizes)
        4
    """
    if jax.devices()[0].platform == "cpu":
        return (512, hidden, hidden, 1), 64
    # Few features, so that the host can copy a batch in far less time.
    sizes, probe = (32, 2048, 2048, 1), 16384
    batch = jnp.ones((probe, sizes[0])), jnp.ones((probe, 1))
    seconds = measure(train_step, init_mlp(jax.random.key(0), sizes), *batch).total.median
    return sizes, max(64, round(0.005 / seconds * probe / 64) * 64)


def host_batch(template: np.ndarray) -> np.ndarray:
    """Copy `template` into fresh memory of the host, as a data loader would.

    Its memory goes back to the operating system as soon as the last reference to it is dropped.
    """
    # Memory from malloc stays with the process after it is freed, so a second run would find it
    # there and seem to need none. A map of its own is returned at once; a private one fills twice
    # as fast as a shared one, which is mmap's default. (Windows has neither flag.)
    unix = hasattr(mmap, "MAP_PRIVATE")
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if unix else {}
    memory = mmap.mmap(-1, max(template.nbytes, 1), **private)
    batch = np.frombuffer(memory, template.dtype, template.size).reshape(template.shape)
    batch[...] = template
    return batch


@functools.partial(jax.jit, static_argnums=(1, 2))
def device_batch(key: jax.Array, rows: int, columns: int) -> jax.Array:
    """Make a batch of random floats between 0 and 1 on the device itself."""
    return jax.random.uniform(key, (rows, columns), jnp.float32)
