"""The report: one self-contained file with every claim, in which text is escaped."""

import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reproduction import report
from reproduction.experiment import SUBJECTS, Claim, Record
from reproduction.report import Run, Section

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="300"><rect width="9"/></svg>'
MARKUP = "\"></p></style><script>alert(1)</script><img src=x onerror='alert(1)'>"
REQUEST: dict[str, Any] = {"names": [], "scale": "quick", "seeds": [0, 1, 2], "max_calls": None}
MEASURED = {"warm": 0.5, "steep": 3.0, "missing": None}


@dataclass(frozen=True)
class Config:
    label: str


def section(folder: Path, words: str) -> Section:
    """A supported claim, one that is not supported and one without a number, with these words."""
    figure = folder / "figure.svg"
    figure.write_text(SVG, encoding="utf-8")
    experiment = SimpleNamespace(
        TITLE=words, WHERE=words, PAPER=words, KNOWN={"*": words}, __doc__=words
    )
    claims = [
        Claim(f"toy/{name}", words, words, number, "<=", 1.0, 4, words)
        for name, number in MEASURED.items()
    ]
    run = Run(Record(Config(words), []), folder / "toy" / "runs" / "run-1", 1.25, {"python": words})
    return Section("toy", experiment, [run], [(words, words)], claims, figure)  # type: ignore[arg-type]


class Shape(HTMLParser):
    """The elements of a page, its links and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *sorted(name for name, _ in attrs)))
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markup_in_any_field_is_escaped(tmp_path: Path) -> None:
    clean, dirty = (
        Shape(report.page(tmp_path, REQUEST, [section(tmp_path, words)]))
        for words in ("plain", MARKUP)
    )
    assert clean.elements == dirty.elements
    assert MARKUP in dirty.text
    assert all(link.startswith(("#", "data:image/", "toy/")) for link in dirty.links)


def test_report_is_one_file_with_every_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reproduction import errata, runner

    config = errata.Config("F")
    monkeypatch.setattr(errata, "configs", lambda scale, seeds=None: [config])
    assert runner.reproduce(["errata"], "quick", tmp_path).num_run == 1
    (found,) = report.write(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"https?://(?!www\.w3\.org)", page)
    assert page.count("data:image/svg+xml;base64,") == 1
    ids = [claim.id for claim in found.claims]
    assert ids and all(f'id="{name}"' in page for name in ids)
    assert not found.missing
    (run,) = found.runs
    link = (run.folder / "metrics.jsonl").relative_to(tmp_path).as_posix()
    assert f'href="{link}"' in page and (tmp_path / link).is_file()


def test_three_kinds_of_claims_are_counted_separately(tmp_path: Path) -> None:
    claims = [
        Claim("a", "", "Figure 1", 1.0, "<", 2.0),
        Claim("b", "", "Figure 1", 3.0, "<", 2.0),
        Claim("c", "", "Theorem 1", 1.0, "<", 2.0, corrects=True),
        Claim("d", "", "neada", None, "<", 2.0),
    ]
    found = Section("toy", section(tmp_path, "plain").experiment, [], [], claims, None)
    counts = report.as_data(REQUEST, [found])["tally"]
    assert {subject: list(numbers.values()) for subject, numbers in counts.items()} == {
        "paper": [1, 1, 0],
        "correction": [1, 0, 0],
        "library": [0, 0, 1],
    }
    lines = report.result_table([found]).splitlines()[-3:]
    assert [[int(n) for n in re.findall(r"\d+", line)] for line in lines] == [
        *([1, 1, 0], [1, 0, 0], [0, 0, 1]),
    ]
    text = Shape(report.page(tmp_path, REQUEST, [found])).text
    assert all(words in text for words in SUBJECTS.values())


def test_folder_without_a_reproduction_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reproduction"):
        report.write(tmp_path)
