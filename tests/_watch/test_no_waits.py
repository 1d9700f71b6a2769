import concurrent.futures
import contextlib
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import d2lpar
from d2lpar import InFlight, WaitError, no_waits, waits_allowed
from d2lpar._jax import reads
from d2lpar.book.asynchronous_computation import NEED_A_VALUE, NEED_NONE


@pytest.fixture(scope="module")
def y():
    return jnp.ones((3, 3)) @ jnp.ones((3, 3))


def waits_of(function):
    """Return what a function is found to wait for, by the code of its lines."""
    with pytest.raises(WaitError) as raised, no_waits():
        function()
    return {finding.place.code: finding for finding in raised.value.findings}


READS = {
    **NEED_A_VALUE,
    "np.from_dlpack": lambda y, s, i: np.from_dlpack(y),
    "memoryview": lambda y, s, i: memoryview(y),
    "assigned to NumPy": lambda y, s, i: np.zeros((3, 3)).__setitem__(..., y),
    "wait_all": lambda y, s, i: d2lpar.wait_all(),
    "jax.block_until_ready of two": lambda y, s, i: jax.block_until_ready([y, y]),
    "jax.effects_barrier": lambda y, s, i: jax.effects_barrier(),
    "a typed key": lambda y, s, i: jax.block_until_ready(jax.random.key(0)),
}
HIDDEN = {"np.dot(y, y)", "jnp.unique(y)", "y[y > 0]", "memoryview", "assigned to NumPy"}


@pytest.mark.parametrize("name", READS)
def test_each_way_to_wait_is_found_once_also_if_the_array_is_ready(name, y):
    if name in HIDDEN and sys.version_info < (3, 12):
        pytest.skip("Python 3.11 hides what reads through the buffer protocol")

    def read():
        READS[name](*arrays)

    arrays = jax.block_until_ready((y, y[0, 0], jnp.int32(1)))
    read()  # Compiles.
    (line,) = waits_of(read)
    assert line == "READS[name](*arrays)" or f'"{name}": ' in line


@pytest.mark.parametrize("name", [n for n in NEED_NONE if n != "jax.effects_barrier()"])
def test_what_only_dispatches_or_asks_for_a_shape_may_stay(name, y):
    arrays = y, y[0, 0], jnp.int32(1)
    NEED_NONE[name](*arrays)  # Compiles.
    with no_waits(no_compilations=True):
        NEED_NONE[name](*arrays)


def test_the_error_says_what_was_read_how_often_where_and_what_to_do(y):
    def log(loss):
        return float(loss)

    def train():
        for _ in range(50):  # Python specializes the code meanwhile.
            log(y[0, 0])

    with pytest.raises(WaitError) as raised, no_waits():
        train()
    (finding,) = raised.value.findings
    message = str(raised.value)
    assert message.startswith(
        "1 line found in a block in which nothing should wait for a device:\n"
        f"  {finding.place}  return float(loss)\n"
        "      waits for a value, float32[], 50 times: float(loss), called from "
        f"{__file__}:{train.__code__.co_firstlineno + 2}\n"
    )
    assert "Keep the array, and read it a few steps later" in message
    assert "with d2lpar.waits_allowed():" in message
    assert raised.value.exact == (sys.version_info >= (3, 12))
    assert ("Python 3.11 hides some reads" in message) != raised.value.exact


def test_what_waits_since_jax_checks_each_result_is_said_to(y):
    double = jax.jit(lambda x: x * 2)
    with jax.debug_nans(True):
        double(y)
        (finding,) = waits_of(lambda: double(y)).values()
    assert finding.kind == "check"


LIBRARY = """
from d2lpar import no_waits
def log(loss):
    return float(loss)
def train(loss):
    with no_waits():
        log(loss)
"""


def test_a_library_that_reads_is_named_beside_the_line_that_calls_it_or_else_alone(y, tmp_path):
    path = tmp_path / "site-packages" / "library.py"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    exec(compile(LIBRARY, path, "exec"), library := {})
    (finding,) = waits_of(lambda: library["log"](y[0, 0])).values()
    assert 'library["log"](y[0, 0])' in finding.place.code
    assert finding.detail == f"float32[], in {path}:4  return float(loss)"
    # A thread has no frames but those of the library and Python's own.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        (finding,) = thread.submit(library["train"], y[0, 0]).exception().findings
    assert (finding.place.file, finding.place.line) == (str(path), 4)


