import sys
from types import SimpleNamespace

import pytest

from d2lpar._jax.profiler import without_tensorflow


@pytest.mark.parametrize(("version", "stands_in"), [((0, 7, 2), True), ((0, 10, 2), False)])
def test_jax_0_7_finds_no_tensorflow_to_import(version, stands_in, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(__version_info__=version))
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with without_tensorflow():
        assert ("tensorflow.python.profiler.trace" in sys.modules) == stands_in
    assert "tensorflow" not in sys.modules
