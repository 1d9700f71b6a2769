"""Describe what JAX's cache is asked for: a function, its arguments, and the state of JAX.

How it works. JAX compiles again if any part of a request is new. Functions of JAX on the stack of
its listeners hold the parts as local variables:

    _infer_params                 fun, ji, args, kwargs, avals           while JAX traces
    cache_miss                    fun, jit_info, args, kwargs            until a call has compiled
    lower_sharding_computation    all_args_info, in_shardings, ...       while JAX lowers
    from_hlo                      the same                               while XLA compiles

Only texts and hashes are kept: an array would stay alive, and to print an object of the user would
read the arrays in it.
"""

import enum
import functools
import gc
import weakref
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from d2lpar._jax.stack import CodePosition, frames_outward, owner_of


class Array(NamedTuple):
    """An array that a program is compiled for, or that it returns."""

    dtype: str
    shape: tuple[int, ...]
    typing: str  # "weakly typed", as a Python number is, or "strongly typed".
    device: str  # "uncommitted", or "committed to CPU 0" or the like.

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Value(NamedTuple):
    """A static argument or an option, without the value."""

    text: str  # The value if it is a number or the like, else its type.
    hash: int

    @classmethod
    def of(cls, value: Any) -> "Value":
        """Describe a value."""
        if isinstance(value, tuple):
            text = f"({', '.join(cls.of(each).text for each in value)})"
        elif isinstance(value, (bool, int, float, complex, str, type(None))):
            text = repr(value)
        elif isinstance(value, enum.Enum):
            text = str(value)
        else:
            text = getattr(value, "__name__", type(value).__name__)
        return cls(text[:40], hash(value))


Arrays = tuple[Array, ...]
Values = tuple[tuple[str, Value], ...]


class Request(NamedTuple):
    """What JAX's cache was asked for, but for the arrays. The defaults stand for unknown."""

    identity: int = 0  # The hash of the code, equal for two functions with the same code.
    of_library: bool = False  # Whether none of that code is the user's, as for `jnp.zeros`.
    functions: tuple = ()  # Equal for the same function objects.
    static: Values = ()  # The names and values of the static arguments.
    tree: int = 0  # The hash of the tree of the other arguments.
    keys: frozenset[str] = frozenset()  # The keys of the dictionaries in that tree.
    options: Values = ()  # JAX's options.
    caches: object = None  # Another object after JAX's caches were emptied.


class PhaseStack:
    """The stack of the thread in which a phase of JAX has ended: tracing, lowering, or compiling.

    Attributes:
        callers: The positions that led to JAX, the user's line first; empty without a user's frame.
        by_library: Whether a library's code is between that line and JAX.
        is_inner: Whether a phase of the program outside was going on.
    """

    def __init__(self, frame: FrameType) -> None:
        frames = [(owner_of(each.f_code.co_filename), each) for each in frames_outward(frame)]
        # Drop the frames of the launcher (runpy, pytest), so that its loops do not count.
        while frames and frames[-1][0] != "user":
            frames.pop()
        owners = [owner for owner, _ in frames]
        first = owners.index("user") if owners else 0
        self.callers = tuple(
            CodePosition(frame.f_code, frame.f_lasti)
            for owner, frame in frames[first:]
            if owner in ("user", "library")
        )
        self.by_library = "library" in owners[:first]
        names = [frame.f_code.co_name for owner, frame in frames if owner == "jax"]
        self.is_inner = names.count("_infer_params") + names.count("lower_sharding_computation") > 1
        self._innermost = {frame.f_code.co_name: frame for _, frame in reversed(frames[:first])}

    def request(self) -> Request | None:
        """Describe the request; None if no function of JAX holds it, as for a backward pass."""
        import jax
        from jax._src import config

        # JAX 0.7 has the arguments in an inner function.
        known = self._variables("fun", "_infer_params_internal", "_infer_params", "cache_miss")
        info = known.get("ji", known.get("jit_info"))
        if not info:
            return None
        names = dict(enumerate(getattr(info.fun_signature, "parameters", ())))
        given = {names.get(n, n): value for n, value in enumerate(known["args"])} | known["kwargs"]
        static_names = {*info.static_argnames, *(names.get(n, n) for n in info.static_argnums)}
        static = {name: given.pop(name) for name in [*given] if name in static_names}
        # Equinox jits a function of its own, and passes the user's as a static argument.
        functions = {name: value for name, value in static.items() if not identify(value)[1]}
        paths, tree = jax.tree_util.tree_flatten_with_path([*given.values()])
        parts = [getattr(part, "key", None) for path, _ in paths for part in path[1:]]
        keys = frozenset(key for key in parts if isinstance(key, str))
        return Request(
            *identify([known["fun"], *functions.values()]),
            (weakref.ref(known["fun"]), *map(hash, functions.values())),
            tuple((name, Value.of(x)) for name, x in static.items() if name not in functions),
            hash((tree, keys)),  # The hash of a tree leaves out the keys.
            keys,
            _options(config.trace_context()),
            _token()(),
        )

    def arrays(self) -> tuple[Arrays, Arrays] | None:
        """Describe the arguments and, once JAX lowers, the results; None if they are not seen."""
        if known := self._variables("avals", "_infer_params_internal", "_infer_params"):
            return tuple(map(_array, known["avals"])), ()
        known = self._variables("all_args_info", "lower_sharding_computation", "from_hlo")
        if not known:
            return None
        # JAX leaves arguments that are not used out of the program, and of its shardings.
        shardings = dict(zip(sorted(known["kept_var_idx"]), known["in_shardings"], strict=False))
        avals = enumerate(known["all_args_info"].in_avals)
        arguments = tuple(_array(aval, shardings.get(n)) for n, aval in avals)
        return arguments, tuple(map(_array, known["global_out_avals"]))

    def _variables(self, wanted: str, *functions: str) -> dict[str, Any]:
        """Return the variables of the first of these functions that has the wanted one."""
        frames = (self._innermost[name] for name in functions if name in self._innermost)
        return next((frame.f_locals for frame in frames if wanted in frame.f_locals), {})