def test_a_compilation_is_found_at_its_line_with_the_name_of_the_function(new_function, y):
    compiles = r"or compile:\n.*  new_function\(y\)\n +compiles jit\(new_function\), 1 time: new"
    with pytest.raises(WaitError, match=compiles), no_waits(no_compilations=True):
        new_function(y)


def test_a_compilation_counts_only_where_it_is_forbidden(new_function, y):
    with no_waits():
        new_function(y[:2])
    with no_waits(no_compilations=True):
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(new_function, y).result()
        with waits_allowed():
            new_function(y[0])


def test_what_is_allowed_and_the_constants_of_a_program_do_not_count_and_all_other_lines_do(y):
    constant = jnp.arange(3.0)

    def train():
        with waits_allowed():
            float(y[0, 0])
        with contextlib.suppress(Exception):
            float(y[1, 1])
        jax.jit(lambda x: x + constant)(1.0)
        y.block_until_ready()

    assert list(waits_of(train)) == ["float(y[1, 1])", "y.block_until_ready()"]


def test_of_nested_blocks_the_innermost_tells(y):
    with no_waits(), waits_allowed(), no_waits(), pytest.raises(WaitError), no_waits():
        float(y[0, 0])


def test_a_window_of_calls_in_flight_may_wait():
    product = jax.jit(lambda x: x @ x)
    x = jnp.eye(300)
    with no_waits(), InFlight(max_in_flight=1) as window:
        for _ in range(5):
            x = window.submit(product, x)


def test_other_threads_may_wait_and_a_block_of_theirs_is_their_own(y):
    theirs = no_waits()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(theirs.__enter__).result()
        float(y[0, 0])
        with pytest.raises(WaitError), no_waits():
            float(y[0, 0])
        thread.submit(theirs.__exit__, None, None, None).result()
        with no_waits():
            assert thread.submit(float, y[0, 0]).result() == 3


def test_an_error_of_the_block_goes_on_and_notes_the_lines(y):
    with pytest.raises(ZeroDivisionError) as raised, no_waits():
        1 / int(y[0, 0] - 3)
    (note,) = raised.value.__notes__
    assert "1 / int(y[0, 0] - 3)" in note


def test_a_generator_that_is_closed_in_its_block_tells_of_its_waits(y):
    def losses():
        with no_waits():
            yield float(y[0, 0])

    generator = losses()
    next(generator)
    with pytest.raises(WaitError):
        generator.close()


def test_a_block_that_ends_before_one_inside_of_it_leaves_nothing_behind(y):
    outer, inner = no_waits(), no_waits()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    float(y[0, 0])
    with pytest.raises(WaitError):
        inner.__exit__(None, None, None)
    float(y[0, 0])
    assert reads.current_listener() is None


PYTHON_3_11 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python hides no read")


@PYTHON_3_11
def test_what_is_hidden_is_found_by_sampling_if_it_waits_for_long():
    chain = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: jnp.tanh(x @ x), x))
    jax.block_until_ready(chain(jnp.eye(100), 1))
    unready = chain(jnp.eye(100), 20_000)
    (finding,) = waits_of(lambda: np.isnan(unready)).values()
    assert (finding.kind, finding.operation) == ("value", "np.isnan(unready)")


@PYTHON_3_11
@pytest.mark.parametrize("allowed", [False, True])
def test_a_pause_that_is_no_read_and_a_read_that_is_allowed_do_not_count(allowed, monkeypatch):
    with no_waits(), contextlib.ExitStack() as stack:
        # Only inside `waits_allowed`: a sample may come between the two blocks.
        stack.enter_context(waits_allowed() if allowed else contextlib.nullcontext())
        patched = stack.enter_context(monkeypatch.context())
        patched.setattr("d2lpar._watch.no_waits._any_unready", lambda: True)
        if allowed:
            patched.setattr("d2lpar._watch.no_waits._may_read", lambda sample: True)
        threading.Event().wait(0.02)
