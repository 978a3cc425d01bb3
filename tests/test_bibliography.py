"""Every paper that is cited, in a docstring or on a page, has an entry in the bibliography."""

import re
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "bibliography.md"
TEXTS = sorted(
    path
    for pattern in ("src/**/*.py", "examples/**/*.py", "docs/*.md", "docs/api/*.md", "README.md")
    for path in ROOT.glob(pattern)
    if path != PAGE
)

NAME = r"(?:(?:von|El) )?[A-Z][a-z]+(?:-[A-Z][a-z]+)?"
# "Beck & Teboulle 2009", "Duchi et al. (2008)", "Yang, Li & He (NeurIPS 2022)", "Armijo 1966",
# "Lin, Jin & Jordan, On Gradient Descent Ascent, ICML 2020".
CITATION = re.compile(
    rf"((?:{NAME}, )*{NAME}(?:,? (?:&|and) {NAME}| et al\.)?)"
    r"(?: |,? \(|, (?:[^.;()=]{0,90} )?|,? \([A-Z][A-Za-z]+(?: \d+,)? )((?:19|20)\d\d)\b"
)
ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")


def read(path: Path) -> str:
    """The text in one line and without accents; marks of comments are taken out."""
    plain = unicodedata.normalize("NFD", path.read_text(encoding="utf-8"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return re.sub(r"\s*\n[ #]*", " ", plain)


def names_in(authors: str) -> set[str]:
    """The surnames of a citation."""
    return set(re.findall(NAME, authors))


def citations(text: str) -> set[tuple[frozenset[str], str]]:
    """Who is cited, with the year."""
    return {(frozenset(names_in(authors)), year) for authors, year in CITATION.findall(text)}


def entries() -> list[tuple[set[str], str]]:
    """Authors and year of every entry."""
    return [
        (names_in(authors), year)
        for authors, year in re.findall(r"- \*\*(.*?) \((\d{4})\)\*\*\.", read(PAGE))
    ]


@pytest.mark.parametrize(
    "sentence, expected",
    [
        ("as in Beck & Teboulle 2009 for", {("Beck Teboulle", "2009")}),
        ("(Yang, Li & He, NeurIPS 2022)", {("He Li Yang", "2022")}),
        ("Yang, Li & He (NeurIPS 2022)", {("He Li Yang", "2022")}),
        ("by Duchi et al. (2008), and Armijo 1966", {("Duchi", "2008"), ("Armijo", "1966")}),
        ("of Michelot (JOTA 50, 1986)", {("Michelot", "1986")}),
        ("Lin, Jin & Jordan, On Ascent, ICML 2020 (the", {("Jin Jordan Lin", "2020")}),
    ],
)
def test_the_forms_of_a_citation_are_known(sentence: str, expected: set[tuple[str, str]]) -> None:
    assert {(" ".join(sorted(names)), year) for names, year in citations(sentence)} == expected


def test_every_citation_has_an_entry() -> None:
    known = entries()
    for path in TEXTS:
        for names, year in citations(read(path)):
            assert any(names <= authors and year == when for authors, when in known), (
                f"{path.relative_to(ROOT)} cites {', '.join(sorted(names))} {year}: add it to "
                "docs/bibliography.md"
            )


def test_every_arxiv_number_is_in_the_bibliography() -> None:
    known = set(ARXIV.findall(read(PAGE)))
    for path in TEXTS:
        assert set(ARXIV.findall(read(path))) <= known, path.relative_to(ROOT)


def test_every_entry_is_cited() -> None:
    cited = {cite for path in TEXTS for cite in citations(read(path))}
    texts = " ".join(read(path) for path in TEXTS)
    for authors, year in entries():
        by_name = any(names <= authors and when == year for names, when in cited)
        assert by_name or all(name in texts for name in authors), (authors, year)
