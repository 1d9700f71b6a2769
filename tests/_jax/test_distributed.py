import os
from unittest.mock import create_autospec

import jax
import pytest

from d2lpar._jax.distributed import joining

ADDRESS = "127.0.0.1:5"


def joined(*args, gpus=False, **kwargs):
    """Return the arguments that `jax.distributed.initialize` gets in process 2 of 4."""

    def initialize(**_):
        assert "http_proxy" not in os.environ

    initialize = create_autospec(jax.distributed.initialize, side_effect=initialize)
    settings = {"address": ADDRESS, "count": 4, "number": 2, "gpus": gpus}
    joining(initialize, settings)(*args, **kwargs)
    return initialize.call_args.kwargs


def test_arguments_that_are_left_out_are_filled_in_and_no_proxy_is_used(monkeypatch):
    monkeypatch.setenv("http_proxy", "proxy")
    assert joined(initialization_timeout=7) == {
        "coordinator_address": ADDRESS,
        "coordinator_bind_address": ADDRESS,
        "num_processes": 4,
        "process_id": 2,
        "cluster_detection_method": "deactivate",
        "initialization_timeout": 7,
    }
    assert joined(gpus=True)["local_device_ids"] == [2]
    assert os.environ["http_proxy"] == "proxy"


def test_arguments_that_are_given_are_left_alone_unless_they_cannot_be_right():
    arguments = joined("host:7", 4, process_id=2, local_device_ids=[0, 1])
    assert arguments["coordinator_address"] == "host:7"
    assert "coordinator_bind_address" not in arguments
    assert arguments["local_device_ids"] == [0, 1]
    with pytest.raises(ValueError, match=r"process_id=0 in process 2 of 4.*RANK and WORLD_SIZE"):
        joined(process_id=0)
    with pytest.raises(ValueError, match="num_processes=3"):
        joined(num_processes=3)
