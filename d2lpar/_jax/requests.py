"""Describe what JAX's cache is asked for: a function, its arguments, and the state of JAX.

How it works. JAX compiles again if any part of a request is new. Functions of JAX on the stack of
its listeners hold the parts as local variables:

    _infer_params                 fun, ji, args, kwargs, avals           while JAX traces
    cache_miss                    fun, jit_info, args, kwargs            until a call has compiled
    lower_sharding_computation    global_in_avals, in_shardings, ...     while JAX lowers
    from_hlo                      the same                               while XLA compiles

Only texts and hashes are kept: an array would stay alive, and to print an object of the user would
read the arrays in it.
"""

import enum
import functools
import itertools
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from d2lpar._jax.stack import owner_of

_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
_PRINTED = (bool, int, float, complex, str, type(None))
_DEEPEST, _LONGEST = 8, 200  # Of an identity: an object may refer to a whole program.


class Argument(NamedTuple):
    """An array that a program is compiled for."""

    shape: str  # With the dtype, such as `float32[3,5]`.
    weak: bool  # Whether it is weakly typed.
    where: str = ""  # The device that it is committed to; "" if to none.

    def placed(self) -> str:
        """Return where it is, in words."""
        return f"committed to {self.where}" if self.where else "not committed to a device"


class Value(NamedTuple):
    """A value that was part of a request, without the value."""

    text: str  # The value if it is a number or the like, else its type.
    kind: str  # Its type; "a function" for functions.
    hash: int
    by_identity: bool  # Whether another object of its class is never equal.

    @classmethod
    def of(cls, value: Any) -> "Value":
        """Describe a value."""
        kind = type(value)
        try:
            hashed = hash(value)
        except Exception:
            hashed = 0
        is_function = kind in _FUNCTIONS or _is_jitted(value)
        word = "function" if is_function else kind.__name__
        text = f"function {value.__name__}" if is_function else _printed(value) or word
        by_identity = not is_function and kind.__hash__ is object.__hash__
        return cls(text[:40], word, hashed, by_identity)


class Request(NamedTuple):
    """What JAX's cache was asked for, but for the arguments' devices."""

    identity: tuple  # The code that is compiled, equal for two functions with the same code.
    of_library: bool  # Whether none of that code is the user's, such as for `jax.numpy.zeros`.
    switches: tuple  # Strings, booleans and the like that the function has bound.
    arguments: tuple[Argument, ...]  # As the call gave them; JAX drops unused ones later.
    static: Mapping[str, Value]
    trees: Mapping[str, Value]  # For each of the other arguments, the shape of its tree.
    options: int  # A hash of the options of `jax.jit`.
    context: Mapping[str, Value]  # The part of JAX's configuration that programs depend on.

    @property
    def key(self) -> tuple:
        """Equal for requests that differ in the context at most."""
        static, trees = tuple(self.static.items()), tuple(self.trees.items())
        return self.identity, self.switches, self.arguments, static, trees, self.options


def request_of(known: Mapping[str, Any]) -> Request:
    """Describe the request of JAX's function with these local variables."""
    options, args = known.get("ji", known.get("jit_info")), known["args"]
    names = [*getattr(getattr(options, "fun_signature", None), "parameters", ())]
    names += [f"args[{n}]" for n in range(len(names), len(args))]
    static_numbers = getattr(options, "static_argnums", ())
    static_names = getattr(options, "static_argnames", ())
    static = {name: args[n] for n, name in enumerate(names[: len(args)]) if n in static_numbers}
    given = {name: args[n] for n, name in enumerate(names[: len(args)]) if n not in static_numbers}
    for name, value in known["kwargs"].items():
        (static if name in static_names else given)[f"{name}="] = value
    search = _Search()
    search.visit(known["fun"])
    if not search.of_user:  # Equinox passes the user's function as a static argument of its own.
        search.visit(tuple(static.values()))
    return Request(
        tuple(search.parts),
        not search.of_user,
        tuple(search.switches),
        tuple(_argument(aval) for aval in known.get("avals", ())),
        {name.rstrip("="): Value.of(value) for name, value in static.items()},
        {name: _tree(value) for name, value in given.items()},
        _hash_of(options),
        _context(),
    )


def arguments_of(known: Mapping[str, Any]) -> tuple[tuple[Argument, ...], tuple[str, ...]]:
    """Describe the arguments and the results of the program that JAX lowers or XLA compiles."""
    given = zip(known["global_in_avals"], known["in_shardings"], strict=True)
    arguments = tuple(_argument(aval, _where(sharding)) for aval, sharding in given)
    return arguments, tuple(map(_shape, known["global_out_avals"]))


@functools.cache
def _token() -> Any:
    from jax._src.util import cache

    return cache(max_size=1, trace_context_in_key=False)(lambda: object())


def caches() -> object:
    """Return an object that JAX keeps until its caches are emptied, and then replaces."""
    return _token()()


