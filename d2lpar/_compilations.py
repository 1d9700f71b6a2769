"""What a program compiles: at which line, whether it had before, and what has changed since.

How it works. What compiles is heard from `jax.monitoring`, in the thread that compiles, whose stack
says where, and in two functions of JAX for which arguments.
"""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from d2lpar._format import plural
from d2lpar._stack import Site, owner_of


class Compiled(NamedTuple):
    """A program that was compiled: in which thread, at which line, for which arguments, and when.

    Attributes:
        callers: The positions in the code that led there, the user's own line first.
        library: Whether a library's code is between that line and JAX.
        own: Whether the function is a library's, such as those of `jax.numpy`.
        moved: Whether the thread was seen elsewhere since it compiled the one before.
    """

    thread: int
    name: str
    callers: tuple[Site, ...]
    library: bool
    own: bool
    moved: bool
    arguments: tuple | None
    function: Any
    code: Any
    began: float
    over: float


def arguments_in(frame: Any) -> dict[str, Any]:
    """Return what a frame of JAX says of the arguments of the program that it compiles."""
    code, found = frame.f_code, {}
    if code.co_name == "lower_sharding_computation":
        of = frame.f_locals
        where = map(_placed, of["in_shardings"])
        given = [
            (_short(a), a.weak_type, w) for a, w in zip(of["global_in_avals"], where, strict=True)
        ]
        found["arguments"] = given, [_short(a) for a in of["global_out_avals"]]
    elif code.co_name == "cache_miss":
        with suppress(TypeError):  # Not everything that can be called has weak references.
            function = frame.f_locals["fun"]
            code = getattr(function, "__code__", None)
            found["code"] = id(code)
            found["own"] = code is not None and owner_of(code.co_filename) != "user"
            found["function"] = weakref.ref(function)
    return found


def _placed(sharding: Any) -> str:
    """Return where an argument was put, in words; "" if nobody has said where it is to be."""
    from d2lpar._devices import device_name  # JAX has been imported: it is compiling.

    devices = getattr(sharding, "device_set", ())
    if len(devices) == 1:
        return device_name(*devices)
    return f"{len(devices)} devices, {getattr(sharding, 'spec', sharding)}" if devices else ""


def _short(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def compiled_again(compiled: list[Compiled]) -> set[int]:
    """Return the numbers of those that were compiled at a line that had compiled them before."""
    again, last, times = set(), {}, Counter()
    for number, one in enumerate(compiled):
        # Another function, with other code, may have the same name.
        key = one.thread, one.name, one.callers[0], one.code
        times[key] += 1
        if key in last and _is_another_pass(compiled, last[key], number, times[key]):
            again.add(number)
        last[key] = number
    return again


def _is_another_pass(compiled: list[Compiled], before: int, number: int, times: int) -> bool:
    """Return whether the program came to a line anew; what one pass compiles is never "again"."""
    old, one = compiled[before], compiled[number]
    if old.callers != one.callers:
        return True
    if not any(site.in_loop() for site in one.callers):
        return False
    between = compiled[before + 1 : number]
    if one.moved or any(
        other.thread == one.thread
        and other.callers != one.callers
        and other.callers[-1].code is one.callers[-1].code
        for other in between
    ):
        return True
    # A library, or a comprehension, may compile one for many shapes in a single pass, and a
    # function of JAX for a few.
    many = one.library or any(site.in_comprehension() for site in one.callers)
    return old.arguments == one.arguments or not (many or (one.own and times < 4))


def why(compiled: list[tuple[bool, Compiled]]) -> str:
    """Return what was compiled again at a line, and what had changed, as far as it was seen."""
    told = []
    for name, code in {(one.name, one.code) for is_again, one in compiled if is_again}:
        of_it = [pair for pair in compiled if (pair[1].name, pair[1].code) == (name, code)]
        *_, old, new = (one for _, one in of_it)
        again = [one for is_again, one in of_it if is_again]
        what = f"{name.removeprefix('jit(').removesuffix(')')} was compiled {1 + len(again)} times"
        changed = "; ".join(_changes(old, new))
        # What only makes an array of some shape, for the program that it is for, comes second.
        given = [one.arguments and one.arguments[0] for one in (old, new)]
        took = sum(one.over - one.began for one in again)
        why = f", last for {changed}." if changed else "; why was not seen."
        told.append((given[0] != given[1], took, what + why))
    return max(told)[-1]


def _changes(old: Compiled, new: Compiled) -> Iterator[str]:
    if not old.arguments or not new.arguments:
        return
    (given, results), (given_now, results_now) = old.arguments, new.arguments
    if len(given) != len(given_now):
        yield f"{plural(len(given_now), 'argument')} after {len(given)}"
        return
    pairs = [(a, b) for a, b in zip(given, given_now, strict=True) if a != b]
    shapes = dict.fromkeys((a[0], b[0]) for a, b in pairs if a[0] != b[0])
    for a, b in list(shapes)[:3]:
        yield f"{b} after {a}"
    weak = next((b for a, b in pairs if a[0] == b[0] and a[1] != b[1]), None)
    if weak:
        words = (
            "strongly typed after a weakly typed one",
            "weakly typed after a strongly typed one",
        )
        yield f"a {weak[0]} that is {words[weak[1]]} (a Python number makes a weak type)"
    placed = next(((a, b) for a, b in pairs if a[0] == b[0] and a[2] != b[2]), None)
    if placed:
        (*_, was), (kind, _, now) = placed
        now, was = (
            f"committed to {at}" if at else "not committed to a device" for at in (now, was)
        )
        yield f"a {kind} that is {now}, after one that is {was}"
    if not pairs and results != results_now:
        b, a = next(((b, a) for a, b in zip(results, results_now, strict=False) if a != b), (0, 0))
        yield f"a result {b} after {a}" if b else "other results"
    elif not pairs and old.function is not new.function:
        yield "the same shapes, but another function (made in each turn? make it once)"
