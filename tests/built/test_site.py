"""The pages as readers meet them, in headless Chromium."""

import http.server
import re
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from html import unescape
from urllib.parse import quote

import pytest
from pages import BRANCH
from run_notebook import ROOT, notebooks

playwright = pytest.importorskip("playwright.sync_api", reason="playwright; `make test` has it")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="`make test` has it")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not here; on Debian: apt-get install chromium"
)

PAGES = re.findall(r"(?:root|file): (book/[\w/-]+)", (ROOT / "_toc.yml").read_text())
MADE_BY_SPHINX = ["genindex", "search", "404"]
# The pages of the API are alike, so the browser visits only one of them.
VISITED = [page for page in PAGES if "/api/" not in page or page == "book/api/measuring"]
NOTEBOOKS = [str(path.relative_to(ROOT).with_suffix("")) for path in notebooks()]
# Together these pages have all colors of the book.
COLORFUL = {PAGES[0], NOTEBOOKS[0], "book/evidence"}
EXPLORABLES = {"book/asynchronous-computation", "book/beyond-one-machine"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path):
        # The page for status 404 has links to the published address.
        return super().translate_path(path.removeprefix("/d2lpar"))

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def address(html):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=html))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    with playwright.sync_playwright() as running:
        # Chromium refuses a sandbox as root, and looks for updates by default.
        options = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        browser = running.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def visit(browser, address):
    """A function that opens a page, and records its errors and its requests to other hosts."""

    @contextmanager
    def visit(page, width=1280, scheme="light"):
        here = address, "data:", "blob:"
        size = {"width": width, "height": 900}
        with browser.new_context(viewport=size, color_scheme=scheme) as context:
            context.set_default_timeout(20_000)
            tab = context.new_page()
            tab.wrong, tab.responses = [], []
            tab.on("console", lambda line: line.type == "error" and tab.wrong.append(line.text))
            tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
            tab.on("request", lambda to: to.url.startswith(here) or tab.wrong.append(to.url))
            tab.on("response", lambda response: tab.responses.append(response))
            tab.goto(f"{address}{page}")
            # The charts are the last thing that scripts draw.
            tab.locator(".d2lpar-explorable:not(:has(svg))").first.wait_for(state="detached")
            yield tab

    return visit


# The tests of one page share its tab, and so have to run in one process.
@pytest.fixture(
    scope="module",
    params=[pytest.param(p, marks=pytest.mark.xdist_group(p)) for p in [*VISITED, *MADE_BY_SPHINX]],
)
def page(request):
    return request.param


@pytest.fixture(scope="module")
def tab(visit, page):
    """The page, opened on a phone in the dark scheme."""
    with visit(f"{page}.html", 390, "dark") as tab:
        yield tab


def show(tab, width, scheme, unfolded=False):
    """Show the page at a width, light or dark, with its folds open or closed."""
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # Otherwise colors fade.
    tab.wait_for_function("theme => document.documentElement.dataset.theme == theme", arg=scheme)
    folds = tab.locator("article details")
    folds.evaluate_all("(all, unfolded) => all.forEach(of => of.open = unfolded)", unfolded)


# This test is the first of a page: for a while after a change of the width, the theme does not let
# a keyboard reach the boxes that scroll.
@in_a_browser
def test_axe_finds_no_fault_in_what_the_book_adds(tab, page):
    # All code looks alike, and has thousands of parts: one section of it is enough.
    alike = [["dl.py:not(:first-of-type)"], ["section ~ section .highlight"]]
    # Contrast takes most of the time, and is all that differs between light and dark.
    runs = [(390, "dark", {"rules": {"color-contrast": {"enabled": page in COLORFUL}}})]
    # Again on a desk: on a phone, axe cannot judge code, which has a shadow behind it.
    for scheme in ("light", "dark") if page in COLORFUL else ():
        runs.append((1280, scheme, {"runOnly": ["color-contrast"]}))
    for width, scheme, options in runs:
        show(tab, width, scheme)
        options |= {"preload": False, "resultTypes": ["violations"]}
        found = axe.Axe().run(tab, context={"exclude": alike}, options=options)
        ours = [
            (violation["id"], node["html"][:200])
            for violation in found.response["violations"]
            for node in violation["nodes"]
            # Not ours: the theme's logo outside of every landmark, docutils' bibliography list
            # without items, and Sphinx's list of arguments without terms.
            if not re.search("logo|citation|^<dl>$", node["html"])
        ]
        assert ours == []


