"""`neada reproduce` and `neada report`."""

import argparse
import json
import os
import textwrap
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import neada
from neada import tables
from neada.cli.arguments import (
    Parser,
    UsageError,
    add_flag,
    add_output_options,
    check_choice,
    complain,
    in_flags,
    output_folder,
    read_path,
    refusals,
)
from neada.progress import progress_bar
from neada.runs import encode
from neada.training.config import Option

__all__ = ["add_report", "add_reproduce"]

_REPRODUCE = """\
Run the experiments of the paper, judge its claims, draw its figures.

Runs that are in the folder already, whole and with the same settings, are not run again; an
interrupted reproduction goes on where it was. The verdicts are printed and written to
claims.json, the figures (PNG, SVG) and report.html stand beside them."""
_REPRODUCE_EXAMPLES = """\
experiments:
{names}

examples:
  neada reproduce                              everything, in about two minutes
  neada reproduce quadratic mccormick          two of them
  neada reproduce all --scale standard         minutes to an hour; see the documentation
  neada reproduce mccormick --seeds 30 --jobs 2 --out runs/seeds
  neada reproduce mnist-dro --scale standard --max-calls 7820 --out runs/longer

exit codes:
  0 everything ran (the verdicts are in the table), 1 a run broke or, with --strict, a claim
  fails or was not run, 2 wrong usage, 130 interrupted"""


def add_reproduce(parser: Parser) -> None:
    """Fill the command `reproduce`."""
    listed = textwrap.fill(", ".join(tables.EXPERIMENTS), 90, break_on_hyphens=False)
    parser.description = _REPRODUCE
    parser.epilog = _REPRODUCE_EXAMPLES.format(names=textwrap.indent(listed, "  "))
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, or `all` (default)")
    for option in (
        Option(
            "scale",
            "quick: seconds each; standard: minutes; paper: the paper's numbers of calls",
            "quick",
            str,
            choices=tables.SCALES,
        ),
        Option("seeds", "seeds where there is randomness", None, int),
        Option(
            "max_calls",
            "gradient calls per run, for synthetic-dro, mnist-dro and no-learning-rate (default: "
            "the scale's)",
            None,
            int,
        ),
        Option("jobs", "processes; by default one per core", min(os.cpu_count() or 1, 1024), int),
    ):
        add_flag(parser, option)
    out = partial(read_path, "--out")
    parser.add_argument("--out", type=out, help="the folder (default: runs/SCALE)", metavar="DIR")
    parser.add_argument("--overwrite", action="store_true", help="run also what is there already")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every claim holds")
    add_output_options(parser)
    parser.set_defaults(command=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    everything = list(tables.EXPERIMENTS)
    for name in args.names:
        check_choice("NAME", name, [*everything, "all"])
    wanted = set(args.names or ["all"])
    names = everything if "all" in wanted else [name for name in everything if name in wanted]
    with refusals(vars(args)):
        for name in names:
            neada.experiments.configs(name, args.scale, args.seeds, args.max_calls)
    out = output_folder(args.out or Path("runs") / args.scale)
    started = time.perf_counter()
    with progress_bar(not (args.quiet or args.json)) as show, refusals(vars(args)):
        outcome = neada.experiments.reproduce(
            names,
            args.scale,
            out,
            seeds=args.seeds,
            max_calls=args.max_calls,
            jobs=args.jobs,
            overwrite=args.overwrite,
            report=show,
        )
    for folder, why in outcome.redone:
        complain(f"{folder} was run again: {why}")
    for error, titles in _by_error(outcome.broken).items():
        others = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        sentence = in_flags(error, vars(args))
        complain(f"{titles[0]}{others} broke: {sentence}")
    claims_failed = _show_report(out, args.json)
    if not (args.json or args.quiet):
        seconds = time.perf_counter() - started
        kept = f", {outcome.num_kept} kept" if outcome.num_kept else ""
        print(f"runs:   {outcome.num_run} run{kept}, {seconds:.0f} s")
    return 1 if outcome.broken or (args.strict and claims_failed) else 0


def _by_error(broken: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """What broke, by why: data that are missing are missing for every run."""
    found: dict[str, list[str]] = {}
    for title, error in broken:
        found.setdefault(error, []).append(title)
    return found


def add_report(parser: Parser) -> None:
    """Fill the command `report`."""
    parser.description = (
        "Judge the claims and draw the figures of a folder again, from its runs alone."
    )
    parser.epilog = "example:\n  neada report runs/quick"
    folder = partial(read_path, "DIR")
    parser.add_argument("folder", type=folder, metavar="DIR", help="what --out of reproduce was")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every claim holds")
    add_output_options(parser)
    parser.set_defaults(command=_report)


def _report(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise UsageError(f"{args.folder} is no folder: give the one that `reproduce --out` filled")
    with refusals():
        if neada.experiments.last_request(args.folder) is None:
            raise UsageError(
                f"{args.folder} holds no reproduction: give a folder that `neada reproduce` filled"
            )
    failed = _show_report(output_folder(args.folder), args.json)
    return 1 if args.strict and failed else 0


def _show_report(out: Path, as_json: bool) -> bool:
    """Write the report and show the verdicts; returns whether any claim does not hold."""
    with refusals():
        request, sections = neada.report.write(out)
    if as_json:
        print(json.dumps(encode(neada.report.as_data(request, sections)), indent=2))
    else:
        print(neada.report.verdict_table(sections))
        print(f"\nreport: {out / 'report.html'}")
        for section in sections:
            if section.figure is not None:
                print(f"figure: {section.figure.with_suffix('.png')}")
    return any(claim.verdict != "holds" for section in sections for claim in section.claims)
