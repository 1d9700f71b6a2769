import json
import math
import re

import pytest
from tables import cells_of

from d2lpar import Quantity, exact
from d2lpar.book import claims, recorded
from d2lpar.book.claims import MIME_TYPE, Claim, claim
from d2lpar.book.notebook import VERDICT_COLORS
from d2lpar.book.recorded import PAGE

RATIO = Quantity("ratio", (4.0, 5, 6, 7, 8, 9))  # interval 4 to 9
FEW = Quantity("few", (4.0, 5, 6))
SECONDS = Quantity("one step", (0.25, 0.3, 0.3, 0.4, 0.6, 1), "s")
HOLDS, UNDECIDED, FAILS = RATIO > 3, RATIO > 5, RATIO > 10
SENTENCE = "Dispatch is far quicker than the work."


@pytest.fixture(autouse=True)
def _as_a_reader(monkeypatch):
    monkeypatch.delenv("D2LPAR_STRICT", raising=False)


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("D2LPAR_STRICT", "1")


@pytest.mark.parametrize(
    ("predicates", "verdict"),
    [
        ([HOLDS, HOLDS], "holds"),
        ([HOLDS, UNDECIDED], "inconclusive"),
        ([UNDECIDED, FAILS, HOLDS], "fails"),
    ],
)
def test_a_claim_is_as_good_as_its_worst_predicate(predicates, verdict):
    assert Claim(SENTENCE, tuple(predicates)).verdict == verdict


@pytest.mark.parametrize("predicates", [(), (FAILS,)])
def test_a_claim_that_needs_another_machine_is_untestable(predicates):
    assert Claim(SENTENCE, predicates, needs="a GPU").verdict == "untestable"


def test_a_claim_that_holds_is_shown_with_its_sentence_and_quantities(capsys):
    claim(SENTENCE, HOLDS, exact("calls", 3) < 4, otherwise="the machine is busy")
    assert capsys.readouterr().out.splitlines() == [
        f"Claim: {SENTENCE}",
        "  holds here",
        "    ratio: 6.5 (95 % interval 4 to 9, 6 samples); claimed: > 3",
        "    calls: 3; claimed: < 4",
    ]


def test_beside_a_sentence_stands_the_bound_of_its_number_and_behind_it_what_is_not_tested():
    share = Quantity("share", (0.61,) * 6)
    sentence = "Idle for {share:%} of the time, in {time} and {calls} calls."
    numbers = {"share": share.rename("idle"), "time": SECONDS, "calls": exact("calls", 3)}
    made = Claim(sentence, (share > 0.4, exact("lost", 0) < 1), numbers=numbers)
    shown, folded = made._repr_mimebundle_()["text/html"].split("</summary>")
    assert re.findall(r"tested: ([^<]*)</span>", shown) == ["&gt;\u00a040\u00a0%"]
    rows = {name: tested for name, *_, tested in cells_of(folded)[1:]}
    assert rows == {"share": "> 0.4", "lost": "< 1", "one step": "not tested"}


@pytest.mark.parametrize("predicates", [(RATIO > 3, SECONDS < 2), (SECONDS < 2,)])
def test_no_bound_stands_where_it_might_be_that_of_another_number(predicates):
    made = Claim("It is {gain} times as fast.", predicates, numbers={"gain": RATIO})
    assert "tested:" not in made._repr_mimebundle_()["text/html"].split("</summary>")[0]


def test_a_claim_that_fails_is_shown_with_the_likely_reason_and_the_reader_goes_on(capsys):
    claim(SENTENCE, FAILS, otherwise="this back end is synchronous")
    assert "  does not hold here: this back end is synchronous\n" in capsys.readouterr().out


def test_a_claim_that_fails_is_shown_and_then_an_error_in_strict_mode(strict, capsys):
    with pytest.raises(AssertionError) as caught:
        claim(SENTENCE, FAILS, otherwise="this back end is synchronous")
    assert capsys.readouterr().out == f"{caught.value}\n"
    assert SENTENCE in str(caught.value)


@pytest.mark.parametrize(
    ("predicates", "needs", "shown"),
    [
        ([HOLDS], None, "holds here"),
        ([UNDECIDED], None, "inconclusive here: "),
        ([], "a GPU", "cannot be tested here: needs a GPU"),
    ],
)
def test_strict_mode_stops_at_nothing_but_a_failed_claim(strict, capsys, predicates, needs, shown):
    claim(SENTENCE, *predicates, needs=needs)
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("predicate", [FEW > 3, RATIO > FEW], ids=["measured", "bound"])
def test_an_undecided_claim_over_few_samples_says_that_they_are_too_few(predicate):
    assert "too few samples" in Claim(SENTENCE, (HOLDS, predicate)).detail
    assert "too few" not in Claim(SENTENCE, (UNDECIDED,)).detail


