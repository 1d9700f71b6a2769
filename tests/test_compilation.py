import jax
import numpy as np
import pytest

from d2lpar import record_compilations

SMALL, LARGE = np.ones(3, np.float32), np.ones(5, np.float32)


@pytest.fixture
def new_function():
    """A jitted function that XLA has not seen yet."""

    def new_function(x):
        return 2 * x + 1

    return jax.jit(new_function)


def compiled_by(function, *args):
    with record_compilations() as names:
        function(*args)
    return names


def test_a_first_call_compiles_and_is_named(new_function):
    (name,) = compiled_by(new_function, SMALL)
    assert "new_function" in name


def test_a_second_call_does_not_compile(new_function):
    new_function(SMALL)
    assert compiled_by(new_function, SMALL) == []


@pytest.mark.parametrize("other", [LARGE, SMALL.astype(np.int32)], ids=["shape", "dtype"])
def test_another_shape_or_dtype_compiles_again(new_function, other):
    new_function(SMALL)
    assert len(compiled_by(new_function, other)) == 1


def test_a_block_inside_another_reports_to_both(new_function):
    with record_compilations() as outer:
        new_function(SMALL)
        inner = compiled_by(new_function, LARGE)
    assert len(outer) == 2
    assert len(inner) == 1


def test_blocks_that_overlap_end_one_by_one(new_function):
    # Both lists are equal when the first is closed.
    first, second = record_compilations(), record_compilations()
    names = first.__enter__(), second.__enter__()
    second.__exit__(None, None, None)
    new_function(SMALL)
    first.__exit__(None, None, None)
    assert [len(heard) for heard in names] == [1, 0]


def test_nothing_is_recorded_after_the_block_even_if_it_raised(new_function):
    with pytest.raises(KeyError), record_compilations() as names:
        raise KeyError
    new_function(SMALL)
    assert names == []
