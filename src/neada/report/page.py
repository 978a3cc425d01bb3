"""One HTML file that needs nothing else: no network, no script, no style sheet."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neada.experiments import Claim
from neada.report.content import RunLine, Section, measured_text, summary

__all__ = ["page"]

_STYLE = """
:root { --ink: #1c1c1c; --soft: #5a5a5a; --line: #d9d9d9; --paper: #fff; --band: #f5f5f2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .25rem; }
p, .soft { margin: .4rem 0; } .soft { color: var(--soft); font-size: .9rem; }
a { color: #0b57a4; } img { width: 100%; height: auto; border: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .75rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .5rem; }
tr { border-bottom: 1px solid var(--line); } thead tr { border-bottom: 2px solid var(--ink); }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; white-space: nowrap; }
.holds { color: #00684a; } .fails { color: #b3261e; } .not-run { color: #6b6b6b; }
details { margin: .75rem 0; } summary { cursor: pointer; }
code { font-size: .85em; overflow-wrap: anywhere; } td.settings { min-width: 14rem; }
nav a { margin-right: .9rem; white-space: nowrap; display: inline-block; padding: .15rem 0; }
@media (max-width: 42rem) {
  body { padding: .7rem; }
  thead { display: none; }
  tbody tr { display: block; padding: .5rem 0; }
  td, td.number { display: block; text-align: left; padding: .1rem 0; white-space: normal; }
  td.number, td.short { display: inline-block; margin-right: 1rem; }
  td[data-name]::before { content: attr(data-name) ": "; color: var(--soft); }
}
@media print {
  body { max-width: none; font-size: 10pt; } nav { display: none; }
  h2 { break-after: avoid; } img, tr { break-inside: avoid; } a { color: inherit; }
  details > * { display: none; }
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e6; --soft: #a9a9a5; --line: #3c3c3a; --paper: #161615; --band: #20201e; }
  a { color: #8ab8f0; } img { background: #fff; }
  .holds { color: #5fcf9f; } .fails { color: #ff8a80; } .not-run { color: #a0a0a0; }
}
"""
_MARKS = {"holds": "✓ holds", "fails": "✗ fails", "not run": "○ not run"}


def page(out: Path, request: dict[str, Any], sections: Sequence[Section]) -> str:
    """The report as one HTML page; raw files are linked relative to the folder."""
    claims = [claim for section in sections for claim in section.claims]
    settings = {"seeds": request["seeds"], "gradient calls per run": request["max_calls"]}
    chosen = "".join(f", {n} {what}" for what, n in settings.items() if n is not None)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>neada: the paper judged ({_safe(request['scale'])})</title>",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>neada: the paper judged</h1>",
        f"<p><strong>{_safe(summary(claims))}</strong> at scale {_safe(request['scale'])}{chosen}. "
        "A claim that fails is a result: the measurement does not support the sentence.</p>",
        "<nav>",
        *(_link(section) for section in sections),
        "</nav>",
        _claims_table(claims, in_full=False),
        *(_section(out, section) for section in sections),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _link(section: Section) -> str:
    num_hold = sum(claim.verdict == "holds" for claim in section.claims)
    words = f"{section.name} {num_hold}/{len(section.claims)}"
    return f'<a href="#{_safe(section.name)}">{_safe(words)}</a>'


def _claims_table(claims: Sequence[Claim], in_full: bool = True) -> str:
    rows = [
        "<tr>"
        f'<td class="verdict {c.verdict.replace(" ", "-")}">{_MARKS[c.verdict]}</td>'
        f"<td>{_safe(c.sentence)}{_small_print(c) if in_full else ''}</td>"
        f'<td class="number" data-name="measured">{_safe(measured_text(c))}</td>'
        f'<td class="short" data-name="expected">{_safe(c.expectation)}</td>'
        f'<td class="number" data-name="seeds">{c.seeds}</td>'
        f'<td class="short" data-name="where">{_safe(c.where)}</td>'
        "</tr>"
        for c in claims
    ]
    head = "".join(
        f"<th>{word}</th>"
        for word in ("verdict", "claim", "measured", "expected", "seeds", "where")
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _small_print(claim: Claim) -> str:
    note = f" · {_safe(claim.note)}" if claim.note else ""
    return f"<div class=soft><code>{_safe(claim.id)}</code>{note}</div>"


def _section(out: Path, section: Section) -> str:
    seconds = sum(line.seconds for line in section.runs)
    parts = [
        f'<h2 id="{_safe(section.name)}">{_safe(section.title)}</h2>',
        f'<p class="soft">{_safe(section.where)} · <code>neada reproduce '
        f"{_safe(section.name)}</code> · {len(section.runs)} runs, {seconds:.1f} s</p>",
        f"<p>{_safe(section.about)}</p>",
    ]
    if section.figure is not None:
        image = base64.b64encode(section.figure.read_bytes()).decode()
        parts.append(
            f'<img alt="Figure of {_safe(section.name)}" src="data:image/svg+xml;base64,{image}">'
        )
    parts.append(_claims_table(section.claims))
    if section.missing:
        words = "; ".join(f"{label} ({why})" for label, why in section.missing)
        parts.append(f"<p><strong>Runs that are not there:</strong> {_safe(words)}</p>")
    parts.append(_runs_table(out, section.runs))
    parts.append(f'<p class="soft">{_safe(_environment_line(section.environment))}</p>')
    return "\n".join(parts)


def _runs_table(out: Path, runs: Sequence[RunLine]) -> str:
    rows = []
    for line in runs:
        link = (line.folder / "metrics.jsonl").relative_to(out).as_posix()
        settings = json.dumps(line.config, default=str)
        rows.append(
            f"<tr><td>{_safe(line.label)}</td>"
            f'<td class="settings"><code>{_safe(settings)}</code></td>'
            f'<td class="number" data-name="seconds">{line.seconds:.1f}</td>'
            f'<td><a href="{_safe(link)}">metrics.jsonl</a></td></tr>'
        )
    return (
        "<details><summary>Settings, times and raw numbers</summary><table><thead><tr>"
        "<th>run</th><th>settings</th><th>seconds</th><th>raw</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></details>"
    )


def _environment_line(environment: dict[str, Any]) -> str:
    if not environment:
        return ""
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    return (
        f"Python {environment['python']}, {packages}; {environment['system']}, "
        f"{environment['cores']} cores, {environment['threads']} thread(s) per run"
    )


def _safe(text: object) -> str:
    return html.escape(str(text))
