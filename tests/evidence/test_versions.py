"""What each claim and each fact said with each version of JAX, in one file."""

import json
import sys

import pytest
import versions
from pages import notebook_showing

from d2lpar import exact
from d2lpar.book import exercises
from d2lpar.book.claims import MIME_TYPE, Claim

REPORT = """<testsuites><testsuite>
<testcase name="test_each_sentence_stands_on_its_page[A call returns]" />
<testcase name="test_each_experiment_can_fail_and_does_not[A call returns]" />
<testcase name="test_each_experiment_can_fail_and_does_not[It waits]">
<failure message="no" /></testcase>
<testcase name="test_each_experiment_can_fail_and_does_not[It is new]">
<skipped message="# Needs JAX 0.9 or newer." /></testcase>
</testsuite></testsuites>"""
ALL_HOLD = REPORT.replace('<failure message="no" />', "")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run two pages with some JAX; the verdict of their claim is given."""
    monkeypatch.setattr(versions, "FILE", file := tmp_path / "versions.json")
    monkeypatch.setattr(versions, "name_of", str)

    def run(jax, value, exercise="accepted", facts=ALL_HOLD):
        (tmp_path / "facts.xml").write_text(facts)
        claim = Claim("It is so.", (exact("x", value) > 0,), key="above")
        report = {"exercise": "X1", "verdict": exercise, "saw": ""}
        notebook = notebook_showing((MIME_TYPE, claim.as_dict()), (exercises.MIME_TYPE, report))
        head = {"versions": {"Python": "3.11.7", "jax": jax}, "machine": {"cores": 2}}
        head |= {"date": f"of {jax}"}
        monkeypatch.setattr(versions, "run_notebook", lambda _: notebook)
        monkeypatch.setattr(versions, "this_run", lambda: head)
        pages = ["chapter.ipynb", "solutions/chapter.ipynb"]
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "facts.xml"), *pages])
        versions.main()

    run.kept = lambda: json.loads(file.read_text())
    return run


def test_each_version_has_its_newest_verdicts_and_the_newest_version_comes_last(run):
    for jax, value in (("0.10.2", 1), ("0.7.2", 1), ("0.10.2", 2)):
        with pytest.raises(SystemExit, match=r"^book/facts.md: It waits fails$"):
            run(jax, value, facts=REPORT)
    assert list(run.kept()) == ["0.7.2", "0.10.2"]
    assert run.kept()["0.7.2"]["claims"] == {"above": "holds"}
    assert run.kept()["0.7.2"]["cores"] == 2
    assert list(run.kept()["0.7.2"]["seconds"]) == ["chapter.ipynb", "solutions/chapter.ipynb"]
    new = "# Needs JAX 0.9 or newer."
    facts = {"A call returns": "holds", "It waits": "fails", "It is new": new}
    assert run.kept()["0.10.2"]["facts"] == facts


def test_what_fails_is_kept_and_ends_the_command_with_an_error(run):
    with pytest.raises(SystemExit, match=r"^chapter.ipynb: above fails\nsolutions/"):
        run("0.7.2", -1)
    assert run.kept()["0.7.2"]["claims"] == {"above": "fails"}
    with pytest.raises(SystemExit, match=r"^solutions/chapter.ipynb: X1 is not accepted$"):
        run("0.7.2", 1, "not yet")
