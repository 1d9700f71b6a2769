import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from d2lpar import (
    Benchmark,
    CompilationError,
    D2lparError,
    DeviceError,
    InFlight,
    PeakMemory,
    Timer,
    WorkerError,
    blocks_host,
    compare,
    measure,
    record_trace,
    wait_all,
    watch,
)
from d2lpar._errors import require_count
from d2lpar._waiting import wait_for

# --- Counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [CompilationError, DeviceError, WorkerError])
def test_an_error_is_caught_under_our_name_and_under_that_of_python(error):
    assert issubclass(error, D2lparError)
    assert issubclass(error, RuntimeError)


@pytest.mark.parametrize("value", [2, 3, 10**30, np.int64(2)])
def test_a_count_that_is_large_enough_passes(value):
    require_count("count", value, at_least=2)


@pytest.mark.parametrize("value", [1, -1, np.int64(1), True, 2.0, "2", None])
def test_what_is_no_such_count_is_refused_by_name_and_value(value):
    said = f"count must be an integer of at least 2, found {value!r}. Ask for two."
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        require_count("count", value, at_least=2, way_out="Ask for two.")


# --- While JAX traces ---------------------------------------------------------------------------


def enter(context):
    with context():
        pass


CALLS = {
    "measure": lambda x: measure(jnp.sin, x),
    "compare": lambda x: compare({"sin": lambda: jnp.sin(x)}),
    "wait_all": lambda x: wait_all(),
    "blocks_host": lambda x: blocks_host(float, lambda: [x]),
    "record_trace": lambda x: record_trace(jnp.sin, x),
    "watch": lambda x: enter(watch),
    "Timer": lambda x: Timer(),
    "Benchmark": lambda x: enter(Benchmark),
    "PeakMemory": lambda x: enter(PeakMemory),
    "InFlight": lambda x: InFlight(2),
}


@pytest.mark.parametrize("name", CALLS)
def test_where_no_array_has_a_value_nothing_is_timed_or_waited_for(name):
    @jax.jit
    def traced(x):
        CALLS[name](x)
        return x

    with pytest.raises(D2lparError, match=rf"{name}.* was called while JAX traces"):
        traced(jnp.ones(3))


TRANSFORMED = {
    "grad": lambda f: jax.grad(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(np.ones(3)),
    "scan": lambda f: jax.lax.scan(lambda x, y: (f(x), y), 1.0, np.ones(3)),
    "eval_shape": lambda f: jax.eval_shape(f, 1.0),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_every_transformation_counts(name):
    def times(x):
        Timer()
        return x

    with pytest.raises(D2lparError, match="while JAX traces"):
        TRANSFORMED[name](times)


def test_what_has_a_value_under_jit_may_be_waited_for():
    constant = jnp.arange(3)

    @jax.jit
    def traced(x):
        return x + len(wait_for(constant))

    assert traced(1) == 4


def test_another_thread_does_not_trace_because_this_one_does():
    said = []

    @jax.jit
    def traced(x):
        thread = threading.Thread(target=lambda: said.append(measure(len, [], repeats=6)))
        thread.start()
        thread.join()
        return x

    traced(1)
    assert len(said) == 1


def test_whoever_asks_first_while_jax_traces_is_told_all_the_same(run_python):
    program = """
import jax
from d2lpar import D2lparError, Timer

@jax.jit
def traced(x):
    try:
        Timer()
    except D2lparError:
        print("told")
    return x

traced(2)
print(len(Timer().times))
"""
    assert run_python(program) == "told\n0"


def test_what_was_compiled_before_is_not_compiled_again_after_the_first_look(run_python):
    program = (
        "import jax; double = jax.jit(lambda x: 2 * x); x = double(1.0)\n"
        "from d2lpar import Timer, record_compilations\n"
        "Timer()\n"
        "with record_compilations() as compiled: double(1.0)\n"
        "print(compiled)"
    )
    assert run_python(program) == "[]"


# --- Without the extras -------------------------------------------------------------------------


LIGHT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("matplotlib", "networkx", "scipy", "altair"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import jax.numpy as jnp
import d2lpar
"""


def test_without_the_extras_the_package_measures_records_and_watches(run_python):
    program = f"""{LIGHT}
x = jnp.ones((100, 100))
assert len(d2lpar.measure(jnp.dot, x, x, repeats=6).total.samples) == 6
times = d2lpar.compare({{"a": lambda: x + 1, "b": lambda: x @ x}}, repeats=6)
assert "interval" in repr(times.ratio("a", "b"))
with d2lpar.watch() as found, d2lpar.PeakMemory(), d2lpar.InFlight(2):
    float(x.sum())
_, timeline = d2lpar.record_trace(lambda: x @ x)
print(len(timeline.rows) > 0, found.seconds > 0)
"""
    assert run_python(program) == "True True"


@pytest.mark.parametrize(
    ("use", "extra"),
    [
        ("d2lpar.plot_graph({})", "plot"),
        ("d2lpar.use_style()", "plot"),
        ("import d2lpar.book", "book"),
    ],
)
def test_what_needs_an_extra_says_which(run_python, use, extra):
    program = f"""{LIGHT}
try:
    {use}
except ImportError as error:
    print(error)
"""
    said = run_python(program)
    assert re.match(rf'\w+ is not installed: pip install "d2lpar\[{extra}\] @ git\+', said)
