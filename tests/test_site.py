"""The pages as readers meet them, in headless Chromium."""

import http.server
import io
import re
import shutil
import threading
import unicodedata
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

import pytest
import yaml
from run_notebook import ROOT, claims_of, notebooks

playwright = pytest.importorskip("playwright.sync_api", reason="playwright; `make test` has it")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="`make test` has it")
pypdf = pytest.importorskip("pypdf", reason="pypdf; `make test` has it")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not here; on Debian: apt-get install chromium"
)

WIDTHS = 390, 768, 1280
SITE = "https://d2lpar.github.io/d2lpar/"


TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PARTS = {
    part["caption"]: [str(Path(entry["file"]).with_suffix("")) for entry in part["chapters"]]
    for part in TOC["parts"]
}
PAGES = [TOC["root"], *chain(*PARTS.values())]
MADE_BY_SPHINX = ["genindex", "py-modindex", "search", "404"]
NOTEBOOKS = [str(path.relative_to(ROOT).with_suffix("")) for path in notebooks()]
# Between them they have all that is colored.
COLOURFUL = {TOC["root"], NOTEBOOKS[0], "book/results", "book/status", "book/soundness"}
# What the theme does to a notebook it does to each; these are a chapter, and one with solutions.
A_CHAPTER_AND_SOLUTIONS = NOTEBOOKS[2], NOTEBOOKS[-1]
EXPLORABLES = {"book/asynchronous-computation": 1, "book/beyond-one-machine": 1}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path):
        # The page for what is missing links to where the book is published.
        return super().translate_path(path.removeprefix("/d2lpar"))

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def address(html):
    """The address of a server of the built book."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=html))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    with playwright.sync_playwright() as running:
        # It runs as root in a container, and would otherwise look for updates.
        options = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        browser = running.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def visit(browser, address):
    """A function that opens a page of the book and returns it, with what went wrong on it."""

    @contextmanager
    def visit(page, width=1280, scheme="light", address=address, **options):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        context.set_default_timeout(20_000)
        tab = context.new_page()
        tab.wrong, tab.responses = [], []
        tab.on("console", lambda said: said.type == "error" and tab.wrong.append(said.text))
        tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
        tab.on("request", lambda request: tab.wrong.extend(asked_elsewhere(request, address)))
        tab.on("response", lambda response: tab.responses.append(response))
        tab.goto(f"{address}{page}")
        if options.get("java_script_enabled", True):
            # What scripts put onto the page is there when none of them has more to do.
            tab.locator(".d2lpar-explorable:not(:has(svg))").first.wait_for(state="detached")
        try:
            yield tab
        finally:
            context.close()

    return visit


# What looks at a page shares it, and so runs in one process.
@pytest.fixture(
    scope="module", params=[pytest.param(p, marks=pytest.mark.xdist_group(p)) for p in PAGES]
)
def page(request):
    """A page of the book."""
    return request.param


@pytest.fixture(scope="module")
def desk(visit, page):
    """That page on a wide screen by day."""
    with visit(f"{page}.html", 1280, "light") as tab:
        yield tab


@pytest.fixture(scope="module")
def phone(visit, page):
    """That page on a phone by night."""
    with visit(f"{page}.html", 390, "dark") as tab:
        yield tab


def asked_elsewhere(request, address):
    """Return what is wrong with a request: nothing if it stays on this host."""
    here = request.url.startswith((address, "data:", "blob:"))
    return [] if here else [f"asked {request.url}"]


# --- Every page -------------------------------------------------------------------------------


def assert_fits(tab, scheme, widths):
    """Give a page several widths, and look whether it fits each of them without an error."""
    for width in (*widths, widths[0]):
        tab.set_viewport_size({"width": width, "height": 900})
        beyond = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert (width, scheme, beyond <= 0) == (width, scheme, True)
    assert tab.wrong == []
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme


@in_a_browser
def test_a_page_fits_every_screen_and_asks_no_other_host_and_has_no_error(desk, phone):
    # One was opened on a phone and grows, the other was opened on a desk and shrinks.
    assert_fits(phone, "dark", WIDTHS)
    assert_fits(desk, "light", WIDTHS[::-1])


@in_a_browser
@pytest.mark.parametrize("page", MADE_BY_SPHINX)
def test_a_page_that_nobody_wrote_fits_every_screen_too(visit, page):
    with visit(f"{page}.html", 390, "dark") as tab:
        assert_fits(tab, "dark", WIDTHS)


def test_no_page_is_built_that_these_tests_do_not_know(html):
    built = {str(page.relative_to(html).with_suffix("")) for page in html.rglob("*.html")}
    known = {*PAGES, *MADE_BY_SPHINX, "index"}  # The last leads to the first page.
    assert {page for page in built if not page.startswith("_static")} == known


@contextmanager
def unfolded(tab):
    """Open what is folded on a page, and fold it again."""
    folds = "document.querySelectorAll('article details:not([open])')"
    tab.evaluate(f"{folds}.forEach(fold => {{ fold.open = true; fold.dataset.was = 'folded' }})")
    yield
    tab.evaluate("document.querySelectorAll('[data-was]').forEach(fold => fold.open = false)")


@in_a_browser
def test_on_a_desk_no_code_and_no_output_scrolls_sideways(desk):
    longest = """all => all
        .filter(pre => pre.scrollWidth > pre.clientWidth)
        .map(pre => pre.innerText.split("\\n").sort((a, b) => b.length - a.length)[0])"""
    with unfolded(desk):
        assert desk.locator("article pre").evaluate_all(longest) == []


@in_a_browser
def test_no_table_is_cut_off_on_a_desk_or_on_a_phone(desk, phone):
    cut = """all => all
        .filter(table => table.scrollWidth > table.parentElement.clientWidth + 1)
        .map(table => table.innerText.slice(0, 100))"""
    for tab in (desk, phone):
        with unfolded(tab):
            assert tab.locator("article table").evaluate_all(cut) == []


@in_a_browser
def test_no_type_on_a_phone_is_below_ten_pixels(phone):
    # What is drawn is scaled, and its type with it.
    small = """all => all
        .filter(of => [...of.childNodes].some(node => node.nodeType == 3 && node.data.trim()))
        .map(of => [parseFloat(getComputedStyle(of).fontSize) * (of.getScreenCTM?.().a ?? 1), of])
        .filter(([size, of]) => size < 9.95 && !of.closest(".MathML, math"))
        .map(([size, of]) => `${size} px: ${of.textContent.slice(0, 50)}`)"""
    assert phone.locator("article *:not(script, style)").evaluate_all(small) == []


@in_a_browser
def test_a_page_has_no_fault_that_axe_finds_in_what_is_ours(desk, phone, page):
    # Code has thousands of parts, and looks alike everywhere: that of one section is enough. What
    # is around a page is the same for all.
    alike = [["dl.py:not(:first-of-type)"], ["section ~ section .highlight"]]
    alike += [[".bd-sidebar-primary"], [".bd-header-article"]] * (page != TOC["root"])
    # Whether colors can be told apart is most of the work. In the dark only they differ, and on a
    # phone more has to scroll; the rest is the same.
    colored = page in COLOURFUL
    all_rules = {"rules": {"color-contrast": {"enabled": colored}}}
    differs = ["scrollable-region-focusable", *["color-contrast"] * colored]
    for tab, options in ((desk, all_rules), (phone, {"runOnly": differs})):
        options |= {"preload": False, "resultTypes": ["violations"]}
        run = axe.Axe().run(tab, context={"exclude": alike}, options=options)
        found = run.response["violations"]
        ours = [
            (violation["id"], node["html"][:200])
            for violation in found
            for node in violation["nodes"]
            # The theme puts its logo outside of every landmark; that is moderate.
            if violation["id"] != "region" or "logo" not in node["html"]
        ]
        assert ours == []


@in_a_browser
def test_a_page_is_light_and_quickly_there(desk, page):
    nbytes = sum(len(response.body()) for response in desk.responses if response.ok)
    # As stored; a server sends a quarter of it. The API is all on one page.
    assert nbytes < (3e6 if page in EXPLORABLES else 1.8e6 if page == "book/api" else 1.6e6)
    for _ in range(5):  # Another process may have the core; the page is as fast as its best.
        desk.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        if (milliseconds := desk.evaluate(paint)) < 1000:
            break
        desk.reload()
    assert milliseconds < 1000


@in_a_browser
def test_every_picture_has_words_for_those_who_do_not_see_it(desk):
    alts = desk.locator("img").evaluate_all("images => images.map(image => image.alt)")
    assert all(alts)
    figures = desk.locator("figure :is(img, svg[aria-label])").evaluate_all(
        "images => images.map(image => image.alt || image.ariaLabel)"
    )
    assert [alt for alt in figures if len(alt.split()) < 5] == []


@in_a_browser
def test_formulas_are_drawn_and_none_is_left_as_it_was_typed(desk, page):
    source = (ROOT / page).with_suffix(".md").read_text(encoding="utf-8")
    sizes = desk.locator("math").evaluate_all(
        "all => all.map(math => math.getBoundingClientRect().height)"
    )
    assert all(sizes)
    assert bool(sizes) >= bool(re.search(r"^\$\$", source, re.MULTILINE))
    # What is left out: code, where a dollar is a dollar.
    prose = desk.evaluate(
        """() => {
            const copy = document.querySelector("article").cloneNode(true)
            copy.querySelectorAll("pre, code, math, script").forEach(node => node.remove())
            return copy.textContent
        }"""
    )
    assert re.findall(r"\$\S|\\[a-z]{3,}", prose) == []


@in_a_browser
def test_the_page_before_and_the_page_after_are_a_click_away(desk, address, page):
    place = PAGES.index(page)
    for link, neighbour in ((".left-prev", place - 1), (".right-next", place + 1)):
        if not 0 <= neighbour < len(PAGES):
            assert desk.locator(f".prev-next-footer {link}").count() == 0
            continue
        linked = desk.locator(f".prev-next-footer {link}")
        linked.click(trial=True)  # It would be hit.
        assert linked.evaluate("a => a.href") == f"{address}{PAGES[neighbour]}.html"


@in_a_browser
def test_a_folded_part_unfolds_by_keyboard(desk, page):
    all_folded = desk.locator("article details").all()
    assert all_folded or page not in NOTEBOOKS
    for folded in all_folded:
        if folded.evaluate("details => details.open"):
            continue
        folded.locator("summary").first.press("Enter")
        assert folded.evaluate("details => details.open")
        assert folded.evaluate("details => details.lastElementChild.offsetHeight") > 0


@in_a_browser
@pytest.mark.parametrize("table", ["machines", "verdicts"])
def test_machines_side_by_side_have_columns_of_like_width(visit, table):
    with visit("book/results.html") as tab:
        columns = tab.locator(f".d2lpar-{table} thead th").all()[1:]
        widths = [column.bounding_box()["width"] for column in columns]
        assert len(widths) > 1
        assert max(widths) < 2 * min(widths)


# --- What readers do --------------------------------------------------------------------------


@in_a_browser
def test_on_a_phone_the_contents_open_and_lead_to_another_page(visit):
    with visit("book/index.html", width=390) as tab:
        link = tab.locator(".bd-sidebar-primary a", has_text="Automatic Parallelism").first
        assert not link.is_visible()
        tab.locator("button.primary-toggle").click()
        link.click()
        tab.wait_for_url("**/book/automatic-parallelism.html")


@in_a_browser
def test_the_search_finds_a_word(visit):
    with visit("book/index.html") as tab:
        tab.keyboard.press("Control+k")
        tab.keyboard.type("sentinel")
        tab.keyboard.press("Enter")
        tab.wait_for_url("**/search.html?q=sentinel*")
        tab.locator("#search-results li a", has_text="Asynchronous Computation").first.wait_for()
        assert tab.wrong == []


@in_a_browser
@pytest.mark.parametrize("page", A_CHAPTER_AND_SOLUTIONS)
def test_the_copy_button_copies_the_code_of_its_cell(visit, page):
    rights = ["clipboard-read", "clipboard-write"]
    with visit(f"{page}.html", permissions=rights) as tab, unfolded(tab):
        code = tab.locator("div.cell_input div.highlight").nth(1)
        code.hover()
        code.locator("button.copybtn").click()
        tab.wait_for_function(
            "code => navigator.clipboard.readText().then(copied => copied.trim() == code)",
            arg=code.locator("pre").inner_text().strip(),
        )


@in_a_browser
@pytest.mark.parametrize("page", A_CHAPTER_AND_SOLUTIONS)
def test_a_page_prints_with_its_claims_and_without_what_is_around_it(visit, page):
    with visit(f"{page}.html") as tab:
        claims = tab.locator(".d2lpar-claim").evaluate_all(
            "all => all.map(of => (of.querySelector('summary') ?? of).firstChild.textContent)"
        )
        printed = pypdf.PdfReader(io.BytesIO(tab.pdf(format="A4")))
    assert len(claims) == len(claims_of((ROOT / page).with_suffix(".md")))
    text = " ".join(sheet.extract_text() for sheet in printed.pages)
    words = unicodedata.normalize("NFKC", text)  # Without ligatures.
    dense = "".join(words.split())
    said = {claim: "".join(unicodedata.normalize("NFKC", claim).split()) for claim in claims}
    assert [claim for claim, letters in said.items() if letters not in dense] == []
    assert "Back to top" not in words
    assert len(printed.pages) < 60


# --- The first page ---------------------------------------------------------------------------


@in_a_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_screen_shows_a_sliver_of_python_beside_a_long_row_of_the_device(visit, width):
    with visit(f"{TOC['root']}.html", width) as tab:
        picture = tab.locator(".d2lpar-first")
        sliver = picture.locator(".host .track i").bounding_box()
        row = picture.locator(".lane.device .track").bounding_box()
        assert row["y"] + row["height"] < 900
        times = [float(text.split()[0]) for text in picture.locator("dt").all_inner_texts()]
        assert times[0] < times[1] / 5
        # To scale, but never too thin to be seen.
        assert sliver["width"] == pytest.approx(
            max(3, row["width"] * times[0] / times[1]), abs=0.1 * row["width"]
        )


@in_a_browser
def test_each_chapter_has_a_card_on_the_first_page_that_leads_to_it(visit, address):
    with visit(f"{TOC['root']}.html") as tab:
        cards = tab.locator(".d2lpar-card")
        assert all(card.locator("svg").bounding_box()["height"] > 50 for card in cards.all())
        leads_to = cards.locator("a:not(.d2lpar-term)").evaluate_all("all => all.map(a => a.href)")
        assert leads_to == [f"{address}{page}.html" for page in PARTS["Read"]]


# --- Figures to explore -----------------------------------------------------------------------


def said(tab):
    """Return the times that the last chart of the pipeline says, from top to bottom."""
    texts = tab.locator(".d2lpar-explorable .mark-text.role-mark text").all_text_contents()
    return [float(text) for text in texts]


def slide(tab, label, key):
    """Press a key on a slider, as a reader without a mouse does."""
    slider = tab.locator(".vega-bind", has_text=label).locator("input[type=range]")
    slider.focus()
    tab.keyboard.press(key)


@in_a_browser
@pytest.mark.parametrize("local", [False, True], ids=["served", "from the file system"])
def test_the_pipeline_answers_to_its_sliders(visit, html, address, local):
    where = f"{html.as_uri()}/" if local else address
    with visit("book/asynchronous-computation.html", address=where) as tab:
        barrier, limited, free = said(tab)
        assert barrier > limited > free
        slide(tab, "limit", "Home")
        assert said(tab) == [barrier, barrier, free]
        slide(tab, "limit", "End")
        assert said(tab) == [barrier, free, free]
        assert tab.wrong == []


@in_a_browser
@pytest.mark.parametrize("page", EXPLORABLES)
def test_without_scripts_a_picture_stands_where_a_chart_would(visit, page):
    with visit(f"{page}.html", java_script_enabled=False) as tab:
        pictures = tab.locator(".d2lpar-explorable img")
        assert pictures.count() == EXPLORABLES[page]
        assert all(picture.bounding_box()["height"] > 100 for picture in pictures.all())


# --- Without a server -------------------------------------------------------------------------


@in_a_browser
@pytest.mark.parametrize("page", [TOC["root"], *A_CHAPTER_AND_SOLUTIONS])
def test_the_built_folder_opens_from_the_file_system(visit, html, page):
    with visit(f"{page}.html", address=f"{html.as_uri()}/") as tab:
        assert tab.wrong == []
        assert tab.locator("article h1").is_visible()


@in_a_browser
def test_the_search_works_from_the_file_system(visit, html):
    with visit("search.html?q=barrier", address=f"{html.as_uri()}/") as tab:
        # Without the lines around each hit: a browser lets no page read another file.
        tab.locator("#search-results li a").first.wait_for()


# --- Finding and citing -----------------------------------------------------------------------


class Head(HTMLParser):
    """The title, the descriptions and the links of a page."""

    def __init__(self, text):
        super().__init__()
        self.meta, self.links, self.title, self._in_title = {}, [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        if tag == "meta" and (name := of.get("name") or of.get("property")):
            self.meta[name] = of.get("content", "")
        if tag in ("a", "link") and "href" in of:
            self.links.append((of.get("rel", ""), of["href"]))
        self._in_title = tag == "title" and not self.title

    def handle_data(self, data):
        self.title += data * self._in_title


def head_of(html, page):
    return Head((html / f"{page}.html").read_text(encoding="utf-8"))


def test_every_page_has_a_title_and_a_description_of_its_own(html):
    heads = {page: head_of(html, page) for page in PAGES}
    assert len({head.title for head in heads.values()}) == len(PAGES)
    descriptions = {page: head.meta.get("description", "") for page, head in heads.items()}
    assert len(set(descriptions.values())) == len(PAGES)
    assert {page: d for page, d in descriptions.items() if not 40 <= len(d) <= 250} == {}


def test_a_shared_link_shows_the_name_of_the_book_and_a_picture(html):
    for page in PAGES:
        meta = head_of(html, page).meta
        assert meta["og:site_name"] == "Asynchronous and Parallel Computation in JAX"
        assert len(meta["og:image:alt"].split()) > 5
        picture = html / meta["og:image"].removeprefix(SITE)
        data = picture.read_bytes()
        assert len(data) < 100_000
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        # Where PNG has width and height: at the start of its first chunk.
        size = [int.from_bytes(data[at : at + 4], "big") for at in (16, 20)]
        assert size == [int(meta[f"og:image:{side}"]) for side in ("width", "height")]


def test_figures_of_a_chapter_have_its_number(html):
    for number, page in enumerate(PARTS["Read"], 1):
        text = (html / f"{page}.html").read_text(encoding="utf-8")
        figures = re.findall(r'<span class="caption-number">Fig\. ([\d.]+) *</span>', text)
        assert figures == [f"{number}.{count}" for count, _ in enumerate(figures, 1)]
        assert figures


def test_a_page_has_an_icon_and_links_to_edit_it_and_to_report_a_mistake(html, page):
    links = head_of(html, page).links
    (icon,) = (href for rel, href in links if rel == "icon")
    assert (html / page).parent.joinpath(icon).resolve().exists()
    (edit,) = {href for _, href in links if "/edit/" in href}
    assert (ROOT / edit.partition("/edit/main/")[2]).is_file()
    assert any("/issues/new" in href for _, href in links)


def test_the_page_for_what_is_missing_leads_back_from_any_depth(html):
    page = (html / "404.html").read_text(encoding="utf-8")
    assert "There is no such page" in page
    local = [href for _, href in Head(page).links if not re.match(r"https?:|#|mailto:", href)]
    assert any(href.endswith("book/index.html") for href in local)
    assert [href for href in local if not href.startswith("/d2lpar/")] == []


def test_the_sitemap_lists_every_page(html):
    listed = re.findall(r"<loc>(.*?)</loc>", (html / "sitemap.xml").read_text(encoding="utf-8"))
    assert {f"{SITE}{page}.html" for page in PAGES} <= set(listed)


def test_a_word_of_the_glossary_is_linked_once_on_a_page_and_all_somewhere(html):
    glossary = (html / "book" / "glossary.html").read_text(encoding="utf-8")
    terms = dict(re.findall(r'<dt id="(term-[^"]+)">(.*?)<', glossary))
    assert len(terms) > 20
    linked = set()
    for page in PAGES:
        text = (html / f"{page}.html").read_text(encoding="utf-8")
        links = re.findall(r'class="d2lpar-term[^>]*#(term-[^"]+)"', text)
        assert len(links) == len(set(links))
        linked |= set(links)
    # A term with brackets has an everyday meaning too, and is not linked.
    assert linked == {anchor for anchor, term in terms.items() if "(" not in term}


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_the_notebook_to_download_is_the_one_that_colab_opens(html, page):
    (link,) = {
        href
        for _, href in head_of(html, page).links
        if href.endswith(".ipynb") and "://" not in href
    }
    downloaded = (html / page).parent.joinpath(link).resolve()
    assert downloaded.read_bytes() == (ROOT / f"{page}.ipynb").read_bytes()
