"""The built documentation in a real browser: `make docs` first."""

from collections.abc import Iterator
from pathlib import Path

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
