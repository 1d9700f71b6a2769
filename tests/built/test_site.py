"""The pages as readers meet them, in headless Chromium."""

import http.server
import io
import re
import shutil
import threading
from contextlib import contextmanager
from functools import partial

import pytest
from PIL import Image
from run_notebook import ROOT, notebooks

playwright = pytest.importorskip("playwright.sync_api", reason="playwright; `make test` has it")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="`make test` has it")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not here; on Debian: apt-get install chromium"
)

PAGES = re.findall(r"(?:root|file): (book/[\w/-]+)", (ROOT / "_toc.yml").read_text())
# Those of the API are made alike, so a browser looks at one for all.
VISITED = [page for page in PAGES if "/api/" not in page or page == "book/api/measuring"]
CHAPTERS = PAGES[1:6]
MADE_BY_SPHINX = ["genindex", "search", "404"]
NOTEBOOKS = [str(path.relative_to(ROOT).with_suffix("")) for path in notebooks()]
# Between them they have all that is colored.
COLOURFUL = {PAGES[0], NOTEBOOKS[0], "book/evidence", "book/originals"}
EXPLORABLES = {"book/asynchronous-computation", "book/beyond-one-machine"}


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
        here = address, "data:", "blob:"
        with browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        ) as context:
            context.set_default_timeout(20_000)
            tab = context.new_page()
            tab.wrong, tab.responses = [], []
            tab.on("console", lambda said: said.type == "error" and tab.wrong.append(said.text))
            tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
            tab.on("request", lambda to: to.url.startswith(here) or tab.wrong.append(to.url))
            tab.on("response", lambda response: tab.responses.append(response))
            tab.goto(f"{address}{page}")
            if options.get("java_script_enabled", True):
                # What scripts put onto the page is there when none of them has more to do.
                tab.locator(".d2lpar-explorable:not(:has(svg))").first.wait_for(state="detached")
            yield tab

    return visit


# What looks at a page shares it, and so runs in one process.
@pytest.fixture(
    scope="module",
    params=[pytest.param(p, marks=pytest.mark.xdist_group(p)) for p in [*VISITED, *MADE_BY_SPHINX]],
)
def page(request):
    """A page of the book."""
    return request.param


@pytest.fixture(scope="module")
def tab(visit, page):
    """That page, opened on a phone by night."""
    with visit(f"{page}.html", 390, "dark") as tab:
        yield tab


def turn(tab, width, scheme, unfolded=False):
    """Look at a page on a screen of this width, by day or by night, with folds open or closed."""
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # No color fades.
    tab.wait_for_function("theme => document.documentElement.dataset.theme == theme", arg=scheme)
    folds = tab.locator("article details")
    folds.evaluate_all("(all, unfolded) => all.forEach(of => of.open = unfolded)", unfolded)


# --- Every page -------------------------------------------------------------------------------


# First: only a while after its width has changed does the theme let a keyboard reach what scrolls.
@in_a_browser
def test_a_page_has_no_fault_that_axe_finds_in_what_is_ours(tab, page):
    # Code has thousands of parts, and looks alike everywhere: that of one section is enough.
    alike = [["dl.py:not(:first-of-type)"], ["section ~ section .highlight"]]
    # Whether colors can be told apart is most of the work, and by day all that differs.
    rules = {"color-contrast": {"enabled": page in COLOURFUL}}
    looks = [(390, "dark", {"rules": rules})]
    # In the dark on a desk too: on a phone it cannot judge code, which has a shadow behind it.
    for scheme in ("light", "dark") if page in COLOURFUL else ():
        looks.append((1280, scheme, {"runOnly": ["color-contrast"]}))
    for width, scheme, options in looks:
        turn(tab, width, scheme)
        options |= {"preload": False, "resultTypes": ["violations"]}
        found = axe.Axe().run(tab, context={"exclude": alike}, options=options)
        ours = [
            (violation["id"], node["html"][:200])
            for violation in found.response["violations"]
            for node in violation["nodes"]
            # The theme has its logo outside of every landmark, docutils a bibliography's list
            # without items, and Sphinx the arguments of a long signature in one without terms.
            if not re.search("logo|citation|^<dl>$", node["html"])
        ]
        assert ours == []


