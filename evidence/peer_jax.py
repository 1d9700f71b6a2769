"""D2L's experiments in plain JAX, one process of `beside_pytorch.py`: prints its medians as JSON.

Keys are split beforehand, and each piece of work is one jitted function, as usual in JAX. The
experiments run on a GPU if there is one, and then those that need a GPU run as well.
"""

import itertools

import jax
import jax.numpy as jnp
from peers import BATCH, LAYERS, RATE, STEPS, go_on, report

add_one = jax.jit(lambda x: x + 1)
square = jax.jit(lambda x: x @ x)


def drawing_and_squaring(size):
    step = jax.jit(lambda key: square(jax.random.normal(key, (size, size))))
    keys = list(jax.random.split(jax.random.key(0), 10))
    return lambda: [step(key) for key in keys]


def increments(x, wait):
    for _ in range(1000):
        x = add_one(x)
        wait(x)
    return x


def increments_in_one_call(unroll):
    """Return a function that adds one a thousand times in a `scan`."""

    def body(y, _):
        return y + 1, None

    return jax.jit(lambda x: jax.lax.scan(body, x, length=1000, unroll=unroll)[0])


def init(key):
    """Return weights and biases of a network with the sizes of `LAYERS`."""
    shapes = list(itertools.pairwise(LAYERS))
    keys = jax.random.split(key, len(shapes))
    return [
        (jax.random.normal(key, shape) * 0.01, jnp.zeros(shape[1]))
        for key, shape in zip(keys, shapes, strict=True)
    ]


def loss_of(params, x, y):
    """Return half the mean squared error."""
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return jnp.mean((x @ weight + bias - y) ** 2) / 2


@jax.jit
def train_step(params, key):
    """Draw a minibatch and take a step of gradient descent; return new parameters and the loss."""
    x = jax.random.normal(key, (BATCH, LAYERS[0]))
    loss, grads = jax.value_and_grad(loss_of)(params, x, jnp.ones((BATCH, 1)))
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads), loss


def training(params, keys, wait):
    """Take a step with each key, and call `wait` with the loss of each."""
    for key in keys:
        params, loss = train_step(params, key)
        wait(loss)
    return params


@jax.jit
def training_in_one_call(params, keys):
    """Take a step with each key in a `scan`."""
    return jax.lax.scan(train_step, params, keys)[0]


def products(x, count):
    return [square(x) for _ in range(count)]


def on_one_device(steps):
    params, ones = init(jax.random.key(0)), jnp.ones((1, 2))
    keys = jax.random.split(jax.random.key(1), steps)
    each = list(keys)
    matrix, key = jax.random.normal(jax.random.key(2), (1000, 1000)), jax.random.key(3)
    scan, unrolled = increments_in_one_call(1), increments_in_one_call(50)
    draw = jax.jit(lambda key: jax.random.normal(key, (1000, 1000)))
    return {
        "ten random products of 1000": drawing_and_squaring(1000),
        "one product of 1000": lambda: square(matrix),
        "one draw of 1000 x 1000": lambda: draw(key),
        "a thousand increments, a barrier in each": lambda: increments(ones, jax.block_until_ready),
        "a thousand increments, call by call": lambda: increments(ones, go_on),
        "a thousand increments, scan": lambda: scan(ones),
        "a thousand increments, scan with unroll=50": lambda: unrolled(ones),
        "training, a barrier in each step": lambda: training(params, each, jax.block_until_ready),
        "training": lambda: training(params, each, go_on),
        "training, scan": lambda: training_in_one_call(params, keys),
    }


def beside_a_gpu(gpu, cpu, small=2000, large=6000, copied=4000, count=50):
    on_cpu = jax.device_put(jax.random.normal(jax.random.key(4), (small, small)), cpu)
    on_gpu = jax.device_put(jax.random.normal(jax.random.key(5), (large, large)), gpu)
    x = jax.device_put(jax.random.normal(jax.random.key(6), (copied, copied)), gpu)
    computed = jax.block_until_ready(products(x, count))
    pinned = x.sharding.with_memory_kind("pinned_host")

    def to_pinned(results):
        return [jax.device_put(y, pinned) for y in results]

    return {
        "ten random products of 4000": drawing_and_squaring(4000),
        "ten products of 2000 on the CPU": lambda: products(on_cpu, 10),
        "ten products of 6000 on the GPU": lambda: products(on_gpu, 10),
        "both, GPU asked first": lambda: (products(on_gpu, 10), products(on_cpu, 10)),
        "both, CPU asked first": lambda: (products(on_cpu, 10), products(on_gpu, 10)),
        "fifty products": lambda: products(x, count),
        "copying them to pageable memory": lambda: jax.device_put(computed, cpu),
        "copying them to pinned memory": lambda: to_pinned(computed),
        "fifty products, then fifty copies": lambda: to_pinned(products(x, count)),
        "each copy behind its product": lambda: to_pinned(square(x) for _ in range(count)),
    }


if __name__ == "__main__":
    device = jax.devices()[0]
    steps = STEPS[device.platform]
    work = on_one_device(steps)
    if device.platform == "gpu":
        work |= beside_a_gpu(device, jax.devices("cpu")[0])
    report(jax.__version__, steps, work, jax.block_until_ready)
