import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeArray, FakeDevice

from d2lpar import InFlight, blocks_host, wait_all
from d2lpar.book.workloads import chain

# --- Barriers -----------------------------------------------------------------------------------


# `is_ready` would not tell: for some microseconds after `wait_all` it may still say no.
WHAT_WAIT_ALL_LEAVES = """
import time, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from d2lpar import wait_all
from d2lpar.book.workloads import chain
spread = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
chains = jax.jit(jax.vmap(lambda matrix: chain(matrix, 5000)))
for where in [*jax.devices(), spread]:
    matrices = jax.device_put(jnp.ones((2, 64, 64)), where)
    jax.block_until_ready(chains(matrices))
    wait_all()
    start = time.perf_counter()
    result = chains(matrices)
    wait_all()
    waited = time.perf_counter()
    jax.block_until_ready(result)
    print("little" if time.perf_counter() - waited < (waited - start) / 2 else "much")
"""


@pytest.mark.timed
def test_wait_all_waits_for_what_was_dispatched_on_every_device_and_on_several_at_once(run_python):
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    assert run_python(WHAT_WAIT_ALL_LEAVES, **environment).split() == ["little"] * 3


def test_wait_all_can_be_told_which_devices():
    wait_all(jax.local_devices()[:1])


@pytest.mark.parametrize(
    ("operation", "waits"),
    [
        (lambda y, z: z.block_until_ready(), True),
        (lambda y, z: float(z[0, 0]), True),
        (lambda y, z: y + z, False),
        (lambda y, z: z.shape, False),
    ],
)
def test_an_operation_is_found_to_wait_or_not(operation, waits):
    two_results = jax.jit(lambda x: (chain(x, 5000), 2 * x))
    assert blocks_host(operation, lambda: two_results(jnp.eye(64))) is waits


def test_an_operation_that_once_returned_late_is_not_said_to_wait(clock):
    device, late = FakeDevice(clock), iter([0, 100, 100, 0])
    operation = lambda array: clock.advance(next(late))  # noqa: E731
    assert not blocks_host(operation, lambda: [device.run(5)], tries=3)


def test_an_operand_that_the_operation_deletes_is_not_asked(clock):
    device = FakeDevice(clock)
    assert not blocks_host(lambda y, z: z.delete(), lambda: [device.run(5), device.run(0)])


def test_an_operation_that_leaves_no_array_to_ask_is_refused():
    with pytest.raises(ValueError, match="no array left to ask"):
        blocks_host(lambda array: array.delete(), lambda: [jnp.ones(3) + 1])


# --- In flight ----------------------------------------------------------------------------------


add_one_in_place = jax.jit(lambda x: (x + 1, 0 * x), donate_argnums=0)


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_a_call_waits_until_there_is_room_and_no_longer(clock, bound):
    device, called = FakeDevice(clock), []

    def call():
        called.append(clock.now)
        return device.run(10)

    with InFlight(bound) as window:
        for _ in range(bound + 2):
            window.submit(call)
    assert called == [0] * bound + [10, 20]
    assert clock.now == 10 * (bound + 2)


def test_a_call_that_is_done_leaves_room_whichever_came_first(clock):
    slow, fast = FakeDevice(clock), FakeDevice(clock)
    window = InFlight(2)
    window.submit(slow.run, 100)
    window.submit(fast.run, 1)
    clock.advance(5)
    window.submit(fast.run, 1)
    assert clock.now == 5
    window.submit(fast.run, 1)
    assert clock.now == 100  # Where none is done, the oldest is waited for.


def test_without_a_bound_nothing_waits_before_the_end(clock):
    device = FakeDevice(clock)
    with InFlight(None) as window:
        for _ in range(40):
            window.submit(device.run, 3)
        assert clock.now == 0
    assert clock.now == 120
    window.submit(device.run, 3)
    assert window.most_in_flight == 40


def test_drain_waits_for_everything_and_leaves_an_empty_window(clock):
    device, window = FakeDevice(clock), InFlight(2)
    window.submit(device.run, 5)
    window.drain()
    window.drain()
    assert clock.now == 5
    window.submit(device.run, 5)
    window.submit(device.run, 5)
    assert clock.now == 5


def test_a_call_is_done_when_all_that_it_returned_is_done(clock):
    window = InFlight(1)
    window.submit(lambda: {"early": FakeArray(clock, 1), "late": [FakeArray(clock, 7)]})
    clock.advance(2)
    window.submit(lambda: None)
    assert clock.now == 7


@pytest.mark.parametrize("result", [None, 3, np.ones(3), [np.ones(3), "text"]])
def test_a_result_without_arrays_of_jax_is_done_at_once(result):
    with InFlight(1) as window:
        for _ in range(3):
            assert window.submit(lambda: result) is result
    assert window.most_in_flight == 0


def test_arguments_are_passed_on():
    with InFlight(1) as window:
        assert window.submit(divmod, 7, 2) == (3, 1)
        assert window.submit(dict, a=1) == {"a": 1}


def test_a_loop_that_donates_its_state_gets_its_result():
    x = jnp.zeros((500, 500))
    with InFlight(3) as window:
        for _ in range(50):
            x, _ = window.submit(add_one_in_place, x)
    assert (x == 50).all()


@pytest.mark.parametrize("drain", [True, False], ids=["drain", "submit"])
def test_a_result_that_was_donated_away_is_an_error_with_a_way_out(clock, drain):
    window = InFlight(1)
    window.submit(FakeDevice(clock).run, 9).delete()
    with pytest.raises(
        ValueError,
        match=r"this call returned was donated.*nothing to wait for.*such as the loss",
    ):
        window.drain() if drain else window.submit(lambda: None)


def test_a_donated_state_beside_a_result_that_is_kept_is_fine(clock):
    state, loss = FakeArray(clock, 3), FakeArray(clock, 3)
    with InFlight(1) as window:
        window.submit(lambda: (state, loss))
        state.delete()
    assert clock.now == 3


def test_an_exception_in_the_block_is_not_masked(clock):
    gone = FakeArray(clock, 9)
    with pytest.raises(KeyError), InFlight(2) as window:  # noqa: PT012
        window.submit(lambda: gone)
        gone.delete()
        raise KeyError
    assert clock.now == 0


def test_an_exception_in_a_call_passes_through_and_takes_no_room(clock):
    window = InFlight(1)
    with pytest.raises(ZeroDivisionError):
        window.submit(divmod, 1, 0)
    window.submit(FakeDevice(clock).run, 5)
    assert clock.now == 0


def test_a_donated_state_beside_a_loss_does_not_count_as_unfinished(clock):
    device = FakeDevice(clock)
    window = InFlight(max_in_flight=None)
    state = None
    for _ in range(20):
        state, loss = window.submit(lambda old: (old and old.delete(), two(device))[1], state)
        loss.block_until_ready()
    assert window.most_in_flight <= 2


def two(device):
    """Return a state and a loss that are ready at the same time."""
    return device.run(1), device.run(0)


def test_a_call_asks_no_more_arrays_the_more_are_pending(clock):
    class Counted(FakeArray):
        asked = 0

        def is_ready(self):
            Counted.asked += 1
            return super().is_ready()

    window = InFlight(None)
    counts = []
    for _ in range(40):
        before = Counted.asked
        window.submit(lambda: Counted(clock, ready_at=1))
        counts.append(Counted.asked - before)
    assert window.most_in_flight == 40
    assert max(counts) == counts[1] <= 2
