"""`neada reproduce` and `neada report`."""

import os
import time
from pathlib import Path

import neada
from neada import tables
from neada.cli.output import absolute_path, complain, print_json
from neada.progress import progress_bar

__all__ = ["report", "reproduce"]

_CORES = min(os.cpu_count() or 1, 1024)


def reproduce(
    names: tuple[str, ...] = (),
    /,
    *,
    scale: tables.Scale = "quick",
    seeds: int | None = None,
    max_calls: int | None = None,
    jobs: int = _CORES,
    out: str | None = None,
    overwrite: bool = False,
    strict: bool = False,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Run the paper's experiments and check its claims.

    Finished runs in the folder are kept, so that the same command resumes after an interruption.

    Args:
        names: Experiments, or all; empty: all.
        scale: Seconds, minutes or hours per experiment; paper has the paper's budgets.
        seeds: Number of seeds, if the experiment is random.
        max_calls: Gradient evaluations per run (synthetic-dro, mnist-dro, no-learning-rate).
        jobs: Processes.
        out: The folder; None: runs/SCALE.
        overwrite: Run finished runs again.
        strict: Exit with code 1 unless every claim is supported.
        json: Print JSON.
        quiet: Show no progress.
    """
    everything = not names or "all" in names
    known = [name for name in tables.EXPERIMENTS if everything or name in names]
    chosen = known + [name for name in names if name not in ("all", *tables.EXPERIMENTS)]
    folder = absolute_path("--out", f"runs/{scale}" if out is None else out)
    started = time.perf_counter()
    with progress_bar(not (quiet or json)) as show:
        outcome = neada.experiments.reproduce(
            chosen,
            scale,
            folder,
            seeds=seeds,
            max_calls=max_calls,
            jobs=jobs,
            overwrite=overwrite,
            report=show,
        )
    for redone, why in outcome.redone:
        complain(f"{redone} was run again: {why}")
    by_error: dict[str, list[str]] = {}
    for title, error in outcome.broken:
        by_error.setdefault(error, []).append(title)
    for error, titles in by_error.items():
        others = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        complain(f"{titles[0]}{others} failed: {error}")
    claims_failed = _show_report(folder, json)
    if not (json or quiet):
        kept = f", {outcome.num_kept} kept" if outcome.num_kept else ""
        print(f"runs:   {outcome.num_run} run{kept}, {time.perf_counter() - started:.0f} s")
    return 1 if outcome.broken or (strict and claims_failed) else 0


def report(folder: str, /, *, strict: bool = False, json: bool = False) -> int:
    """Check the claims and draw the figures of a reproduction again, without running anything.

    Args:
        folder: A folder of `neada reproduce`.
        strict: Exit with code 1 unless every claim is supported.
        json: Print JSON.
    """
    path = absolute_path("the folder", folder)
    if neada.experiments.last_request(path) is None:
        raise ValueError(f"{folder} has no reproduction: use a folder of `neada reproduce`")
    failed = _show_report(path, json)
    return 1 if strict and failed else 0


def _show_report(out: Path, json: bool) -> bool:
    """Write the report and print the claims; return whether any is not supported."""
    request, sections = neada.report.write(out)
    if json:
        print_json(neada.report.as_data(request, sections))
    else:
        print(neada.report.verdict_table(sections))
        print(f"\nreport: {out / 'report.html'}")
        for section in sections:
            if section.figure is not None:
                print(f"figure: {section.figure.with_suffix('.png')}")
    return any(claim.verdict != "holds" for section in sections for claim in section.claims)
