"""Measure and bound asynchronous computation in JAX, on one CPU as on GPUs.

Every public name is a name of this module; `__init__.pyi` lists them for this module, type checkers
and editors alike. A name is imported at its first use, and JAX with it, and matplotlib and networkx
at the first drawing: `import d2lpar` costs next to nothing, and a script that `python -m d2lpar`
runs imports JAX itself, as it would without. Helpers of the book alone are in `d2lpar.book`.

PYTEST_DONT_REWRITE: `d2lpar watch -m pytest` imports this package first, so pytest would warn.
"""

from typing import Any

import lazy_loader

_import_name, _, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("d2lpar")
    return _import_name(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
