"""Say where in the user's code a thread is, and what it is at there."""

import ast
import builtins
import functools
import inspect
import linecache
import os
import sys
import sysconfig
import types

import jax
import numpy as np

_JAX = os.path.dirname(jax.__file__) + os.sep
_NUMPY = os.path.dirname(np.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep
_INSTALLED = {sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")}
_LIBRARIES = (*(path + os.sep for path in _INSTALLED), _JAX, _NUMPY, _OURS, "<frozen")


def down_to_user_code(frame: types.FrameType | None) -> list[types.FrameType]:
    """Return the frames of a stack, innermost first, to one in no library; none if all are in one.

    Nobody can walk the stack of another thread twice: what has returned meanwhile leads nowhere.
    """
    found = []
    while frame is not None:
        found.append(frame)
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return found
        frame = frame.f_back
    return []


def is_in_jax(frame: types.FrameType) -> bool:
    """Return whether a frame runs code of JAX."""
    return frame.f_code.co_filename.startswith(_JAX)


def is_in_numpy(frame: types.FrameType) -> bool:
    """Return whether a frame runs code of NumPy."""
    return frame.f_code.co_filename.startswith(_NUMPY)


def compiles(frame: types.FrameType) -> bool:
    """Return whether a frame is in the part of JAX that traces, lowers and compiles."""
    name = frame.f_code.co_name
    return is_in_jax(frame) and any(w in name for w in ("compil", "lower", "trace_to_jaxpr"))


def expression_at(frame: types.FrameType) -> str:
    """Return the source of what a frame is evaluating, or "" where that is not known."""
    positions = _positions(frame.f_code)
    index = frame.f_lasti // 2
    if not 0 <= index < len(positions):
        return ""
    first, last, start, end = positions[index]
    if None in (first, last, start, end):
        return ""
    lines = [
        linecache.getline(frame.f_code.co_filename, number, frame.f_globals).encode()
        for number in range(first, last + 1)
    ]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace").strip()


@functools.lru_cache(maxsize=512)
def _positions(code: types.CodeType) -> list[tuple]:
    return list(code.co_positions())


@functools.lru_cache(maxsize=512)
def _parsed(expression: str) -> ast.expr | None:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError:
        return None


def called_at(frame: types.FrameType) -> object | None:
    """Return the function that a frame has called, or None where its name does not say."""
    parsed = _parsed(expression_at(frame))
    return _value_of(parsed.func, frame) if isinstance(parsed, ast.Call) else None


def _value_of(node: ast.expr, frame: types.FrameType) -> object | None:
    """Return the value of a name or of an attribute; of nothing that would have to run."""
    if isinstance(node, ast.Name):
        if (
            node.id
            in frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_freevars
        ):
            return _local(frame, node.id)
        return frame.f_globals.get(node.id, vars(builtins).get(node.id))
    if isinstance(node, ast.Attribute):
        of = _value_of(node.value, frame)
        return None if of is None else inspect.getattr_static(of, node.attr, None)
    return None


def _local(frame: types.FrameType, name: str) -> object | None:
    copied = frame.f_locals
    value = copied.get(name)
    if sys.version_info < (3, 13):
        # There it is a copy that the frame keeps, and it would keep large arrays alive.
        copied.clear()
    return value