@in_a_browser
def test_a_page_fits_every_screen_and_asks_no_other_host_and_has_no_error(tab, page):
    for width in (390, 768, 1280, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        beyond = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert (width, beyond <= 0) == (width, True)
    cut = """all => all
        .filter(of => of.scrollWidth > (of.matches("pre") ? of : of.parentElement).clientWidth + 1)
        .map(of => of.innerText.slice(0, 100))"""
    for width, parts in ((1280, "article :is(pre, table)"), (390, "article table")):
        show(tab, width, "dark", unfolded=True)
        assert tab.locator(parts).evaluate_all(cut) == []
    assert tab.wrong == []
    nbytes = sum(len(response.body()) for response in tab.responses if response.ok)
    # Uncompressed; a server sends a quarter of it.
    assert nbytes < (3e6 if page in EXPLORABLES else 1.65e6)


def texts_of(html):
    pages = [page for page in html.rglob("*.html") if "_static" not in page.parts]
    return {page: unescape(page.read_text(encoding="utf-8")) for page in pages}


def test_code_has_no_spans_that_look_like_text(html):
    spans = re.compile(r'<span class="[npw]">[^<]*</span>')
    assert [page for page, text in texts_of(html).items() if spans.search(text)] == []
    styles = (html / "_static" / "pygments.css").read_text(encoding="utf-8")
    for theme in "light", "dark":
        colors = re.findall(rf'"{theme}"\] \.highlight(?: \.[npw])? {{.*\bcolor: (#\w+)', styles)
        assert (len(colors), len({*colors})) == (4, 1)


def test_a_fold_is_announced_by_its_own_words(html):
    folds = [page for page, text in texts_of(html).items() if "<summary>" in text]
    assert len(folds) > 5
    assert not [page for page in folds if "Toggle hidden content" in page.read_text("utf-8")]


def test_no_page_is_built_that_these_tests_do_not_know(html):
    built = {str(page.relative_to(html).with_suffix("")) for page in texts_of(html)}
    assert built == {*PAGES, *MADE_BY_SPHINX, "index"}  # The index leads to the first page.


def test_every_link_within_the_book_leads_to_a_page_and_a_place_on_it(html):
    texts = texts_of(html)
    ids = {page.resolve(): set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    for page, text in texts.items():
        for link in set(re.findall(r'\bhref="(?!\w+:)([^"]+)"', text)):
            path, _, anchor = link.partition("#")
            # A server shows the page 404 at any depth.
            assert page.stem != "404" or path.startswith("/d2lpar/") or not path
            folder = html if path.startswith("/d2lpar/") else page.parent
            path = path.removeprefix("/d2lpar/").partition("?")[0]
            target = (folder / path if path else page).resolve()
            assert target.exists(), (page, link)
            assert not anchor or anchor in ids[target], (page, link)


CHAPTER = f"{PAGES[1]}.html"


@in_a_browser
def test_the_search_finds_a_word_and_of_a_public_name_first_its_entry(visit):
    with visit("book/index.html") as tab:
        tab.keyboard.press("Control+k")
        tab.keyboard.type("sentinel")
        tab.keyboard.press("Enter")
        tab.wait_for_url("**/search.html?q=sentinel*")
        tab.locator("#search-results li a", has_text="Asynchronous Computation").first.wait_for()
        assert tab.wrong == []
    with visit("search.html?q=watch") as tab:
        first = tab.locator("#search-results li a").first
        assert first.get_attribute("href").endswith("#d2lpar.watch")


@in_a_browser
@pytest.mark.parametrize(
    "words",
    [
        "os.fork() was called",
        "GPU is 100% busy, and nothing happens",
        "every hundredth step takes a second",
        "slower since the upgrade",
        "DEADLINE_EXCEEDED when the job starts",
        "Termination timeout for all reduce",
    ],
)
def test_the_search_finds_the_look_up_page_by_the_words_on_the_screen(visit, words):
    with visit(f"search.html?q={quote(words)}") as tab:
        tab.locator("#search-results li a", has_text="It Hangs, or It Is Slow").first.wait_for()


@in_a_browser
def test_the_pipeline_answers_to_its_sliders(visit):
    with visit(CHAPTER) as tab:
        texts = tab.locator(".d2lpar-explorable .mark-text.role-mark text")
        barrier, limited, free = map(float, texts.all_text_contents())
        assert barrier > limited > free
        # With the keyboard, as a reader without a mouse would.
        tab.locator(".vega-bind", has_text="limit").locator("input[type=range]").focus()
        for key, expected in (("Home", barrier), ("End", free)):
            tab.keyboard.press(key)
            tab.get_by_role("img", name=f"with the limit: {expected:g} ms").wait_for()
            assert [*map(float, texts.all_text_contents())] == [barrier, expected, free]
        assert tab.wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_edited_and_a_notebook_downloaded_or_opened_in_colab(html, page):
    text = (html / f"{page}.html").read_text(encoding="utf-8")
    (source,) = set(re.findall(rf'href="[^"]+/edit/{BRANCH}/([^"]+)"', text))
    assert (ROOT / source).is_file()
    if page in NOTEBOOKS:
        (link,) = set(re.findall(r'href="((?!\w+:)[^"]+\.ipynb)"', text))
        downloaded = (html / page).parent / link
        assert downloaded.read_bytes() == (ROOT / f"{page}.ipynb").read_bytes()
        assert f'research.google.com/github/d2lpar/d2lpar/blob/{BRANCH}/{page}.ipynb"' in text


def test_a_word_of_the_glossary_is_linked_once_on_a_page_and_all_somewhere(html):
    glossary = (html / "book" / "glossary.html").read_text(encoding="utf-8")
    terms = dict(re.findall(r'<dt id="(term-[^"]+)">(.*?)<', glossary))
    assert len(terms) > 20
    linked = set()
    for page in PAGES:
        text = (html / f"{page}.html").read_text(encoding="utf-8")
        links = re.findall(r'class="d2lpar-term[^>]*#(term-[^"]+)"', text)
        assert len(links) == len(set(links))
        assert not re.search('class="d2lpar-term[^>]*>Windows', text)  # The system.
        linked |= set(links)
    # A term with brackets has an everyday meaning too, and is not linked.
    assert linked == {anchor for anchor, term in terms.items() if "(" not in term}
