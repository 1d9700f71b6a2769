"""Tests of figures draw in the style of the book."""

import pytest
from drawings import style_of_the_book


@pytest.fixture(autouse=True)
def _style():
    with style_of_the_book():
        yield
