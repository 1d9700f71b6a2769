"""Execute notebooks and print their claims and reports of exercises, one JSON object a line.

Usage: python tests/run_notebook.py [INTERVENTION] NOTEBOOK...

A failing cell ends it with an error. A claim that does not hold does so too, unless the
intervention is one that takes causes away, to see which claims fail without them.
"""

import json
import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from d2lpar import claims, exercises

INTERVENTIONS = {
    # Asynchronous dispatch is off. The environment variable of that name does nothing, and it
    # must be the first thing JAX hears.
    "--synchronous": "import jax; jax.config.update('jax_cpu_enable_async_dispatch', False)",
    # A barrier stands behind each jitted function and each copy.
    "--barriers": """
import jax

class Waiting:
    def __init__(self, function):
        self._function = function
    def __call__(self, *args, **kwargs):
        return jax.block_until_ready(self._function(*args, **kwargs))
    def __getattr__(self, name):
        return getattr(self._function, name)

jit = jax.jit
jax.jit = lambda function, **options: Waiting(jit(function, **options))
jax.device_put = Waiting(jax.device_put)
""",
    # JAX has started before the notebook could ask for several devices.
    "--one-device": "import jax; jax.config.update('jax_num_cpu_devices', 1); jax.devices()",
    # A CPU device plays the GPU, so that the cells for a GPU run, although it is none.
    "--stand-in-gpu": """
import d2lpar.devices, jax

def stand_in(kind, devices_of=d2lpar.devices._devices_of):
    cpus = devices_of("cpu")
    return cpus[:1] + cpus[2:] if kind == "cpu" else cpus[1:2]

d2lpar.devices._devices_of = stand_in
""",
}
STRICT = {None, "--one-device"}


def run_notebook(path: Path, intervention: str | None, timeout: int = 300) -> list[dict]:
    """Return the claims of a notebook and what the checks of its exercises report, in order."""
    notebook = jupytext.read(path)
    if intervention:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(INTERVENTIONS[intervention]))
    os.environ["D2LPAR_STRICT"] = str(int(intervention in STRICT))
    NotebookClient(notebook, timeout=timeout).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = (claims.MIME_TYPE, exercises.MIME_TYPE)
    return [o.data[kind] for o in outputs for kind in kinds if kind in o.get("data", {})]


def printed_by(printed: str, key: str) -> list[dict]:
    """Return what this script has printed and has that key: `"sentence"` or `"exercise"`."""
    objects = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [found for found in objects if key in found]


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    intervention = first if first in INTERVENTIONS else None
    for name in rest if intervention else [first, *rest]:
        for found in run_notebook(Path(name), intervention):
            print(json.dumps(found))
