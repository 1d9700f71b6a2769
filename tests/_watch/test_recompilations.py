import functools
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
from d2lpar._watch.sampler import Watcher


def run(function):
    # In a thread, since the frames of pytest are in loops.
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def compilations_in(function):
    """Return the kind and the detail of each compilation that is found, by its line."""
    with watch() as watched:
        run(function)
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


def test_what_a_line_compiles_when_it_is_passed_once_is_not_compiled_again(program):
    step, first, second = jax.jit(program), np.ones((5, 3)), np.ones((6, 3))

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
        return biases, layers, weights, list(map(step, (first, second)))

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


@pytest.fixture
def programs_of(monkeypatch):
    """Run a function, and return the programs that JAX has traced meanwhile."""

    def programs_of(function):
        watcher = Watcher()
        watcher._listen_to_jax()
        monkeypatch.setattr(Watcher, "_running", watcher)
        run(function)
        programs = watcher.compilations.done
        recompilations.find_again(programs)
        return programs

    return programs_of


X = np.ones((3, 4), np.float32)


class Config:
    pass


class Trainer:
    def __init__(self, rate, activation=jnp.tanh):
        self.rate, self.activation = rate, activation
        self.step = jax.jit(self._step)

    def _step(self, x):
        return self.activation(x) * self.rate


def new_functions():
    for rate in range(3):
        jax.jit(lambda x, rate=rate: x * rate)(X)


def new_partials():
    for rate in range(3):
        jax.jit(functools.partial(jnp.multiply, rate))(X)


def new_trainers():
    trainers = [Trainer(rate) for rate in range(3)]
    for trainer in trainers:
        trainer.step(X)


def new_scans():
    for rate in range(3):
        jax.lax.scan(lambda sum_, row, rate=rate: (sum_ + row.sum() * rate, None), 0.0, X)


def other_numbers():
    for count in (1, 2, 3):
        sum_of(list(X[:count]))


def longer_arrays():
    for length in (5, 6, 7):
        sum_of([np.ones(length)])


def last_batches():
    double = jax.jit(lambda x, w: 2 * x @ w)
    for _ in range(2):
        for batch in (X, X, X[:1]):
            double(batch, X.T)


def weak_types():
    scale = jax.jit(lambda scale, x: scale * x)
    for rate in (0.1, np.float32(0.1)):
        scale(rate, X)


def devices():
    double = jax.jit(lambda x: 2 * x)
    for x in (X, jax.device_put(X, jax.devices()[0])):
        double(x)


def other_trees():
    first = jax.jit(lambda batch: batch[0])
    for kind in (tuple, list):
        first(kind(X))


def other_keys():
    first = jax.jit(lambda batch: batch["x"])
    for key in "ab":
        first({"x": X, key: X})


def static_numbers():
    scale = jax.jit(lambda rate, x: rate * x, static_argnums=0)
    for rate in (0.5, 0.25, 0.125):
        scale(rate, X)


def static_objects():
    double = jax.jit(lambda x, config: 2 * x, static_argnames="config")
    for _ in range(3):
        double(X, config=Config())


def other_options():
    square = jax.jit(lambda x: x @ x.T)
    for precision in (None, "float32"):
        with jax.default_matmul_precision(precision):
            square(X)


def emptied_caches():
    double = jax.jit(lambda x: 2 * x)
    for _ in range(3):
        double(X)
        jax.clear_caches()


def other_threads():
    square = jax.jit(lambda x: x * x)
    for length in (7, 8, 9):
        run(lambda length=length: square(np.ones(length)))


def traced_again():
    for _ in range(3):
        jax.eval_shape(lambda x: 2 * x, X)


def lowered_again():
    for _ in range(3):
        jax.jit(lambda x: 3 * x).lower(X)


def ahead_of_time():
    negative = jax.jit(lambda x: -x)
    for lowered in [negative.lower(np.ones(length)) for length in (2, 3, 4)]:
        lowered.compile()


def test_a_program_that_is_compiled_inside_a_trace_is_not_counted_twice(program, programs_of):
    def with_constant(x):
        with jax.ensure_compile_time_eval():
            return x + jax.jit(program)(np.ones((3, 13)))

    *inner, outer = programs_of(lambda: jax.jit(with_constant)(X))
    assert outer.name == "with_constant"
    assert inner[-1].name == "program"
    elsewhere = outer.over - outer.began - outer.seconds
    assert elsewhere > 0.9 * sum(each.seconds for each in inner) > 0


@jax.jit
def sum_of(xs):
    return sum(xs)


@pytest.mark.parametrize(
    ("function", "again", "cause", "words"),
    [
        (new_functions, 2, "object", "compiled 3 times, last for the same shapes, but another"),
        (new_partials, 2, "object", "multiply was compiled 3 times"),
        (new_trainers, 2, "object", "another object with the same code"),
        (new_scans, 2, "object", "scan was compiled 3 times"),
        (other_numbers, 2, "number", "last for 3 arguments after 2"),
        (longer_arrays, 2, "shape", "last for float32[7] after float32[6]"),
        (last_batches, 1, "last batch", "float32[1,4] after float32[3,4], a smaller last batch"),
        (weak_types, 1, "weak type", "a float32[] that is strongly typed after a weakly"),
        (devices, 1, "device", "a float32[3,4] that is committed to CPU 0, after one that"),
        (other_trees, 1, "tree", "argument `batch` changed from tuple to list"),
        (other_keys, 1, "tree", "changed from dict ('x', 'a') to dict ('x', 'b')"),
        (static_numbers, 2, "static", "static argument `rate` changed from 0.25 to 0.125"),
        (static_objects, 2, "static", "`config` is another Config, unequal to the one before: gi"),
        (other_options, 1, "context", "`jax_default_matmul_precision` changed from None to 'flo"),
        (emptied_caches, 2, "caches", "jax.clear_caches had emptied the caches"),
        (other_threads, 2, "shape", "last for float32[9] after float32[8]"),
        (traced_again, 2, "object", "<lambda> was traced 3 times"),
        (lowered_again, 2, "object", "<lambda> was traced 3 times"),
        (ahead_of_time, 2, "shape", "last for float32[4] after float32[3]"),
    ],
)
def test_what_the_cache_is_asked_for_anew_is_told_with_advice(
    function, again, cause, words, programs_of
):
    programs = [program for program in programs_of(function) if not program.of_library]
    programs = programs or programs_of(function)
    found, sentence = recompilations.why(programs)
    assert (sum(program.again for program in programs), found) == (again, cause)
    assert words in sentence
    assert found in recompilations.ADVICE
