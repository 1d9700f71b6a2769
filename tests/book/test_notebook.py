from d2lpar.book.notebook import with_code


def test_text_in_backticks_is_code_and_a_number_stays_with_its_unit_and_a_bound_with_its_sign():
    html = with_code("`x < 5` in 5 ms <b>: 95 % of 7 s, 3 steps > -3")
    assert html == (
        "<code>x &lt; 5</code> in 5\u00a0ms &lt;b&gt;: 95\u00a0% of 7\u00a0s, 3 steps &gt;\u00a0-3"
    )
