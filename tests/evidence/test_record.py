"""What `make record` has on disk whenever it is interrupted, and how it goes on."""

import json
import os
import re
import subprocess

import conditions
import pytest
import record
from run_notebook import ROOT

from d2lpar import exact
from d2lpar.book.claims import Claim
from d2lpar.book.results import SCHEMA, load

PAGES = {f"book/{name}": ROOT / "book" / f"{name}.md" for name in ("one", "two", "three")}
HERE = {
    "schema": SCHEMA,
    "name": "here",
    "machine": {"processor": "A", "cores": 4, "memory": 8, "system": "Linux", "devices": "1 x cpu"},
    "versions": {"jax": "0.7.2"},
    "commit": "abc1234",
    "date": "2026-11-21T12:00:00+00:00",
    "load": 1.5,
    "pages": {},
}


def executed(page):
    """Return the notebook of a page that makes one claim, which has its name."""
    claim = Claim(f"It is {page.stem}.", (exact("number", 1) > 0,), key=page.stem)
    return {"cells": [{"outputs": [{"data": claim._repr_mimebundle_()}]}]}


class Runner:
    """Run pages, and be interrupted instead of running the one of a name."""

    def __init__(self, stops_at=None):
        self.stops_at, self.ran = stops_at, []

    def __call__(self, page):
        if page.stem == self.stops_at:
            raise KeyboardInterrupt
        self.ran.append(page.stem)
        return executed(page)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "here.json"


@pytest.fixture
def interrupted(file):
    """A file of which two pages of three are done."""
    with pytest.raises(KeyboardInterrupt):
        record.record(file, HERE, PAGES, Runner(stops_at="three"))
    return file


def run(file, here=HERE, pages=PAGES):
    """Start it again; return which pages ran, and which the file has now."""
    runner = Runner()
    record.record(file, here, pages, runner)
    return runner.ran, pages_of(file)


def pages_of(file):
    return [claim.key for claims in load(file).claims.values() for claim in claims]


def test_each_page_is_on_disk_when_it_is_done(interrupted):
    assert pages_of(interrupted) == ["one", "two"]
    assert os.listdir(interrupted.parent) == [interrupted.name]


def test_a_run_that_was_interrupted_goes_on_with_the_pages_that_are_missing(interrupted):
    assert run(interrupted) == (["three"], ["one", "two", "three"])


def test_the_pages_that_are_named_are_run_and_the_others_stay(interrupted):
    one = {page: path for page, path in PAGES.items() if page == "book/one"}
    assert run(interrupted, pages=one) == (["one"], ["one", "two"])


def test_a_whole_file_is_measured_anew(file):
    run(file)
    assert run(file) == (["one", "two", "three"], ["one", "two", "three"])


@pytest.mark.parametrize(
    ("what", "was"),
    [("schema", 1), ("machine", {"cores": 2}), ("versions", {}), ("commit", "def5678")],
)
def test_a_file_of_another_machine_or_state_begins_anew(interrupted, capsys, what, was):
    before = json.dumps(json.loads(interrupted.read_text(encoding="utf-8")) | {what: was})
    interrupted.write_text(before)
    with pytest.raises(KeyboardInterrupt):
        record.record(interrupted, HERE, PAGES, Runner(stops_at="one"))
    assert f"here.json has another {what}: it begins anew." in capsys.readouterr().out
    assert interrupted.read_text() == before  # Until the first page is done.
    assert run(interrupted)[0] == ["one", "two", "three"]


def test_a_file_says_when_and_beside_what_load_it_was_begun_the_last_time(interrupted):
    later = {"date": "2026-11-22T12:00:00+00:00", "load": 0.5}
    run(interrupted, HERE | later)
    found = load(interrupted)
    assert {"date": found.date, "load": found.load} == later


def test_a_commit_stays_what_it_is_when_only_results_are_written(tmp_path, monkeypatch):
    def git(*command):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)

    result = tmp_path / conditions.RECORDED / "here.json"
    page = tmp_path / "one.md"
    result.parent.mkdir(parents=True)
    result.write_text("old")
    page.write_text("old")
    git("init")
    git("add", ".")
    git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-m", "First")
    monkeypatch.setattr(conditions, "ROOT", tmp_path)
    monkeypatch.setattr(record, "this_run", dict)
    commit = record.header("here")["commit"]
    assert re.fullmatch("[0-9a-f]{12}", commit)
    result.write_text("new")
    assert record.header("here")["commit"] == commit
    page.write_text("new")
    assert record.header("here")["commit"] == f"{commit}-dirty"


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_a_name_that_can_be_no_file_is_refused(name, capsys):
    with pytest.raises(SystemExit):
        record.main([name])
    assert f"found {name!r}: make record NAME=my-machine" in " ".join(
        capsys.readouterr().err.split()
    )
