"""Execute notebooks from top to bottom and print their claims, one JSON object a line.

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

from d2lpar.claims import MIME_TYPE

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
    """Return the claims of a notebook in their order."""
    notebook = jupytext.read(path)
    if intervention:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(INTERVENTIONS[intervention]))
    os.environ["D2LPAR_STRICT"] = str(int(intervention in STRICT))
    NotebookClient(notebook, timeout=timeout).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.data[MIME_TYPE] for output in outputs if MIME_TYPE in output.get("data", {})]


def claims_of(printed: str) -> list[dict]:
    """Return the claims that this script has printed."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    intervention = first if first in INTERVENTIONS else None
    for name in rest if intervention else [first, *rest]:
        for claim in run_notebook(Path(name), intervention):
            print(json.dumps(claim))
