"""A smoke test of the built documentation; `make docs` first."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

BUILT = Path(__file__).parents[1] / "docs" / "_build" / "html"


@pytest.mark.skipif(not BUILT.exists(), reason="the documentation is not built: make docs")
def test_every_link_between_pages_has_a_target() -> None:
    pages = [*BUILT.glob("*.html"), *BUILT.glob("api/*.html"), *BUILT.glob("gallery/*.html")]
    assert BUILT / "index.html" in pages
    for page in pages:
        article = page.read_text(encoding="utf-8").split("<article", 1)[-1].split("</article>")[0]
        for link in re.findall(r'<a [^>]*href="([^"#:]+)[^":]*"', article):
            assert (page.parent / unquote(link)).exists(), f"{page.name} links to {link}"
