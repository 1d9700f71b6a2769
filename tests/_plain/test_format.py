import os
import subprocess
import sys

import pytest
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

# --- Seconds and bytes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (61.25, "s", "61.2 s"),
        (0.9999, "s", "1 s"),
        (0.0123456, "s", "12.3 ms"),
        (1e-9, "s", "1 ns"),
        (1.3e-13, "s", "under 1 ns"),  # What a fit ran into, and was printed as 0.00013 ns.
        (0, "s", "0 s"),
        (-0.25, "s", "-250 ms"),
        (float("inf"), "s", "inf s"),
        (999, "B", "999 B"),
        (999_999, "B", "1 MB"),
        (3e12, "B", "3000 GB"),
        (0.12345, "", "0.123"),
        (99.97, "", "100"),
        (1e6, "", "1000000"),
    ],
)
def test_a_value_has_three_digits_and_the_prefix_that_fits(value, unit, text):
    assert format_value(value, unit) == text


# --- Tables -------------------------------------------------------------------------------------


def test_a_table_has_a_header_a_name_for_each_row_and_remarks_below():
    html = as_table(["", "time"], [["a", "1 s"], ["b", "2 s"]], ["nine rounds"])
    assert cells_of(html) == [["", "time"], ["a", "1 s"], ["b", "2 s"]]
    assert remarks_of(html) == ["nine rounds"]
    assert html.count('scope="col"') == 1  # A header without words would be read out as one.
    assert html.count('scope="row"') == 2
    assert 'style="overflow-x:auto" tabindex="0"' in html  # It scrolls, by keyboard as well.


def test_titles_and_remarks_are_text_and_cells_are_html():
    html = as_table(["a < b"], [["<b>bold</b>"]], ["<script>"])
    assert "a &lt; b" in html
    assert "<b>bold</b>" in html
    assert "<script>" not in html
    assert remarks_of(html) == ["<script>"]


@pytest.mark.parametrize(
    ("first", "whole", "longest", "host", "device"),
    [
        (1, 4, 8, 12.5, 37.5),
        (0, 8, 8, 0.8, 100),  # Python's part never vanishes.
        (9, 4, 8, 50, 0),  # Nor is it longer than the whole.
        (0, 0, 0, 0.8, 0),
    ],
)
def test_a_stacked_bar_is_python_first_and_then_the_device(first, whole, longest, host, device):
    ((label, drawn),) = bars_of(stacked_bar(first, whole, longest, "a label"))
    widths = {color: width for color, _, width in drawn}
    assert label == "a label"
    assert widths == {HOST: host, DEVICE: device}


def test_an_interval_is_drawn_from_end_to_end_with_its_median_in_it():
    ((label, (interval, median)),) = bars_of(interval_bar(2, 3, 6, (0, 10)))
    assert interval[1:] == (20, 40)
    assert median[1] + median[2] / 2 == pytest.approx(30)
    assert label == "median at 30 % of the bar, interval 20 % to 60 %"


@pytest.mark.parametrize(("low", "high"), [(-5, 20), (0, 0), (10, 10)])
def test_an_interval_stays_within_its_axis_and_can_be_seen(low, high):
    ((_, shapes),) = bars_of(interval_bar(low, low, high, (0, 10)))
    for _, start, width in shapes:
        assert 0 <= start < start + width <= 100


@pytest.mark.parametrize(("share", "width"), [(-0.1, 0), (0.25, 25), (1.3, 100)])
def test_a_share_fills_no_less_than_nothing_and_no_more_than_the_whole(share, width):
    ((_, (whole, filled)),) = bars_of(share_bar(share, HOST, "a share"))
    assert whole[1:] == (0, 100)
    assert filled == (HOST, 0, width)


# --- Writing files -----------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.json"
    write_whole(path, "old")
    return path


def test_a_second_text_replaces_the_first(old):
    write_whole(old, "neu, Ångström\n")
    assert old.read_bytes() == "neu, Ångström\n".encode()
    assert os.listdir(old.parent) == [old.name]


def test_a_new_file_has_the_permissions_of_the_umask_and_an_old_one_keeps_its_own(old):
    umask = os.umask(0)
    os.umask(umask)
    assert old.stat().st_mode & 0o777 == 0o666 & ~umask
    old.chmod(0o600)
    write_whole(old, "new")
    assert old.stat().st_mode & 0o777 == 0o600


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


@pytest.mark.parametrize("stops", [OSError("no space left"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file_whole(old, monkeypatch, where, stops):
    def stop(*_):
        raise stops

    monkeypatch.setattr(os, where, stop)
    with pytest.raises(type(stops)):
        write_whole(old, "new")
    assert old.read_text() == "old"
    assert os.listdir(old.parent) == [old.name]
