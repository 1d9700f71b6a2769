"""Train a small perceptron, data parallel, over as many processes as a launcher has started."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

# Without a launcher, initialize() raises. Whoever catches that error instead of looking for the
# launcher also catches it where JAX does not know the launcher, and trains once in each process.
RANKS = "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX", "D2LPAR_PROCESS"
if any(name in os.environ for name in RANKS):
    jax.distributed.initialize()

mesh = jax.make_mesh((jax.device_count(),), ("data",))
by_rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
inputs, hidden, rate, rows = 8, 32, 0.05, 64


def own_rows(step):
    """Return the rows of a minibatch that this process makes; all are the same however many do."""
    mine = np.split(np.arange(rows), jax.process_count())[jax.process_index()]
    drawn = [np.random.default_rng((step, row)).standard_normal(inputs) for row in mine]
    batch = np.array(drawn, dtype=np.float32)
    return batch, np.tanh(batch.sum(axis=1))


@jax.jit
def train_step(weights, batch, targets):
    def loss(weights):
        w1, w2 = weights
        return jnp.mean((jnp.tanh(batch @ w1) @ w2 - targets) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradients), value


normal = np.random.default_rng(0).normal  # All processes have to begin with the same weights.
weights = normal(size=(inputs, hidden)) / inputs**0.5, normal(size=hidden) / hidden**0.5
weights = jax.device_put(jax.tree.map(np.float32, weights), whole)
for step in range(20):
    batch, targets = (
        jax.make_array_from_process_local_data(by_rows, part) for part in own_rows(step)
    )
    weights, loss = train_step(weights, batch, targets)
if jax.process_index() == 0:
    print(f"processes: {jax.process_count()}, loss: {loss:.6f}")