def identify(function: Any) -> tuple[int, bool]:
    """Return a hash of the code that a function runs, and whether none of it is the user's.

    A wrapper has the same code for all that it wraps, so the search follows whatever a function
    refers to, apart from global variables. Numbers and arrays are data::

        jax.jit(jax.vmap(partial(step, 0.1)))     vmap_f, partial, step
        jax.jit(trainer.step)                     Trainer.step, Trainer, its functions
    """
    parts, visited, remaining = [], set(), [function]
    while remaining and len(visited) < 500:  # An object may refer to a whole program.
        value = remaining.pop()
        if isinstance(value, (bool, str, type(None), enum.Enum)):
            parts.append(str(value))
        elif id(value) not in visited:
            visited.add(id(value))
            names, referred = _contents(value)
            parts += names
            remaining += referred
    files = [part.co_filename for part in parts if isinstance(part, CodeType)]
    return hash(tuple(parts)), not any(owner_of(file) == "user" for file in files)


def _contents(value: Any) -> tuple[list[Any], list[Any]]:
    """Return what names the code of a value, and what this code may call or test."""
    if isinstance(value, FunctionType):
        variables = *(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__
        referred = [*gc.get_referents(*variables), vars(value).get("__wrapped__")]
        return [value.__code__.co_filename, value.__code__], referred
    if isinstance(value, (MethodType, functools.partial, tuple, list, dict)):
        return [], gc.get_referents(value)[:20]
    if isinstance(value, (BuiltinFunctionType, type, ModuleType)):
        return [value.__name__], []
    if not hasattr(value, "__dict__"):  # A number, or an array of NumPy.
        return [], []
    functions = [x for x in vars(value).values() if callable(x) and not _binds(x, value)]
    return [type(value).__name__, vars(value).get("__name__")], [*functions, type(value).__call__]


def _binds(function: Any, owner: Any) -> bool:
    """Return whether this is a method of its owner, which may jit one at the second call only."""
    method = getattr(function, "__dict__", {}).get("__wrapped__", function)
    return isinstance(method, MethodType) and method.__self__ is owner


@functools.lru_cache(maxsize=100)
def _options(context: tuple[Any, ...]) -> Values:
    """Return JAX's options, which programs with this context share."""
    from jax._src import config

    return tuple((name, Value.of(state.value)) for name, state in config.config_states.items())


@functools.cache
def _token() -> Any:
    """Return a function whose result JAX's caches keep until they are emptied."""
    from jax._src.util import cache

    return cache(max_size=1, trace_context_in_key=False)(lambda: object())


def _array(aval: Any, sharding: Any = None) -> Array:
    dtype, shape = str(getattr(aval, "dtype", aval)), getattr(aval, "shape", ())
    typing = "weakly typed" if getattr(aval, "weak_type", False) else "strongly typed"
    return Array(dtype, shape, typing, _device(sharding))


def _device(sharding: Any) -> str:
    from d2lpar._jax.devices import device_name  # Imports JAX, which is compiling anyway.

    devices = getattr(sharding, "device_set", ())
    if len(devices) > 1:
        return f"committed to {len(devices)} devices, {getattr(sharding, 'spec', sharding)}"
    return "".join(f"committed to {device_name(device)}" for device in devices) or "uncommitted"
