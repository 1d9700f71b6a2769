import json
import re

import pytest
from tables import cells_of

from d2lpar import Quantity, exact, once
from d2lpar.book import claims
from d2lpar.book.claims import MIME_TYPE, Claim, claim
from d2lpar.book.notebook import VERDICTS
from d2lpar.book.recorded import PAGE

RATIO = Quantity("ratio", (4.0, 5, 6, 7, 8, 9))  # interval 4 to 9
FEW = Quantity("few", (4.0, 5, 6))
SECONDS = Quantity("one step", (0.25, 0.3, 0.3, 0.4, 0.6, 1), "s")
HOLDS, UNDECIDED, FAILS = RATIO > 3, RATIO > 5, RATIO > 10
SENTENCE = "Dispatch is far quicker than the work."


@pytest.fixture(autouse=True)
def _as_a_reader(monkeypatch):
    monkeypatch.delenv("D2LPAR_STRICT", raising=False)


def html_of(made):
    return made._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("predicates", "verdict"),
    [
        ([HOLDS, HOLDS], "holds"),
        ([HOLDS, once("seconds", 1) < 2], "seen"),
        ([HOLDS, UNDECIDED], "inconclusive"),
        ([UNDECIDED, FAILS, HOLDS], "fails"),
    ],
)
def test_a_claim_is_as_good_as_its_worst_predicate(predicates, verdict):
    assert Claim(SENTENCE, tuple(predicates)).verdict == verdict