@pytest.mark.parametrize(
    ("predicates", "interval"),
    [
        ([UNDECIDED], "4 to 9"),
        ([HOLDS, SECONDS < 0.5], "250 ms to 1 s"),
        ([SECONDS > 0.1, UNDECIDED], "4 to 9"),
        ([exact("six", 6) > RATIO], "4 to 9"),
    ],
    ids=["alone", "behind one that holds", "with another unit", "that of the bound"],
)
def test_an_undecided_claim_names_the_interval_that_was_too_wide(predicates, interval):
    made = Claim(SENTENCE, tuple(predicates))
    assert made.detail == f"the interval, {interval}, reaches over the bound"


def test_a_notebook_gets_text_html_and_data_that_json_can_keep():
    made = Claim(SENTENCE, (UNDECIDED, Quantity("one", (1.0,)) > 0), needs=None)
    bundle = made._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", MIME_TYPE}
    assert bundle["text/plain"] == str(made)
    data = json.loads(json.dumps(bundle[MIME_TYPE], allow_nan=False))
    assert data == made.as_dict()
    assert (data["sentence"], data["verdict"]) == (SENTENCE, "inconclusive")
    assert str(Claim.from_dict(data)) == str(made)


def test_html_shows_the_verdict_and_escapes_what_others_wrote():
    made = Claim("a < b & `<b>`", (exact("<i>", 1) > 2,), otherwise='<script>"x"</script>')
    html = made._repr_mimebundle_()["text/html"]
    assert 'data-verdict="fails"' in html
    assert "does not hold here" in html
    assert "a &lt; b &amp; <code>&lt;b&gt;</code>" in html
    assert cells_of(html) == [
        ["", "median", "interval", "", "tested"],
        ["<i>", "1", "", "counted", "> 2"],
    ]
    assert "&lt;script&gt;" in html
    assert "<i>" not in html
    assert "<script>" not in html


# --- The numbers in the sentence --------------------------------------------------------------


def test_the_sentence_has_the_measured_numbers_in_it(capsys):
    claim(
        "{calls} calls take {time}, {gain:.2f} times less than {bound}, {share:%} of all.",
        HOLDS,
        calls=32,
        time=SECONDS,
        gain=RATIO,
        bound=1.75,
        share=0.0413,
    )
    shown = capsys.readouterr().out.splitlines()[0]
    assert shown == "Claim: 32 calls take 350 ms, 6.50 times less than 1.8, 4.1 % of all."


@pytest.mark.parametrize(
    ("sentence", "numbers", "message"),
    [
        ("It gains {gain} of {bound}.", {}, "without a number, bound, gain: pass each by its name"),
        ("It gains {gain}.", {"gain": 1, "gian": 2}, "no place for gian: write the name in braces"),
        ("It gains gain}.", {"gain": 1}, "a brace too many or too few.*Double those"),
    ],
)
def test_places_and_numbers_that_do_not_match_are_refused(sentence, numbers, message):
    with pytest.raises(ValueError, match=message):
        claim(sentence, HOLDS, **numbers)


def test_two_quantities_of_one_name_are_refused_since_no_table_could_tell_them_apart():
    other = RATIO / 0.5
    with pytest.raises(ValueError, match="two quantities of the name"):
        claim("It gains {gain}.", RATIO > 1, other.rename(RATIO.name) > 1, gain=RATIO)
    claim("It gains {gain}.", RATIO > 1, RATIO < 100, gain=RATIO)  # One, compared twice.


def test_a_brace_that_stands_for_itself_is_doubled():
    assert Claim("A set is {{1}}.", (HOLDS,)).text == "A set is {1}."


# --- The fold ---------------------------------------------------------------------------------


def test_what_was_measured_and_what_is_claimed_of_it_is_behind_a_fold():
    reason = "this back end is synchronous"
    made = Claim("It gains {gain}.", (FAILS, SECONDS < 2), reason, numbers={"gain": RATIO})
    html = made._repr_mimebundle_()["text/html"]
    assert html.startswith("<details ")
    assert " open" not in html.partition(">")[0]
    shown, _, folded = html.partition("</summary>")
    assert "It gains 6.5." in shown
    assert "does not hold here" in shown
    assert reason in shown
    assert "95 % interval" not in shown
    _, ratio, seconds = cells_of(folded)
    assert (ratio[0], ratio[-1]) == ("ratio", "> 10")
    assert (seconds[0], seconds[-1]) == ("one step", "< 2 s")


# --- What other machines have recorded --------------------------------------------------------

