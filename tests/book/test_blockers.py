import pytest
from fakes import FakeClock

from d2lpar.book.asynchronous_computation import NEED_A_VALUE, NEED_NONE, Held, HeldTable, time_held

SOME = {"float(s)": NEED_A_VALUE["float(s)"], "y + 1": NEED_NONE["y + 1"]}


@pytest.fixture(scope="module")
def held():
    return time_held(SOME)


def test_an_operation_that_needs_a_value_waits_and_one_that_needs_none_goes_on(held):
    assert {name: of.waits for name, of in held.items()} == {"float(s)": True, "y + 1": False}


def test_what_holds_python_longest_comes_first(held):
    assert list(held) == sorted(held, key=lambda name: -held[name].seconds)


def test_the_time_is_that_of_the_operation_alone():
    clock = FakeClock()
    found = time_held({"slow": lambda y, s, i: clock.advance(3)}, seconds=1e-4, clock=clock)
    assert found["slow"].seconds == 3


def test_an_operation_of_the_reader_can_be_tried():
    assert time_held({"mine": lambda y, s, i: sum(y[0].tolist())})["mine"].waits


def test_the_table_sets_those_that_wait_beside_those_that_go_on():
    table = HeldTable({"a < b": Held(True, 0.02), "f(y)": Held(False, 1e-5), "c": Held(True, 0.01)})
    html = table._repr_html_()
    first, second = html.split("<tbody>")[1].split("</tr>")[:2]
    assert "<code>a &lt; b</code>" in first
    assert "20 ms" in first
    assert "<code>f(y)</code>" in first
    assert "10 ms" in second
    assert "f(y)" not in second


def test_the_text_names_each_operation_with_what_it_did():
    lines = str(HeldTable({"float(s)": Held(True, 0.02), "y.T": Held(False, 1e-5)})).splitlines()
    assert [line.split() for line in lines] == [
        ["float(s)", "waits", "20", "ms"],
        ["y.T", "goes", "on", "10", "µs"],
    ]
