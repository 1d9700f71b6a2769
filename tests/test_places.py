import gc
import os
import sys
import weakref

import jax
import numpy as np
import pytest

from d2lpar import _places
from d2lpar._watch import Place, called_at, expression_at


def frame_here():
    return sys._getframe(1)


def called():
    """Return what the caller has called, as its frame says: this function."""
    return called_at(sys._getframe(1))


def expression(*_):
    return expression_at(sys._getframe(1))


class Loop:
    def __init__(self, step):
        self.step = step

    @property
    def never(self):
        return called


def test_a_place_is_a_line_with_its_code():
    place = Place.of(frame_here())  # Here.
    line = frame_here().f_lineno - 1
    assert place == Place(__file__, line, "place = Place.of(frame_here())  # Here.")


def test_what_a_frame_is_at_is_said_in_the_words_of_its_code():
    within = [expression(), 1 + len(expression(1))]
    several = expression(
        1,
        2,
    )
    assert within == ["expression()", 1 + len("expression(1)")]
    assert several.split() == ["expression(", "1,", "2,", ")"]


def test_code_without_a_source_is_at_nothing():
    names = {"expression": expression, "called": called}
    exec(compile("at = expression(), called()", "<nowhere>", "exec"), names)
    assert names["at"] == ("", None)


def test_what_has_been_called_is_found_by_its_name():
    def through_a_local(function):
        return function()

    def through_an_attribute(loop):
        return loop.step()

    of_this_module = called()
    assert of_this_module is called
    assert through_a_local(called) is called
    assert through_an_attribute(Loop(called)) is called


def test_what_has_no_name_is_not_looked_for_and_no_property_is_run():
    unnamed = (lambda: called)()()
    loop = Loop(called)
    through_a_property = loop.never()
    assert unnamed is None
    assert through_a_property is vars(Loop)["never"]


def test_to_look_at_a_frame_keeps_none_of_its_arrays_alive():
    def program(function):
        array = np.ones(3)
        alive = weakref.ref(array)
        assert function() is called
        del array
        gc.collect()
        return alive() is None

    assert program(called)


@pytest.mark.parametrize("path", [os.__file__, jax.__file__, np.__file__, _places.__file__])
def test_code_of_a_library_is_not_the_users(path):
    names = {"frame_here": frame_here}
    exec(compile("def inner(): return frame_here()", path, "exec"), names)
    inner = names["inner"]()
    assert inner not in _places.down_to_user_code(inner)[-1:]


def test_code_beside_the_libraries_is():
    frame = frame_here()
    assert _places.down_to_user_code(frame) == [frame]
