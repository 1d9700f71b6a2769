"""Hear of each read of an array, before it waits for the device.

How it works. However a program asks for a value (`float`, an `if`, an f-string, a barrier), JAX
comes to it through one of a few attributes of its class of arrays, and while somebody listens,
these are replaced by functions that tell. NumPy takes an array on a CPU device through the buffer
protocol, without a call of JAX. From Python 3.12 on, that protocol is a method too, `__buffer__`
(PEP 688), so all reads are heard. In Python 3.11 `np.asarray` and `np.array` of the module `numpy`
stand in for it, and what else reads by that protocol, such as `np.dot(a, x)`, is not heard.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from d2lpar._plain.errors import D2lparError

Listener = Callable[[str, Any], None]
"""Is told what a read is, `"value"` or `"barrier"`, and of what: an array, or a list of them."""

_VALUES = ("_value", "__buffer__", "__dlpack__")

_lock = threading.Lock()
_open: list[object] = []
_undo = ExitStack()


class _Here(threading.local):
    """The listeners of a thread, of which the innermost is told; None is told nothing."""

    def __init__(self) -> None:
        self.listeners: list[list[Listener | None]] = []
        self.reading = False  # A read may pass several of the attributes,
        self.refused = 0  # and NumPy asks again where the buffer protocol fails.

    def listener(self) -> Listener | None:
        return self.listeners[-1][0] if self.listeners else None


_here = _Here()


def current_listener() -> Listener | None:
    """Return who is told of the reads of this thread."""
    return _here.listener()


@contextmanager
def reads_heard(listener: Listener) -> Iterator[Callable[[], bool]]:
    """Have a listener told of each read in this thread, unless a block inside has another.

    Yields:
        A function that says, in any thread, whether that is the one that is told.
    """
    listeners = _here.listeners
    with _heard_by(listener) as entry:
        with _lock:
            if not _open:
                _undo.enter_context(replaced(_attributes(), _telling))
            _open.append(entry)
        try:
            yield lambda: listeners[-1:] == [entry]
        finally:
            with _lock:
                _open.remove(entry)
                if not _open:
                    _undo.close()


@contextmanager
def waits_allowed() -> Iterator[None]:
    """Allow waits in this block, inside of one in which `no_waits` forbids them.

    Yields:
        Nothing.

    Example:
        >>> import jax.numpy as jnp
        >>> from d2lpar import no_waits
        >>> with no_waits():
        ...     loss = jnp.ones(3).sum()
        ...     with waits_allowed():
        ...         print(f"{loss:.1f}")
        3.0
    """
    with _heard_by(None):
        yield


@contextmanager
def _heard_by(listener: Listener | None) -> Iterator[list[Listener | None]]:
    entry, listeners = [listener], _here.listeners
    listeners.append(entry)
    try:
        yield entry
    finally:
        # A generator may end after the block around it.
        listeners[:] = [other for other in listeners if other is not entry]


def hears_all() -> bool:
    """Return whether no read goes unheard here, as they do in Python 3.11."""
    return "__buffer__" in vars(array_type())


@functools.cache
def array_type() -> type:
    """Return the class of JAX's arrays, of which `jax.Array` is an abstract base."""
    import jax
    import numpy as np

    with jax.transfer_guard("allow"):
        return type(jax.device_put(np.float32(0)))


@contextmanager
def replaced(
    attributes: Iterable[tuple[Any, str]], wrap: Callable[[Any, str, Any], Any]
) -> Iterator[None]:
    """Have other functions in place of attributes for the length of a block.

    Args:
        attributes: Of what, and their names; one that is not there is left out.
        wrap: Takes the owner, the name, and what is there, and returns what is to be.
    """
    with ExitStack() as stack:
        for owner, name in attributes:
            if original := vars(owner).get(name):
                setattr(owner, name, wrap(owner, name, original))
                stack.callback(setattr, owner, name, original)
        yield


def _attributes() -> Iterator[tuple[Any, str]]:
    import numpy as np
    from jax._src import dispatch
    from jax._src.lib import xla_client

    for name in (*_VALUES, "block_until_ready"):
        yield array_type(), name
    yield xla_client, "batched_block_until_ready"
    yield type(dispatch.runtime_tokens), "block_until_ready"  # Of jax.effects_barrier.
    if not hears_all():
        yield np, "asarray"
        yield np, "array"


def _telling(owner: Any, name: str, wait: Any) -> Any:
    if isinstance(wait, property):
        return property(_telling(owner, name, wait.fget))
    kind = "barrier" if name.endswith("block_until_ready") else "value"
    of_numpy = getattr(owner, "__name__", "") == "numpy"

    def tell_and_wait(*args: Any, **kwargs: Any) -> Any:
        here = _here
        if not here.listeners or here.reading or not (listener := here.listener()):
            return wait(*args, **kwargs)
        if of_numpy and not (args and isinstance(args[0], array_type())):
            return wait(*args, **kwargs)
        read = args[0] if args else None
        refused, here.refused = here.refused, 0
        here.reading = True
        try:
            if refused != id(read):
                listener(kind, read)
            return wait(*args, **kwargs)
        except BufferError:
            here.refused = id(read)
            raise
        finally:
            here.reading = False

    return tell_and_wait


@functools.cache
def require_hearing() -> None:
    """Refuse a JAX that reads in a way which is not heard: nothing would look like no waits."""
    import jax
    import numpy as np

    reads: dict[str, Callable[[Any], Any]] = {
        "float": float,
        "bool": bool,
        "str": str,
        "item": lambda x: x.item(),
        "np.asarray": lambda x: np.asarray(x),
        "jax.device_get": jax.device_get,
        "jax.block_until_ready": jax.block_until_ready,
        "jax.block_until_ready of a list": lambda x: jax.block_until_ready([x, x]),
    }
    for name, read in reads.items():
        heard: list[str] = []
        listener = reads_heard(lambda kind, _, heard=heard: heard.append(kind))
        with listener, jax.transfer_guard("allow"):
            read(jax.device_put(np.float32(0)))
        if not heard:
            raise D2lparError(
                f"d2lpar does not hear {name} with jax {jax.__version__} on Python "
                f"{sys.version_info[0]}.{sys.version_info[1]}, so it cannot say that nothing "
                "waits. Use another version of JAX."
            )
