"""The table of all kinds of trials; `python -m campaigns --help`."""

import argparse
import datetime
import importlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from campaigns import reproductions, trainings
from campaigns.trials import Tally

__all__ = ["KINDS", "main", "table"]

KINDS = {
    "kills": "SIGKILL and SIGTERM of `train` and `reproduce`, at file operations and at random",
    "corruption": "damage to one file of a run folder, then `--resume`, `attack`, `report`",
    "fuzz": "hostile IDX, npz, JSON and checkpoint files",
    "crowds": "several processes on one folder; full, read-only and slow disks",
}
"""Every kind is a module with ``run(tally, length, seed, scratch)``."""
_BEGIN, _END = "<!-- begin campaign -->\n", "<!-- end campaign -->\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run kinds of trials and print the table.

    Returns:
        0 if every trial passed, 1 otherwise.
    """
    parser = argparse.ArgumentParser(prog="campaigns", description=__doc__)
    parser.add_argument("--length", choices=("short", "full"), default="short")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=tuple(KINDS), action="append", help="a kind; repeatable")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table in")
    args = parser.parse_args(arguments)
    started = time.monotonic()
    tallies = []
    memory = Path("/dev/shm")  # where syncs cost nothing
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        trainings.warm(trainings.make_data(Path(folder)))
        reproductions.shorten()
        for kind in args.only or KINDS:
            scratch = Path(folder) / kind
            scratch.mkdir()
            tallies.append(_run(kind, args.length, args.seed, scratch))
    minutes = (time.monotonic() - started) / 60.0
    text = table(tallies)
    print(f"\n{text}\n{args.length}, seed {args.seed}, {minutes:.1f} minutes")
    if args.write is not None:
        _write(args.write, f"{_facts(args.length, args.seed, minutes)}\n\n{text}")
    return 1 if any(tally.failures for tally in tallies) else 0


def _run(kind: str, length: str, seed: int, scratch: Path) -> Tally:
    started = time.monotonic()
    tally = Tally(kind)
    importlib.import_module(f"campaigns.{kind}").run(tally, length, seed, scratch)
    seconds = time.monotonic() - started
    print(
        f"{kind}: {tally.num_tried} tried, {len(tally.failures)} failed, {seconds:.0f} s",
        flush=True,
    )
    return tally


def table(tallies: Sequence[Tally]) -> str:
    """Tried, passed and failed of every kind, as Markdown.

    Example:
        >>> print(table([Tally("kills", 3, ["one"])]).splitlines()[-1].split(" | ")[1:])
        ['3', '2', '1 |']
    """
    lines = ["| kind | tried | passed | failed |", "|---|---:|---:|---:|"]
    for tally in tallies:
        failed = len(tally.failures)
        numbers = f"{tally.num_tried:,} | {tally.num_tried - failed:,} | {failed:,}"
        lines.append(f"| {tally.kind.replace('_', ' ')}: {KINDS[tally.kind]} | {numbers} |")
    return "\n".join(lines) + "\n"


def _facts(length: str, seed: int, minutes: float) -> str:
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "../src"], capture_output=True, text=True, check=False
    ).stdout.strip()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    state = f"commit {commit or 'unknown'}" + (", with changes in `src`" if changed else "")
    return f"`make campaign LENGTH={length} SEED={seed}`, {date}, {state}, {minutes:.0f} minutes:"


def _write(page: Path, text: str) -> None:
    pattern = re.compile(f"{_BEGIN}.*{_END}", re.DOTALL)
    content, count = pattern.subn(
        lambda _: f"{_BEGIN}{text}{_END}", page.read_text(encoding="utf-8")
    )
    if count != 1:
        raise SystemExit(
            f"{page} has no place for the table: add the two lines {_BEGIN!r}, {_END!r}"
        )
    page.write_text(content, encoding="utf-8")
