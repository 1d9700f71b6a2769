import re

import pytest

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
assert "interval" in str(times.ratio("a", "b"))
with d2lpar.watch() as found, d2lpar.PeakMemory(), d2lpar.InFlight(2):
    float(x.sum())
_, timeline = d2lpar.record_trace(lambda: x @ x)
print(len(timeline.rows) > 0, found.seconds > 0)
"""
    assert run_python(program) == "True True"


@pytest.mark.parametrize(
    ("use", "extra"),
    [
        ("d2lpar.plot_timelines", "plot"),
        ("from d2lpar import width", "plot"),
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
