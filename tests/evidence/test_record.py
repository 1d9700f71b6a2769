"""`make record`: the file on disk after an interruption, and how the command goes on."""

import os
import re

import conditions
import pytest
import record
from commands import git
from pages import notebook_showing
from run_notebook import ROOT

from d2lpar import exact
from d2lpar.book.claims import MIME_TYPE, Claim
from d2lpar.book.results import load, this_run

PAGES = {f"book/{name}": ROOT / "book" / f"{name}.md" for name in ("one", "two", "three")}
HERE = this_run() | {"name": "here", "commit": "abc1234", "load": 1.5, "pages": {}}


def run(file, here=HERE, pages=PAGES, stops_at=None):
    """Record pages up to one that is interrupted; return the names of those that ran."""
    ran = []

    def execute(page):
        if page.stem == stops_at:
            raise KeyboardInterrupt
        ran.append(page.stem)
        claim = Claim(f"It is {page.stem}.", (exact("number", 1) > 0,), key=page.stem)
        return notebook_showing((MIME_TYPE, claim.as_dict()))

    try:
        record.record(file, here, pages, execute)
    except KeyboardInterrupt:
        assert stops_at
    return ran


def pages_in(file):
    return [claim.key for claims in load(file).claims.values() for claim in claims]


def test_each_page_is_on_disk_when_it_is_done_and_an_interrupted_run_goes_on_from_there(tmp_path):
    file = tmp_path / "here.json"
    assert run(file, stops_at="three") == pages_in(file) == ["one", "two"]
    assert os.listdir(file.parent) == [file.name]
    later = {"date": "2026-11-22T12:00:00+00:00", "load": 0.5}
    assert run(file, HERE | later) == ["three"]
    assert pages_in(file) == ["one", "two", "three"]
    assert {"date": load(file).date, "load": load(file).load} == later


@pytest.mark.parametrize("names", [["one"], ["one", "two", "three"]])
def test_pages_of_which_none_is_missing_are_measured_anew_and_the_others_stay(tmp_path, names):
    file = tmp_path / "here.json"
    run(file)
    pages = {page: path for page, path in PAGES.items() if path.stem in names}
    assert run(file, pages=pages) == names
    assert pages_in(file) == ["one", "two", "three"]


@pytest.mark.parametrize("key", ["machine", "versions", "commit"])
def test_a_file_of_another_machine_or_state_begins_anew(tmp_path, capsys, key):
    file = tmp_path / "here.json"
    run(file, HERE | {key: HERE["machine"] | {"cores": 0}}, stops_at="three")
    before = file.read_text()
    run(file, stops_at="one")
    assert file.read_text() == before
    assert run(file) == pages_in(file) == ["one", "two", "three"]
    assert f"here.json has another {key}: it begins anew." in capsys.readouterr().out


def test_a_commit_stays_what_it_is_when_only_results_are_written(tmp_path, monkeypatch):
    result = tmp_path / conditions.RECORDED / "here.json"
    page = tmp_path / "one.md"
    result.parent.mkdir(parents=True)
    result.write_text("old")
    page.write_text("old")
    for words in (["init"], ["add", "."], ["commit", "-m", "First"]):
        git(*words, cwd=tmp_path)
    monkeypatch.setattr(conditions, "ROOT", tmp_path)
    monkeypatch.setattr(record, "this_run", dict)
    commit = record.header("here")["commit"]
    assert re.fullmatch("[0-9a-f]{12}", commit)
    result.write_text("new")
    assert record.header("here")["commit"] == commit
    page.write_text("new")
    assert record.header("here")["commit"] == f"{commit}-dirty"


def test_a_name_that_can_be_no_file_is_refused(capsys):
    with pytest.raises(SystemExit):
        record.main([""])
    assert "found '': make record NAME=my-machine" in capsys.readouterr().err
