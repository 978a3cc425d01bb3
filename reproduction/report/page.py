"""One HTML file that needs nothing else; its style is in `page.css`, its script in `page.js`."""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reproduction.experiment import SCALE_WORDS, Claim
from reproduction.report.content import RunLine, Section, measured_text, summary
from reproduction.report.markup import Markup, element, join, raw_element

__all__ = ["page"]

_VERDICTS = {
    "not supported": ("✗", "fail"),
    "not tested": ("○", "not tested"),
    "supported": ("✓", "hold"),
}
"""In the order of a section: a sign, and the word for several claims."""
_UNKNOWN = "Why is not known; what was measured is below."


def page(out: Path, request: dict[str, Any], sections: Sequence[Section]) -> str:
    """The report as one HTML page; raw files are linked relative to the folder."""
    claims = [claim for section in sections for claim in section.claims]
    style, script = _file("page.css"), _file("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_fingerprint(style)}'; "
        f"script-src '{_fingerprint(script)}'; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"neada: {summary(claims)} ({request['scale']})"),
        raw_element("style", style),
    )
    body = element(
        "body",
        element(
            "main",
            element("h1", "Reproducing the paper"),
            element("p", f"{summary(claims)}.", class_="message"),
            _scale(request),
            _failing(sections),
            _cards(sections),
            _filter(sections),
            *(_section(out, section) for section in sections),
        ),
        raw_element("script", script),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _file(name: str) -> str:
    return resources.files("reproduction.report").joinpath(name).read_text(encoding="utf-8")


def _fingerprint(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _scale(request: dict[str, Any]) -> Markup:
    seeds = ", ".join(map(str, request["seeds"])) if request["seeds"] else None
    chosen = {"as seeds": seeds, "gradient calls per run": request["max_calls"]}
    others = [f"{number} {what}" for what, number in chosen.items() if number is not None]
    instead = f" Here with {' and '.join(others)} instead of the scale's." if others else ""
    return element(
        "p",
        element("strong", f"Scale {request['scale']}"),
        f": {SCALE_WORDS[request['scale']]}{instead} A claim that fails is a result: the "
        "measurement does not support the sentence.",
    )


def _failing(sections: Sequence[Section]) -> Markup | None:
    failing = [
        (s, f) for s in sections if (f := [c for c in s.claims if c.result == "not supported"])
    ]
    if not failing:
        return None
    num = sum(len(claims) for _, claims in failing)
    counts, parts = [], []
    for section, claims in failing:
        link = _anchor(section.name)
        counts.append(join([element("a", section.name, href=link), f" {len(claims)}"]))
        title = element("a", section.title, href=link)
        parts.append(element("h3", title, f" · {len(claims)} of {len(section.claims)}"))
        by_reason: dict[str, list[Claim]] = {}
        for claim in claims:
            by_reason.setdefault(section.known(claim), []).append(claim)
        for known, group in by_reason.items():
            reason = [element("strong", "What is known: "), known] if known else [_UNKNOWN]
            parts += [element("p", *reason, class_="known"), _claims_table(group)]
    heading = element("h2", "The claim that fails" if num == 1 else f"The {num} claims that fail")
    return element("section", heading, element("p", join(counts, " · ")), *parts, id="failing")


def _cards(sections: Sequence[Section]) -> Markup:
    cards = []
    for section in sections:
        image = section.thumbnail and element(
            "img", alt="", src=_data("image/png", section.thumbnail)
        )
        words = [element("strong", section.name), section.share]
        where = element("span", section.where, class_="soft")
        cards.append(element("li", element("a", image, *words, where, href=_anchor(section.name))))
    return element(
        "section",
        element("h2", "The experiments"),
        element("ul", *cards, class_="cards"),
        id="experiments",
    )


def _filter(sections: Sequence[Section]) -> Markup:
    """The search; it is of use with the script only, which shows it."""
    verdicts = [element("option", verdict, value=verdict) for verdict in _VERDICTS]
    names = [element("option", section.name, value=section.name) for section in sections]
    fields = {
        "Words": element("input", type="search", name="words", autocomplete="off"),
        "Verdict": element("select", element("option", "all", value=""), *verdicts, name="verdict"),
        "Experiment": element(
            "select", element("option", "all", value=""), *names, name="experiment"
        ),
    }
    labels = [element("label", name, field) for name, field in fields.items()]
    button = element("button", "Clear", type="reset")
    return join(
        [
            element("form", *labels, button, id="filter", role="search", hidden=True),
            element("p", id="shown", class_="soft", role="status", aria_live="polite", hidden=True),
        ]
    )


def _section(out: Path, section: Section) -> Markup:
    folded = []
    for verdict, (sign, word) in _VERDICTS.items():
        claims = [claim for claim in section.claims if claim.result == verdict]
        if claims:
            words = element(
                "summary", f"{sign} {len(claims)} {word}", class_=f"verdict {_class(verdict)}"
            )
            table = _claims_table(claims, in_full=True)
            is_open = verdict == "not supported"
            folded.append(element("details", words, table, class_="claims", open=is_open))
    figure = section.figure and element(
        "img",
        alt=f"Figure of {section.name}: {section.title}",
        src=_data("image/svg+xml", section.figure.read_bytes()),
    )
    seconds = sum(line.seconds for line in section.runs)
    facts = f" · {section.share} · {len(section.runs)} runs, {seconds:.1f} s"
    missing = "; ".join(f"{label} ({why})" for label, why in section.missing)
    return element(
        "section",
        element("h2", section.title),
        element(
            "p",
            f"{section.where} · ",
            element("code", f"python -m reproduction {section.name}"),
            facts,
            class_="soft",
        ),
        figure,
        element("p", element("strong", "What the paper says: "), section.paper),
        *folded,
        missing and element("p", element("strong", "Runs that are not there: "), missing),
        element(
            "details",
            element("summary", "How it is tried here; settings, times, raw numbers, environment"),
            *(element("p", text) for text in section.about.split("\n\n")),
            _runs_table(out, section.runs),
            element("p", _environment_line(section.environment), class_="soft"),
            class_="settings",
        ),
        id=section.name,
        class_="experiment",
        data_words=f"{section.name} {section.title}",
    )  # fmt: skip


def _claims_table(claims: Sequence[Claim], in_full: bool = False) -> Markup:
    """Claims with their numbers; those in full are searched, and links lead to them."""
    rows = []
    for claim in claims:
        name = element("code", claim.id)
        if not in_full:
            name = element("a", name, href=_anchor(claim.id))
        remarks = [text for text in (claim.note, claim.untested) if text]
        note = f" · {'; '.join(remarks)}" if remarks else None
        attributes = {"id": claim.id, "data_verdict": claim.result} if in_full else {}
        rows.append(
            element(
                "tr",
                element("td", claim.sentence, element("div", name, note, class_="soft")),
                element("td", measured_text(claim), class_="number", data_name="measured"),
                element("td", claim.expectation, class_="short", data_name="expected"),
                element("td", claim.seeds, class_="number", data_name="seeds"),
                element("td", claim.where, class_="short", data_name="where"),
                **attributes,
            )
        )
    return _table(
        {"claim": "", "measured": "number", "expected": "", "seeds": "number", "where": ""}, rows
    )


def _runs_table(out: Path, runs: Sequence[RunLine]) -> Markup:
    rows = []
    for line in runs:
        raw = quote((line.folder / "metrics.jsonl").relative_to(out).as_posix())
        rows.append(
            element(
                "tr",
                element("td", line.label),
                element("td", element("code", json.dumps(line.config, default=str))),
                element("td", f"{line.seconds:.1f}", class_="number", data_name="seconds"),
                element("td", element("a", "metrics.jsonl", href=raw)),
            )
        )
    return _table({"run": "", "settings": "", "seconds": "number", "raw": ""}, rows)


def _table(columns: dict[str, str], rows: Sequence[Markup]) -> Markup:
    """A table; the columns have a class each."""
    cells = [
        element("th", name, scope="col", class_=kind or None) for name, kind in columns.items()
    ]
    return element("table", element("thead", element("tr", *cells)), element("tbody", *rows))


def _environment_line(environment: dict[str, Any]) -> str:
    if not environment:
        return ""
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    return (
        f"Python {environment['python']}, {packages}; {environment['system']}, "
        f"{environment.get('cores')} cores, {environment['threads']} thread(s) per run"
    )


def _anchor(name: str) -> str:
    return f"#{quote(name)}"


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
