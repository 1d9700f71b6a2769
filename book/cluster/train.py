"""Train a perceptron on all devices of all processes, and go on from the last checkpoint.

    python -m d2lpar run -n 4 train.py FOLDER
    python train.py --alone FOLDER

However many processes a launcher starts, they train the same network on the same rows; the devices
along the data axis have to divide ROWS. All processes must be able to read and write FOLDER.
"""

import argparse
import logging
import math
import sys
from functools import cache, lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import AxisType

EXAMPLES, ROWS, INPUTS, HIDDEN = 1000, 64, 8, 32
RATE, B1, B2 = 0.003, 0.9, 0.999  # Of Adam. Its averages are m, of gradients, and v, of squares.
SAVED = 200  # The exit status after SIGTERM. No signal has it, and srun returns the highest.
log = logging.getLogger("train")


def make_mesh():
    """Arrange all devices along two axes, for rows and for weights."""
    model = math.gcd(2, jax.device_count())
    devices = sorted(jax.devices(), key=lambda device: device.id)
    devices = np.reshape(devices, (-1, model))
    explicit = (AxisType.Explicit,) * 2
    return jax.sharding.Mesh(devices, ("data", "model"), axis_types=explicit)


def draw(key):
    """Return the first weights, and Adam's two averages of their gradients."""
    one, two = jax.random.split(key)
    weights = {
        "w1": jax.random.normal(one, (INPUTS, HIDDEN)) / INPUTS**0.5,
        "w2": jax.random.normal(two, (HIDDEN, 1)) / HIDDEN**0.5,
    }
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return {"weights": weights, "m": zeros, "v": zeros}


def begin(manager, mesh):
    """Return the steps done, and the state and position after them."""
    specs = {"w1": jax.P(None, "model"), "w2": jax.P("model", None)}
    layout = {w: jax.NamedSharding(mesh, spec) for w, spec in specs.items()}
    layout = {"weights": layout, "m": layout, "v": layout}
    key = jax.random.key(0)  # The same in all processes.
    # Another process may see another folder. Process 0 looks, and tells.
    done = np.int32(manager.latest_step() or 0)
    done = int(multihost_utils.broadcast_one_to_all(done))
    if not done:
        return 0, jax.jit(draw, out_shardings=layout)(key), (0, 0)
    like = jax.tree.map(
        lambda w, at: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=at),
        jax.eval_shape(draw, key),
        layout,
    )
    parts = {"state": ocp.args.StandardRestore(like)}
    parts["position"] = ocp.args.JsonRestore()
    saved = manager.restore(done, args=ocp.args.Composite(**parts))
    return done, saved.state, saved.position


def read(numbers):
    """Read examples by their numbers, the target last; stands for a data set on a disk."""
    inputs = np.sin(np.outer(numbers, np.arange(1, INPUTS + 1)))
    targets = np.tanh(inputs.sum(axis=1))
    return np.column_stack([inputs, targets]).astype(np.float32)


@lru_cache(1)  # Shuffling takes long, so do it once an epoch.
def order_of(epoch):
    return np.random.default_rng(epoch).permutation(EXAMPLES)


def minibatch(position, layout):
    """Return the next rows, each read by its process, and the position."""
    epoch, row = position
    # Counted over all examples: no process has one minibatch fewer.
    if row + ROWS > EXAMPLES:
        epoch, row = epoch + 1, 0
    rows = order_of(epoch)[row : row + ROWS]
    # JAX asks once for each device, and some devices need the same rows.
    part = cache(lambda start, stop: read(rows[start:stop]))
    batch = jax.make_array_from_callback(
        (ROWS, INPUTS + 1), layout, lambda at: part(at[0].start, at[0].stop)
    )
    return batch, (epoch, row + ROWS)


@partial(jax.jit, donate_argnums=0)
def train_step(state, step, batch):
    def loss_of(weights):
        hidden = jnp.tanh(batch[:, :-1] @ weights["w1"])
        # A sum over what the model axis cuts, so say how it is to be cut.
        outputs = jnp.dot(hidden, weights["w2"], out_sharding=jax.P("data"))
        return jnp.mean((outputs - batch[:, -1:]) ** 2)

    def adam(w, m, v):
        rate = RATE * jnp.sqrt(1 - B2**step) / (1 - B1**step)
        return w - rate * m / (jnp.sqrt(v) + 1e-8)

    weights, m, v = state["weights"], state["m"], state["v"]
    loss, gradients = jax.value_and_grad(loss_of)(weights)
    m = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, m, gradients)
    v = jax.tree.map(lambda v, g: B2 * v + (1 - B2) * g**2, v, gradients)
    weights = jax.tree.map(adam, weights, m, v)
    return {"weights": weights, "m": m, "v": v}, loss


def train(folder, steps, save_every):
    """Train to the last step, or until a process gets SIGTERM; return whether one did."""
    mesh = make_mesh()
    by_rows = jax.NamedSharding(mesh, jax.P("data", None))
    keep = ocp.checkpoint_managers.LatestN(2)
    options = ocp.CheckpointManagerOptions(preservation_policy=keep)
    manager = ocp.CheckpointManager(folder.absolute(), options=options)
    manager.reached_preemption = lambda step: False  # Orbax would tell JAX numbers of its own.
    done, state, position = begin(manager, mesh)
    log.info("%s, from step %d on, %s", dict(mesh.shape), done, jax.devices()[0].device_kind)
    preempted, loss = False, None
    for step in range(done + 1, steps + 1):
        batch, position = minibatch(position, by_rows)
        before = loss
        # Needed for jax.P. Keep it short: JAX 0.7's multihost_utils fail in it.
        with jax.set_mesh(mesh):
            state, loss = train_step(state, step, batch)
        # Two steps in flight at most, and not 32: a save waits for them all.
        jax.block_until_ready(before)
        # True soon after one got SIGTERM, in all of them at the same step.
        preempted = multihost_utils.reached_preemption_sync_point(step - done)
        if preempted or step % save_every == 0 or step == steps:
            parts = {"state": ocp.args.StandardSave(state)}
            parts["position"] = ocp.args.JsonSave(position)
            manager.save(step, args=ocp.args.Composite(**parts))
            log.info("step %d, loss %.6f", step, loss)
        if preempted:
            break
    manager.close()  # Until then, the last checkpoint may be half written.
    return preempted


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the checkpoints are")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5, metavar="STEPS")
    parser.add_argument("--alone", action="store_true", help="one process, without a launcher")
    asked = parser.parse_args()
    if ":/" in str(asked.folder):  # Path makes one slash of the two.
        parser.error(f"{asked.folder} is an address, and no folder of this machine")
    if not asked.alone:
        # Under a launcher that JAX does not know, it raises. Do not catch that:
        # each process would train alone, into the same folder.
        jax.distributed.initialize(initialization_timeout=1800)
    rank, count = jax.process_index(), jax.process_count()
    form = f"%(asctime)s {rank}/{count} %(message)s"
    logging.basicConfig(format=form, force=True)  # Orbax has set it up, too.
    log.setLevel(logging.WARNING if rank else logging.INFO)
    if train(asked.folder, asked.steps, asked.save_every):
        log.warning("saved after SIGTERM; start all processes again")
        sys.exit(SAVED)


if __name__ == "__main__":
    main()
