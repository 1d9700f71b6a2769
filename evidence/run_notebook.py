"""Execute notebooks, as they are or without what causes a claim, and read the keys of claims."""

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jupytext
import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

from d2lpar.book.claims import MIME_TYPE, Claim
from d2lpar.book.results import outputs_of

ROOT = Path(__file__).parent.parent


def notebooks() -> list[Path]:
    pages = sorted((ROOT / "book").rglob("*.md"))
    return [page for page in pages if page.read_text().startswith("---\njupytext:")]


def name_of(page: Path) -> str:
    """Return the name of a page: its path in the book, without a suffix."""
    return page.resolve().relative_to(ROOT / "book").with_suffix("").as_posix()


@dataclass(frozen=True)
class Intervention:
    """A way to take a cause away: code that runs first, and edits in the code of cells."""

    takes_away: str
    edits: Mapping[str, str] = field(default_factory=dict)
    first: str = ""

    def apply_to(self, notebook: nbformat.NotebookNode) -> None:
        """Change a notebook, in which each edited text must occur exactly once."""
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for old, new in self.edits.items():
            cells = [cell for cell in code if old in cell.source]
            if len(cells) != 1 or cells[0].source.count(old) != 1:
                raise ValueError(f"{old!r} does not stand in the notebook exactly once.")
            cells[0].source = cells[0].source.replace(old, new)
        if self.first:
            notebook.cells.insert(0, nbformat.v4.new_code_cell(self.first))


SYNCHRONOUS = Intervention(
    "asynchronous dispatch",
    # JAX ignores the environment variable of this name, and the option once it has started.
    first="import jax; jax.config.update('jax_cpu_enable_async_dispatch', False)",
)
BARRIERS = Intervention(
    "going on without a barrier behind each call",
    first="""
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
)
# Three rounds and one look (the time is up at once) show that a page runs. They decide no claim.
FEW_ROUNDS = """
import d2lpar

def in_few_rounds(function):
    def call(*args, repeats=3, max_seconds=None, **options):
        return function(*args, repeats=min(repeats, 3), max_seconds=1e-9, **options)
    return call

d2lpar.compare, d2lpar.measure = map(in_few_rounds, (d2lpar.compare, d2lpar.measure))
"""
ONE_DEVICE = Intervention(
    "more than one CPU device",
    # JAX starts here, before the notebook can ask for several devices.
    first=f"import jax; jax.config.update('jax_num_cpu_devices', 1); jax.devices(){FEW_ROUNDS}",
)
GPU_STAND_INS = Intervention(
    "the difference between a CPU and a GPU",
    # CPU devices play two GPUs, so that the cells for GPUs run without one.
    first=f"""
import d2lpar._jax.devices, jax

jax.config.update("jax_num_cpu_devices", 4)

def stand_in(kind, devices_of=d2lpar._jax.devices._devices_of):
    cpus = devices_of("cpu")
    return cpus[::3] if kind == "cpu" else cpus[1:3]

d2lpar._jax.devices._devices_of = stand_in
{FEW_ROUNDS}""",
    # Sizes for a GPU keep a CPU busy for minutes.
    edits={
        "(one, other), (2000, 2000)": "(one, other), (250, 250)",
        "(2000, 6000) if kinds": "(250, 250) if kinds",
        "else (4000, 4000)": "else (250, 250)",
        "try_all_gpus()[0], 4000": "try_all_gpus()[0], 250",
    },
)


def run_notebook(
    path: Path,
    intervention: Intervention | None = None,
    *,
    allow_errors: bool = False,
    devices: int = 0,
) -> nbformat.NotebookNode:
    """Execute a notebook in a fresh process and return it without its prose.

    A claim that does not hold is no error. With `allow_errors`, a failing cell has the error among
    its outputs, and the next cell runs. `devices` is the number of CPU devices, or 0 if the
    notebook decides.
    """
    notebook = read(path)
    if intervention:
        intervention.apply_to(notebook)
    # The kernel warns that its messages within this machine are not encrypted.
    quiet = ["--IPKernelApp.log_level=ERROR"]
    client = NotebookClient(notebook, timeout=900, allow_errors=allow_errors, extra_arguments=quiet)
    variables = os.environ | {"D2LPAR_STRICT": "0"}
    if devices:
        variables["JAX_NUM_CPU_DEVICES"] = str(devices)
    try:
        client.execute(env=variables)
    except Exception:
        # On SIGINT and SIGTERM nbclient ends the kernel, and then raises an error of its own.
        if hasattr(client, "_async_cleanup_kernel_future"):
            raise KeyboardInterrupt from None
        raise
    return notebook


def claims_shown(notebook: nbformat.NotebookNode) -> list[Claim]:
    """Return the claims of an executed notebook, with their verdicts."""
    return [Claim.from_dict(claim) for claim in outputs_of(notebook, MIME_TYPE)]


def read(path: Path) -> nbformat.NotebookNode:
    """Return a notebook without its prose."""
    notebook = jupytext.read(path)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return notebook


def claims_of(path: Path) -> dict[str, str]:
    """Return the sentences of the claims in a notebook by their keys, in their order."""
    sentences = {}
    for cell in read(path).cells:
        # IPython turns magics into Python, which `ast` can parse.
        for node in ast.walk(ast.parse(TransformerManager().transform_cell(cell.source))):
            match node:
                case ast.Call(ast.Name("claim"), arguments, keywords):
                    by_name = {keyword.arg: keyword.value for keyword in keywords}
                    sentence = ast.literal_eval((*arguments, by_name.get("sentence"))[0])
                    key = getattr(by_name.get("key"), "value", "")
                    if not key:
                        raise ValueError(
                            f"{path}: the claim {sentence!r} has no key. Give it one: "
                            'claim(..., key="some-words").'
                        )
                    if key in sentences:
                        raise ValueError(f"{path}: two claims have the key {key!r}.")
                    sentences[key] = sentence
    return sentences
