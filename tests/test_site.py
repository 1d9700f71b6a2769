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
from pathlib import Path

import pytest
import yaml
from run_notebook import ROOT, claimed_by, notebooks

playwright = pytest.importorskip("playwright.sync_api", reason="playwright; `make test` has it")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="`make test` has it")
pypdf = pytest.importorskip("pypdf", reason="pypdf; `make test` has it")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not here; on Debian: apt-get install chromium"
)

WIDTHS = 390, 768, 1280
SITE = "https://d2lpar.github.io/d2lpar/"


def in_order(entries):
    """Yield the pages of a table of contents, in the order of the book."""
    for entry in entries:
        yield str(Path(entry["file"]).with_suffix(""))
        yield from in_order(entry.get("sections", []))


TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [TOC["root"], *in_order(TOC["chapters"])]
NOTEBOOKS = [str(path.relative_to(ROOT).with_suffix("")) for path in notebooks()]
EXPLORABLES = {"book/asynchronous-computation": 1, "book/automatic-parallelism": 2}


class Quiet(http.server.SimpleHTTPRequestHandler):
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


@in_a_browser
def test_a_page_fits_every_screen_and_asks_no_other_host_and_has_no_error(desk, phone):
    # One was opened on a phone and grows, the other was opened on a desk and shrinks.
    for tab, scheme, widths in ((phone, "dark", WIDTHS), (desk, "light", WIDTHS[::-1])):
        for width in (*widths, widths[0]):
            tab.set_viewport_size({"width": width, "height": 900})
            beyond = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert (width, scheme, beyond <= 0) == (width, scheme, True)
        assert tab.wrong == []
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme


@in_a_browser
def test_a_page_has_no_fault_that_axe_finds_in_what_is_ours(desk, phone, page):
    # In the dark only colours differ; what only a wide page shows is there as well.
    # Code looks alike on all pages, and has thousands of parts: it is looked at on one of them.
    alike = [["dl.py:not(:first-of-type)"], *([[".highlight"]] if page != NOTEBOOKS[-1] else [])]
    for tab, options in ((desk, {}), (phone, {"runOnly": "color-contrast"})):
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
    assert nbytes < (3e6 if page in EXPLORABLES else 1.5e6)
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
@pytest.mark.parametrize("page", NOTEBOOKS)
def test_the_copy_button_copies_the_code_of_its_cell(visit, page):
    rights = ["clipboard-read", "clipboard-write"]
    with visit(f"{page}.html", permissions=rights) as tab:
        code = tab.locator("div.cell_input div.highlight").nth(1)
        code.hover()
        code.locator("button.copybtn").click()
        tab.wait_for_function(
            "code => navigator.clipboard.readText().then(copied => copied.trim() == code)",
            arg=code.locator("pre").inner_text().strip(),
        )


@in_a_browser
@pytest.mark.parametrize("page", NOTEBOOKS)
def test_a_page_prints_with_its_claims_and_without_what_is_around_it(visit, page):
    with visit(f"{page}.html") as tab:
        printed = pypdf.PdfReader(io.BytesIO(tab.pdf(format="A4")))
    text = " ".join(sheet.extract_text() for sheet in printed.pages)
    words = unicodedata.normalize("NFKC", text)  # Without ligatures.
    dense = "".join(words.split())
    claimed = claimed_by((ROOT / page).with_suffix(".md"))
    missing = [s for s in claimed if dense.count(s.replace(" ", "").replace("`", "")) < 2]
    assert missing == []  # Once in the text, and once in its box.
    assert "Back to top" not in words
    assert len(printed.pages) < 60


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
        assert barrier > limited == free
        slide(tab, "limit", "Home")
        assert said(tab) == [barrier, barrier, free]
        slide(tab, "limit", "ArrowRight")
        assert said(tab) == [barrier, free, free]
        assert tab.wrong == []


@in_a_browser
def test_a_slider_goes_from_bar_to_bar_of_a_timeline(visit):
    with visit("book/automatic-parallelism.html", width=390) as tab:
        chart = tab.locator(".d2lpar-explorable").first
        before = chart.locator(".mark-text.role-mark text").all_text_contents()
        slider = chart.locator(".vega-bind", has_text="bar").locator("input")
        slider.press("End")
        after = chart.locator(".mark-text.role-mark text").all_text_contents()
        assert before != after
        assert "CPU" in after[0]


@in_a_browser
def test_hovering_over_a_bar_of_a_timeline_says_what_it_is(visit):
    with visit("book/automatic-parallelism.html") as tab:
        chart = tab.locator(".d2lpar-explorable").first
        chart.locator(".mark-rect.role-mark path").last.hover()
        tip = tab.locator("#vg-tooltip-element.visible")
        tip.wait_for()
        assert all(word in tip.inner_text() for word in ("device", "operator", "starts", "takes"))


@in_a_browser
@pytest.mark.parametrize("page", EXPLORABLES)
def test_without_scripts_a_picture_stands_where_a_chart_would(visit, page):
    with visit(f"{page}.html", java_script_enabled=False) as tab:
        pictures = tab.locator(".d2lpar-explorable img")
        assert pictures.count() == EXPLORABLES[page]
        assert all(picture.bounding_box()["height"] > 100 for picture in pictures.all())


# --- Without a server -------------------------------------------------------------------------


@in_a_browser
@pytest.mark.parametrize("page", [TOC["root"], *NOTEBOOKS])
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
