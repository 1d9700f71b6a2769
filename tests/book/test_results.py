import copy
import json
import math
import os
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import getitem

import nbformat
import pytest
from run_notebook import ROOT

from d2lpar import Quantity, counted
from d2lpar.book import claims, results
from d2lpar.book.claims import Claim
from d2lpar.book.results import MIME_TYPE, Kept, Results, collect, keep, load, outputs_of, save
from d2lpar.errors import ArgumentError, ResultsError
from d2lpar.machine import Machine, this_machine, versions

RATIO = Quantity("ratio", (4.0, 5, 6, 7, 8, 9))  # interval 4 to 9
FEW = Quantity("few", (4.0, 5, 6))
# What is lost by writing fewer digits, and the ends of what a float can be.
ODD = Quantity("odd", (0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, math.pi), "s")
BYTES = Quantity("bytes", (-1, 2, 3), "B")

HOLDS = Claim("It holds.", (RATIO > 3, RATIO.between(1, 10)))
FAILS = Claim("It fails.", (RATIO > 10,), otherwise="the likely reason, in µs")
UNDECIDED = Claim("Nobody knows.", (FEW > 3, RATIO < FEW))
UNTESTABLE = Claim("Elsewhere.", needs="a GPU")


def thousand(in_each, at_the_end):
    """Return the rows of A6 with two medians in seconds."""
    times = {"barrier in each turn": in_each, "barrier at the end": at_the_end}
    return {row: Quantity(row, (median,) * 6, "s") for row, median in times.items()}


HERE = Results(
    name="here",
    machine=Machine("Ångström 1", 4, 8_000_000_000, "Linux-6.1", "3 x cpu", "570.1"),
    versions={"Python": "3.11.2", "jax": "0.7.2"},
    commit="abc1234",
    date="2026-11-21T12:00:00+00:00",
    load=1.5,
    claims={"book/one": (HOLDS, FAILS), "book/two": (UNDECIDED, UNTESTABLE), "book/three": ()},
    experiments=(
        Kept("A6", "", thousand(2.0, 0.5)),
        Kept("P4", "two", {"first": ODD, "second": BYTES, "at once": ODD}),
        Kept("P4", "one", dict.fromkeys(("first", "second", "at once"), counted("n", 3, "s"))),
    ),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "here.json"


@pytest.fixture
def kept(path):
    """A file of results."""
    save(HERE, path)
    return path


# --- Keeping what an experiment has measured --------------------------------------------------

LOOP = {row: counted(row, 2.0, "s") for row in ("barrier in each turn", "barrier at the end")}


def test_outside_a_notebook_keeping_shows_nothing(capsys):
    keep("A6", LOOP, "a variant")
    assert capsys.readouterr() == ("", "")


def test_in_a_notebook_what_is_kept_is_shown_as_data_that_the_reader_does_not_see(monkeypatch):
    shown = []
    monkeypatch.setattr(results, "show_in_notebook", shown.append)
    keep("A6", LOOP, "a variant")
    (kept,) = shown
    assert kept._repr_mimebundle_() == {MIME_TYPE: Kept("A6", "a variant", LOOP).as_dict()}


def test_what_was_kept_comes_back_from_json():
    rows = {"first": Quantity("one", (0.1, 0.2), "s"), "second": counted("two", -3, "B")}
    rows["at once"] = rows["first"]
    data = json.loads(json.dumps(Kept("P4", "two devices", rows).as_dict(), allow_nan=False))
    found = Kept.from_dict(data)
    assert (found.experiment, found.variant) == ("P4", "two devices")
    assert {row: str(quantity) for row, quantity in found.rows.items()} == {
        row: str(quantity) for row, quantity in rows.items()
    }


def test_an_experiment_that_is_none_is_refused_with_those_there_are():
    with pytest.raises(ArgumentError, match=r"no experiment 'A2'; there are A1, A4, A6, A10, P4"):
        keep("A2", LOOP)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ({}, "none"),
        ({"barrier at the end": LOOP["barrier at the end"]}, "barrier at the end"),
        (LOOP | {"no barrier": counted("no", 1, "s")}, ".*, no barrier"),
    ],
    ids=["none", "missing", "too many"],
)
def test_rows_of_another_name_are_refused_with_those_that_are_expected(rows, found):
    expected = "A6 has the rows barrier in each turn, barrier at the end; "
    with pytest.raises(ArgumentError, match=rf"{expected}found {found}\.$"):
        keep("A6", rows)


