"""The built documentation: `make docs` first."""

import itertools
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

BUILT = Path(__file__).parents[1] / "docs" / "_build" / "html"
NOT_BUILT = "" if (BUILT / "index.html").exists() else "the documentation is not built: make docs"
GENERATED = ("_modules", "_static", "_sources", "_downloads")
PAGES = [
    page.relative_to(BUILT)
    for page in sorted(BUILT.rglob("*.html"))
    if page.relative_to(BUILT).parts[0] not in GENERATED
]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(NOT_BUILT), reason=NOT_BUILT)]


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
