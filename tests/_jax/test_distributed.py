import os
import sys

import pytest

from d2lpar._jax.distributed import AtImport, joining

SETTINGS = {"address": "127.0.0.1:5", "count": 4, "number": 2, "gpus": False}


def joined(*args, gpus=False, **kwargs):
    """Return what `jax.distributed.initialize` would be given."""
    given = {}

    def initialize(
        coordinator_address=None,
        num_processes=None,
        process_id=None,
        local_device_ids=None,
        cluster_detection_method=None,
        initialization_timeout=300,
        coordinator_bind_address=None,
    ):
        given.update(locals(), proxies=[name for name in os.environ if "_proxy" in name])
        del given["given"]

    joining(initialize, SETTINGS | {"gpus": gpus})(*args, **kwargs)
    return given


def test_what_initialize_is_not_given_is_filled_in(monkeypatch):
    monkeypatch.setenv("http_proxy", "proxy")
    assert joined(initialization_timeout=7) == {
        "coordinator_address": "127.0.0.1:5",
        "num_processes": 4,
        "process_id": 2,
        "local_device_ids": None,
        "cluster_detection_method": "deactivate",
        "initialization_timeout": 7,
        "coordinator_bind_address": "127.0.0.1:5",
        "proxies": [],
    }
    assert os.environ["http_proxy"] == "proxy"
    assert joined(gpus=True)["local_device_ids"] == [2]


def test_what_initialize_is_given_is_left_alone():
    given = joined("host:7", 4, process_id=2, local_device_ids=[0, 1])
    assert given["coordinator_address"] == "host:7"
    assert given["coordinator_bind_address"] is None
    assert given["local_device_ids"] == [0, 1]


def test_a_number_that_cannot_be_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"process_id=0 in process 2 of 4.*RANK and WORLD_SIZE"):
        joined(process_id=0)
    with pytest.raises(ValueError, match="num_processes=3"):
        joined(num_processes=3)


def test_a_module_is_changed_when_somebody_imports_it(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    hook = AtImport("imported_later", lambda module: setattr(module, "value", 2))
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    import imported_later

    assert imported_later.value == 2
    assert hook not in sys.meta_path
