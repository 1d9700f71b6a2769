import itertools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeArray, FakeDevice

from d2lpar import InFlight, blocks_host, carried, cpu, measure, record_trace, wait_all
from d2lpar._measure import waiting
from d2lpar.book.workloads import chain

# Not `is_ready`: for some microseconds after `wait_all` it may still be False.
WHAT_WAIT_ALL_LEAVES = """
import time, jax, jax.numpy as jnp, numpy as np
from d2lpar import wait_all
from d2lpar.book.workloads import chain
spread = jax.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), "d"), jax.P("d"))
chains = jax.jit(jax.vmap(lambda matrix: chain(matrix, 5000)))
several = [(spread, jax.devices()), (spread, jax.devices()[:1])]
for where, awaited in [*((device, [device]) for device in jax.devices()), *several]:
    matrices = jax.device_put(jnp.ones((2, 64, 64)), where)
    jax.block_until_ready(chains(matrices))
    wait_all()
    start = time.perf_counter()
    result = chains(matrices)
    wait_all(awaited)
    waited = time.perf_counter()
    jax.block_until_ready(result)
    print("little" if time.perf_counter() - waited < (waited - start) / 2 else "much")
"""


@pytest.mark.timed
def test_wait_all_waits_for_what_was_dispatched_on_a_device_alone_or_with_others(run_python):
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    assert run_python(WHAT_WAIT_ALL_LEAVES, **environment).split() == ["little"] * 4


@pytest.mark.parametrize("axis", ["Auto", "Explicit"])
def test_under_set_mesh_other_devices_can_be_waited_for(axis):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType[axis],))
    nothing, state = lambda: None, jnp.ones(6)
    with jax.set_mesh(mesh), InFlight(2) as window:
        wait_all()
        wait_all([cpu(2)])
        record_trace(nothing)
        measure(nothing)
        step = jax.jit(lambda x: 2 * x, donate_argnums=0)
        donating = carried(step, jax.device_put(state, jax.P("data")))
        for function in [donating] * 4 + [nothing] * 4:
            window.submit(function)


def slowly(x, key):
    """Return an array, a typed key, and a tree with both, after a millisecond or more."""
    late = chain(x, 5000)
    key = jax.random.fold_in(key, late[0, 0].astype(int))
    return late, key, {"weights": 2 * late, "key": key}


@pytest.mark.parametrize(
    ("operation", "waits"),
    [
        (lambda y, key, tree: float(y[0, 0]), True),
        (lambda y, key, tree: jax.random.key_data(key)[0].item(), True),
        (lambda y, key, tree: tree["weights"][0, 0].item(), True),
        (lambda y, key, tree: y + y, False),
        (lambda y, key, tree: jax.random.split(key), False),
    ],
)
def test_an_operation_is_found_to_wait_or_not(operation, waits):
    step = jax.jit(slowly)
    assert blocks_host(operation, lambda: step(jnp.eye(64), jax.random.key(0))) is waits


def test_an_operation_that_once_returned_late_is_not_said_to_wait(clock):
    device, late = FakeDevice(clock), iter([0, 100, 100, 0])
    operation = lambda array: clock.advance(next(late))  # noqa: E731
    assert not blocks_host(operation, lambda: [device.run(5)], tries=3)


def test_an_operand_that_the_operation_deletes_is_not_asked(clock):
    device = FakeDevice(clock)
    assert not blocks_host(lambda y, z: z.delete(), lambda: [device.run(5), device.run(0)])


def test_an_operation_that_leaves_no_array_to_ask_is_refused():
    with pytest.raises(ValueError, match="no array left whose readiness"):
        blocks_host(lambda array: array.delete(), lambda: [jnp.ones(3) + 1])


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
    assert window.most_in_flight == 2  # One is left.


@pytest.mark.parametrize("result", [None, 3, np.ones(3), [np.ones(3), "text"]])
def test_arguments_are_passed_on_and_a_result_without_arrays_of_jax_comes_back_as_it_is(result):
    with InFlight(1) as window:
        for _ in range(3):
            given = window.submit(lambda *args, **kwargs: (result, args, kwargs), 1, a=2)
            assert given == (result, (1,), {"a": 2})
            assert given[0] is result


@pytest.fixture
def device(clock, monkeypatch):
    """A device whose queue is the only one into which sentinels are put."""
    device = FakeDevice(clock)
    monkeypatch.setattr(waiting, "sentinels", lambda devices: [device.run(0)])
    return device


