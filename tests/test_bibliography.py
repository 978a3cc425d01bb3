"""Every paper that a docstring or a page cites has an entry in the bibliography."""

import re
import unicodedata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "bibliography.md"
PATTERNS = ("src/**/*.py", "examples/**/*.py", "docs/*.md", "docs/api/*.md", "README.md")
TEXTS = [path for pattern in PATTERNS for path in ROOT.glob(pattern) if path != PAGE]
NAME = r"(?:(?:von|El) )?[A-Z][a-z]+(?:-[A-Z][a-z]+)?"
# "Beck & Teboulle 2009", "Duchi et al. (2008)", "Yang, Li & He (NeurIPS 2022)", "Armijo 1966",
# "Lin, Jin & Jordan, On Gradient Descent Ascent, ICML 2020".
CITATION = re.compile(
    rf"((?:{NAME}, )*{NAME}(?:,? (?:&|and) {NAME}| et al\.)?)"
    r"(?: |,? \(|, (?:[^.;()=]{0,90} )?|,? \([A-Z][A-Za-z]+(?: \d+,)? )((?:19|20)\d\d)\b"
)


def read(path: Path) -> str:
    """The text in one line, without accents and comment marks."""
    plain = unicodedata.normalize("NFD", path.read_text(encoding="utf-8"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return re.sub(r"\s*\n[ #]*", " ", plain)


def test_every_citation_has_an_entry() -> None:
    bibliography = read(PAGE)
    entries = [
        (set(re.findall(NAME, authors)), year)
        for authors, year in re.findall(r"- \*\*(.*?) \((\d{4})\)\*\*\.", bibliography)
    ]
    for path in TEXTS:
        text = read(path)
        for authors, year in CITATION.findall(text):
            names = set(re.findall(NAME, authors))
            known = any(names <= entry and year == when for entry, when in entries)
            assert known, f"{path.relative_to(ROOT)} cites {authors} {year}"
        for number in re.findall(r"\b\d{4}\.\d{5}\b", text):
            assert number in bibliography, f"{path.relative_to(ROOT)} cites arXiv:{number}"
