"""The matrix products and the MLP training step that the book measures."""

import functools
import itertools
import mmap

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar._measure.comparison import measure

Parameters = list[tuple[jax.Array, jax.Array]]


@functools.partial(jax.jit, static_argnums=1)
def random_product(key: jax.Array, size: int) -> jax.Array:
    """Draw a matrix from the normal distribution and multiply it by itself.

    One jitted function needs one dispatch; two functions, one to draw and one to multiply, would
    double Python's work.
    """
    matrix = jax.random.normal(key, (size, size), jnp.float32)
    return matrix @ matrix


@functools.partial(jax.jit, static_argnums=1)
def chain(matrix: jax.Array, length: int) -> jax.Array:
    """Multiply and squash a matrix `length` times, each step on the result of the step before.

    A step on a 64x64 matrix is too small to be split over the cores of a CPU, so a chain of any
    length runs on one core and leaves the others alone. The length is static, because a GPU would
    otherwise have to ask the host after each step whether to go on.
    """
    scale = 1 / matrix.shape[0]
    return jax.lax.fori_loop(0, length, lambda _, c: jnp.tanh(c @ matrix * scale), matrix)


class Work:
    """Work of about a given duration, for one core of a CPU or for a GPU.

    The duration is that of a core that nothing else uses: on a busy machine, it takes longer.
    On a CPU, the matrix is too small to be split over cores. On a GPU, the matrix is so large that
    Python, which launches each product, stays far ahead of the GPU.

    Example:
        >>> work = Work()
        >>> result = work(seconds=0.001)  # Python goes on at once.
        >>> work(seconds=0.001, after=result).shape == work.matrix.shape
        True
    """

    def __init__(self, device: jax.Device | None = None):
        on_cpu = (device or jax.devices()[0]).platform == "cpu"
        self._measure(*((64, 500) if on_cpu else (2048, 20)), device)
        # Launching a link takes 20 to 35 microseconds on an H200; some pages ask for 500 of work.
        link = self._seconds_per_link
        if not (on_cpu or 1e-4 < link < 5e-4):
            self._measure(1024 if link >= 5e-4 else 3072 if link > 6e-5 else 4096, 20, device)

    def __call__(self, seconds: float, after: jax.Array | None = None) -> jax.Array:
        """Dispatch a chain of that many seconds; it starts from the result `after`, if given."""
        return chain(self.matrix if after is None else after, self.links(seconds))

    def links(self, seconds: float) -> int:
        """Return how many links a chain of that many seconds has."""
        return max(1, round(seconds / self._seconds_per_link))

    def _measure(self, side: int, probe: int, device: jax.Device | None) -> None:
        matrix = jax.random.normal(jax.random.key(0), (side, side))
        self.matrix = jax.device_put(matrix, device)
        # The quickest of many short probes: only a disturbed one takes longer than its links.
        probes = measure(chain, self.matrix, probe, repeats=20).total.samples
        self._seconds_per_link = min(probes) / probe


@functools.partial(jax.jit, static_argnums=2)
def chain_into(array: jax.Array, matrix: jax.Array, length: int) -> jax.Array:
    """Run a `chain` and put its result into the first rows of a large array.

    The result is large, but most of the time still goes into arithmetic on one core.
    """
    result = chain(matrix + array[: len(matrix)], length)
    return jax.lax.dynamic_update_slice(array, result, (0, 0))


@functools.partial(jax.jit, static_argnums=1)  # Without jit, each shape compiles separately.
def init_mlp(key: jax.Array, sizes: tuple[int, ...]) -> Parameters:
    """Make the weights and biases of a perceptron, given the units of each layer, inputs first.

    The weights are scaled for ReLU (He et al., 2015, Delving Deep into Rectifiers, eq. 10).
    """
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
    """Return the sizes of a perceptron and a minibatch that keep JAX's default device busy.

    The sizes are the units of each layer, inputs first, and the number of examples. All CPUs get
    the same sizes; a GPU gets more units, and as many examples as `train_step` can handle in five
    milliseconds.

    Example:
        >>> sizes, rows = training_size(hidden=256)
        >>> len(sizes)
        4
    """
    if jax.devices()[0].platform == "cpu":
        return (512, hidden, hidden, 1), 64
    # With few features, the host copies a batch in far less time than a step takes.
    sizes, probe = (32, 2048, 2048, 1), 16384
    batch = jnp.ones((probe, sizes[0])), jnp.ones((probe, 1))
    seconds = measure(train_step, init_mlp(jax.random.key(0), sizes), *batch).total.median
    return sizes, max(64, round(0.005 / seconds * probe / 64) * 64)


def host_batch(template: np.ndarray) -> np.ndarray:
    """Copy `template` into fresh memory of the host, as a data loader would.

    Its memory goes back to the operating system as soon as the last reference to it is dropped.
    """
    # The process keeps freed memory of malloc, so a second run would reuse that memory and seem to
    # need none. A memory map is returned at once. A private map fills twice as fast as a shared
    # one, mmap's default.
    memory = mmap.mmap(-1, max(template.nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    batch = np.frombuffer(memory, template.dtype, template.size).reshape(template.shape)
    batch[...] = template
    return batch