def test_a_row_that_is_no_quantity_is_refused():
    with pytest.raises(ArgumentError, match=r"'barrier at the end' of .* a quantity, found 2\.0"):
        keep("A6", LOOP | {"barrier at the end": 2.0})


def test_the_order_of_rows_does_not_matter(capsys):
    keep("A6", dict(reversed(LOOP.items())))
    assert capsys.readouterr().out == ""


# --- Saving -----------------------------------------------------------------------------------


def test_what_is_loaded_is_what_was_saved_to_the_last_bit(kept):
    assert repr(asdict(load(kept))) == repr(asdict(HERE))  # -0.0 equals 0.0 but for its repr.


def test_a_verdict_is_there_for_whoever_reads_the_file_without_this_package(kept):
    claims = json.loads(kept.read_text(encoding="utf-8"))["claims"]
    assert [[made["verdict"] for made in found] for found in claims.values()] == [
        ["holds", "fails"],
        ["inconclusive", "untestable"],
        [],
    ]


def test_a_bound_without_an_end_has_none_again(kept):
    _, less = load(kept).claims["book/two"][0].predicates
    assert (less.low, less.high, less.verdict) == (-math.inf, math.inf, "inconclusive")


def test_a_second_save_replaces_the_first(kept):
    save(replace(HERE, name="later"), kept)
    assert load(kept).name == "later"
    assert os.listdir(kept.parent) == [kept.name]


