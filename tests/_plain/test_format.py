import os
import subprocess
import sys

import pytest
from fakes import raising
from tables import bars_of, cells_of, remarks_of

from d2lpar._plain.format import (
    DEVICE,
    HOST,
    as_table,
    can_be_written,
    format_value,
    interval_bar,
    share_bar,
    stacked_bar,
    write_whole,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9999, "s", "1 s"),
        (0.0123456, "s", "12.3 ms"),
        (1.3e-13, "s", "under 1 ns"),  # What a fit ran into, and was printed as 0.00013 ns.
        (0, "s", "0 s"),
        (-0.25, "s", "-250 ms"),
        (float("inf"), "s", "inf s"),
        (999, "B", "999 B"),
        (999_999, "B", "1 MB"),
        (3e12, "B", "3000 GB"),
        (99.97, "", "100"),
    ],
)
def test_a_value_has_three_digits_and_the_prefix_that_fits(value, unit, text):
    assert format_value(value, unit) == text


def test_a_table_has_a_header_a_name_for_each_row_and_remarks_that_are_text():
    html = as_table(["", "a < b"], [["a", "<b>1 s</b>"], ["b", "2 s"]], ["<script>"])
    assert cells_of(html) == [["", "a < b"], ["a", "1 s"], ["b", "2 s"]]
    assert remarks_of(html) == ["<script>"]
    assert html.count('scope="col"') == 1  # A header without words would be read out as one.
    assert html.count('scope="row"') == 2
    assert 'style="overflow-x:auto" tabindex="0"' in html  # It scrolls, by keyboard as well.


INK = "currentColor"


@pytest.mark.parametrize(
    ("bar", "shapes"),
    [
        (stacked_bar(1, 4, 8, "usual"), [(DEVICE, 12.5, 37.5), (HOST, 0, 12.5)]),
        (stacked_bar(0, 8, 8, "Python's part can be seen"), [(DEVICE, 0, 100), (HOST, 0, 0.8)]),
        (stacked_bar(9, 4, 8, "and is no longer than the whole"), [(DEVICE, 50, 0), (HOST, 0, 50)]),
        (stacked_bar(0, 0, 0, "nothing"), [(DEVICE, 0, 0), (HOST, 0, 0.8)]),
        (interval_bar(2, 3, 6, (0, 10), "usual"), [(INK, 20, 40), (INK, 29.3, 1.4)]),
        (interval_bar(-5, -5, 20, (0, 10), "too long"), [(INK, 1, 98), (INK, 0.3, 1.4)]),
        (interval_bar(10, 10, 10, (0, 10), "a point"), [(INK, 99, 0.5), (INK, 98.3, 1.4)]),
        (share_bar(0.25, HOST, "usual"), [(INK, 0, 100), (HOST, 0, 25)]),
        (share_bar(-0.1, HOST, "no less than nothing"), [(INK, 0, 100), (HOST, 0, 0)]),
        (share_bar(1.3, HOST, "no more than the whole"), [(INK, 0, 100), (HOST, 0, 100)]),
    ],
)
def test_a_bar_lies_within_its_column_and_has_a_label(bar, shapes):
    ((label, drawn),) = bars_of(bar)
    assert label
    assert drawn == shapes


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.json"
    write_whole(path, "old")
    return path


def test_a_second_text_replaces_the_first_in_a_file_with_the_same_permissions(old):
    old.chmod(0o604)
    write_whole(old, "neu, Ångström\n")
    assert old.read_bytes() == "neu, Ångström\n".encode()
    assert old.stat().st_mode & 0o777 == 0o604
    assert os.listdir(old.parent) == [old.name]


def test_a_symbolic_link_stays_and_its_target_is_replaced(old):
    (link := old.with_name("latest.json")).symlink_to(old.name)
    assert can_be_written(link)
    write_whole(link, "new")
    assert (link.is_symlink(), old.read_text()) == (True, "new")


def test_a_pipe_and_the_file_that_takes_the_output_are_written_into(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert can_be_written(pipe)
    write_whole(pipe, "report")
    assert os.read(reads, 100) == b"report"
    os.close(reads)
    program = """
from pathlib import Path
from d2lpar._plain.format import can_be_written, write_whole
print("printed", can_be_written(Path("/dev/stdout")), flush=True)
write_whole(Path("/dev/stdout"), "report")
"""
    with open(tmp_path / "output", "w") as output:
        subprocess.run([sys.executable, "-c", program], stdout=output, check=True)
    assert (tmp_path / "output").read_text() == "printed True\nreport"


@pytest.mark.parametrize("path", ["", "nowhere/report.json"])
def test_a_folder_and_a_file_in_no_folder_cannot_be_written(tmp_path, path):
    assert not can_be_written(tmp_path / path)


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file_whole(old, monkeypatch, where):
    monkeypatch.setattr(os, where, raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_whole(old, "new")
    assert old.read_text() == "old"
    assert os.listdir(old.parent) == [old.name]
