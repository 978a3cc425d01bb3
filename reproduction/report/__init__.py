"""Runs, verdicts and figures as one page, one table, or data."""

from pathlib import Path
from typing import Any

from neada.runs import atomic_write, write_json
from reproduction.report.content import Section, as_data, collect, summary, result_table
from reproduction.report.page import page

__all__ = ["Section", "as_data", "collect", "page", "summary", "result_table", "write"]


def write(out: Path) -> tuple[dict[str, Any], list[Section]]:
    """Judge and draw everything in a folder anew, and write `report.html` and `claims.json`.

    Returns:
        What was asked of the folder, and the sections of the report.

    Raises:
        ValueError: The folder is not one of `python -m reproduction`.
        ImportError: matplotlib is not installed.
    """
    request, sections = collect(out)
    with atomic_write(out / "report.html") as file:
        file.write(page(out, request, sections).encode())
    write_json(out / "claims.json", as_data(request, sections))
    return request, sections
