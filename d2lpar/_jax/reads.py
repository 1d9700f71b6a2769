"""Call a listener before each read of an array, since the read may wait for the device.

How it works. However a program asks for a value (`float`, an `if`, an f-string, a barrier), JAX
comes to it through one of a few attributes of its class of arrays. While a listener is registered,
functions that call the listener replace these attributes. NumPy takes an array on a CPU device
through the buffer protocol, without a call of JAX. From Python 3.12 on, that protocol is a method
too, `__buffer__` (PEP 688), so all reads are heard. In Python 3.11, replacements of `numpy.asarray`
and `numpy.array` catch the most frequent ones; other uses of the protocol, such as `np.dot(a, x)`,
remain unheard, also in JAX itself: `jnp.repeat` reads its counts so.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from d2lpar._plain.errors import D2lparError

Listener = Callable[[str, Any], None]
"""Takes the kind of a read, `"value"` or `"barrier"`, and the array, or a list of arrays."""

READ_ATTRIBUTES = ("_value", "__buffer__", "__dlpack__")
"""The methods and properties of an array through which its values are read."""

_lock = threading.Lock()
_open: list[object] = []
_allowing: list[int] = []  # The identifiers of the threads in a block of `waits_allowed`.
_undo = ExitStack()


class _Here(threading.local):
    """The state of a thread."""

    def __init__(self) -> None:
        # The listeners of the open blocks, innermost last. Only the innermost is called; None, from
        # `waits_allowed`, ignores the read.
        self.listeners: list[list[Listener | None]] = []
        self.reading = False  # A read may pass several of the replaced attributes.
        self.refused = 0  # The id of the array whose buffer JAX has just refused to NumPy, else 0.


_here = _Here()


def current_listener() -> Listener | None:
    """Return the listener that hears the reads of this thread, if any."""
    return _here.listeners[-1][0] if _here.listeners else None


@contextmanager
def reads_heard(listener: Listener) -> Iterator[Callable[[], bool]]:
    """Call a listener before each read in this thread, unless an inner block has another.

    Yields:
        A function for any thread, which returns whether this listener is the innermost.
    """
    listeners = _here.listeners
    with _heard_by(listener) as entry:
        with _lock:
            if not _open:
                _undo.enter_context(replaced(_attributes(), _heard))
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
    """Allow waits in this block, inside of one where `no_waits` forbids them.

    A line that `watch` finds in such a block does not fail `watch --fail-over`.

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
    thread = threading.get_ident()
    _allowing.append(thread)
    try:
        with _heard_by(None):
            yield
    finally:
        _allowing.remove(thread)


def threads_that_may_wait() -> set[int]:
    """Return the identifiers of the threads that are in a block of `waits_allowed`."""
    return {*_allowing}


@contextmanager
def _heard_by(listener: Listener | None) -> Iterator[list[Listener | None]]:
    entry, listeners = [listener], _here.listeners  # A list, which is found by its identity.
    listeners.append(entry)
    try:
        yield entry
    finally:
        # A generator may close its block after the block around it has ended.
        listeners[:] = [other for other in listeners if other is not entry]


def hears_all() -> bool:
    """Return whether all reads are heard: from Python 3.12 on."""
    return "__buffer__" in vars(array_type())


@functools.cache
def array_type() -> type:
    """Return the class of JAX's arrays; `jax.Array` is only its abstract base."""
    import jax
    import numpy as np

    with jax.transfer_guard("allow"):
        return type(jax.device_put(np.float32(0)))


@contextmanager
def replaced(
    attributes: Iterable[tuple[Any, str]], wrap: Callable[[Any, str, Any], Any]
) -> Iterator[None]:
    """Replace attributes of owners in a block by `wrap(owner, name, old)`; skip missing ones."""
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

    for name in (*READ_ATTRIBUTES, "block_until_ready"):
        yield array_type(), name
    yield xla_client, "batched_block_until_ready"
    yield type(dispatch.runtime_tokens), "block_until_ready"  # Of jax.effects_barrier.
    if not hears_all():
        yield np, "asarray"
        yield np, "array"


def _heard(owner: Any, name: str, wait: Any) -> Any:
    """Return a replacement of a reading function that first calls the listener."""
    if isinstance(wait, property):
        return property(_heard(owner, name, wait.fget))
    kind = "barrier" if name.endswith("block_until_ready") else "value"
    is_numpy = getattr(owner, "__name__", "") == "numpy"

    # One `np.asarray(y)` passes here twice where JAX refuses the buffer, as in bfloat16:
    #     __buffer__    calls the listener and raises BufferError; `refused` is the array's id.
    #     _value        NumPy asks again, through `__array__`. The id is the same, so the listener
    #                   is not called again.
    def call_listener_and_wait(*args: Any, **kwargs: Any) -> Any:
        here = _here
        if here.reading or not (listener := current_listener()):
            return wait(*args, **kwargs)
        if is_numpy and not (args and isinstance(args[0], array_type())):
            return wait(*args, **kwargs)
        array = args[0] if args else None
        refused, here.refused = here.refused, 0
        here.reading = True
        try:
            if refused != id(array):
                listener(kind, array)
            return wait(*args, **kwargs)
        except BufferError:
            here.refused = id(array)
            raise
        finally:
            here.reading = False

    return call_listener_and_wait


@functools.cache
def require_hearing() -> None:
    """Refuse a version of JAX whose reads are not heard: a block that waits would pass."""
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
                f"d2lpar cannot detect {name} with jax {jax.__version__} on Python "
                f"{sys.version_info[0]}.{sys.version_info[1]}, so it cannot tell whether anything "
                "waits. Use another version of JAX."
            )
