"""The recipes of *In Your Own Code*, as they stand on the page: copied out, and used alone."""

import ast
import re
import subprocess
import sys
import threading
import weakref
from contextlib import contextmanager
from functools import partial

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from run_notebook import ROOT, read

from d2lpar import Workers

PAGE = ROOT / "book" / "in-your-own-code.md"
RECIPES = ["later", "two_deep", "prefetch", "many_steps", "evaluate_evenly", "in_background"]
DEVICES = 3  # As many as the tests have.
ROWS = 4 * DEVICES


def source_of(name):
    """Return the cell of the page that makes a function."""
    (cell,) = (
        cell.source
        for cell in read(PAGE).cells
        if f"\ndef {name}(" in cell.source and ast.get_docstring(ast.parse(cell.source).body[-1])
    )
    return cell


def recipe(name):
    """Return a function of the page, from a program that is its cell and nothing else."""
    program = {}
    exec(compile(source_of(name), f"{name} of {PAGE.name}", "exec"), program)
    return program[name]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_one_function_that_needs_nothing_of_the_page(name):
    *imports, function = ast.parse(source_of(name)).body
    assert function.name == name
    assert all(isinstance(line, ast.Import | ast.ImportFrom) for line in imports)
    assert "d2lpar" not in source_of(name)
    brought = {a.asname or a.name for line in imports for a in line.names}
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    assert brought <= used


# --- What a training looks like -------------------------------------------------------------


@pytest.fixture(params=["Auto", "Explicit"])
def mesh(request):
    kind = getattr(jax.sharding.AxisType, request.param)
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(kind,), devices=jax.devices("cpu"))


def cut(mesh, *axes):
    return partial(jax.device_put, device=jax.NamedSharding(mesh, jax.P(*axes)))


def numbered(count, rows=ROWS):
    """Yield batches that say their number."""
    for number in range(count):
        yield np.full((rows, 2), number, np.float32)


def add(state, batch):
    """A step that adds up what is in the batches, and returns the mean of this one."""
    return state + batch.sum(axis=0), batch.mean()


def numbers_of(batches):
    return [None if batch is None else int(np.asarray(batch)[0, 0]) for batch in batches]


def rows_on_each(array):
    return {shard.data.shape[0] for shard in array.addressable_shards}


def never(loss):
    return float(loss) < 0


def seen_by_two_deep(batches, put):
    """Return the batches that reach the step."""
    seen = []

    def step(state, batch):
        seen.append(batch)
        return state, 0.0

    recipe("two_deep")(step, None, batches, never, put)
    return seen


READERS = {
    "prefetch": lambda batches, put: list(recipe("prefetch")(batches, put)),
    "two_deep": seen_by_two_deep,
}
# jax 0.7.2 has it elsewhere.
enable_x64 = (jax if hasattr(jax, "enable_x64") else jax.experimental).enable_x64


# --- Reading ahead --------------------------------------------------------------------------


