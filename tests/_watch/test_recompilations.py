import itertools
import logging
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar import watch
from d2lpar._watch import recompilations


def compilations_in(function, *args):
    """Return the kind and the detail of each compilation that is found, by its line."""
    # In a thread, since the frames of pytest are in loops.
    thread = threading.Thread(target=function, args=args)
    with watch() as watched:
        thread.start()
        thread.join()
    of = [f for f in watched.findings if "compilation" in f.kind]
    return {f.place.code: (f.kind, f.detail) for f in of}


@pytest.fixture
def program():
    """A function that JAX has not seen yet, and that takes long enough to compile to be told."""

    def program(x):
        for _ in range(40):
            x = jnp.tanh(x @ x.T @ x)
        return x.sum()

    return program


@pytest.mark.parametrize("late", [False, True])
def test_what_compiles_again_is_found_with_its_change_also_without_logs_or_a_core(
    late, program, monkeypatch
):
    if late:  # The thread loses its core between all events of JAX.
        pauses = itertools.count()
        clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 0.1 * next(pauses))
        monkeypatch.setattr(recompilations, "time", clock)

    def train():
        step = jax.jit(program)
        for rows in range(3, 7):
            step(np.ones((rows, 5), np.float16))  # This line.

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        found = compilations_in(train)
    finally:
        logging.disable(before)
    kind, detail = found["step(np.ones((rows, 5), np.float16))  # This line."]
    assert kind == "compilation"
    assert detail.startswith(
        "program was compiled 4 times, last for float16[6,5] after float16[5,5]. That took "
    )


def test_a_new_function_in_each_turn_is_told_from_a_new_shape(program):
    def train():
        for _ in range(4):
            jax.jit(lambda x: program(x))(np.ones((3, 5)))

    ((_, detail),) = compilations_in(train).values()
    assert "was compiled 4 times, last for the same shapes, but another function" in detail


def test_weak_types_and_devices_are_causes_as_well(program):
    step = jax.jit(lambda scale, x: (scale * jnp.float32(0.9), program(x)))
    evaluate = jax.jit(lambda x: program(2 * x))

    def train():
        scale, x = 0.1, np.ones((7, 5), np.float32)
        for turn in range(3):
            scale, _ = step(scale, x)
            evaluate(jax.device_put(x, jax.devices("cpu")[0]) if turn else jnp.asarray(x))

    details = {code: detail for code, (_, detail) in compilations_in(train).items()}
    assert (
        "a float32[] that is strongly typed after a weakly" in details["scale, _ = step(scale, x)"]
    )
    (of_device,) = [detail for code, detail in details.items() if code.startswith("evaluate")]
    assert "a float32[7,5] that is committed to" in of_device


def test_what_a_line_compiles_when_it_is_passed_once_is_not_compiled_again(program):
    step, first, second = jax.jit(program), np.ones((5, 3)), np.ones((6, 3))

    def initialize():
        key = jax.random.key(0)
        layers = [jax.random.laplace(key, (n, n + 1)) for n in (5, 6, 7)]
        weights = {"w": jnp.cosh(np.ones((3, 8))), "b": jnp.cosh(np.ones(8))}
        return layers, weights, list(map(step, (first, second)))

    found = compilations_in(initialize)  # On a line of its own: a comprehension is passed once.
    assert {kind for kind, _ in found.values()} <= {"first compilation"}


def test_what_compiles_once_is_no_loss(program):
    with watch() as watched:
        jax.jit(program)(np.ones((3, 11))).block_until_ready()
    assert {f.kind for f in watched.losses(-1)}.isdisjoint({"compilation", "first compilation"})


def test_what_a_library_compiles_in_one_call_is_not_compiled_again(program):
    code = "def both(f, *shapes): [f(x) for x in shapes]"
    library = {}
    exec(compile(code, "/env/site-packages/library.py", "exec"), library)
    double = jax.jit(program)

    def train():
        for turn in range(2):
            library["both"](double, np.ones((4 + turn, 3)), np.ones((4 + turn, 4)))
            time.sleep(0.1)

    ((kind, detail),) = compilations_in(train).values()
    assert kind == "compilation"
    assert "was compiled 2 times" in detail


def test_an_array_that_grows_in_each_turn_compiles_again():
    def grow():
        grown = jnp.zeros((1, 9))
        for _ in range(8):
            grown = jnp.concatenate([grown, jnp.ones((1, 9))])

    found = compilations_in(grow)["grown = jnp.concatenate([grown, jnp.ones((1, 9))])"]
    assert found[0] == "compilation"
    assert "last for float32[8,9] after float32[7,9]" in found[1]


def test_functions_that_live_on_are_not_compiled_again(program):
    def make(factor):
        return jax.jit(lambda x: program(factor * x))

    functions = [make(factor) for factor in (1.0, 2.0, 3.0)]

    def train():
        for function in functions:
            function(np.ones((3, 5)))

    assert {kind for kind, _ in compilations_in(train).values()} <= {"first compilation"}
