"""Say what to install where something is missing that only a part of the package needs."""

from collections.abc import Iterator
from contextlib import contextmanager

from d2lpar.errors import ExtraError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn the failure of an import into one that names the way out.

    Args:
        extra: What is to be installed, `d2lpar[extra]`.

    Raises:
        ExtraError: If a module is not installed.

    Example:
        >>> with needs("plot"):
        ...     import no_such_module
        Traceback (most recent call last):
        ...
        d2lpar.errors.ExtraError: no_such_module is not installed: pip install "d2lpar[plot] @ \
git+https://github.com/d2lpar/d2lpar"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ExtraError(
            f'{error.name} is not installed: pip install "d2lpar[{extra}] @ '
            'git+https://github.com/d2lpar/d2lpar"'
        ) from error
