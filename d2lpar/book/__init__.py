"""Claims, exercises, results, and measured workloads: the parts that only the book needs."""

from importlib.util import find_spec

from d2lpar._plain.errors import needs

with needs("book"):
    for _name in ("altair", "matplotlib", "networkx", "scipy"):
        if find_spec(_name) is None:
            raise ModuleNotFoundError(name=_name)

from d2lpar.book.claims import Claim as Claim, claim as claim
