"""`watch` on programs that use other people's libraries: `make libraries`, once a week."""

import pytest

from d2lpar import watch

SMALL_STEPS = {
    "flax": """
from flax import nnx
import jax, jax.numpy as jnp

layers, x = [nnx.Linear(32, 32, rngs=nnx.Rngs(0)) for _ in range(80)], jnp.ones((8, 32))
model = nnx.Sequential(*layers)
call = nnx.jit(lambda model, x: model(x).mean())

def step():
    return call(model, x)  # This line.
""",
    "equinox": """
import equinox as eqx, jax, jax.numpy as jnp

model, x = eqx.nn.MLP(32, 32, 32, 40, key=jax.random.key(0)), jnp.ones((8, 32))
call = eqx.filter_jit(lambda model, x: jax.vmap(model)(x).mean())

def step():
    return call(model, x)  # This line.
""",
}


@pytest.mark.parametrize("library", SMALL_STEPS)
def test_small_steps_through_a_library_are_found_at_the_line_that_calls_it(library, tmp_path):
    pytest.importorskip(library)
    file = tmp_path / "train.py"
    file.write_text(SMALL_STEPS[library])
    program = {}
    exec(compile(file.read_bytes(), str(file), "exec"), program)
    for _ in range(3):
        program["step"]()
    with watch() as watched:
        for _ in range(300):
            program["step"]()
    found = max(watched.findings, key=watched.loss)
    assert found.place.file == str(file)
    assert found.place.code.endswith("# This line.")
    assert found.kind in ("dispatch", "barrier")  # Equinox waits for each result.
    assert watched.loss(found) > 0.2
