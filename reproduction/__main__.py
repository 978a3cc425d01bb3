"""The command line: run experiments, check the claims, write the report."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from reproduction import report
from reproduction.experiment import EXPERIMENTS, SCALE_WORDS, SCALES, make
from reproduction.runner import Outcome, reproduce


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 success, 1 a run failed, 2 bad usage, 130 interrupted.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(_parser().parse_args(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    except KeyboardInterrupt:
        print("reproduction: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    experiments = "\n".join(f"  {name:20} {make(name).TITLE}" for name in EXPERIMENTS)
    scales = "\n".join(f"  {name:20} {words}" for name, words in SCALE_WORDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Run the paper's experiments and check its claims. Finished runs in the folder "
        "are kept, so that the same command resumes after an interruption.",
        epilog=f"experiments:\n{experiments}\n\nscales:\n{scales}\n\n"
        "exit codes: 0 success, 1 a run failed, 2 bad usage, 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments, or all (default)")
    add("--scale", choices=SCALES, default="quick")
    add("--seeds", type=_seeds, metavar="N | A,B,...", help="number of seeds, or the seeds")
    add(
        "--max-calls",
        type=_positive,
        metavar="N",
        help="gradient evaluations per run, where it applies",
    )
    add("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes")
    add("--out", type=Path, help="folder (default: runs/SCALE)")
    add("--overwrite", action="store_true", help="run finished runs again")
    add("--report-only", action="store_true", help="check and draw the runs in --out again")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _seeds(text: str) -> list[int]:
    """Parse a number of seeds ("5") or the seeds ("3,5,8"; a single one is "3,").

    Example:
        >>> _seeds("3"), _seeds("3,5,8"), _seeds("3,")
        ([0, 1, 2], [3, 5, 8], [3])
    """
    parts = [int(part) for part in text.split(",") if part]
    found = parts if "," in text else list(range(*parts))
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ValueError(text)
    return found


def _run(options: argparse.Namespace) -> int:
    everything = not options.names or "all" in options.names
    chosen = EXPERIMENTS if everything else tuple(dict.fromkeys(options.names))
    folder = Path(f"runs/{options.scale}") if options.out is None else options.out.expanduser()
    outcome = Outcome(0, 0, ())
    started = time.perf_counter()
    if not options.report_only:
        outcome = reproduce(
            chosen,
            options.scale,
            folder,
            seeds=options.seeds,
            max_calls=options.max_calls,
            jobs=options.jobs,
            overwrite=options.overwrite,
        )
    for title, error in outcome.broken:
        print(f"reproduction: {title} failed: {error}", file=sys.stderr)
    sections = report.write(folder)
    print(report.result_table(sections))
    print(f"\nreport: {folder / 'report.html'}")
    for section in sections:
        if section.figure is not None:
            print(f"figure: {section.figure.with_suffix('.png')}")
    kept = f", {outcome.num_kept} kept" if outcome.num_kept else ""
    print(f"runs:   {outcome.num_run} run{kept}, {time.perf_counter() - started:.0f} s")
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
