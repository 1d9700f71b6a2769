import functools
import itertools
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar import watch
from d2lpar._watch import recompilations
from d2lpar._watch.sampler import Watcher

X = np.ones((3, 4), np.float32)


def run(function):
    # In a thread, since the frames of pytest are in loops.
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.fixture
def program():
    """A function that JAX has not seen yet, and that takes long enough to compile to be told."""

    def program(x):
        for _ in range(40):
            x = jnp.tanh(x @ x.T @ x)
        return x.sum()

    return program


@pytest.fixture
def watcher(monkeypatch):
    """A watcher that JAX tells of its programs, without samples."""
    watcher = Watcher()
    watcher._listen_to_jax()
    monkeypatch.setattr(Watcher, "_running", watcher)
    return watcher


def programs_of(watcher, function):
    """Run a function, and return the programs that JAX has traced meanwhile."""
    run(function)
    programs = watcher.compilations.done
    recompilations.find_again(programs)
    return programs


@pytest.mark.parametrize("late", [False, True])
def test_what_compiles_again_is_found_with_its_change_also_without_a_core(
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

    with watch() as watched:
        run(train)
    (finding,) = [f for f in watched.findings if f.place.code.endswith("# This line.")]
    assert finding.kind == "compilation"
    assert finding.detail.startswith(
        "program was compiled 4 times, the last time for float16[6,5] instead of float16[5,5]. That"
    )


def test_what_compiles_once_is_no_loss(program):
    with watch() as watched:
        jax.jit(program)(np.ones((3, 11))).block_until_ready()
    assert {f.kind for f in watched.losses(-1)}.isdisjoint({"compilation", "first compilation"})


def test_what_a_line_compiles_when_it_is_passed_once_is_not_compiled_again(watcher):
    step = jax.jit(lambda x: 7 * x)

    def bias(length):
        return jnp.arctan(np.ones(length))

    def initialize():
        key = jax.random.key(0)
        biases = [
            bias(5),
            bias(6),
        ]
        layers = [jax.random.laplace(key, (n, n + 1)) for n in (5, 6, 7)]
        weights = {"w": jnp.cosh(np.ones((3, 8))), "b": jnp.cosh(np.ones(8))}
        return biases, layers, weights, list(map(step, (X, X[0])))

    # On a line of its own: a comprehension is passed once.
    assert not any(program.again for program in programs_of(watcher, initialize))


def test_what_a_library_compiles_in_one_call_is_not_compiled_again(watcher):
    library, double = {}, jax.jit(lambda x: 2 * x)
    code = "def both(f, *values): [f(value) for value in values]"
    exec(compile(code, "/env/site-packages/library.py", "exec"), library)

    def train():
        for length in (4, 6):
            library["both"](double, np.ones(length), np.ones(length + 1))
            watcher.compilations.moves[threading.get_ident()].append(time.perf_counter())

    assert [each.again for each in programs_of(watcher, train)] == [False, False, True, False]


class Config:
    pass


class Trainer:
    kept = []

    def __init__(self, rate):
        self.rate, self.step = rate, jax.jit(self._step)
        self.kept.append(self)

    def _step(self, x):
        return x * self.rate


def multiply_precisely(precision, multiply=jax.jit(lambda x: x @ x.T)):
    with jax.default_matmul_precision(precision):
        multiply(X)


@pytest.mark.parametrize(
    ("call", "values", "cause", "words"),
    [
        (jax.jit(lambda x: 2 * x), (X, X[0], X[:2]), "shape", "float32[2,4] instead of float32[4]"),
        (
            jax.jit(lambda x: 3 * x),
            (X, X[:1]),
            "last batch",
            "float32[1,4] instead of float32[3,4]",
        ),
        (jax.jit(lambda xs: sum(xs)), ([X], [X] * 2), "number", "for 2 arguments instead of 1"),
        (
            jax.jit(lambda x: 4 * x),
            (0.5, np.float32(0.5)),
            "weak type",
            "for a strongly typed float32[] instead of a weakly typed one",
        ),
        (
            lambda kind, double=jax.jit(lambda x: 5 * x): double(kind(X)),
            (np.array, lambda x: jax.device_put(x, jax.devices()[0])),
            "device",
            "for a float32[3,4] committed to CPU 0 instead of uncommitted",
        ),
        (jax.jit(lambda pair: pair[0]), ((X, X), [X, X]), "tree", "are in other containers"),
        (
            jax.jit(lambda batch: batch["x"]),
            ({"x": X}, {"x": X, "label": X}),
            "tree",
            "because the arguments have another key, 'label'",
        ),
        (
            jax.jit(lambda rate: rate * X, static_argnums=0),
            (0.5, 0.25),
            "static",
            "because static argument `rate` changed from 0.5 to 0.25",
        ),
        (
            jax.jit(lambda config: X.sum(), static_argnums=0),
            (Config(), Config()),
            "static",
            "static argument `config` changed from Config to another, unequal Config",
        ),
        (
            multiply_precisely,
            (None, "float32"),
            "context",
            "because `jax_default_matmul_precision` changed from None to 'float32'",
        ),
        (
            lambda _, double=jax.jit(lambda x: 6 * x): (double(X), jax.clear_caches()),
            range(3),
            "caches",
            "because jax.clear_caches had emptied the caches",
        ),
        (
            lambda rate: jax.jit(lambda x: x * rate)(X),
            (1, 2, 3),
            "object",
            "compiled 3 times, the last time for another function object with the same code",
        ),
        (lambda rate: jax.jit(functools.partial(jnp.dot, rate))(X), (1, 2), "object", "dot was"),
        (lambda rate: Trainer(rate).step(X), (1, 2, 3), "object", "_step was compiled 3 times"),
        (
            lambda rate: jax.lax.scan(lambda total, x: (total + rate * x, None), 0.0, X[0]),
            (1, 2, 3),
            "object",
            "scan was compiled 3 times",
        ),
        (lambda rate: jax.eval_shape(lambda x: rate * x, X), (1, 2), "object", "traced 2 times"),
        (
            lambda x, double=jax.jit(lambda x: 7 * x): run(lambda: double(x)),
            (X, X[0]),
            "shape",
            "for float32[4] instead of float32[3,4]",
        ),
        (
            lambda x, double=jax.jit(lambda x: 8 * x): double.lower(x).compile(),
            (X, X[0]),
            "shape",
            "for float32[4] instead of float32[3,4]",
        ),
    ],
)
def test_what_the_cache_is_asked_for_anew_is_told(call, values, cause, words, watcher):
    def repeat():
        for value in values:
            call(value)

    programs = programs_of(watcher, repeat)
    programs = [program for program in programs if not program.of_library] or programs
    found, sentence = recompilations.why(programs)
    assert (sum(program.again for program in programs), found) == (len(values) - 1, cause)
    assert words in sentence
    assert found in recompilations.ADVICE