def test_a_claim_that_fails_is_shown_with_the_likely_reason_and_is_an_error_in_strict_mode(
    monkeypatch, capsys
):
    claim(SENTENCE, FAILS, otherwise="this back end is synchronous")
    shown = capsys.readouterr().out
    assert "  does not hold here: this back end is synchronous\n" in shown
    monkeypatch.setenv("D2LPAR_STRICT", "1")
    with pytest.raises(AssertionError) as caught:
        claim(SENTENCE, FAILS, otherwise="this back end is synchronous")
    assert capsys.readouterr().out == f"{caught.value}\n" == shown
    claim(SENTENCE, UNDECIDED)
    claim(SENTENCE, needs="a GPU")
    assert "cannot be tested here: needs a GPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("predicates", "detail"),
    [
        (
            [HOLDS, SECONDS < 0.5],
            f"{SECONDS.name}: the interval, 250 ms to 1 s, reaches over the bound",
        ),
        (
            [SECONDS > 0.1, UNDECIDED],
            f"{UNDECIDED.quantity.name}: the interval, 4 to 9, reaches over the bound",
        ),
        ([exact("six", 6) > RATIO], "the interval, 4 to 9, reaches over the bound"),
        ([HOLDS, FEW > 3], "too few samples for an interval"),
        ([HOLDS, RATIO > FEW], "too few samples for an interval"),
    ],
)
def test_an_undecided_claim_names_the_interval_that_was_too_wide(predicates, detail):
    assert Claim(SENTENCE, tuple(predicates)).detail == detail


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
            lambda: claim("It gains {gain} of {bound}.", HOLDS),
            "without a number, bound, gain: pass each by its name",
        ),
        (
            lambda: claim("It gains {gain}.", HOLDS, gain=1, gian=2),
            "no place for gian: write the name in braces",
        ),
        (
            lambda: claim("It gains gain}.", HOLDS, gain=1),
            "a brace too many or too few.*Double each brace",
        ),
        (
            lambda: claim("It gains {gain}.", (RATIO / 0.5).rename(RATIO.name) > 1, gain=RATIO),
            "two quantities named 'ratio'.*rename",
        ),
    ],
)
def test_what_cannot_be_claimed_is_refused_with_a_way_out(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_sentence_has_the_measured_numbers_in_it(capsys):
    claim(
        "{{{calls}}} calls take {time}, {gain:.2f} times less than {bound}, {share:%} of all.",
        RATIO > 3,
        RATIO < 100,
        calls=32,
        time=SECONDS,
        gain=RATIO,
        bound=1.75,
        share=0.0413,
    )
    shown = capsys.readouterr().out.splitlines()[0]
    assert shown == "Claim: {32} calls take 350 ms, 6.50 times less than 1.8, 4.1% of all."


def test_in_a_notebook_a_claim_is_shown_and_not_printed_as_well(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(claims, "show_in_notebook", lambda made: shown.append(made) or True)
    claim(SENTENCE, HOLDS, key="quicker")
    assert shown == [Claim(SENTENCE, (HOLDS,), key="quicker")]
    assert capsys.readouterr().out == ""


def test_a_sentence_and_its_verdict_unfold_into_a_table_and_all_is_escaped():
    html = html_of(Claim("a < b & `<b>`", (exact("<i>", 1) > 2,), otherwise='<script>"x"</script>'))
    shown, folded = html.split("</summary>")
    assert shown.startswith('<details class="d2lpar-claim" data-verdict="fails" style=')
    assert "a &lt; b &amp; <code>&lt;b&gt;</code>" in shown
    assert "does not hold here" in shown
    assert "&lt;script&gt;" in shown
    assert cells_of(folded) == [
        ["", "median", "interval", "", "tested"],
        ["<i>", "1", "", "counted", "> 2"],
    ]
    assert "<i>" not in html
    assert "<script>" not in html


@pytest.mark.parametrize(
    ("predicates", "bounds"),
    [
        ((RATIO > 0.4, exact("lost", 0) < 1), ["&gt;\u00a040%"]),
        ((RATIO > 0.4, exact("lost", 0) < 1, SECONDS < 2), []),
        ((exact("lost", 0) < 1, SECONDS / 2 < 2), []),
    ],
    ids=["its number", "two numbers", "another number"],
)
def test_the_headline_has_a_bound_only_if_it_is_surely_that_of_its_number(predicates, bounds):
    sentence = "{share:%} of the time, {time}."
    numbers = {"share": RATIO.rename("idle"), "time": SECONDS}
    headline, _ = html_of(Claim(sentence, predicates, numbers=numbers)).split("</summary>")
    assert re.findall(r"tested: ([^<]*)</span>", headline) == bounds


H200, CPU = "1 x cpu, 1 x NVIDIA H200", "1 x cpu"
GAINS = "`x < 5` gains {gain:.2f}."


def there(verdict=HOLDS, sentence=GAINS, key="k", **numbers):
    return Claim(sentence, (verdict,), key=key, numbers=numbers or {"gain": exact("gain", 7.25)})


def here(sentence=GAINS, *predicates, needs="a GPU", **numbers):
    return Claim(sentence, predicates, needs=needs, key="k", numbers=numbers)


def words_of(made):
    return " ".join(re.sub("<[^>]*>", " ", html_of(made)).replace("&lt;", "<").split())


@pytest.mark.parametrize(
    ("verdict", "badge"),
    [(HOLDS, "holds there"), (FAILS, "does not hold there"), (UNDECIDED, "inconclusive there")],
)
def test_a_claim_that_cannot_be_tested_here_shows_the_record_of_another_machine(
    record, monkeypatch, verdict, badge
):
    before = here().as_dict()
    record(H200, there(verdict))
    made = here()
    html = html_of(made)
    link = "Testing it here needs a GPU. Every claim on every machine ."
    assert words_of(made) == f"On an H200: x < 5 gains 7.25. {badge} {link}"
    assert html.startswith('<p class="d2lpar-claim" data-verdict="untestable"')
    assert ' id="claim-k">' in html
    assert VERDICTS[there(verdict).verdict][1] in html
    assert f'<a href="{PAGE}">' in html
    assert str(made).splitlines() == [
        "Claim: `x < 5` gains 7.25.",
        f"  cannot be tested here: needs a GPU; the numbers are those of an H200 ({badge})",
    ]
    # The record is no result of this machine: not kept as one, and no error in strict mode.
    assert made.as_dict() == before
    monkeypatch.setenv("D2LPAR_STRICT", "1")
    claim(GAINS, needs="a GPU", key="k")


@pytest.mark.parametrize(
    "recorded_there",
    [[], [there(key="")], [here(GAINS, HOLDS, gain=RATIO)]],
    ids=["nothing", "no key", "not tested there"],
)
@pytest.mark.parametrize("predicates", [(), (HOLDS,)], ids=["nothing here", "something here"])
def test_a_claim_without_a_usable_record_says_so_and_has_no_empty_place(
    record, recorded_there, predicates
):
    record(H200, *recorded_there)
    made = here(GAINS, *predicates)
    shown = words_of(made).partition(" median")[0]
    assert shown == "Not measured here: this needs a GPU. cannot be tested here"
    assert made.text == "Not measured here: this needs a GPU."
    assert "href" not in html_of(made)


def test_a_sentence_without_numbers_is_shown_even_if_no_machine_can_test_it():
    made = Claim("It {{forks}}.", needs="a GPU", key="nowhere")
    assert words_of(made) == "It {forks}. cannot be tested here needs a GPU."
    assert html_of(made).startswith("<p ")


def test_the_newest_record_that_could_test_it_is_shown_with_the_sentence_that_was_tested(record):
    record(CPU, there(gain=exact("gain", 2)))
    record(H200, there(gain=exact("gain", 3)))
    older = there(sentence="{time} for `x < 5`: {gain}.", gain=exact("gain", 7.25), time=SECONDS)
    record(CPU, older, here())  # The later of two with one key could not test it.
    record(CPU, here())
    shown = "On a CPU with 2 cores, in an earlier version of this page: 350 ms for x < 5 : 7.2. "
    assert words_of(here()).startswith(shown + "holds there")


def test_below_the_table_of_a_claim_is_the_record_of_each_gpu(record):
    record(H200, there(FAILS), there(key="another"))
    record(CPU, there())
    made = here(GAINS, HOLDS, gain=RATIO, needs=None)
    shown, _, folded = html_of(made).partition("</summary>")
    assert "gains 6.50." in shown
    assert "7.25" not in shown
    line = "On an H200, JAX 1.2.3: <code>x &lt; 5</code> gains 7.25. (does not hold there)</p>"
    assert folded.endswith(f">{line}</details>")
    assert folded.count("7.25") == 1
    assert "H200" not in str(made)
    older = html_of(here("{gain} for `x < 5`.", HOLDS, gain=RATIO, needs=None))
    assert "On an H200, JAX 1.2.3, in an earlier version of this page: <code>" in older


@pytest.mark.parametrize(
    "made",
    [
        Claim(SENTENCE, (HOLDS, exact("calls", 3) < 4), otherwise="the machine is busy", key="k"),
        Claim(SENTENCE, (FEW > 3, RATIO > FEW)),
        Claim("It gains {gain}.", (HOLDS,), numbers={"gain": RATIO}),
        Claim("It gains {gain:.2f} of {bound}.", needs="a GPU"),
    ],
    ids=lambda made: made.verdict,
)
def test_a_claim_comes_back_from_the_json_of_a_notebook_as_it_was(made):
    bundle = made._repr_mimebundle_()
    assert bundle["text/plain"] == str(made)
    data = json.loads(json.dumps(bundle[MIME_TYPE], allow_nan=False))
    assert (data["sentence"], data["verdict"]) == (made.sentence, made.verdict)
    assert Claim.from_dict(data)._repr_mimebundle_() == bundle
