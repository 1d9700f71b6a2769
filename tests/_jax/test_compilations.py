import numpy as np
import pytest

from d2lpar import record_compilations


def test_blocks_that_overlap_end_one_by_one(new_function):
    # Both lists are equal when the first is closed.
    first, second = record_compilations(), record_compilations()
    names = first.__enter__(), second.__enter__()
    second.__exit__(None, None, None)
    new_function(np.ones(3, np.float32))
    first.__exit__(None, None, None)
    assert [len(heard) for heard in names] == [1, 0]


def test_nothing_is_recorded_after_the_block_even_if_it_raised(new_function):
    with pytest.raises(KeyError), record_compilations() as names:
        raise KeyError
    new_function(np.ones(3, np.float32))
    assert names == []
