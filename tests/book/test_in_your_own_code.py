"""The recipes of *In Your Own Code*, each run from its own cell of the page and nothing else."""

import re
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import python_with
from fakes import raising
from run_notebook import ROOT, read

from d2lpar import Quantity, Watched, Workers, once

PAGE = ROOT / "book" / "in-your-own-code.md"
ROWS = 12

RECIPES = ["later", "two_deep", "prefetch", "many_steps", "evaluate_evenly", "in_background"]
CELLS = [cell.source for cell in read(PAGE).cells if cell.cell_type == "code"]
SOURCES = {name: cell for name in RECIPES for cell in CELLS if f"\ndef {name}(" in cell}


def recipe(name):
    program = {}
    exec(SOURCES[name], program)
    return program[name]


def test_a_device_that_is_never_seen_idle_refutes_the_claim_and_does_not_stop_the_notebook():
    (cell,) = (cell for cell in CELLS if "watch-finds-the-line" in cell)
    report, verdicts = Watched(seconds=1.0), []
    names = {"before": report, "watched": lambda *_, times: report, "train": None, "steps": 1}
    names["claim"] = lambda _, *checks, **numbers: verdicts.extend(x.verdict for x in checks)
    names |= {"Quantity": Quantity, "Watched": Watched, "once": once, "step_time": 1.0}
    exec(cell, names)
    assert verdicts == ["fails"] * 3


def add(state, batch):
    """Add the batch's column sums to the state, and return the batch's mean as the loss."""
    return state + batch.sum(axis=0), batch.mean()


def train_with_all(axis_type="Auto"):
    """Train, log, evaluate and save with every recipe, over the devices of all processes."""
    devices, process = jax.devices("cpu"), jax.process_index()
    kind = getattr(jax.sharding.AxisType, axis_type)
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(kind,), devices=devices)
    whole, by_row, by_second = (
        jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("data",), (None, "data"))
    )
    put = partial(jax.make_array_from_process_local_data, by_row)
    zeros = jax.jit(lambda: jnp.zeros(2), out_shardings=whole)
    batches = [np.full((ROWS, 2), number + process, np.float32) for number in range(3)]
    examples = np.full(ROWS + 5, 1 + process, np.float32)
    logged, saved = {}, []

    def step(state, batch):
        assert batch.sharding.is_equivalent_to(by_row, batch.ndim)
        return jax.jit(add, donate_argnums=0)(state, batch)

    def evaluate(examples, counts):
        # On a GPU, a NumPy array would hold Python until it is copied.
        assert all(x.sharding.is_equivalent_to(by_row, 1) for x in (examples, counts))
        return jax.jit(lambda x, c: jnp.sum(x * c))(examples, counts)

    with (
        jax.set_mesh(mesh),
        recipe("later")(logged.__setitem__) as log_later,
        recipe("in_background")(saved.append) as save_later,
    ):
        state = zeros()
        for number, batch in enumerate(recipe("prefetch")(batches, put)):
            save_later(state)  # The next line donates the state.
            state, loss = step(state, batch)
            log_later(number, loss)
        again = recipe("two_deep")(step, zeros(), batches, lambda loss: float(loss) < 0, put)
        stacked = jax.make_array_from_process_local_data(by_second, np.stack(batches))
        (at_once,), losses = recipe("many_steps")(add, (zeros(),), stacked)
        total = recipe("evaluate_evenly")(evaluate, examples, ROWS, partial(jax.tree.map, put))
    assert all(copy.base is None for copy in saved)
    assert [logged[number] for number in range(3)] == np.asarray(losses).tolist()
    states = [float(np.asarray(state)[0]) / ROWS for state in (*saved, state, again, at_once)]
    return states, float(total), batch


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
def test_every_recipe_works_with_a_state_that_is_donated_and_sharded_batches(axis_type):
    states, total, _ = train_with_all(axis_type)
    assert states == [0, 0, 1, 3, 3, 3]
    assert total == ROWS + 5


def test_every_recipe_works_in_a_training_of_two_processes():
    def train():
        *results, batch = train_with_all()
        with pytest.raises(RuntimeError) as caught:
            np.asarray(batch)
        return results, str(caught.value)

    with Workers(2) as workers:
        (results, refused), second = workers.run(train)
    assert second == (results, refused)
    assert results == [[0, 1, 4, 9, 9, 9], (ROWS + 5) * (1 + 2)]
    begins, ends = "spans non-addressable", "devices"
    assert f"`{begins} ... {ends}`" in PAGE.read_text()
    assert ends in refused.split(begins)[1]


@pytest.mark.parametrize(("options", "lag"), [((0,), 0), ((), 2)])
def test_metrics_are_logged_some_calls_later_and_the_last_ones_when_the_loop_fails(options, lag):
    logged = []

    def training():
        with recipe("later")(lambda *call: logged.append(call), *options) as log_later:
            for number in range(5):
                log_later(number, {"loss": jnp.float32(number) / 3, "rate": 0.5, "none": None})
                assert len(logged) == max(0, number + 1 - lag)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        training()
    assert [number for number, _ in logged] == [*range(5)]
    for number, values in logged:
        assert isinstance(values["loss"], np.ndarray | np.generic)
        assert f"{values['loss']:.1f}" == f"{number / 3:.1f}"
        assert (values["rate"], values["none"]) == (0.5, None)


