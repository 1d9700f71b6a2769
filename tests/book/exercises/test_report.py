import inspect
import json

import pytest

from d2lpar._errors import D2lparError
from d2lpar.book import exercises
from d2lpar.book.exercises import MIME_TYPE, Report
from d2lpar.book.exercises.answers import Rejection
from d2lpar.book.exercises.report import Untestable, exercise

CHECKS = {name: check for name, check in vars(exercises).items() if name.startswith("check_")}

REPORTS = {
    "accepted": (Report("X2", "accepted", "It did."), "accepted"),
    "not yet": (Report("Y1", "not yet", "It did not.", "Why?"), "not yet"),
    "untestable": (Report("Y3", "untestable", "One device."), "cannot be checked here"),
}


def test_a_report_reads_as_lines_and_leaves_out_what_is_empty():
    assert [repr(report) for report, _ in REPORTS.values()] == [
        "Exercise X2: accepted\n  It did.",
        "Exercise Y1: not yet\n  It did not.\n  Why?",
        "Exercise Y3: cannot be checked here\n  One device.",
    ]


@pytest.mark.parametrize("verdict", REPORTS)
def test_a_notebook_gets_text_html_and_data_that_json_can_keep(verdict):
    report, words = REPORTS[verdict]
    bundle = report._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", MIME_TYPE}
    assert bundle["text/plain"] == repr(report)
    assert f'class="d2lpar-exercise" data-verdict="{verdict}"' in bundle["text/html"]
    for text in (f"Exercise {report.exercise}", f">{words}<", report.saw, report.look):
        assert text in bundle["text/html"]
    assert bundle["text/html"].count("<li>") == bool(report.look)
    assert json.loads(json.dumps(bundle[MIME_TYPE])) == {
        "exercise": report.exercise,
        "verdict": verdict,
        "saw": report.saw,
    }


def test_html_escapes_what_others_wrote_and_shows_code_as_code():
    report = Report("X1", "not yet", "raised <b> & `x < y`", '<script>"x"</script>')
    html = report._repr_mimebundle_()["text/html"]
    assert "raised &lt;b&gt; &amp; <code>x &lt; y</code>" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_still_has_its_name_and_its_help(name):
    assert CHECKS[name].__name__ == name
    assert "Returns:\n    A report." in inspect.getdoc(CHECKS[name])


@pytest.mark.parametrize(
    ("raised", "verdict"),
    [
        (Rejection("It did not.", "Why?"), "not yet"),
        (Untestable("Nothing is to be seen."), "untestable"),
        (D2lparError("There is one device."), "untestable"),
        (D2lparError("A recording is under way."), "untestable"),
    ],
    ids=repr,
)
def test_what_a_check_raises_becomes_its_report(raised, verdict):
    @exercise("X9")
    def check(answer):
        raise raised

    report = check(None)
    assert (report.exercise, report.verdict, report.saw) == ("X9", verdict, str(raised))
    assert report.look == getattr(raised, "look", "")


def test_what_a_check_does_not_expect_is_not_taken_for_an_answer():
    @exercise("X9")
    def check(answer):
        return answer.nothing

    with pytest.raises(AttributeError):
        check(None)
