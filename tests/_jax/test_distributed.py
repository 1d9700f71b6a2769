import os
from unittest.mock import create_autospec

import jax
import pytest

from d2lpar import D2lparError, Workers, barrier
from d2lpar._jax.distributed import joining, missing_processes

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


def come_late():
    """Come to a barrier when process 0 has given up, and once more together with it."""
    import jax

    def come(seconds):
        try:
            barrier("epoch", seconds)
        except D2lparError as error:
            return str(error)

    is_late = jax.process_index() > 0
    message = None if is_late else come(0.1)
    barrier("process 0 has given up", 60)
    return come(60) if is_late else message, come(60)


def test_a_barrier_names_all_that_do_not_come_and_can_be_used_again():
    with Workers(4) as workers:
        workers.run(come_late)  # From here on, each has come before.
        (message, *late), again = zip(*workers.run(come_late), strict=True)
    named = "did not come to the barrier 'epoch' within"
    assert message.startswith(f"Processes 1, 2 and 3 {named} 100 ms. The output of a missing")
    assert all(named in message for message in late)
    assert again == (None,) * 4


@pytest.mark.parametrize("before", ["", "/job:jax_worker/replica:0/task:"])
def test_processes_are_read_from_the_error_of_old_and_new_versions_of_jax(before):
    message = f"# of tasks that reached the barrier: 1/5.\nThe first: {before}0. Some timed out:\n"
    message += f"{before}12\n{before}4\n\n\nRPC: Barrier"
    assert missing_processes(message, {4}) == "Processes 4, 12 and 2 others"
    assert missing_processes(message, {1, 2, 4}) == "Processes 1, 2, 4 and 12"


def test_a_version_of_jax_without_the_private_names_of_a_barrier_is_refused(monkeypatch):
    monkeypatch.delattr("jax._src.distributed.global_state")
    with pytest.raises(D2lparError, match=r"global_state.*JAX 0\.7\.2 or newer"):
        barrier("epoch", 30)
