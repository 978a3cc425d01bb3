"""The command line: run experiments, check the claims, write the report."""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from reproduction import report
from reproduction.experiment import EXPERIMENTS, SCALE_WORDS, SCALES, make
from reproduction.runner import Outcome, reproduce

_LOG_SECONDS = 30.0
_LAYOUT = "{desc:22} {percentage:3.0f}%|{bar}| {elapsed} < {remaining}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 success, 1 a run failed, 2 bad usage, 130 interrupted.
    """
    os.environ["MPLBACKEND"] = "agg"
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
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, or all (default)")
    parser.add_argument("--scale", choices=SCALES, default="quick")
    parser.add_argument(
        "--seeds", type=_seeds, metavar="N | A,B,...", help="number of seeds, or the seeds"
    )
    parser.add_argument(
        "--max-calls",
        type=_positive,
        metavar="N",
        help="gradient evaluations per run (synthetic-dro, mnist-dro, no-learning-rate)",
    )
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--out", type=Path, help="folder (default: runs/SCALE)")
    parser.add_argument("--overwrite", action="store_true", help="run finished runs again")
    parser.add_argument(
        "--report-only", action="store_true", help="check and draw the runs in --out again"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with code 1 unless every claim is supported"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
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
    if "," not in text:
        return list(range(_positive(text)))
    found = [int(part) for part in text.split(",") if part]
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ValueError(text)
    return found


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """Show a bar on a terminal, and elsewhere a line every 30 seconds."""
    started = last = time.monotonic()
    with tqdm(total=1.0, bar_format=_LAYOUT, disable=True if quiet else None) as bar:

        def show(part: float, name: str) -> None:
            nonlocal last
            bar.set_description_str(name, refresh=False)
            bar.update(part - bar.n)
            now = time.monotonic()
            if not quiet and not sys.stderr.isatty() and now - last >= _LOG_SECONDS:
                last = now
                print(f"{now - started:.0f} s, {part:.0%} done, {name}", file=sys.stderr)

        yield show


def _run(options: argparse.Namespace) -> int:
    everything = not options.names or "all" in options.names
    chosen = EXPERIMENTS if everything else tuple(dict.fromkeys(options.names))
    folder = Path(f"runs/{options.scale}") if options.out is None else options.out.expanduser()
    outcome = Outcome(0, 0, (), ())
    started = time.perf_counter()
    if not options.report_only:
        with _progress(options.quiet) as show:
            outcome = reproduce(
                chosen,
                options.scale,
                folder,
                seeds=options.seeds,
                max_calls=options.max_calls,
                jobs=options.jobs,
                overwrite=options.overwrite,
                report=show,
            )
    for redone, why in outcome.redone:
        print(f"reproduction: {redone} was run again: {why}", file=sys.stderr)
    by_error: dict[str, list[str]] = {}
    for title, error in outcome.broken:
        by_error.setdefault(error, []).append(title)
    for error, titles in by_error.items():
        others = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        print(f"reproduction: {titles[0]}{others} failed: {error}", file=sys.stderr)
    sections = report.write(folder)
    print(report.result_table(sections))
    print(f"\nreport: {folder / 'report.html'}")
    for section in sections:
        if section.figure is not None:
            print(f"figure: {section.figure.with_suffix('.png')}")
    kept = f", {outcome.num_kept} kept" if outcome.num_kept else ""
    print(f"runs:   {outcome.num_run} run{kept}, {time.perf_counter() - started:.0f} s")
    unsupported = any(c.result != "supported" for section in sections for c in section.claims)
    return 1 if outcome.broken or (options.strict and unsupported) else 0


if __name__ == "__main__":
    sys.exit(main())
