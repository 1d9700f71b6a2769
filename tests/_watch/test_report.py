import json

import pytest

from d2lpar._jax.stack import Place
from d2lpar._watch.report import KINDS, Finding, Watched


@pytest.fixture
def watched():
    place = Place("/home/me/train.py", 12, "losses.append(float(loss))")
    one = Finding("value", place, "float(loss)", "MainThread", 0.5, 40, 0.4, 0.3)
    other = Finding("barrier", place, "x < y", "logger", 0.02, 1)
    return Watched(3.0, 1.0, 200, 0.5, {"CPU 0": 1.0}, (0.4, 0.6), [one, other])


def test_the_report_says_where_how_long_and_what_to_do(watched):
    text = str(watched)
    assert repr(watched) == text  # As IPython shows it.
    assert "Watched for 3 s, including a start of 1 s" in text
    assert "CPU 0 had nothing to do for 50% of that (95% interval: 40% to 60%)." in text
    assert " 20.0% lost  /home/me/train.py:12  losses.append(float(loss))\n" in text
    assert "Python was there for 25.0% of the time (500 ms, at least 40 times)\n" in text
    assert "1 further line lost next to nothing (--all shows them;" in text
    assert "1 further line lost next to nothing" in watched._repr_html_()
    everything = watched.report(everything=True)
    assert "1.0% of the time (20 ms, at least 1 time), in logger\n" in everything
    for text_or_link in KINDS["value"]:
        assert text_or_link in text


def test_who_calls_a_line_is_said_and_how_often(watched):
    watched.findings[0].callers = {"a.py:3": 30, "a.py:9": 10}
    assert str(watched).count("Called from") == 1
    assert "Called from a.py:3 (75%), a.py:9 (25%)." in str(watched)
    watched.findings[0].callers = {"a.py:3": 30}
    assert "Called from a.py:3." in str(watched)


@pytest.mark.parametrize(
    ("code", "operation", "decides"),
    [
        ("if jnp.isnan(loss): break", "if jnp.isnan(loss): break", True),
        ("while error[1:2] > limit:", "error[1:2] > limit", True),
        ("elif float(loss) > limit:", "float(loss)", True),
        ("assert loss < limit", "loss < limit", True),
        ("if number % 10 == 0: print(float(loss))", "float(loss)", False),
        ("ifs.append(float(loss))", "float(loss)", False),
    ],
)
def test_a_value_that_decides_has_a_recipe_of_its_own(watched, code, operation, decides):
    found = watched.findings[0]
    found.place, found.operation = Place("train.py", 12, code), operation
    anchor = "a-value-that-decides-what-comes-next" if decides else "a-loss-that-you-want-to-see"
    for report in (str(watched), watched._repr_html_(), watched.to_json()):
        assert report.count(f"#{anchor}") == 1
        assert ("The value decides what comes next" in report) == decides


@pytest.mark.parametrize(
    ("kind", "code", "anchor"),
    [
        ("dispatch", "manager.save(step, args=args)", "a-checkpoint"),
        ("device idle", "pickle.dump(state, file)", "a-checkpoint"),
        ("queue", "x = jax.device_put(batch, sharding)", "a-value-that-decides"),
        ("device idle", "for batch in loader:", "a-value-that-decides"),
        ("dispatch", "saved = step(x)", "many-small-steps"),
        ("device idle", "x = prepare(forest)", "a-value-that-decides"),
    ],
)
def test_advice_fits_the_code_of_a_line(watched, kind, code, anchor):
    found = watched.findings[0]
    found.kind, found.place, found.operation = kind, Place("train.py", 12, code), code
    assert f"#{anchor}" in str(watched)
    assert ("in a thread, beside" in str(watched)) == (anchor == "a-checkpoint")


def test_as_json_the_report_has_seconds_and_shares_and_is_read_as_it_was_written(watched):
    read = json.loads(watched.to_json())
    assert (read["seconds"], read["start_seconds"], read["idle_seconds"]) == (3.0, 1.0, 1.0)
    assert [f["share"] for f in read["findings"]] == [0.25, 0.01]
    assert [f["loss"] for f in read["findings"]] == [0.2, 0.0]
    assert read["findings"][0]["place"]["line"] == 12
    assert Watched.from_json(watched.to_json()) == watched


def test_a_compilation_is_shown_with_the_advice_for_its_cause_also_if_it_lost_nothing(watched):
    watched.findings[1].kind, watched.findings[1].cause = "compilation", "caches"
    assert "  0.0% lost  /home/me/train.py:12" in str(watched)
    assert "Do not call jax.clear_caches" in str(watched)


def test_a_line_that_lost_time_is_told_by_it_also_if_most_was_not_seen(watched):
    watched.findings[0].unseen = 0.4
    assert " 20.0% lost  /home/me/train.py:12" in str(watched)
    assert "was not seen for most of that time. Keep the array" in str(watched)
    watched.findings[0].lost = 0.0
    assert "   not seen  /home/me/train.py:12" in str(watched)
    assert "not seen" in watched._repr_html_()
    watched.unseen_seconds = 1.9
    assert "had nothing to do" not in str(watched)


def test_what_is_lost_for_sure_is_over_the_share(watched):
    assert watched.losses(0.1) == watched.findings[:1]
    assert watched.losses(0.18) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"findings": [1]}'])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(ValueError, match="not a report of watch"):
        Watched.from_json(text)


@pytest.mark.parametrize("version", [1, 3])
def test_a_report_of_another_version_is_refused_with_both_versions_and_the_way_out(
    watched, version
):
    number = "" if version == 1 else f'"version": {version},'  # Version 1 had no number.
    says = rf"has version {version}, and version 2 is needed: run `watch --json` again"
    with pytest.raises(ValueError, match=says):
        Watched.from_json(watched.to_json().replace('"version": 2,', number))