H200, CPU = {"devices": "1 x cpu, 1 x NVIDIA H200", "cores": 16}, {"devices": "1 x cpu", "cores": 2}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """A function that lets a machine have recorded claims, each one later than those before."""
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)

    def record(machine, *made):
        count = len(list(tmp_path.iterdir()))
        pages = {"book/a": {"claims": [claim.as_dict() for claim in made]}}
        results = {"machine": machine, "date": f"2026-01-0{count + 1}", "pages": pages}
        results["versions"] = {"jax": "1.2.3"}
        (tmp_path / f"{count}.json").write_text(json.dumps(results))
        for cached in (recorded._files, recorded._by_key):  # A folder is read once.
            cached.cache_clear()

    return record


def there(verdict=HOLDS, sentence="`x < 5` gains {gain:.2f}.", key="k", **numbers):
    """Return what another machine has made of a claim."""
    return Claim(sentence, (verdict,), key=key, numbers=numbers or {"gain": exact("gain", 7.25)})


def here(sentence="`x < 5` gains {gain:.2f}.", *predicates, key="k", needs="a GPU", **numbers):
    return Claim(sentence, predicates, needs=needs, key=key, numbers=numbers)


def words_of(made):
    """Return what a reader of the page sees of a claim."""
    html = made._repr_mimebundle_()["text/html"]
    return " ".join(re.sub("<[^>]*>", " ", html).replace("&lt;", "<").split())


@pytest.mark.parametrize(
    ("verdict", "badge", "remark"),
    [
        (HOLDS, "holds on an H200", "holds there"),
        (FAILS, "does not hold on an H200", "does not hold there"),
        (UNDECIDED, "inconclusive on an H200", "inconclusive there"),
    ],
)
def test_a_claim_that_cannot_be_tested_here_shows_what_another_machine_measured(
    record, verdict, badge, remark
):
    record(H200, there(verdict))
    made = here()
    html = made._repr_mimebundle_()["text/html"]
    link = "Testing it here needs a GPU. Every claim on every machine ."
    assert words_of(made) == f"x < 5 gains 7.25. {badge} {link}"
    assert 'data-verdict="untestable"' in html
    assert VERDICT_COLORS[there(verdict).verdict] in html
    assert f'<a href="{PAGE}">' in html
    assert html.startswith("<p ")
    assert str(made).splitlines() == [
        "Claim: `x < 5` gains 7.25.",
        f"  cannot be tested here: needs a GPU; the numbers are those of an H200 ({remark})",
    ]


def test_what_another_machine_measured_is_shown_and_is_no_result_of_this_one(record, monkeypatch):
    monkeypatch.setenv("D2LPAR_STRICT", "1")
    without = here().as_dict()
    record(H200, there(FAILS))
    assert here().as_dict() == without
    assert (without["verdict"], without["numbers"]) == ("untestable", {})
    claim("It gains {gain}.", needs="a GPU", key="k")  # Raises nothing, although it failed there.


IN_16 = "In 16 turns it gains {gain}."


@pytest.mark.parametrize(
    "recorded_there",
    [
        [],
        [there(sentence=IN_16, key="another")],
        [there(sentence=IN_16, key="")],
        [there(sentence="In 16 turns it gains {time}.", time=SECONDS)],
        [there(sentence="In 20 turns it gains {gain}.")],
        [Claim(IN_16, (HOLDS,), needs="a GPU", key="k", numbers={"gain": RATIO})],
    ],
    ids=["nothing", "another", "no key", "fewer numbers", "another size", "not tested there"],
)
@pytest.mark.parametrize("predicates", [(), (HOLDS,)], ids=["nothing here", "something here"])
def test_a_claim_that_no_machine_has_measured_says_so_and_has_no_hole(
    record, recorded_there, predicates
):
    record(H200, *recorded_there)
    made = here(IN_16, *predicates)
    shown = words_of(made).partition(" median")[0]
    assert shown == "Not yet measured: this needs a GPU. cannot be tested here"
    assert made.text == "Not yet measured: this needs a GPU."
    assert "href" not in made._repr_mimebundle_()["text/html"]


def test_numbers_that_the_sentence_no_longer_has_do_no_harm(record):
    record(H200, there(sentence="Then {gain}, and {share:%}.", gain=RATIO, share=RATIO))
    assert here("Now {gain:.2f}.").text == "Now 6.50."


def test_of_several_machines_the_newest_that_has_tested_it_is_shown(record):
    record(CPU, there(gain=exact("gain", 2)))
    record(H200, there(gain=exact("gain", 3)))
    record(CPU, there(), here())  # The later of two of one key could not test it.
    record(CPU, here())
    assert here().text == "`x < 5` gains 7.25."
    assert "holds on a CPU with 2 cores" in words_of(here())


