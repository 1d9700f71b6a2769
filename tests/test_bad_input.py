"""A public function names an argument that it cannot use, and a way out."""

import re
from functools import partial
from operator import attrgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import d2lpar
from d2lpar import D2lparError


@partial(jax.jit, donate_argnums=0)
def donating(x):
    return x + 1


GONE = jnp.ones(3)
donating(GONE)


def enter(context):
    with context:
        pass


CARRIED = r"needs an array that was deleted, or donated.*d2lpar\.carried\(step, state"
BAD = {
    "measure, donated": (lambda: d2lpar.measure(jnp.sin, GONE), "was deleted, or donated"),
    "measure, donating": (lambda: d2lpar.measure(donating, jnp.ones(3)), f"'donating' {CARRIED}"),
    "record_trace, donated": (lambda: d2lpar.record_trace(donating, GONE), f"'donating' {CARRIED}"),
    "carried, a result": (lambda: d2lpar.carried(3, jnp.ones(3)), r"carried\(f, x\)"),
    "measure, deleted result": (lambda: d2lpar.measure(lambda: GONE), "wait for that call's"),
    "wait_all, empty": (lambda: d2lpar.wait_all([]), "None for all of them"),
    "wait_all, a name": (lambda: d2lpar.wait_all(["cpu:0"]), "needs a device of JAX, such as"),
    "barrier": (lambda: d2lpar.barrier(30, "epoch"), "positive number of seconds, found 'epoch'"),
    "blocks_host, tries": (lambda: d2lpar.blocks_host(float, list, tries=0), "at least 1"),
    "blocks_host, a result": (lambda: d2lpar.blocks_host(3, list), "needs an operation and a fun"),
    "device_name": (lambda: d2lpar.device_name("cpu:0"), "needs a device of JAX.* 'cpu:0'"),
    "device_memory": (lambda: d2lpar.device_memory("cpu:0"), "needs a device of JAX.* 'cpu:0'"),
    "cpu": (lambda: d2lpar.cpu("0"), "index must be an integer of at least 0, found '0'"),
    "gpu": (lambda: d2lpar.gpu(-1), "at least 0"),
    "free_cores": (lambda: d2lpar.free_cores(0), "count must be an integer of at least 1, found 0"),
    "use_cpu_devices": (lambda: d2lpar.use_cpu_devices(0), "at least 1"),
    "measure, a result": (lambda: d2lpar.measure(jnp.ones(3)), r"not its result, measure\(f"),
    "measure, repeats": (lambda: d2lpar.measure(len, [], repeats=0), "at least 1, found 0"),
    "measure, limit": (lambda: d2lpar.measure(len, [], max_seconds=0), "positive number of sec"),
    "compare, empty": (lambda: d2lpar.compare({}), "needs a dictionary of functions"),
    "compare, a result": (lambda: d2lpar.compare({"a": 3}), "pass a function without arguments"),
    "compare, observes the time": (
        lambda: d2lpar.compare({"a": list}, observe={"total": len}),
        "itself measures 'total'",
    ),
    "compare, observes no function": (
        lambda: d2lpar.compare({"a": list}, observe={"length": 3}),
        "cannot call 3 to observe 'length'",
    ),
    "compare, unit of nothing": (
        lambda: d2lpar.compare({"a": list}, observe={"length": len}, units={"lenght": "B"}),
        "'lenght' a unit, but observe has length",
    ),
    "Quantity, exact": (lambda: d2lpar.exact("time", 1.0, "s") < 2, "no time is exact"),
    "record_trace": (lambda: d2lpar.record_trace(3), r"record_trace\(f, x\)"),
    "record_typical": (lambda: d2lpar.record_typical(3), r"record_typical\(f, x\)"),
    "InFlight": (lambda: d2lpar.InFlight(0), "None sets no bound"),
    "InFlight.submit": (lambda: d2lpar.InFlight(1).submit(3), r"submit\(f, x\)"),
    "Workers, timeout": (lambda: d2lpar.Workers(1, timeout=0), "positive number of seconds"),
    "PeakMemory, every": (lambda: d2lpar.PeakMemory(interval=0), "positive number of seconds"),
    "PeakMemory, probe": (lambda: enter(d2lpar.PeakMemory(lambda: None)), r"d2lpar\.host_memory"),
    "Timer.avg": (lambda: d2lpar.Timer().avg(), "stop.* first"),
    "watch": (lambda: enter(d2lpar.watch(0)), "positive number of seconds"),
    "computation_graph": (lambda: d2lpar.computation_graph(3), r"computation_graph\(f, x\)"),
    "critical_path": (lambda: d2lpar.critical_path({}), "graph"),
    "plot_timelines": (lambda: d2lpar.plot_timelines({}), "timeline"),
    "plot_curves": (
        lambda: d2lpar.plot_curves([], {}, xlabel="x", ylabel="y"),
        "one parameter value and one curve",
    ),
    "plot_graph": (lambda: d2lpar.plot_graph(np.eye(3)), "graph"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_function_names_an_argument_that_it_cannot_use_and_a_way_out_as_documented(name):
    call, words = BAD[name]
    with pytest.raises((ValueError, TypeError, D2lparError), match=words) as raised:
        call()
    documentation = attrgetter(name.partition(",")[0])(d2lpar).__doc__
    assert re.search(rf"^ +(\w+, )*{raised.type.__name__}\b.*: ", documentation, re.MULTILINE)


def test_an_error_of_the_device_is_not_changed():
    @jax.jit
    def too_large(x):
        return x.sum() + jnp.zeros((10**8, 10**7))

    with pytest.raises(Exception, match=r"RESOURCE_EXHAUSTED|Out of memory"):
        d2lpar.measure(too_large, jnp.ones(3))