def test_prefetch_yields_what_could_be_read_even_if_it_is_none_and_then_raises():
    readable = [{"x": 1, "y": 2}, None, 3]

    def failing():
        yield from readable
        raise OSError("a broken disk")

    seen = []
    with pytest.raises(OSError, match="a broken disk"):
        seen.extend(recipe("prefetch")(failing(), lambda batch: batch))
    assert seen == readable


def read_two_and_exit():
    yield from range(2)
    raise SystemExit(3)


def test_a_reader_that_exits_ends_the_loop_without_the_batch_that_prefetch_has_ready():
    seen = []
    with pytest.raises(SystemExit, match="3"):
        seen.extend(recipe("prefetch")(read_two_and_exit(), lambda batch: batch))
    assert seen == [0]


@pytest.mark.parametrize("ahead", [0, 2])
def test_prefetch_reads_in_a_thread_puts_a_step_early_in_yours_and_ends_with_the_loop(ahead):
    readers, put = [], []

    def reading():
        for number in range(1000):
            readers.append(threading.current_thread())
            time.sleep(0.001)  # A second reader would find the generator at work.
            yield number

    def to_device(number):
        assert threading.current_thread() not in readers
        put.append(number)
        return number

    batches = recipe("prefetch")(reading(), to_device, ahead)
    for number in range(4):
        assert next(batches) == number
        assert put == [*range(number + 2)]
        assert len(readers) <= number + 2 + max(1, ahead)
    batches.close()
    (reader,) = {*readers}
    reader.join()
    assert len(readers) <= 5 + max(1, ahead)


def test_two_deep_reads_the_next_batch_between_the_call_and_the_wait():
    events = []

    def note(event, value):
        events.append(event)
        return value

    state = recipe("two_deep")(
        lambda state, batch: (note(f"step {batch}", state + batch), batch),
        state=10,
        batches=range(4),
        stop=lambda loss: note(f"wait {loss}", loss == 2),
        put=lambda batch: note(f"read {batch}", batch),
    )
    assert state == 13
    assert events == [
        *("read 0", "read 1", "step 0", "read 2", "wait 0"),
        *("step 1", "read 3", "wait 1", "step 2", "wait 2"),
    ]


def test_two_deep_takes_no_step_on_what_was_ready_when_a_batch_could_not_be_read():
    taken = []
    with pytest.raises(SystemExit):
        recipe("two_deep")(
            lambda state, batch: (state, taken.append(batch)),
            state=0,
            batches=read_two_and_exit(),
            stop=lambda loss: False,
            put=lambda batch: batch,
        )
    assert taken == [0]


def two_parts(total, largest, batch):
    """A step whose state has two parts of different shapes, so that their order matters."""
    total, loss = add(total, batch)
    return total, jnp.maximum(largest, loss), {"loss": loss}


@pytest.mark.parametrize("donated_by", ["nobody", "the step", "the whole call"])
def test_many_steps_are_those_of_a_loop_and_only_the_whole_call_donates(donated_by):
    many_steps, step = recipe("many_steps"), two_parts
    if donated_by == "the step":
        step = jax.jit(step, donate_argnums=(0, 1))
    if donated_by == "the whole call":
        many_steps = jax.jit(many_steps.__wrapped__, static_argnums=0, donate_argnums=1)
    state = jnp.zeros(2), jnp.float32(-1)
    (total, largest), kept = many_steps(step, state, jnp.arange(4.0)[:, None, None])
    assert (total.tolist(), float(largest)) == ([6, 6], 3)
    assert kept["loss"].tolist() == [0, 1, 2, 3]
    assert [part.is_deleted() for part in state] == [donated_by == "the whole call"] * 2


@pytest.mark.parametrize("count", [0, 1, ROWS, 3 * ROWS + 5])
def test_an_evaluation_counts_each_example_once_in_batches_of_one_size(count):
    inputs = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
    labels = np.arange(count) % 3
    compiled = []

    @jax.jit
    def evaluate(batch, counts):
        inputs, labels = batch
        compiled.append(inputs.shape)
        return {"right": jnp.sum(counts & (labels == 1)), "sum": jnp.sum(inputs.T * counts)}

    sums = recipe("evaluate_evenly")(evaluate, (inputs, labels), ROWS, jax.device_put)
    assert sums == {"right": (labels == 1).sum(), "sum": inputs.sum()}
    assert compiled == [(ROWS, 2)]


def test_an_evaluation_is_at_most_three_batches_ahead_and_never_waits_for_the_last(monkeypatch):
    events = []

    def evaluate(batch, counts):
        events.append(f"call {batch[0]}")
        return batch[0]

    monkeypatch.setattr(jax, "block_until_ready", lambda result: events.append(f"wait {result}"))
    assert recipe("evaluate_evenly")(evaluate, np.arange(5), 1, lambda batch: batch) == 10
    assert " ".join(events) == "call 0 call 1 call 2 wait 0 call 3 wait 1 call 4 wait 2"