@in_a_browser
def test_a_page_fits_every_screen_and_is_light_and_asks_no_other_host_and_has_no_error(tab, page):
    for width in (390, 768, 1280, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        beyond = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert (width, beyond <= 0) == (width, True)
    assert tab.wrong == []
    nbytes = sum(len(response.body()) for response in tab.responses if response.ok)
    # As stored; a server sends a quarter of it.
    assert nbytes < (3e6 if page in EXPLORABLES else 1.65e6)


def test_no_page_is_built_that_these_tests_do_not_know(html):
    built = {str(page.relative_to(html).with_suffix("")) for page in html.rglob("*.html")}
    known = {*PAGES, *MADE_BY_SPHINX, "index"}  # The last leads to the first page.
    assert {page for page in built if not page.startswith("_static")} == known


@in_a_browser
def test_no_table_is_cut_off_nor_code_on_a_desk_and_no_type_is_below_ten_pixels(tab):
    cut = """all => all
        .filter(of => of.scrollWidth > (of.matches("pre") ? of : of.parentElement).clientWidth + 1)
        .map(of => of.innerText.slice(0, 100))"""
    turn(tab, 1280, "light", unfolded=True)
    assert tab.locator("article :is(pre, table)").evaluate_all(cut) == []
    turn(tab, 390, "dark", unfolded=True)
    assert tab.locator("article table").evaluate_all(cut) == []
    # In a narrower column than that, words are cut into syllables.
    narrow = """all => all
        .filter(of => !of.closest("table[class*=d2lpar], .d2lpar-table"))
        .filter(of => of.innerText.length > 12 && of.getBoundingClientRect().width < 72)
        .map(of => of.innerText)"""
    assert tab.locator("article td").evaluate_all(narrow) == []
    # What is drawn is scaled, and its type with it.
    small = """all => all
        .filter(of => [...of.childNodes].some(node => node.nodeType == 3 && node.data.trim()))
        .map(of => [parseFloat(getComputedStyle(of).fontSize) * (of.getScreenCTM?.().a ?? 1), of])
        .filter(([size, of]) => size < 9.95 && !of.closest("math, .sd-hide-link-text"))
        .map(([size, of]) => `${size} px: ${of.textContent.slice(0, 50)}`)"""
    assert tab.locator("article *:not(script, style)").evaluate_all(small) == []


@in_a_browser
def test_no_name_in_code_is_broken_at_the_end_of_a_line_nor_is_a_number_from_its_unit(tab):
    # Between each two letters of a name, digits of a number, or a number and its unit.
    broken = r"""article => {
        const words = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
        const range = document.createRange(), found = [];
        const line = (node, at) => {
            range.setStart(node, at);
            range.setEnd(node, at + 1);
            return range.getBoundingClientRect();
        };
        for (let node; (node = words.nextNode());) {
            const of = node.parentElement;
            if (of.closest("pre, svg, script, style, math, .d2lpar-machines"))
                continue;
            const within = of.closest("code")
                ? /\w(?=\w)/g
                : /\d(?=\d|\s(?:%|[nµm]?s|[kMG]?B)(?!\w))/g;
            for (const { index } of node.data.matchAll(within)) {
                const before = line(node, index);
                const next = line(node, index + (/\s/.test(node.data[index + 1]) ? 2 : 1));
                if (before.height && next.top > before.top + before.height / 2)
                    found.push(node.data.slice(Math.max(0, index - 20), index + 20));
            }
        }
        return found;
    }"""
    for width, scheme in ((1280, "light"), (390, "dark")):
        turn(tab, width, scheme, unfolded=True)
        found = tab.locator("article").evaluate_all(f"all => all.flatMap({broken})")
        assert (width, found) == (width, [])


# --- How it looks -----------------------------------------------------------------------------

CHAPTER = CHAPTERS[0]


@in_a_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_subscript_stands_lower_than_its_base(visit, width):
    drop = """all => all.map(of => {
        const [base, below] = [...of.children].map(part => part.getBoundingClientRect());
        return (below.bottom - base.bottom) / parseFloat(getComputedStyle(of).fontSize);
    })"""
    with visit(f"{CHAPTER}.html", width) as tab:
        tab.evaluate("document.fonts.ready")
        assert min(tab.locator("article msub").evaluate_all(drop)) > 0.1


@in_a_browser
def test_only_a_page_with_a_formula_loads_the_font_for_it(visit):
    for page, count in (("book/index", 0), (CHAPTER, 1)):
        with visit(f"{page}.html") as tab:
            tab.evaluate("document.fonts.ready")
            fonts = [r for r in tab.responses if "math.woff2" in r.url]
            assert (page, len(fonts)) == (page, count)
            assert all(len(font.body()) < 60_000 for font in fonts)


@in_a_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_heading_is_no_smaller_and_no_lighter_than_those_below_it(visit, width):
    looks = """article => ["h1", "h2", "h3", "h4", "p"].map(level => {
        const made = article.appendChild(document.createElement(level));
        const look = getComputedStyle(made);
        return [parseFloat(look.fontSize), parseFloat(look.fontWeight)];
    })"""
    with visit(f"{CHAPTER}.html", width) as tab:
        sizes, weights = zip(*tab.locator("article").evaluate(looks), strict=True)
    assert list(sizes) == sorted(set(sizes), reverse=True)
    assert list(weights) == sorted(weights, reverse=True)


@in_a_browser
def test_a_figure_is_as_wide_as_the_text_or_small_by_nature(visit):
    shares = """all => all.map(of =>
        of.getBoundingClientRect().width / of.closest("section").clientWidth)"""
    with visit(f"{CHAPTER}.html") as tab:
        found = tab.locator("article .cell_output img").evaluate_all(shares)
    assert sorted(found)[len(found) // 2] > 0.95
    assert max(found) <= 1.001


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_code_that_goes_on_has_a_shadow_on_that_side(visit, scheme):
    def ends(code):
        """Return how bright both ends of the box are in its margin, and its middle."""
        picture = Image.open(io.BytesIO(code.screenshot())).convert("L")
        y, middle = 4, picture.width // 2
        return [picture.getpixel((x, y)) for x in (6, middle, picture.width - 4)]

    with visit("book/in-your-own-code.html", 390, scheme) as tab:
        wide = "all => all.findIndex(of => of.scrollWidth > of.clientWidth + 50 && of.clientHeight)"
        all_code = tab.locator("article div.cell_input pre")
        code = all_code.nth(all_code.evaluate_all(wide))
        left, middle, right = ends(code)
        assert (left == middle, right < middle) == (True, True)
        code.evaluate("of => of.scrollLeft = of.scrollWidth")
        left, middle, right = ends(code)
        assert (left < middle, right == middle) == (True, True)


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_comment_is_quieter_than_the_code_about_it(visit, scheme):
    contrast = """of => {
        const bright = color => color.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0.05);
        const ground = bright(getComputedStyle(of.closest("pre")).backgroundColor);
        const ink = bright(getComputedStyle(of).color);
        return Math.max(ink, ground) / Math.min(ink, ground);
    }"""
    with visit(f"{CHAPTER}.html", scheme=scheme) as tab:
        comment, code = (
            tab.locator(f"article div.cell_input pre {kind}").first.evaluate(contrast)
            for kind in (".c1", ".n")
        )
    assert 4.5 <= comment < 0.6 * code


@in_a_browser
def test_on_a_phone_two_lists_beside_each_other_stand_below_each_other(visit):
    with visit(f"{CHAPTER}.html", 390) as tab:
        tops = "all => all.map(of => [of.innerText, of.getBoundingClientRect().top])"
        table = tab.locator(".d2lpar-table", has_text="copy.deepcopy(y)").first
        waits = dict(table.locator(":is(th, td):nth-child(1)").evaluate_all(tops))
        goes_on = dict(table.locator(":is(th, td):nth-child(4)").evaluate_all(tops))
        assert len(waits) > 10
        assert goes_on.pop("returns") > max(waits.values())
        assert min(goes_on.values()) > max(waits.values())


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
def test_the_built_folder_can_be_read_and_searched_from_the_file_system(visit, html):
    with visit("search.html?q=barrier", address=f"{html.as_uri()}/") as tab:
        # Without the lines around each hit: a browser lets no page read another file.
        tab.locator("#search-results li a").first.wait_for()
        tab.goto(f"{html.as_uri()}/book/asynchronous-computation.html")
        tab.locator(".d2lpar-explorable svg").first.wait_for()


@in_a_browser
def test_the_pipeline_answers_to_its_sliders(visit):
    with visit("book/asynchronous-computation.html") as tab:
        texts = tab.locator(".d2lpar-explorable .mark-text.role-mark text")
        barrier, limited, free = map(float, texts.all_text_contents())
        assert barrier > limited > free
        # As a reader without a mouse does.
        tab.locator(".vega-bind", has_text="limit").locator("input[type=range]").focus()
        for key, expected in (("Home", barrier), ("End", free)):
            tab.keyboard.press(key)
            assert [*map(float, texts.all_text_contents())] == [barrier, expected, free]
        assert tab.wrong == []


@in_a_browser
def test_without_scripts_a_picture_stands_where_a_chart_would_and_folds_open(visit):
    with visit("book/asynchronous-computation.html", java_script_enabled=False) as tab:
        assert tab.locator(".d2lpar-explorable img").bounding_box()["height"] > 100
        fold = tab.locator("article details").first
        fold.locator("summary").press("Enter")
        assert fold.locator("pre").first.is_visible()


# --- Finding and citing -----------------------------------------------------------------------


@in_a_browser
@pytest.mark.parametrize("page", ["book/index", CHAPTER])
def test_the_contents_begin_with_the_name_of_the_book(visit, page):
    with visit(f"{page}.html", width=390) as tab:
        tab.locator("button.primary-toggle").click()
        name = tab.get_by_role("link", name="Asynchronous and Parallel Computation in JAX").first
        assert name.is_visible()


@in_a_browser
@pytest.mark.parametrize("name", ["watch", "compare", "InFlight"])
def test_a_search_for_a_public_name_finds_its_entry_first(visit, name):
    with visit(f"search.html?q={name}") as tab:
        first = tab.locator("#search-results li a").first
        assert first.get_attribute("href").endswith(f"#d2lpar.{name}")


def test_each_link_from_the_overview_of_the_api_leads_to_an_entry(html):
    links = [link for link in links_of(html / "book" / "api.html") if "#d2lpar." in link]
    assert len(links) > 50
    for link in links:
        page, _, anchor = link.partition("#")
        text = (html / "book" / page).read_text(encoding="utf-8")
        assert f'<dt class="sig sig-object py" id="{anchor}">' in text


def test_no_page_of_the_api_has_more_entries_than_one_can_look_through(html):
    pages = [html / "book" / "api.html", *(html / "book" / "api").glob("*.html")]
    texts = {page.stem: page.read_text(encoding="utf-8") for page in pages}
    entries = {page: text.count('<dt class="sig') for page, text in texts.items()}
    assert {page: count for page, count in entries.items() if count > 30} == {}


def links_of(page):
    return set(re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8")))


def test_every_page_has_a_title_and_a_description_of_its_own(html):
    texts = [(html / f"{page}.html").read_text(encoding="utf-8") for page in PAGES]
    titles = {re.search("<title>(.*?)</title>", text, re.DOTALL)[1] for text in texts}
    assert len(titles) == len(PAGES)
    said = {re.search(r'<meta name="description" content="([^"]*)"', text)[1] for text in texts}
    assert len(said) == len(PAGES)
    assert [words for words in said if not 40 <= len(words) <= 250] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_edited_and_a_notebook_downloaded_as_colab_opens_it(html, page):
    links = links_of(html / f"{page}.html")
    (edit,) = {link for link in links if "/edit/" in link}
    assert (ROOT / edit.partition("/edit/main/")[2]).is_file()
    if page in NOTEBOOKS:
        (link,) = {link for link in links if link.endswith(".ipynb") and "://" not in link}
        downloaded = (html / page).parent.joinpath(link).resolve()
        assert downloaded.read_bytes() == (ROOT / f"{page}.ipynb").read_bytes()


def test_figures_of_a_chapter_have_its_number(html):
    for number, page in enumerate(CHAPTERS, 1):
        text = (html / f"{page}.html").read_text(encoding="utf-8")
        figures = re.findall(r'<span class="caption-number">Fig\. ([\d.]+) *</span>', text)
        assert figures == [f"{number}.{count}" for count, _ in enumerate(figures, 1)]
        assert figures


def test_the_page_for_what_is_missing_leads_back_from_any_depth(html):
    links = links_of(html / "404.html")
    assert "/d2lpar/book/index.html" in links
    assert [link for link in links if not re.match(r"/d2lpar/|https?:|#|mailto:", link)] == []


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
