"""The built documentation in a real browser: `make docs` first."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from browser import MISSING, Browser

BUILT = Path(__file__).parents[1] / "docs" / "_build" / "html"
NOT_BUILT = "" if (BUILT / "index.html").exists() else "the documentation is not built: make docs"
GENERATED = ("_modules", "_static", "_sources", "_downloads")
PAGES = [
    page.relative_to(BUILT)
    for page in sorted(BUILT.rglob("*.html"))
    if page.relative_to(BUILT).parts[0] not in GENERATED
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING or NOT_BUILT), reason=MISSING or NOT_BUILT),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def test_no_page_is_wider_than_a_phone_asks_for_anything_or_reports_an_error(
    browser: Browser,
) -> None:
    browser.resize(390, 844)
    for page in PAGES:
        browser.navigate((BUILT / page).as_uri())
        browser.evaluate("window.MathJax ? MathJax.startup.promise.then(() => true) : true")
        width = browser.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{page} is {width} pixels wide"
        assert browser.console == [], page
        assert all(url.startswith(("file:", "data:", "blob:")) for url in browser.requests), page


def test_a_figure_of_panels_can_be_read_on_a_phone(browser: Browser) -> None:
    browser.resize(390, 844)
    widths = "[...document.querySelectorAll('article img.panels')].map(i => i.clientWidth)"
    num_figures = 0
    for page in PAGES:
        if "panels" in (BUILT / page).read_text(encoding="utf-8"):
            browser.navigate((BUILT / page).as_uri())
            found = browser.evaluate(widths)
            num_figures += len(found)
            assert all(width >= 600 for width in found), page
    assert num_figures >= 20


def test_code_is_not_cut_off_in_a_wide_window(browser: Browser) -> None:
    browser.resize(1400, 900)
    cut = (
        "[...document.querySelectorAll('article pre')].filter(p => p.scrollWidth > p.clientWidth)"
        ".map(p => p.textContent.slice(0, 80))"
    )
    for page in PAGES:
        browser.navigate((BUILT / page).as_uri())
        assert browser.evaluate(cut) == [], page


def test_links_lead_somewhere_headings_are_in_order_and_sections_have_text() -> None:
    texts = {page: (BUILT / page).read_text(encoding="utf-8") for page in PAGES}
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    for page, text in texts.items():
        article = text.split("<article", 1)[-1].split("</article>")[0]
        levels = [1, *map(int, re.findall(r"<h([1-6])[ >]", article))]
        steps = itertools.pairwise(levels)
        assert all(after <= before + 1 for before, after in steps), page
        assert not re.search(r"<section[^>]*>\s*<h\d.*?</h\d>\s*</section>", article), page
        for link in re.findall(r'<a [^>]*href="([^"]+)"', article):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (BUILT / page).parent.joinpath(name).resolve() if name else BUILT / page
            assert target.exists(), f"{page} links to {link}"
            goal = target.relative_to(BUILT)
            assert not anchor or goal not in ids or anchor in ids[goal], f"{page}: {link}"


def test_the_first_screen_shows_the_sentence_the_code_and_the_figure(browser: Browser) -> None:
    browser.resize(1400, 900)
    browser.navigate((BUILT / "index.html").as_uri())
    for part in ("article p", ".landing pre", ".landing img"):
        box = browser.evaluate(f"document.querySelector('{part}').getBoundingClientRect().toJSON()")
        assert 0 <= box["top"] < box["bottom"] <= 900, part
        assert box["right"] <= 1400, part


def test_the_sidebar_has_its_groups(browser: Browser) -> None:
    browser.navigate((BUILT / "index.html").as_uri())
    captions = browser.evaluate(
        "[...document.querySelectorAll('.sidebar-tree .caption-text')].map(c => c.textContent)"
    )
    groups = "Get started, Guides, Gallery, The paper, Reference, Project"
    assert ", ".join(captions) == groups