def test_an_evaluation_in_few_digits_is_summed_in_many():
    def evaluate(batch, counts):
        return jnp.sum(batch * counts).astype(jnp.bfloat16)

    examples = np.ones(4000, np.float32)
    assert recipe("evaluate_evenly")(evaluate, examples, 40, lambda batch: batch) == 4000


def test_a_log_that_raises_to_stop_the_loop_is_not_called_again():
    numbers = []

    def log(number, values):
        numbers.append(number)
        raise ValueError(f"diverged at {number}")

    def training():
        with recipe("later")(log) as log_later:
            for number in range(9):
                log_later(number, jnp.ones(3))

    with pytest.raises(ValueError, match="diverged at 0"):
        training()
    assert numbers == [0]


def test_training_goes_on_while_a_checkpoint_is_written_and_no_device_keeps_it():
    may_end, saved = threading.Event(), []

    def save(state, *, name):
        may_end.wait()
        saved.append((name, state))

    with recipe("in_background")(save) as save_later:
        state = {"w": jnp.arange(3.0), "step": 7, "name": "run"}
        on_device = weakref.ref(state["w"])
        save_later(state, name="first")
        del state
        left = on_device(), list(saved)
        may_end.set()
    assert left == (None, [])
    ((name, state),) = saved
    assert (name, state.pop("w").tolist()) == ("first", [0, 1, 2])
    assert state == {"step": 7, "name": "run"}
    with recipe("in_background")(save):
        pass  # No checkpoint was due.


@pytest.mark.parametrize("checkpoints", [1, 3])
def test_a_checkpoint_that_cannot_be_written_is_an_error_at_the_next_one_or_at_the_end(checkpoints):
    passed = []

    def training():
        with recipe("in_background")(raising(OSError("no space left"))) as save_later:
            for number in range(checkpoints):
                save_later(jnp.ones(2))
                passed.append(number)
            raise ZeroDivisionError

    with pytest.raises(OSError, match="no space") as caught:
        training()
    assert passed == [0]
    assert isinstance(caught.value.__context__, ZeroDivisionError) == (checkpoints == 1)


def block_with(words):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = (block for block in blocks if words in block)
    return block


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [(200, [*range(100, 106)]), (103, [*range(100, 103)]), (50, [])],
    ids=["whole", "ends while it records", "ends before"],
)
def test_the_profiler_records_a_few_steps_and_is_stopped_in_a_shorter_run(
    steps, recorded, monkeypatch
):
    events = []

    @contextmanager
    def trace(folder, create_perfetto_trace):
        events.append("start")
        yield
        events.append("stop")

    monkeypatch.setattr(jax.profiler, "trace", trace)
    block = block_with("jax.profiler.trace").replace("range(200)", f"range({steps})")
    names = {"jax": jax, "parameters": jnp.ones(2), "targets": None, "read": lambda number: number}
    names["train_step"] = lambda parameters, batch, targets: (parameters, events.append(batch))
    exec(block, names)
    window = ["start", *recorded, "stop"] if recorded else []
    assert events == [*range(min(100, steps)), *window, *range(106, steps)]


def test_checkpoints_with_orbax_take_each_step_once_also_after_a_crash(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    parameters = {"w": jax.device_put(jnp.zeros(2), jax.devices("cpu")[-1])}
    step = jax.jit(lambda state, batch: ({"w": state["w"] + batch}, 0.0), donate_argnums=0)
    block = block_with("orbax").replace("/absolute/path", str(tmp_path / "checkpoints"))

    seen = []

    def read(number):
        seen.append(number)
        return number if len(seen) != 251 else 1 / 0

    names = {"step": step, "read": read, "steps": 300}
    for _ in range(3):  # The first start ends in an error, and the third has nothing left to do.
        with suppress(ZeroDivisionError):
            exec(block, names | {"parameters": jax.tree.map(jnp.copy, parameters)})
    assert seen == [*range(251), *range(201, 300)]
    with ocp.CheckpointManager(tmp_path / "checkpoints") as checkpoints:
        assert sorted(checkpoints.all_steps()) == [100, 200, 299]
        restored = checkpoints.restore(299, args=ocp.args.StandardRestore(parameters))
    assert restored["w"].tolist() == [sum(range(300))] * 2
    assert restored["w"].devices() == {jax.devices("cpu")[-1]}


def test_grain_reads_each_example_once_in_processes_of_its_own(tmp_path):
    pytest.importorskip("grain")
    program = f"""
import jax, numpy as np
{SOURCES["prefetch"]}
examples = np.arange(1000.0, dtype=np.float32)
rows, put, parameters, seen = 64, jax.device_put, None, []

def step(parameters, batch):
    seen.append(batch)
    return parameters, 0.0

if __name__ == "__main__":
    {block_with("import grain").replace(chr(10), chr(10) + "    ")}
    seen = np.concatenate(seen).astype(int).tolist()
    print(len(seen), len(set(seen)), seen != sorted(seen))
"""
    script = tmp_path / "train.py"
    script.write_text(program)
    done = python_with(script)
    assert done.stdout.split() == ["960", "960", "True"], done.stderr