@pytest.mark.skipif(os.name != "posix", reason="files have other permissions here")
def test_others_may_read_what_was_saved(kept):
    assert kept.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("stops", [OSError("no space left"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file_whole(kept, monkeypatch, where, stops):
    def stop(*_):
        raise stops

    before = kept.read_bytes()
    monkeypatch.setattr(os, where, stop)
    with pytest.raises(type(stops)):
        save(replace(HERE, name="later"), kept)
    assert kept.read_bytes() == before
    assert os.listdir(kept.parent) == [kept.name]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_not_written(path, number):
    with pytest.raises(ResultsError, match=r"here\.json is not written: .* NaN or infinity"):
        save(replace(HERE, load=number), path)
    assert os.listdir(path.parent) == []


def test_a_number_that_is_none_leaves_the_old_file_whole(kept):
    before = kept.read_bytes()
    with pytest.raises(ResultsError):
        save(replace(HERE, load=math.nan), kept)
    assert kept.read_bytes() == before
    assert os.listdir(kept.parent) == [kept.name]


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        save(HERE, tmp_path / "nowhere" / "here.json")


# --- Loading ----------------------------------------------------------------------------------

PUBLISHED = sorted((ROOT / "book" / "results").glob("*.json"))


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda path: path.stem)
def test_what_machines_have_recorded_can_be_read(published):
    found = load(published)
    assert found.name == published.stem
    assert any(found.claims.values())
    assert found.experiments


GONE = object()
ANEW = "Record it anew with `make record`"
WHOLE = json.dumps(HERE.as_dict())
HELD, FAILED = ("claims", "book/one", 0), ("claims", "book/one", 1)
MEASURED = (*HELD, "predicates", 0, "quantity")


def edited(place, value, results=HERE):
    """Return the file as a text in which one value is another, or gone."""
    data = copy.deepcopy(results.as_dict())
    *way, last = place
    inside = reduce(getitem, way, data)
    if value is GONE:
        del inside[last]
    else:
        inside[last] = value
    return json.dumps(data)


def assert_refused(path, message="."):
    with pytest.raises(ResultsError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        load(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WHOLE[: len(WHOLE) // 2].encode(), f"is no whole file of results: .*{ANEW}"),
        (WHOLE[:-1].encode(), f"is no whole file of results: .*{ANEW}"),
        (b"", f"is no whole file of results: Expecting value.*{ANEW}"),
        (b"{name: here}", f"is no whole file of results: Expecting property name.*{ANEW}"),
        (WHOLE.encode("utf-16"), f"is no whole file of results: 'utf-8' codec .*{ANEW}"),
        (b"[" * 200_000, f"is no whole file of results: .*{ANEW}"),
        (f"[{WHOLE}]".encode(), f"has the schema None, .* reads 1.*{ANEW}"),
        (b"3", f"has the schema None, .* reads 1.*{ANEW}"),
        (b"null", f"has the schema None, .* reads 1.*{ANEW}"),
    ],
    ids=["half", "last", "empty", "no JSON", "no UTF-8", "deep", "list", "number", "null"],
)
def test_what_is_no_file_of_results_is_refused_with_a_way_out(path, content, message):
    path.write_bytes(content)
    assert_refused(path, message)


@pytest.mark.parametrize(
    ("schema", "found"), [(0, "0"), (2, "2"), ("1", "'1'"), ([1], r"\[1\]"), (GONE, "None")]
)
def test_another_schema_is_refused_with_two_ways_out(path, schema, found):
    path.write_text(edited(("schema",), schema))
    assert_refused(
        path, f"has the schema {found}, and .* reads 1. {ANEW}, or .* the version that wrote it"
    )


@pytest.mark.parametrize("place", [("load",), (*MEASURED, "samples", 2), (*HELD, "otherwise")])
@pytest.mark.parametrize(
    ("number", "named"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_a_number_that_is_none_is_not_read(path, place, number, named):
    path.write_text(edited(place, number))
    assert_refused(path, f"it holds {named}, which is no number")


@pytest.mark.parametrize("place", [("load",), (*MEASURED, "samples", 2)])
def test_a_number_too_large_for_a_float_is_not_read(path, place):
    path.write_text(edited(place, math.inf).replace("Infinity", "1e999"))
    assert_refused(path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((*MEASURED, "unit"), "ms", "'ratio' has the unit 'ms'; known are '', 'B', 's'"),
        ((*MEASURED, "samples"), [], "'ratio' has no samples: measure it at least once"),
        ((*HELD, "predicates", 0, "relation"), "=", "is >, < or between, found '='"),
        ((*HELD, "sentence"), "", "needs the sentence it checks, found ''"),
        ((*HELD, "verdict"), "fails", "'It holds.' is said to be 'fails', but .* 'holds'"),
        ((*FAILED, "verdict"), "holds", "'It fails.' is said to be 'holds', but .* 'fails'"),
        ((*MEASURED, "samples"), [2.0] * 6, "'It holds.' is said to be 'holds', but .* 'fails'"),
    ],
)
def test_what_cannot_be_believed_is_refused_and_named(path, place, value, message):
    path.write_text(edited(place, value))
    assert_refused(path, f"cannot be believed: .*{message}")


@pytest.mark.parametrize(
    "place",
    [
        ("date",),
        ("claims",),
        ("machine", "cores"),
        (*HELD, "needs"),
        (*HELD, "verdict"),
        (*HELD, "predicates", 0, "relation"),
        (*HELD, "predicates", 0, "low"),
        (*MEASURED, "name"),
        ("experiments", 0, "variant"),
        ("experiments", 0, "rows", "barrier at the end", "samples"),
    ],
    ids=str,
)
def test_what_is_missing_is_named(path, place):
    path.write_text(edited(place, GONE))
    assert_refused(path, f"is no file of results: something is missing .*{place[-1]}")


def test_an_experiment_that_lacks_a_row_is_refused(path):
    path.write_text(edited(("experiments", 0, "rows", "barrier at the end"), GONE))
    assert_refused(path, "cannot be believed: Experiment A6 has the rows")


@pytest.mark.parametrize("place", [("machine", "colour"), (*MEASURED, "colour")])
def test_what_nobody_knows_is_named(path, place):
    path.write_text(edited(place, "red"))
    assert_refused(path, "is no file of results: .*colour")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("machine",), []),
        (("claims",), []),
        (("claims", "book/one"), "x"),
        (HELD, None),
        ((*HELD, "predicates"), 3),
        ((*HELD, "predicates", 0, "low"), "x"),
        ((*HELD, "predicates", 0, "quantity"), []),
        ((*MEASURED, "samples"), None),
        ((*MEASURED, "samples"), "456789"),
        ((*MEASURED, "samples"), ["4", "5", "6", "7", "8", "9"]),
        ((*MEASURED, "unit"), []),
        (("experiments",), None),
        (("experiments", 0, "experiment"), []),
        (("experiments", 0, "rows"), []),
    ],
    ids=str,
)
def test_what_is_of_another_type_is_refused(path, place, value):
    path.write_text(edited(place, value))
    assert_refused(path)


SMALL = replace(
    HERE,
    claims={"book/one": (Claim("One.", (counted("one", 1) > 0,)),)},
    experiments=(Kept("A6", "alone", thousand(1.0, 0.5)),),
)


def truncated():
    """Cut the file off behind each of its characters."""
    text = json.dumps(SMALL.as_dict())
    for length in range(len(text)):
        yield f"{length} characters", text[:length]


def places(data, way=()):
    """Return where each value within plain data lies."""
    inside = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in inside:
        yield (*way, key)
        if isinstance(value, dict | list):
            yield from places(value, (*way, key))


def shortened():
    """Leave out each key of the file, and each element of a list."""
    for place in places(SMALL.as_dict()):
        yield f"without {place}", edited(place, GONE, SMALL)


def replaced():
    """Put something else in the place of each value of the file."""
    for place in places(SMALL.as_dict()):
        for value in (None, "", [], {}, -1, "x", math.inf):
            text = edited(place, value, SMALL).replace("Infinity", "1e999")
            yield f"{place} = {value!r}", text


@pytest.mark.parametrize("damage", [truncated, shortened, replaced])
def test_whatever_was_done_to_a_file_it_is_read_or_refused(path, damage):
    for done, text in damage():
        path.write_text(text)
        try:
            load(path)
        except ResultsError:
            continue
        except Exception as error:
            pytest.fail(f"{done}: {error!r}")


# --- Gathering --------------------------------------------------------------------------------


def test_claims_are_gathered_by_page_and_experiments_among_other_outputs():
    pages = {
        "book/b": [{"text/plain": "3"}, HOLDS._repr_mimebundle_(), FAILS._repr_mimebundle_()],
        "book/a": [HERE.experiments[1]._repr_mimebundle_(), {}, UNDECIDED._repr_mimebundle_()],
        "book/c": [{"image/png": "..."}, HERE.experiments[0]._repr_mimebundle_()],
    }
    # A generator, which can be gone through only once.
    found = collect("here", {page: iter(outputs) for page, outputs in pages.items()})
    assert {page: list(map(str, made)) for page, made in found.claims.items()} == {
        "book/b": [str(HOLDS), str(FAILS)],
        "book/a": [str(UNDECIDED)],
        "book/c": [],
    }
    assert list(found.claims) == ["book/b", "book/a", "book/c"]
    assert [kept.as_dict() for kept in found.experiments] == [
        HERE.experiments[1].as_dict(),
        HERE.experiments[0].as_dict(),
    ]


def test_results_say_where_when_and_in_which_state_they_were_measured():
    found = collect("here", {}, commit="abc", load=1.5)
    assert (found.name, found.commit, found.load) == ("here", "abc", 1.5)
    assert (found.machine, found.versions) == (this_machine(), versions())
    assert datetime.fromisoformat(found.date).utcoffset() == timedelta(0)


def test_a_claim_that_was_tampered_with_is_not_gathered():
    bundle = copy.deepcopy(FAILS._repr_mimebundle_())
    for data in bundle.values():
        if isinstance(data, dict):
            data["verdict"] = "holds"
    with pytest.raises(ArgumentError, match=r"'It fails\.' is said to be 'holds'"):
        collect("here", {"book/a": [bundle]})


# --- What a notebook says ---------------------------------------------------------------------


def test_what_a_notebook_displayed_under_a_type_is_found_in_its_order(tmp_path):
    cells = [nbformat.v4.new_markdown_cell("prose"), nbformat.v4.new_code_cell("x = 1")]
    for bundles in ([FAILS._repr_mimebundle_(), {MIME_TYPE: {"a": 1}}], [{MIME_TYPE: {"a": 2}}]):
        shown = [nbformat.v4.new_output("display_data", bundle) for bundle in bundles]
        printed = nbformat.v4.new_output("stream", text="printed")
        cells.append(nbformat.v4.new_code_cell("keep(...)", outputs=[printed, *shown]))
    notebook = nbformat.v4.new_notebook(cells=cells)
    path = tmp_path / "executed.ipynb"
    nbformat.write(notebook, path)
    for found in (notebook, nbformat.read(path, as_version=4), json.loads(path.read_text())):
        assert outputs_of(found, MIME_TYPE) == [{"a": 1}, {"a": 2}]
        assert outputs_of(found, claims.MIME_TYPE) == [FAILS.as_dict()]
        assert outputs_of(found, "image/png") == []
