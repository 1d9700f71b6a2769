import json
from dataclasses import asdict
from datetime import datetime, timedelta

import nbformat
import pytest

from d2lpar import Quantity, exact
from d2lpar._jax.devices import Machine, this_machine, versions
from d2lpar.book.claims import Claim
from d2lpar.book.recorded import MIME_TYPE, KeptTime
from d2lpar.book.results import Results, load, page_of, this_run

RATIO = Quantity("ratio", (4.0, 5, 6, 7, 8, 9))  # interval 4 to 9
# Values that fewer digits would change, and the extremes of a float.
ODD = Quantity("odd", (0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0), "s")
HOLDS = Claim("It holds.", (RATIO > 3, RATIO.between(1, 10)))
FAILS = Claim("It fails.", (RATIO > 10,), otherwise="the likely reason, in µs")
UNTESTABLE = Claim("Elsewhere.", needs="a GPU")
FEW = Quantity("few", (4.0, 5, 6))
UNDECIDED = Claim("Nobody knows.", (FEW > 3, RATIO < FEW))  # The bound is infinite.
ODD_CLAIM = Claim(
    "{odd} and {two}.", (RATIO > 3,), numbers={"odd": ODD, "two": exact("two", -3, "s")}
)
KEPT = KeptTime("pinned", ODD)


def notebook_with(*shown):
    bundles = [{"text/plain": "3"}, *(made._repr_mimebundle_() for made in shown)]
    outputs = [nbformat.v4.new_output("display_data", data) for data in bundles]
    printed = nbformat.v4.new_output("stream", text="printed")
    prose = nbformat.v4.new_markdown_cell("prose")
    code = [nbformat.v4.new_code_cell("x", outputs=[output]) for output in (printed, *outputs)]
    return nbformat.v4.new_notebook(cells=[prose, *code])


HERE = {
    "schema": 2,
    "name": "here",
    "machine": {"processor": "Ångström 1", "cores": 4, "memory": 8, "system": "Linux"}
    | {"devices": "3 x cpu", "driver": "570.1"},
    "versions": {"Python": "3.11.2", "jax": "0.7.2"},
    "commit": "abc1234",
    "date": "2026-11-21T12:00:00+00:00",
    "load": 1.5,
    "pages": {
        "book/b": page_of(notebook_with(HOLDS, KEPT, FAILS)),
        "book/a": page_of(notebook_with(UNTESTABLE, UNDECIDED, ODD_CLAIM)),
    },
}
WHOLE, SAMPLES = json.dumps(HERE), json.dumps(RATIO.samples)


def test_the_times_of_ways_to_copy_are_data_in_a_notebook_and_nothing_that_the_reader_sees():
    assert KEPT._repr_mimebundle_() == {
        MIME_TYPE: {"experiment": "P6", "variant": "pinned", "rows": {"at once": ODD.as_dict()}}
    }
    assert HERE["pages"]["book/b"]["experiments"] == list(KEPT._repr_mimebundle_().values())


def test_a_run_says_where_when_and_with_what_it_was_begun():
    found = Results.of(HERE | this_run())
    assert (found.machine, found.versions) == (this_machine(), versions())
    assert datetime.fromisoformat(found.date).utcoffset() == timedelta(0)


def test_what_is_loaded_is_what_was_displayed_to_the_last_bit(tmp_path):
    path = tmp_path / "here.json"
    path.write_text(WHOLE, encoding="utf-8")
    expected = Results(
        **{key: HERE[key] for key in ("name", "versions", "commit", "date", "load")},
        machine=Machine(**HERE["machine"]),
        claims={"book/b": (HOLDS, FAILS), "book/a": (UNTESTABLE, UNDECIDED, ODD_CLAIM)},
    )
    assert repr(asdict(load(path))) == repr(asdict(expected))  # Only its repr tells -0.0 from 0.0.


@pytest.mark.parametrize(
    ("was", "now", "reason"),
    [
        (WHOLE[100:], "", "JSONDecodeError: .*"),
        (WHOLE, "[]", "TypeError: .*"),
        ('"schema": 2', '"schema": 1', "ValueError: its schema is 1, and this d2lpar reads 2"),
        (SAMPLES, str([2.0] * 6), "ValueError: The claim .* its samples give 'fails': .*"),
        ('"unit": ""', '"unit": "ms"', "ValueError: 'ratio' has the unit 'ms'; known .*"),
        ('"date"', '"when"', "KeyError: 'date'"),
    ],
)
def test_what_is_no_file_of_results_is_refused_with_its_path_and_the_reason(
    tmp_path, was, now, reason
):
    path = tmp_path / "here.json"
    path.write_text(WHOLE.replace(was, now))
    refused = f"{path} is no file of results \\({reason}\\). Record it again with `make record`."
    with pytest.raises(ValueError, match=f"^{refused}$"):
        load(path)
