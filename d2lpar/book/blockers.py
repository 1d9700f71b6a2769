"""Operations on arrays that are not ready, and for how long each holds Python."""

import copy
import functools
import html
import itertools
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from d2lpar import _tables
from d2lpar.barriers import makes_wait
from d2lpar.book.workloads import Work, chain
from d2lpar.plot import COLOURS
from d2lpar.units import format_seconds

Operation = Callable[[jax.Array, jax.Array, jax.Array], object]

NEED_A_VALUE: dict[str, Operation] = {
    "y.block_until_ready()": lambda y, s, i: y.block_until_ready(),
    "np.asarray(y)": lambda y, s, i: np.asarray(y),
    "np.array(y)": lambda y, s, i: np.array(y),
    "np.dot(y, y)": lambda y, s, i: np.dot(y, y),
    "jax.device_get(y)": lambda y, s, i: jax.device_get(y),
    "y.tolist()": lambda y, s, i: y.tolist(),
    "str(s)": lambda y, s, i: str(s),
    "pickle.dumps(y)": lambda y, s, i: pickle.dumps(y),
    "jnp.nonzero(y)": lambda y, s, i: jnp.nonzero(y),
    "jnp.unique(y)": lambda y, s, i: jnp.unique(y),
    "y[y > 0]": lambda y, s, i: y[y > 0],
    "float(s)": lambda y, s, i: float(s),
    "s.item()": lambda y, s, i: s.item(),
    "range(i)": lambda y, s, i: range(i),
    "[1, 2][i]": lambda y, s, i: [1, 2][i],
    "if s > 0": lambda y, s, i: bool(s > 0),
    "max(s, s)": lambda y, s, i: max(s, s),
    "f'{s:.3f}'": lambda y, s, i: f"{s:.3f}",
}
"""What has to see a value of a matrix `y`, a float `s` or an integer `i`."""

NEED_NONE: dict[str, Operation] = {
    "y.shape, y.dtype": lambda y, s, i: (y.shape, y.dtype),
    "len(y)": lambda y, s, i: len(y),
    "y + 1": lambda y, s, i: y + 1,
    "np.ones(n) + y": lambda y, s, i: np.ones(y.shape, np.float32) + y,
    "y.T": lambda y, s, i: y.T,
    "y[0, 0]": lambda y, s, i: y[0, 0],
    "y.at[0].set(0)": lambda y, s, i: y.at[0].set(0),
    "y.astype(int)": lambda y, s, i: y.astype(int),
    "jnp.exp(y)": lambda y, s, i: jnp.exp(y),
    "jnp.allclose(y, y)": lambda y, s, i: jnp.allclose(y, y),
    "np.sum(y)": lambda y, s, i: np.sum(y),
    "s > 0": lambda y, s, i: s > 0,
    "jax.device_put(y)": lambda y, s, i: jax.device_put(y),
    "y.copy_to_host_async()": lambda y, s, i: y.copy_to_host_async(),
    "copy.deepcopy(y)": lambda y, s, i: copy.deepcopy(y),
    "y.is_ready()": lambda y, s, i: y.is_ready(),
    "jax.live_arrays()": lambda y, s, i: jax.live_arrays(),
    "jax.effects_barrier()": lambda y, s, i: jax.effects_barrier(),
}
"""What asks for another computation, or for something that is known without the value."""


@dataclass(frozen=True)
class Held:
    """What an operation on an array that is not ready did to Python.

    Attributes:
        waits: Whether it waited for the array.
        seconds: For how long it held Python.
    """

    waits: bool
    seconds: float


class HeldTable(dict[str, Held]):
    """Operations by name, with what each did to Python; a table in a notebook."""

    def __repr__(self):
        return "\n".join(
            f"{name:24}{'waits' if held.waits else 'goes on':10}{format_seconds(held.seconds)}"
            for name, held in self.items()
        )

    def _repr_html_(self) -> str:
        longest = max((held.seconds for held in self.values()), default=0.0)
        columns = [
            [_cells(name, held, longest) for name, held in self.items() if held.waits == waits]
            for waits in (True, False)
        ]
        rows = [
            [*left, *right]
            for left, right in itertools.zip_longest(*columns, fillvalue=["", "", ""])
        ]
        return _tables.as_table(["Python waits", "for", "", "Python goes on", "after", ""], rows)


def _cells(name: str, held: Held, longest: float) -> list[str]:
    seconds = format_seconds(held.seconds)
    colour = COLOURS["wait"] if held.waits else COLOURS["host"]
    bar = _tables.share_bar(held.seconds / longest, colour, f"holds Python for {seconds}")
    return [f"<code>{html.escape(name)}</code>", _tables.in_one_line(seconds), bar]


def time_held(
    operations: Mapping[str, Operation] = NEED_A_VALUE | NEED_NONE,
    seconds: float = 0.01,
    clock: Callable[[], float] = time.perf_counter,
) -> HeldTable:
    """Call each operation on arrays that are not ready, and time how long it holds Python.

    Args:
        operations: Take a matrix, a float and an integer, each a result of the same program.
            Those of the book, unless others are given.
        seconds: How long the device works on them.
        clock: Returns seconds.

    Returns:
        What each did, those that hold Python longest first.

    Example:
        >>> held = time_held({"float(s)": lambda y, s, i: float(s), "y + 1": lambda y, s, i: y + 1})
        >>> [(name, of.waits) for name, of in held.items()]
        [('float(s)', True), ('y + 1', False)]
    """
    work = Work()

    @functools.partial(jax.jit, static_argnums=1)
    def unready(matrix, length):
        # A corner of a GPU's large matrix: it is waiting that is timed, and not converting.
        y = chain(matrix, length)[:256, :256]
        return y, jnp.abs(y).sum(), jnp.argmax(y) % 2

    def held_by(operation):
        times = []

        def timed(*arrays):
            start = clock()
            operation(*arrays)
            times.append(clock() - start)

        waits = makes_wait(timed, lambda: unready(work.matrix, work.links(seconds)))
        return Held(waits, times[-1])

    found = {name: held_by(operation) for name, operation in operations.items()}
    return HeldTable(sorted(found.items(), key=lambda item: -item[1].seconds))
