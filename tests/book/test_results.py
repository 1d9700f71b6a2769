import json
from dataclasses import asdict
from datetime import datetime, timedelta

import nbformat
import pytest

from d2lpar import Quantity, exact
from d2lpar._jax.devices import Machine, this_machine, versions
from d2lpar.book import results
from d2lpar.book.claims import Claim
from d2lpar.book.results import MIME_TYPE, ExperimentResult, Results, keep, load, page_of, this_run

RATIO = Quantity("ratio", (4.0, 5, 6, 7, 8, 9))  # interval 4 to 9
# Values that fewer digits would change, and the extremes of a float.
ODD = Quantity("odd", (0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0), "s")
HOLDS = Claim("It holds.", (RATIO > 3, RATIO.between(1, 10)))
FAILS = Claim("It fails.", (RATIO > 10,), otherwise="the likely reason, in µs")
UNTESTABLE = Claim("Elsewhere.", needs="a GPU")
FEW = Quantity("few", (4.0, 5, 6))
UNDECIDED = Claim("Nobody knows.", (FEW > 3, RATIO < FEW))  # The bound is infinite.
LOOP = {row: exact(row, 2.0, "s") for row in ("barrier in each turn", "barrier at the end")}
TWO = {"first": ODD, "second": exact("two", -3, "s"), "at once": ODD}


def notebook_with(*shown):
    """Return an executed notebook that has displayed some objects, and other things."""
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
        "book/b": page_of(notebook_with(HOLDS, ExperimentResult("P4", "two", TWO), FAILS)),
        "book/a": page_of(notebook_with(UNTESTABLE, UNDECIDED, ExperimentResult("A6", "", LOOP))),
    },
}
WHOLE, SAMPLES = json.dumps(HERE), json.dumps(RATIO.samples)


def test_what_is_kept_is_data_in_a_notebook_and_nothing_that_the_reader_sees(monkeypatch, capsys):
    keep("A6", dict(reversed(LOOP.items())), "a variant")  # The order of rows does not matter.
    assert capsys.readouterr() == ("", "")
    shown = []
    monkeypatch.setattr(results, "show_in_notebook", shown.append)
    keep("A6", LOOP, "a variant")
    rows = {row: quantity.as_dict() for row, quantity in LOOP.items()}
    assert [kept._repr_mimebundle_() for kept in shown] == [
        {MIME_TYPE: {"experiment": "A6", "variant": "a variant", "rows": rows}}
    ]


@pytest.mark.parametrize(
    ("experiment", "rows", "message"),
    [
        ("A2", LOOP, "no experiment 'A2'; there are A1, A4, A6, A10, P4"),
        ("A6", {}, "has the rows barrier in each turn, barrier at the end; found none"),
        ("A6", LOOP | {"no": exact("no", 1, "s")}, "found .*, barrier at the end, no"),
    ],
)
def test_unknown_experiments_and_other_rows_are_refused_with_those_that_are_expected(
    experiment, rows, message
):
    with pytest.raises(ValueError, match=message):
        keep(experiment, rows)


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
        claims={"book/b": (HOLDS, FAILS), "book/a": (UNTESTABLE, UNDECIDED)},
        experiments=(ExperimentResult("P4", "two", TWO), ExperimentResult("A6", "", LOOP)),
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
        ('"barrier at the end": ', '"another": ', "ValueError: Experiment A6 has the rows .*"),
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
