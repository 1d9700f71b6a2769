"""Whatever the public functions cannot work with, they name, with a way out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import d2lpar
from d2lpar import plot
from d2lpar.errors import D2lparError
from d2lpar.graph import computation_graph, critical_path, width


def deleted():
    x = jnp.ones(3)
    x.delete()
    return x


def donated():
    x = jnp.ones(3)
    with_its_memory = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert with_its_memory.shape == (3,)
    return x


def enter(context):
    with context:
        pass


one = d2lpar.counted("seconds", 1.0, "s")
BAD = {
    "block, deleted": (lambda: d2lpar.block({"x": [deleted()]}), "wait for what that call"),
    "block, donated": (lambda: d2lpar.block(donated()), "deleted, or donated to a call"),
    "wait_all, no list": (lambda: d2lpar.wait_all(d2lpar.cpu()), "needs a list of devices"),
    "wait_all, empty": (lambda: d2lpar.wait_all([]), "None for all of them"),
    "wait_all, a name": (lambda: d2lpar.wait_all(["cpu:0"]), "needs a device of JAX, such as"),
    "makes_wait, tries": (lambda: d2lpar.makes_wait(float, list, tries=0), "at least 1"),
    "device_name": (lambda: d2lpar.device_name("cpu:0"), "needs a device of JAX.* 'cpu:0'"),
    "device_memory": (lambda: d2lpar.device_memory(0), "needs a device of JAX.* found 0"),
    "cpu": (lambda: d2lpar.cpu("0"), "index must be an integer of at least 0, found '0'"),
    "cpu, too many": (lambda: d2lpar.cpu(10**6), "use_cpu_devices"),
    "gpu": (lambda: d2lpar.gpu(-1), "at least 0"),
    "try_gpu": (lambda: d2lpar.try_gpu(None), "at least 0, found None"),
    "two_devices": (lambda: d2lpar.two_devices("tpu"), 'written "cpu.gpu"'),
    "use_cpu_devices": (lambda: d2lpar.use_cpu_devices(0), "at least 1"),
    "measure, a result": (lambda: d2lpar.measure(jnp.ones(3)), r"not its result, measure\(f"),
    "measure, repeats": (lambda: d2lpar.measure(len, [], repeats=0), "at least 1, found 0"),
    "measure, warmup": (lambda: d2lpar.measure(len, [], warmup=-1), "at least 0, found -1"),
    "measure, limit": (lambda: d2lpar.measure(len, [], limit=0), "more than 0 seconds"),
    "compare, empty": (lambda: d2lpar.compare({}), "needs a dictionary of functions"),
    "compare, a list": (lambda: d2lpar.compare([len]), "needs a dictionary of functions"),
    "compare, a result": (lambda: d2lpar.compare({"a": 3}), "pass a function without arguments"),
    "record_trace": (lambda: d2lpar.record_trace(3), r"record_trace\(f, x\)"),
    "read_trace": (lambda: d2lpar.read_trace("/nowhere"), "/nowhere"),
    "InFlight": (lambda: d2lpar.InFlight(0), "None sets no bound"),
    "InFlight.submit": (lambda: d2lpar.InFlight(1).submit(3), r"submit\(f, x\)"),
    "PeakMemory, every": (lambda: d2lpar.PeakMemory(every=0), "positive number of seconds"),
    "PeakMemory, probe": (lambda: enter(d2lpar.PeakMemory(lambda: None)), "None"),
    "Timer": (lambda: d2lpar.Timer().avg(), "stop.* first"),
    "Quantity, empty": (lambda: d2lpar.Quantity("x", ()), "sample"),
    "overlap_score, zero": (
        lambda: d2lpar.overlap_score(0.0, 1.0, 1.0),
        "above 0 seconds",
    ),
    "overlap_score, text": (lambda: d2lpar.overlap_score("1", one, one), "found|number"),
    "watch": (lambda: enter(d2lpar.watch(0)), "positive number of seconds"),
    "computation_graph": (lambda: computation_graph(3), r"computation_graph\(f, x\), not its"),
    "width": (lambda: width(3), "graph"),
    "critical_path": (lambda: critical_path({}), "graph"),
    "plot.draw_timelines": (lambda: plot.draw_timelines({}), "timeline"),
    "plot.draw_curves": (
        lambda: plot.draw_curves([], {}, xlabel="x", ylabel="y"),
        "a value of the parameter and a curve",
    ),
    "plot.draw_graph": (lambda: plot.draw_graph(np.eye(3)), "graph"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_function_cannot_work_with_it_names_with_a_way_out(name):
    call, words = BAD[name]
    with pytest.raises(D2lparError, match=words):
        call()


def test_an_error_of_the_device_comes_as_it_is():
    @jax.jit
    def too_large(x):
        return x.sum() + jnp.zeros((10**8, 10**7))

    with pytest.raises(Exception, match=r"RESOURCE_EXHAUSTED|Out of memory"):
        d2lpar.block(too_large(jnp.ones(3)))
