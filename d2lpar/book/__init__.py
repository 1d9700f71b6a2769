"""What only the book needs: claims, exercises, results, and the work that it measures."""

from importlib.util import find_spec

from d2lpar._plain.errors import needs

with needs("book"):
    for _name in ("altair", "matplotlib", "networkx", "scipy"):
        if find_spec(_name) is None:
            raise ModuleNotFoundError(name=_name)

from d2lpar.book.claims import Claim as Claim, claim as claim
from d2lpar.book.results import keep as keep