def test_what_was_measured_here_without_what_it_needs_is_not_said_in_the_sentence(record):
    record(H200, there())
    made = here("`x < 5` gains {gain:.2f}.", FAILS, gain=RATIO, needs="two free cores")
    html = made._repr_mimebundle_()["text/html"]
    shown, _, folded = html.partition("</summary>")
    assert "gains 7.25" in shown
    assert "6.50" not in shown
    assert "Testing it here needs two free cores." in shown
    assert "<a " not in shown  # A click there unfolds.
    assert [row[0] for row in cells_of(folded)] == ["", "ratio"]
    assert "The table is of this machine." in folded
    assert "Every claim on every machine</a>" in folded


def test_behind_the_fold_of_a_claim_is_what_each_gpu_has_to_say_of_it(record):
    record(H200, there(FAILS), there(key="another"))
    record(CPU, there())
    made = here("`x < 5` gains {gain:.2f}.", HOLDS, gain=RATIO, needs=None)
    shown, _, folded = made._repr_mimebundle_()["text/html"].partition("</summary>")
    assert "gains 6.50." in shown
    assert "7.25" not in shown
    line = "On an H200, JAX 1.2.3: <code>x &lt; 5</code> gains 7.25. (does not hold there)</p>"
    assert folded.endswith(f">{line}</details>")
    assert folded.count("7.25") == 1
    of_another = here("It gains {gain} and {share}.", HOLDS, gain=RATIO, share=RATIO, needs=None)
    assert "On an H200" not in words_of(of_another)
    assert "H200" not in str(made)


def test_a_claim_with_nothing_measured_has_nothing_to_unfold():
    html = Claim(SENTENCE, needs="a GPU")._repr_mimebundle_()["text/html"]
    assert html.startswith("<p ")
    assert "<details" not in html


def test_in_a_notebook_a_claim_is_shown_and_not_printed_as_well(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(claims, "show_in_notebook", lambda made: shown.append(made) or True)
    claim(SENTENCE, HOLDS, key="quicker")
    ((sentence, key),) = [(made.sentence, made.key) for made in shown]
    assert (sentence, key) == (SENTENCE, "quicker")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "made",
    [
        Claim(SENTENCE, (HOLDS, exact("calls", 3) < 4), otherwise="the machine is busy", key="k"),
        Claim(SENTENCE, (FAILS,), otherwise="this back end is synchronous"),
        Claim(SENTENCE, (FEW > 3, RATIO > FEW)),
        Claim(SENTENCE, needs="a GPU"),
        Claim("It gains {gain}.", (HOLDS,), numbers={"gain": RATIO}),
        Claim("It gains {gain:.2f} of {bound}.", needs="a GPU"),
    ],
    ids=lambda made: made.verdict,
)
def test_a_claim_comes_back_from_json_with_all_that_is_shown_of_it(made):
    found = Claim.from_dict(json.loads(json.dumps(made.as_dict(), allow_nan=False)))
    assert found._repr_mimebundle_() == made._repr_mimebundle_()
    assert (found.otherwise, found.needs, found.key) == (made.otherwise, made.needs, made.key)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Claim(SENTENCE, (HOLDS,)), "fails"),
        (Claim(SENTENCE, (FAILS,)), "holds"),
        (Claim(SENTENCE, (HOLDS,)), None),
    ],
    ids=str,
)
def test_a_verdict_that_does_not_follow_from_the_samples_is_refused(made, said):
    refusal = (
        f"The claim {SENTENCE!r} is said to be {said!r}, but from its samples follows "
        f"{made.verdict!r}: they were not written together."
    )
    with pytest.raises(ValueError, match=re.escape(refusal)):
        Claim.from_dict(made.as_dict() | {"verdict": said})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: claim("", HOLDS), "needs the sentence it checks, found ''"),
        (lambda: claim(HOLDS), "needs the sentence it checks, found .*claimed: "),
        (
            lambda: claim(SENTENCE, True),
            r"ratio > 5, found True: without an interval.*compare\(\).*exact\(\) for a count",
        ),
        (lambda: claim(SENTENCE), f"{SENTENCE!r} has nothing to check: give a comparison"),
        (
            lambda: claim(SENTENCE, Quantity("ratio", (2, math.nan)) > 1),
            "Sample 1 of 'ratio' is nan: nothing can be claimed.*Look for a division by zero",
        ),
    ],
)
def test_what_cannot_be_claimed_is_refused_with_a_way_out(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_sentence_without_numbers_has_no_hole_where_it_cannot_be_tested():
    made = Claim("It forks.", needs="a GPU", key="nowhere")
    html = made._repr_mimebundle_()["text/html"]
    assert made.text == "It forks."
    assert "It forks." in html
    assert "needs a GPU" in html
