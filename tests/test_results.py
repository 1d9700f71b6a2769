import copy
import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import getitem

import pytest

from d2lpar import Quantity, counted
from d2lpar.book.claims import Claim
from d2lpar.book.results import Kept, Results, collect, compare_results, load, save
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


# --- Keeping ----------------------------------------------------------------------------------


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
        (("name",), 3),
        (("machine",), []),
        (("machine", "processor"), None),
        (("machine", "cores"), "4"),
        (("machine", "memory"), None),
        (("versions",), ["jax"]),
        (("versions", "jax"), 1),
        (("commit",), None),
        (("date",), 2026),
        (("load",), "1.5"),
        (("load",), None),
        (("claims",), []),
        (("claims", "book/one"), "x"),
        (HELD, None),
        ((*FAILED, "otherwise"), None),
        ((*HELD, "predicates"), 3),
        ((*HELD, "predicates", 0, "low"), "x"),
        ((*HELD, "predicates", 0, "quantity"), []),
        ((*MEASURED, "name"), 3),
        ((*MEASURED, "samples"), None),
        ((*MEASURED, "samples"), "456789"),
        ((*MEASURED, "samples"), ["4", "5", "6", "7", "8", "9"]),
        ((*MEASURED, "unit"), []),
        ((*MEASURED, "exact"), "no"),
        (("experiments",), None),
        (("experiments", 0, "experiment"), []),
        (("experiments", 0, "variant"), None),
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


@pytest.mark.parametrize("damage", [shortened, replaced])
def test_whatever_was_done_to_a_file_what_is_read_is_of_use(path, damage):
    for done, text in damage():
        path.write_text(text)
        with suppress(ResultsError):
            found = load(path)
            try:
                compare_results(found, found)
                json.dumps(found.as_dict(), allow_nan=False)
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


# --- Comparing --------------------------------------------------------------------------------

THERE = replace(
    HERE,
    name="there",
    machine=Machine("Bohr 2", 64, 256_000_000_000, "Linux-6.8", "1 x cpu, 2 x H200"),
    commit="",
    claims={
        "book/one": (
            Claim("It holds.", (RATIO > 2,)),  # The verdict is the same, and nothing else.
            Claim("It fails.", (RATIO.renamed("other ratio") > 2,)),
            Claim("Only there.", (RATIO > 3,)),
        ),
        "book/four": (UNDECIDED,),
    },
    experiments=(Kept("A6", "", thousand(1.0, 0.75)),),
)


def cells(text, name):
    """Return what stands in the first row of that name."""
    line = next(line for line in text.splitlines() if line.startswith(f"  {name} "))
    return [cell.strip() for cell in line.removeprefix(f"  {name} ").split("  ") if cell.strip()]


def test_a_comparison_names_both_machines_and_what_they_are():
    text = compare_results(HERE, THERE)
    assert "here: Ångström 1, 4 cores, 8 GB, 3 x cpu (driver 570.1)\n" in text
    assert "there: Bohr 2, 64 cores, 256 GB, 1 x cpu, 2 x H200\n" in text
    assert text.count("Linux-6.1; Python 3.11.2, jax 0.7.2") == 1
    assert text.count("2026-11-21T12:00:00+00:00, load 1.5, commit abc1234") == 1
    assert text.count("2026-11-21T12:00:00+00:00, load 1.5, commit unknown") == 1


def test_a_comparison_shows_both_medians_and_what_the_second_takes_of_the_first():
    text = compare_results(HERE, THERE)
    assert cells(text, "barrier in each turn") == ["2 s", "1 s", "0.50"]
    assert cells(text, "barrier at the end") == ["500 ms", "750 ms", "1.50"]


def test_a_comparison_has_a_dash_for_what_one_machine_lacks():
    both = replace(HERE, experiments=HERE.experiments[:2])  # Without "one".
    assert cells(compare_results(both, THERE), "second") == ["2 B", "-"]
    assert cells(compare_results(THERE, both), "second") == ["-", "2 B"]


def test_variants_of_an_experiment_are_compared_with_their_own_kind():
    titles = [line for line in compare_results(HERE, THERE).splitlines() if line[:2] == "P4"]
    assert titles == ["P4 one", "P4 two"]
    rows = dict.fromkeys(("first", "second", "at once"), counted("n", 6, "s"))
    other = replace(HERE, experiments=(Kept("P4", "one", rows),))
    assert cells(compare_results(HERE, other), "first") == ["3 s", "6 s", "2.00"]


@pytest.mark.parametrize("median", [0.0, -1.0])
def test_there_is_no_ratio_to_what_is_not_positive(median):
    first = replace(HERE, experiments=(Kept("A6", "", thousand(median, 1.0)),))
    assert len(cells(compare_results(first, THERE), "barrier in each turn")) == 2


def test_a_comparison_counts_equal_verdicts_and_shows_what_lies_behind_the_others():
    text = compare_results(HERE, THERE)  # "Only there." is a claim that the first lacks.
    count = "Of 3 claims that both have, 2 have the same verdict.\n"
    assert count in text
    assert text.partition(count)[2].splitlines() == [
        "It fails.",
        "  here does not hold here: the likely reason, in µs",
        "    ratio: 6.5 (95 % interval 4 to 9, 6 samples); claimed: > 10",
        "  there holds here",
        "    other ratio: 6.5 (95 % interval 4 to 9, 6 samples); claimed: > 2",
    ]


def test_a_machine_differs_in_nothing_from_itself():
    text = compare_results(HERE, HERE)
    assert text.endswith("Of 4 claims that both have, 4 have the same verdict.")
    assert cells(text, "barrier in each turn") == ["2 s", "2 s", "1.00"]
