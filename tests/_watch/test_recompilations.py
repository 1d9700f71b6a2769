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
def watcher(monkeypatch):
    watcher = Watcher()
    watcher._listen_to_jax()
    monkeypatch.setattr(Watcher, "_running", watcher)
    return watcher


def programs_of(watcher, function):
    jax.clear_caches()
    run(function)
    programs = watcher.compilations.done
    recompilations.find_again(programs)
    return programs


@pytest.mark.parametrize("late", [False, True])
def test_what_compiles_again_is_found_with_its_change_also_without_a_core(late, monkeypatch):
    if late:  # The thread loses its core between all events of JAX.
        pauses = itertools.count()
        clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 0.1 * next(pauses))
        monkeypatch.setattr(recompilations, "time", clock)

    def train():
        step = jax.jit(lambda x: functools.reduce(lambda y, _: jnp.tanh(y @ x.T @ x), range(40), x))
        for rows in range(3, 7):
            step(np.ones((rows, 5), np.float16))  # This line.

    with watch() as watched:
        run(train)
    (found,) = [f for f in watched.findings if f.place.code.endswith("# This line.")]
    assert found.kind == "compilation"
    assert "again 3 times, the last time for float16[6,5] instead of float16[5,5]." in found.detail


def test_what_a_line_compiles_in_one_pass_is_not_compiled_again(watcher):
    def bias(length):
        return jnp.arctan(np.ones(length))

    def initialize():
        for length in (5, 6):
            jnp.cosh(np.ones(length))
        for function in (lambda: 1, lambda: 2):
            fixed(function)
        for _ in range(1):
            layers = [jax.random.laplace(jax.random.key(0), (n, n + 1)) for n in (5, 6, 7, 8)]
        return bias(5), bias(6), layers, list(map(double, (X, X[0])))

    assert not any(program.again for program in programs_of(watcher, initialize))


def test_what_a_library_compiles_in_one_call_is_not_compiled_again(watcher):
    library = {}
    code = "def both(f, *values): [f(value) for value in values]"
    exec(compile(code, "/env/site-packages/library.py", "exec"), library)

    def sample():
        watcher.compilations.moves[threading.get_ident()].append(time.perf_counter())

    def train():
        for length, go_elsewhere in ((4, sample), (6, lambda: double(X)), (8, sample)):
            library["both"](double, np.ones(length), np.ones(length + 1))
            go_elsewhere()

    again = [program for program in programs_of(watcher, train) if program.again]
    assert [str(program.arguments[0]) for program in again] == [
        "float32[6]",
        "float32[3,4]",  # At another line, for another shape.
        "float32[8]",
    ]


def scaling(rate):
    return jax.jit(lambda x: rate * x)


double, add = jax.jit(lambda x: 2 * x), jax.jit(lambda tree: sum(jax.tree.leaves(tree)))
fixed = jax.jit(lambda rate: X.sum(), static_argnums=0)


@pytest.mark.parametrize(
    ("call", "values", "cause", "words"),
    [
        (double, (X, X[:2], X[:1]), "shape", "for float32[1,4] instead of float32[2,4]"),
        (double, (X, X[:1]), "last batch", "for float32[1,4] instead of float32[3,4]"),
        (lambda x: run(lambda: double(x)), (X, X[0]), "shape", "for float32[4] instead"),
        (lambda x: double.lower(x).compile(), (X[0], X[0, 0]), "shape", "for float32[] instead"),
        (lambda n: run(lambda: jnp.zeros(n)), (3, 4), "shape", "for a result float32[4] instead"),
        (add, ([X], [X] * 2), "number", "for 2 arguments instead of 1"),
        (double, (0.5, np.float32(0.5)), "weak type", "for a strongly typed float32[] instead of"),
        (lambda n: double(jax.device_put(X, [None, *jax.devices()][n])), (0, 1), "device", "CPU 0"),
        (add, ((X, X), [X, X]), "tree", "because the arguments are in other containers"),
        (add, ({"x": X}, {"x": X, "y": X}), "tree", "the arguments have a new key, 'y'"),
        (fixed, (0.5, 0.25), "static", "static argument `rate` changed from 0.5 to 0.25"),
        (lambda x: fixed(rate=x), (object(), object()), "static", "another object, which does not"),
        (lambda rate: fixed(lambda x: rate * x), (1, 2), "object", "another function object"),
        (lambda p: jax.default_matmul_precision(p)(double)(X), (None, "high"), "context", "'high'"),
        (lambda _: (double(X), jax.clear_caches()), (1, 2), "caches", "had emptied the caches"),
        (lambda n: scaling(2)(X) if n else scaling(3)(X), (0, 1), "object", "another function obj"),
        (lambda rate: jax.jit(functools.partial(jnp.dot, rate))(X), (1, 2), "object", "dot was"),
        (lambda rate: jax.lax.map(lambda x: x * rate, X), (1, 2, 3), "object", "scan was compiled"),
        (
            lambda rate: jax.eval_shape(lambda x: rate * x, X),
            (1, 2),
            "object",
            "was traced again for",
        ),
    ],
)
def test_what_the_cache_is_asked_for_anew_is_told(call, values, cause, words, watcher):
    def repeat():
        for value in values:
            call(value)

    programs = programs_of(watcher, repeat)
    found, sentence = recompilations.why(programs)
    assert (sum(program.again for program in programs), found) == (len(values) - 1, cause)
    assert words in sentence
    assert found in recompilations.ADVICE