@pytest.mark.parametrize("name", READERS)
def test_each_device_gets_its_rows_and_no_others(name, mesh):
    batches = READERS[name](numbered(4), cut(mesh, "data"))
    assert [rows_on_each(batch) for batch in batches] == [{ROWS // DEVICES}] * 4
    assert numbers_of(batches) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", READERS)
def test_what_holds_around_the_loop_holds_for_its_batches(name, mesh):
    doubles = lambda: iter([np.ones((ROWS, 2))])  # noqa: E731
    with enable_x64(True):
        (batch,) = READERS[name](doubles(), jax.device_put)
    assert batch.dtype == np.float64
    last = jax.devices("cpu")[-1]
    with jax.default_device(last):
        (batch,) = READERS[name](doubles(), jax.device_put)
    assert batch.devices() == {last}
    with jax.set_mesh(mesh):
        (batch,) = READERS[name](doubles(), lambda b: jax.device_put(b, jax.P("data")))
    assert rows_on_each(batch) == {ROWS // DEVICES}


@pytest.mark.parametrize("name", READERS)
def test_a_batch_may_be_none_or_a_tree_and_there_may_be_none_at_all(name):
    first, second = numbered(2)
    batches = READERS[name](iter([first, None, second]), jax.device_put)
    assert numbers_of(batches) == [0, None, 1]
    (tree,) = READERS[name](iter([{"x": first, "y": second}]), jax.device_put)
    assert {*tree} == {"x", "y"}
    assert READERS[name](iter([]), jax.device_put) == []


def failing_after(count):
    yield from numbered(count)
    raise OSError("a broken disk")


@pytest.mark.parametrize("count", range(5))
def test_prefetch_hands_out_what_could_be_read_and_then_raises(count):
    batches, seen = recipe("prefetch")(failing_after(count), jax.device_put), []
    with pytest.raises(OSError, match="a broken disk"):
        seen.extend(batches)
    assert numbers_of(seen) == [*range(count)]


@pytest.mark.parametrize("ahead", range(4))
def test_prefetch_reads_in_a_thread_and_puts_each_batch_one_step_early(ahead):
    begun, at_home, put = [], [], []

    def reading():
        for batch in numbered(8):
            begun.append(threading.current_thread())
            yield batch

    def to_device(batch):
        at_home.append(threading.current_thread())
        put.append(int(batch[0, 0]))
        return batch

    for number, batch in enumerate(recipe("prefetch")(reading(), to_device, ahead)):
        assert int(batch[0, 0]) == number
        assert put == [*range(min(number + 2, 8))]
        assert len(begun) <= number + 2 + max(1, ahead)
    assert threading.current_thread() not in begun
    assert {*at_home} == {threading.current_thread()}


def test_prefetch_stops_reading_when_the_loop_breaks_off():
    begun = []

    def reading():
        for batch in numbered(1000):
            begun.append(batch)
            yield batch

    batches = recipe("prefetch")(reading(), jax.device_put)
    next(batches)
    batches.close()
    for thread in threading.enumerate():  # What was begun is read to its end.
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join()
    assert len(begun) <= 4


def test_two_deep_reads_the_next_batch_between_the_call_and_the_wait():
    events = []

    def reading():
        for number in range(4):
            events.append(f"read {number}")
            yield number

    def step(state, batch):
        events.append(f"step {batch}")
        return state + batch, batch

    def stop(loss):
        events.append(f"wait {loss}")
        return loss == 2

    assert recipe("two_deep")(step, 10, reading(), stop, lambda batch: batch) == 13
    assert events == [
        *("read 0", "read 1", "step 0", "read 2", "wait 0"),
        *("step 1", "read 3", "wait 1", "step 2", "wait 2"),
    ]


def test_two_deep_trains_with_parameters_that_are_donated():
    step = jax.jit(add, donate_argnums=0)
    state = recipe("two_deep")(step, jnp.zeros(2), numbered(4), never, jax.device_put)
    assert state.tolist() == [6.0 * ROWS] * 2


# --- Logging --------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", range(4))
def test_a_dictionary_of_metrics_is_logged_some_calls_later(lag):
    logged = []
    with recipe("later")(lambda *call: logged.append(call), lag) as log_later:
        for number in range(5):
            loss = jnp.float32(number) / 3
            log_later(number, {"loss": loss, "rate": 0.5, "of each": jnp.ones(2), "none": None})
            assert [number for number, _ in logged] == [*range(number + 1 - lag)]
    assert [number for number, _ in logged] == [*range(5)]
    for number, values in logged:
        assert float(values["loss"]) == float(jnp.float32(number) / 3)
        assert (values["rate"], values["none"]) == (0.5, None)
        assert isinstance(values["of each"], np.ndarray)
        assert f"{values['loss']:.1f}" == f"{number / 3:.1f}"


def test_what_was_not_logged_yet_is_logged_when_the_loop_fails():
    logged = {}

    def training():
        with recipe("later")(logged.__setitem__) as log_later:
            for number in range(3):
                log_later(number, jnp.float32(number))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        training()
    assert logged == {0: 0, 1: 1, 2: 2}


def test_the_mean_over_a_sharded_batch_is_logged_and_the_parameters_may_be_donated(mesh):
    logged, put = {}, cut(mesh, "data")
    step, state = jax.jit(add, donate_argnums=0), cut(mesh)(jnp.zeros(2))
    with jax.set_mesh(mesh), recipe("later")(logged.__setitem__) as log_later:
        for number, batch in enumerate(recipe("prefetch")(numbered(5), put)):
            state, loss = step(state, batch)
            log_later(number, loss)
    assert logged == {n: n for n in range(5)}
    assert state.tolist() == [10.0 * ROWS] * 2


# --- Many steps in a call ---------------------------------------------------------------------


def two_parts(total, largest, batch):
    """A step whose state has two parts of different shapes, so that it matters which is which."""
    total, loss = add(total, batch)
    return total, jnp.maximum(largest, loss), {"loss": loss}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, partial(jax.jit, donate_argnums=0)])
def test_many_steps_are_those_of_a_loop_for_a_state_of_several_parts(wrap):
    step, stacked = wrap(two_parts), np.stack([*numbered(4)])
    total, largest = jnp.zeros(2), jnp.float32(-1)
    (total, largest), kept = recipe("many_steps")(step, (total, largest), stacked)
    assert total.tolist() == [6.0 * ROWS] * 2
    assert float(largest) == 3
    assert kept["loss"].tolist() == [0, 1, 2, 3]


def test_a_state_is_donated_by_many_steps_and_not_by_the_step_inside():
    many_steps, stacked = recipe("many_steps"), np.stack([*numbered(4)])
    donating = jax.jit(many_steps.__wrapped__, static_argnums=0, donate_argnums=1)
    for steps, gone in ((many_steps, False), (donating, True)):
        state = jnp.zeros(2), jnp.float32(-1)
        steps(jax.jit(two_parts, donate_argnums=(0, 1)), state, stacked)
        assert [part.is_deleted() for part in state] == [gone, gone]


def test_many_steps_with_a_state_of_one_part_return_it_in_a_tuple():
    (total,), losses = recipe("many_steps")(add, [jnp.zeros(2)], np.stack([*numbered(4)]))
    assert total.tolist() == [6.0 * ROWS] * 2
    assert losses.tolist() == [0, 1, 2, 3]


def test_in_many_steps_each_device_computes_its_rows(mesh):
    stacked = cut(mesh, None, "data")(np.stack([*numbered(4)]))
    seen = []

    def step(total, batch):
        jax.debug.inspect_array_sharding(
            batch, callback=lambda s: seen.append(s.shard_shape((ROWS, 2)))
        )
        return add(total, batch)

    with jax.set_mesh(mesh):
        (total,), losses = recipe("many_steps")(step, (cut(mesh)(jnp.zeros(2)),), stacked)
    assert set(seen) == {(ROWS // DEVICES, 2)}
    assert total.tolist() == [6.0 * ROWS] * 2
    assert losses.tolist() == [0, 1, 2, 3]


# --- Evaluating -----------------------------------------------------------------------------


def labelled(count):
    inputs = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
    return inputs, (inputs[:, 0] % 3 == 0).astype(np.int32)


def evaluated(count, rows=ROWS, put=jax.device_put):
    """Evaluate, and return the sums, the shapes that were compiled, and the batches."""
    compiled, handed = [], []

    @jax.jit
    def right(batch, counts):
        inputs, labels = batch
        compiled.append(inputs.shape)
        return {"right": jnp.sum(counts & (labels == 1)), "sum": jnp.sum(inputs.T * counts)}

    def evaluate(*arguments):
        handed.append(arguments)
        return right(*arguments)

    return recipe("evaluate_evenly")(evaluate, labelled(count), rows, put), compiled, handed


@pytest.mark.parametrize("count", [1, ROWS - 1, ROWS, 3 * ROWS, 3 * ROWS + 5])
def test_an_evaluation_counts_each_example_once_in_batches_of_one_size(count):
    sums, compiled, handed = evaluated(count)
    inputs, labels = labelled(count)
    assert {name: int(value) for name, value in sums.items()} == {
        "right": labels.sum(),
        "sum": inputs.sum(),
    }
    assert compiled == [(ROWS, 2)]
    assert len(handed) == -(-count // ROWS)
    # On a GPU, a NumPy array would hold Python until it is copied.
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(handed))


def test_an_evaluation_leaves_each_device_its_rows(mesh):
    with jax.set_mesh(mesh):
        sums, _, handed = evaluated(3 * ROWS + 5, put=cut(mesh, "data"))
    assert int(sums["right"]) == labelled(3 * ROWS + 5)[1].sum()
    assert {frozenset(rows_on_each(x)) for x in jax.tree.leaves(handed)} == {
        frozenset({ROWS // DEVICES})
    }


class Unfinished:
    """A result that knows whether somebody has waited for it."""

    def __init__(self):
        self.waited = False

    def block_until_ready(self):
        self.waited = True

    def __array__(self, dtype=None, copy=None):
        return np.ones((), dtype)


def test_an_evaluation_is_at_most_three_batches_ahead_and_never_waits_for_the_last():
    results = []

    def evaluate(batch, counts):
        assert sum(not result.waited for result in results) <= 2
        assert not results or not results[-1].waited
        results.append(Unfinished())
        return results[-1]

    total = recipe("evaluate_evenly")(evaluate, np.zeros((50, 2)), 5, lambda batch: batch)
    assert total == len(results) == 10


# --- Checkpoints ----------------------------------------------------------------------------


def test_training_goes_on_while_a_checkpoint_is_written_and_no_device_keeps_it():
    may_end, saved = threading.Event(), []

    def save(state, name):
        may_end.wait()
        saved.append((name, state))

    with recipe("in_background")(save) as save_later:
        state = {"w": jnp.arange(3.0), "step": 7}
        of_device = weakref.ref(state["w"])
        save_later(state, "first")
        del state
        left = of_device(), list(saved)
        may_end.set()
    assert left == (None, [])
    ((name, state),) = saved
    assert (name, state["w"].tolist(), int(state["step"])) == ("first", [0, 1, 2], 7)


def test_what_is_saved_is_a_copy_of_parameters_that_the_next_step_overwrites(mesh):
    saved, put = [], cut(mesh)
    step, state = jax.jit(add, donate_argnums=0), put(jnp.zeros(2))
    with jax.set_mesh(mesh), recipe("in_background")(saved.append) as save_later:
        for batch in map(cut(mesh, "data"), numbered(4)):
            save_later(state)
            old, (state, _) = state, step(state, batch)
            assert old.is_deleted()
    assert [s.tolist() for s in saved] == [[n * ROWS] * 2 for n in (0.0, 0.0, 1.0, 3.0)]
    assert all(s.base is None for s in saved)


def test_parameters_that_are_cut_over_the_devices_are_saved_whole(mesh):
    saved = []
    with recipe("in_background")(saved.append) as save_later:
        save_later(cut(mesh, "data")(np.arange(ROWS)))
    assert saved[0].tolist() == [*range(ROWS)]


def test_no_checkpoint_has_to_be_due():
    with recipe("in_background")(len):
        pass


def test_a_checkpoint_that_cannot_be_written_is_an_error_at_the_next_one_or_at_the_end():
    def save(state):
        raise OSError("no space left")

    def training(checkpoints):
        with recipe("in_background")(save) as save_later:
            for number in range(checkpoints):
                save_later(jnp.ones(2))
                passed.append(number)

    for checkpoints in (1, 3):
        passed = []
        with pytest.raises(OSError, match="no space"):
            training(checkpoints)
        assert passed == [0]


def test_the_last_checkpoint_is_written_when_the_loop_fails():
    saved = []

    def training():
        with recipe("in_background")(saved.append) as save_later:
            save_later(jnp.ones(2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        training()
    assert len(saved) == 1


def test_a_checkpoint_that_cannot_be_written_is_told_also_when_the_loop_fails():
    def fail(state):
        raise OSError("the disk is full")

    def training():
        with recipe("in_background")(fail) as save_later:
            save_later(jnp.ones(2))
            raise ZeroDivisionError

    with pytest.raises(OSError, match="full") as told:
        training()
    assert isinstance(told.value.__context__, ZeroDivisionError)


# --- In several processes -------------------------------------------------------------------


def train_with_all(sources):
    """Train, log, evaluate and save with every recipe, in a process that is one of several."""

    def recipe(name):
        program = {}
        exec(sources[name], program)
        return program[name]

    rank = jax.process_index()
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    layout = jax.NamedSharding(mesh, jax.P("data"))
    put = lambda batch: jax.make_array_from_process_local_data(layout, batch)  # noqa: E731
    whole = jax.jit(lambda: jnp.zeros(2), out_shardings=jax.NamedSharding(mesh, jax.P()))
    step = jax.jit(add, donate_argnums=0)
    mine = lambda: (np.full((4, 2), n + rank, np.float32) for n in range(3))  # noqa: E731
    logged, saved = {}, []
    with (
        jax.set_mesh(mesh),
        recipe("later")(logged.__setitem__) as log_later,
        recipe("in_background")(saved.append) as save_later,
    ):
        state = whole()
        for number, batch in enumerate(recipe("prefetch")(mine(), put)):
            state, loss = step(state, batch)
            log_later(number, loss)
        save_later(state)
        again = recipe("two_deep")(step, whole(), mine(), lambda loss: float(loss) < 0, put)
        stacked = jax.make_array_from_process_local_data(
            jax.NamedSharding(mesh, jax.P(None, "data")), np.stack([*mine()])
        )
        (at_once,), _ = recipe("many_steps")(add, (whole(),), stacked)
        right = jax.jit(lambda x, counts: jnp.sum(x * counts))
        examples = np.full(7, 1 + rank, np.float32)
        total = recipe("evaluate_evenly")(right, examples, 4, partial(jax.tree.map, put))
    states = [np.array(s).tolist() for s in (state, again, at_once, saved[0])]
    try:
        np.asarray(batch)
    except RuntimeError as error:
        refused = str(error)
    losses = {number: float(loss) for number, loss in logged.items()}
    return losses, states, float(total), refused


def test_every_recipe_works_in_a_training_of_two_processes():
    sources = {name: source_of(name) for name in RECIPES}
    with Workers(2) as workers:
        (first, second) = workers.run(train_with_all, sources)
    assert first == second
    losses, states, total, refused = first
    assert losses == {0: 0.5, 1: 1.5, 2: 2.5}
    assert states == [[36, 36]] * 4  # 4 rows of 0 + 1 + 2, and 4 of 1 + 2 + 3.
    assert total == 7 * 1 + 7 * 2
    begins, ends = "spans non-addressable", "devices"
    assert f"`{begins} ... {ends}`" in PAGE.read_text()
    assert ends in refused.split(begins)[1]


# --- What the page shows beside its cells ---------------------------------------------------


def block_with(words):
    """Return a program that the page shows and does not run."""
    (block,) = (
        b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if words in b
    )
    return block


def test_arguments_on_different_devices_raise_what_the_table_of_messages_says():
    one, other = (jax.device_put(1.0, device) for device in jax.devices("cpu")[:2])
    message = "Received incompatible devices for jitted computation"
    with pytest.raises(ValueError, match=message):
        jax.jit(jnp.add)(one, other)
    assert f"`{message}`" in PAGE.read_text()


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [(200, [*range(100, 106)]), (103, [*range(100, 103)]), (50, [])],
    ids=["whole", "ends while it records", "ends before"],
)
def test_the_profiler_records_a_few_steps_and_is_stopped_in_a_shorter_run(
    steps, recorded, monkeypatch
):
    events, number = [], 0

    @contextmanager
    def trace(folder, create_perfetto_trace):
        events.append("start")
        yield
        events.append("stop")

    def read(of):
        nonlocal number
        number = of

    def train_step(parameters, batch, targets):
        events.append(number)
        return parameters, 0.0

    monkeypatch.setattr(jax.profiler, "trace", trace)
    block = block_with("jax.profiler.trace").replace("range(200)", f"range({steps})")
    names = {"parameters": jnp.ones(2), "targets": None, "read": read, "train_step": train_step}
    exec(block, names | {"jax": jax})
    after = [*range(106, steps)]
    kept = ["start", *recorded, "stop"] if recorded else []
    assert events == [*range(min(100, steps)), *kept, *after]


def test_checkpoints_with_orbax_go_on_where_the_last_one_was(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    layout = jax.NamedSharding(
        jax.make_mesh((2,), ("data",), devices=jax.devices("cpu")[:2]), jax.P()
    )
    put = partial(jax.device_put, device=layout)

    @partial(jax.jit, donate_argnums=0)
    def step(parameters, batch):
        new, loss = add(parameters["w"], batch)
        return {"w": new}, loss

    names = {
        "step": step,
        "parameters": put({"w": jnp.zeros(2)}),
        "batches": map(put, numbered(202, 4)),
    }
    exec(block_with("orbax").replace("/absolute/path", str(tmp_path / "checkpoints")), names)
    with ocp.CheckpointManager(tmp_path / "checkpoints") as checkpoints:
        assert sorted(checkpoints.all_steps()) == [0, 100, 200]
        assert checkpoints.latest_step() == 200
        like = names["parameters"]
        restored = checkpoints.restore(200, args=ocp.args.StandardRestore(like))
    assert restored["w"].tolist() == [4.0 * sum(range(201))] * 2
    assert restored["w"].sharding.is_equivalent_to(layout, 1)


def test_grain_reads_each_example_once_in_processes_of_its_own(tmp_path):
    pytest.importorskip("grain")
    program = f"""
import jax, numpy as np
{source_of("prefetch")}
examples = np.arange(1000.0, dtype=np.float32)
put, parameters, seen = jax.device_put, None, []

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
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stdout.split() == ["960", "960", "True"], done.stderr