def test_a_state_that_is_donated_with_nothing_beside_it_keeps_to_the_bound(clock, device):
    state, called = device.run(0), []

    def step(state):
        state.delete()
        called.append(clock.now)
        return device.run(10)

    with InFlight(2) as window:
        for _ in range(6):
            state = window.submit(step, state)
    # Call 1 has no sentinel: only call 2 shows that the loop donates. So 2 is waited for.
    assert called == [0, 0, 20, 20, 30, 40]
    assert clock.now == 60
    assert window.most_in_flight == 2


def test_where_the_last_result_of_all_was_donated_elsewhere_the_devices_are_waited_for(
    clock, device
):
    with InFlight(2) as window:
        window.submit(device.run, 9).delete()
        device.run(3)
    assert clock.now == 12


def test_a_function_that_returns_nothing_is_bounded_by_what_it_has_dispatched(clock, device):
    called = []

    def in_place():
        called.append(clock.now)
        device.run(10)

    with InFlight(2) as window:
        for _ in range(4):
            window.submit(in_place)
    assert called == [0, 0, 10, 20]
    assert clock.now == 40


def test_a_call_that_returns_typed_keys_only_is_waited_for():
    step, key = jax.jit(lambda x, key: slowly(x, key)[1]), jax.random.key(0)
    window = InFlight(1)
    for _ in range(3):
        key = window.submit(step, jnp.eye(64), key)
        assert window.submit(lambda key: jax.random.key_data(key).is_ready(), key)


def test_an_exception_in_a_call_or_in_the_block_is_not_masked_and_nothing_is_waited_for(clock):
    window, gone = InFlight(2), FakeArray(clock, 9)
    with pytest.raises(ZeroDivisionError), window:  # noqa: PT012
        window.submit(lambda: gone)
        gone.delete()
        window.submit(divmod, 1, 0)
    assert clock.now == 0


def test_a_donated_state_beside_a_loss_does_not_count_as_unfinished(clock):
    device, window, state = FakeDevice(clock), InFlight(None), FakeArray(clock, 0)

    def step(state):
        state.delete()
        return device.run(1), device.run(0)

    for _ in range(20):
        state, loss = window.submit(step, state)
        loss.block_until_ready()
    assert window.most_in_flight <= 2


class Counted(FakeArray):
    """Counts how often an array is asked whether it is ready, or where it lies."""

    questions = 0

    def __getattribute__(self, name):
        Counted.questions += name in ("is_ready", "sharding")
        return super().__getattribute__(name)


def test_a_call_asks_no_more_arrays_the_more_it_returns_or_the_more_are_pending(clock):
    questions = {2: [], 1000: []}
    for leaves, counts in questions.items():
        window = InFlight(None)
        for _ in range(40):
            before = Counted.questions
            window.submit(lambda n: [Counted(clock, 1) for _ in range(n)], leaves)
            counts.append(Counted.questions - before)
        assert window.most_in_flight == 40
        assert max(counts[2:]) == counts[1]
    assert questions[1000][1:] == questions[2][1:]


def test_of_each_set_of_devices_two_arrays_are_kept_alive(clock):
    window = InFlight(None)
    results = [FakeArray(clock, 1, device) for device in "aaabbbaaa"]
    alive = [weakref.ref(result) for result in results]
    window.submit(lambda: results)
    del results[:]
    assert [of() is not None for of in alive] == [n in (0, 3, 5, 8) for n in range(9)]


def test_results_are_waited_for_on_each_device_even_if_they_lie_elsewhere_than_the_last_ones(clock):
    def call(devices, ready_at):
        return [FakeArray(clock, ready_at[device], device) for device in devices]

    window, times = InFlight(1), itertools.count(1)
    for devices in ("aabb", "aaaa", "acab", "bbbb", "bcba"):
        for late in sorted(set(devices)):
            ready_at = {**dict.fromkeys(devices, 0), late: next(times)}
            window.submit(call, devices, ready_at)
            window.drain()
            assert clock.now == ready_at[late]


@pytest.mark.parametrize("index", [0, 1])
def test_a_donating_loop_on_a_device_waits_for_that_device(index):
    step = jax.jit(lambda x: chain(x, 2000), donate_argnums=0)
    x = jax.device_put(jnp.eye(64), cpu(index))
    with InFlight(2) as window:
        for _ in range(4):
            x = window.submit(step, x)
    assert x.is_ready()