class _Search:
    """Collects what tells the code of one function from that of another.

    A wrapper has the same code for all that it wraps, so the search follows whatever a function
    refers to, apart from global variables::

        jax.jit(jax.vmap(loss, in_axes=0))        vmap_f -> loss, with the switch 0
        jax.jit(functools.partial(step, 0.1))     step; numbers are data
        jax.jit(trainer.step)                     Trainer.step -> Trainer, its functions
    """

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.switches: list[Any] = []
        self.of_user = False
        self._visited: dict[int, int] = {}

    def visit(self, value: Any, depth: int = _DEEPEST, owner: str = "user") -> None:
        """Add a value that code of this owner refers to."""
        kind = type(value)
        if kind in (bool, str, type(None)) or issubclass(kind, enum.Enum):
            self.switches.append(_printed(value))
        elif kind is int and owner != "user":  # Such as the axes of `jax.vmap`.
            self.switches.append(value)
        elif kind in _PRINTED or (hasattr(kind, "dtype") and hasattr(kind, "ndim")):
            return  # A number or an array.
        elif id(value) in self._visited:
            self.parts.append(self._visited[id(value)])
        elif depth and len(self.parts) < _LONGEST:
            self._visited[id(value)] = len(self.parts)
            self._visit_object(value, depth - 1, owner)

    def _visit_object(self, value: Any, depth: int, owner: str) -> None:
        kind = type(value)
        inner: list[Any] = []
        if kind is FunctionType:
            owner = self._add(value.__code__)
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # The variable has no value yet.
                    inner.append(cell.cell_contents)
            inner += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            inner += [vars(value)["__wrapped__"]] if "__wrapped__" in vars(value) else []
        elif kind is MethodType:
            inner = [value.__func__, value.__self__]
        elif issubclass(kind, functools.partial):
            inner = [value.func, *value.args, *value.keywords.values()]
        elif issubclass(kind, dict):
            inner = [*dict.values(value)][:20]
        elif issubclass(kind, (tuple, list)):
            inner = [*value[:20]]
        elif issubclass(kind, type):
            self._add(value)
        elif _is_jitted(value):
            inner = [vars(value)["_fun"]]
        else:
            self._add(kind)
            attributes = getattr(value, "__dict__", {})
            # A method that the object has jitted for itself may be there at the second call only.
            inner = [x for x in attributes.values() if callable(x) and not _is_jitted(x)]
            if not attributes and callable(value):  # A builtin function.
                self.parts.append(getattr(value, "__qualname__", ""))
        for each in inner:
            self.visit(each, depth, owner)

    def _add(self, code: CodeType | type) -> str:
        """Add code or a class, and return its owner."""
        if isinstance(code, type):
            self.parts.append((code.__module__, code.__qualname__))
            file = getattr(sys.modules.get(code.__module__), "__file__", None)
            owner = "user" if code.__module__ == "__main__" else owner_of(file) if file else ""
        else:
            self.parts.append((code.co_filename, code))
            owner = owner_of(code.co_filename)
        self.of_user |= owner == "user"
        return owner


def _is_jitted(value: Any) -> bool:
    return "_jit_info" in getattr(value, "__dict__", {})


def _printed(value: Any) -> str:
    """Return a number or the like as text; "" for anything that may hold an array."""
    kind = type(value)
    if kind is tuple and len(value) <= 8:
        texts = [_printed(each) for each in value]
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})" if all(texts) or not value else ""
    if kind in _PRINTED:
        with suppress(ValueError):  # Python prints no integer of more than 4,300 digits.
            return repr(value[:40] if kind is str else value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    if issubclass(kind, type):
        return value.__name__
    of_jax = kind.__module__.startswith(("jax.", "jaxlib.")) and not hasattr(kind, "dtype")
    return str(value) if of_jax and kind.__str__ is not object.__str__ else ""


def _tree(value: Any) -> Value:
    import jax

    return Value.of(jax.tree.structure(value))._replace(text=type(value).__name__)


def _hash_of(options: Any) -> int:
    names = [name for name in getattr(options, "_fields", ()) if not name.startswith("fun_")]
    return Value.of(tuple(getattr(options, name) for name in names)).hash


def _context() -> dict[str, Value]:
    from jax._src import config

    if names := getattr(config, "trace_context_names", None):
        names = names()
    else:  # JAX 0.7 reads one variable after the other.
        read = config.trace_context.__code__.co_names
        names = [getattr(getattr(config, n), "_name", n) for n in read if hasattr(config, n)]
    # The callbacks of user contexts in JAX 0.7 follow without a name.
    values = map(Value.of, config.trace_context())
    return _shared(tuple(itertools.zip_longest(names, values, fillvalue="user_context")))


@functools.lru_cache(maxsize=100)
def _shared(context: tuple[tuple[str, Value], ...]) -> dict[str, Value]:
    return dict(context)


def _argument(aval: Any, where: str = "") -> Argument:
    return Argument(_shape(aval), getattr(aval, "weak_type", False), where)


def _shape(aval: Any) -> str:
    return (
        f"{aval.dtype}[{','.join(map(str, aval.shape))}]" if hasattr(aval, "dtype") else str(aval)
    )


def _where(sharding: Any) -> str:
    from d2lpar._jax.devices import device_name  # Imports JAX, which is compiling anyway.

    devices = getattr(sharding, "device_set", ())
    if len(devices) > 1:
        return f"{len(devices)} devices, {getattr(sharding, 'spec', sharding)}"
    return "".join(map(device_name, devices))
