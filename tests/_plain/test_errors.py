import re

import numpy as np
import pytest

from d2lpar import (
    CompilationError,
    D2lparError,
    DeviceError,
    WorkerError,
)
from d2lpar._plain.errors import require_count


@pytest.mark.parametrize("error", [CompilationError, DeviceError, WorkerError])
def test_an_error_is_caught_under_our_name_and_under_that_of_python(error):
    assert issubclass(error, D2lparError)
    assert issubclass(error, RuntimeError)


@pytest.mark.parametrize("value", [1, -1, np.int64(1), True, 2.0, "2", None])
def test_what_is_no_such_count_is_refused_by_name_and_value(value):
    said = f"count must be an integer of at least 2, found {value!r}. Ask for two."
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        require_count("count", value, at_least=2, way_out="Ask for two.")


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
