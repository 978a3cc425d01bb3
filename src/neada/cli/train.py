"""`neada train`."""

import argparse
import dataclasses
import json
import os
import re
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import neada
from neada import tables
from neada.cli.arguments import (
    DOWNLOAD,
    Parser,
    UsageError,
    add_flag,
    add_output_options,
    complain,
    in_flags,
    output_folder,
    plain_warnings,
    rank_of_launch,
    read_path,
    refusals,
    was_restarted,
)
from neada.runs import encode
from neada.training.config import GROUPS, ON_RESUME, Option, TrainConfig, options_of

if TYPE_CHECKING:
    from neada.training import TrainResult

__all__ = ["accuracy_table", "add_train"]

_DESCRIPTION = """\
Train a network that stays right when its inputs get worse.

The adversary perturbs the inputs at a price (wrm), within a distance (adversarial, trades), or
shifts the mixture of groups (group). With the method neada a rule that tightens with time decides
about the number of inner steps. The run is a folder: metrics, checkpoints, everything needed to go
on."""
_EXAMPLES = """\
examples:
  neada train                                           digits, in less than a minute
  neada train --data synthetic --lr-x 0.01 --lr-y 0.08 --max-calls 7900 --out runs/synthetic
  neada train --data mnist --data-folder ~/mnist --method gdmax --eval-samples 1000
  neada train --objective adversarial --eps 0.1 --attack pgd
  neada train --device cuda:1 --precision bf16 --compile
  neada train --out runs/synthetic --resume             go on with a run that was interrupted
  neada train --out runs/synthetic --resume --max-calls 20000           or to another length
  torchrun --nproc-per-node 4 -m neada train            on several ranks, see docs/scaling.md

exit codes:
  0 trained, 1 the loss is not finite or the disk is full, 2 wrong usage, 130 interrupted"""


def add_train(parser: Parser) -> None:
    """Fill the command `train`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    for group in GROUPS:
        section = parser.add_argument_group(str(group.__doc__).rstrip(".").lower())
        for option in options_of(group):
            # What is not given is the config's own, or that of the run to go on with.
            add_flag(section, option, or_none=True)
    run = parser.add_argument_group("the run")
    out = partial(read_path, "--out")
    run.add_argument("--out", type=out, metavar="DIR", help="the folder (default: under runs/)")
    run.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    run.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    run.add_argument("--tensorboard", action="store_true", help="metrics for TensorBoard too")
    add_flag(run, DOWNLOAD)
    add_flag(run, Option("checkpoint_seconds", "the longest time between checkpoints", 60.0, float))
    add_output_options(parser)
    parser.set_defaults(command=_train)


def _train(args: argparse.Namespace) -> int:
    if args.resume and args.overwrite:
        raise UsageError(
            "--resume goes on with a run and --overwrite replaces it: give one of them"
        )
    config, out = _config_and_folder(args)
    is_first = rank_of_launch() == 0
    if was_restarted() and is_first and _was_begun_by_this_launch(out):
        # After a failure torchrun starts the same command again.
        args.out, args.resume, args.overwrite = out, True, False
        config, out = _config_and_folder(args)
    if args.resume and is_first and not neada.runs.RunFolder(out).exists():
        complain(f"{out} holds no run to resume: one begins there")
    status = neada.training.TrainStatus
    quiet = args.quiet or args.json or not is_first
    with plain_warnings(), refusals(vars(args)):
        try:
            result = neada.training.train(
                config,
                out,
                resume=args.resume,
                overwrite=args.overwrite,
                progress=not quiet,
                checkpoint_seconds=args.checkpoint_seconds,
                tensorboard=args.tensorboard,
                download=args.download,
            )
        except FileExistsError:
            raise UsageError(
                f"{out} holds a run already: --resume goes on with it, --overwrite replaces it, "
                "--out is for another folder"
            ) from None
    if is_first:
        _show(args, config, result)
    if is_first and result.status is not status.FINISHED:
        complain(in_flags(result.message, vars(args)))
    return {status.FINISHED: 0, status.NON_FINITE: 1}.get(result.status, 130)


def _config_and_folder(args: argparse.Namespace) -> tuple[TrainConfig, Path]:
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    given = {name: v for name, v in vars(args).items() if name in names and v is not None}
    for name in ("data", "data_folder"):
        # The run can be opened from any folder.
        if name in given and given[name] not in tables.DATA:
            given[name] = os.path.abspath(os.path.expanduser(given[name]))
    resumes = args.resume and rank_of_launch() == 0  # the other ranks take what this one reads
    if resumes and args.out is not None and (args.out / "config.json").exists():
        out = output_folder(args.out)
        return _known_config(out, given), out
    with refusals(names):
        config = TrainConfig(**given)
    name = re.sub(r"[^\w.]+", "-", config.label)
    out = output_folder(args.out or Path("runs") / "train" / name)
    if resumes and (out / "config.json").exists():
        return _known_config(out, given), out
    return config, out


def _was_begun_by_this_launch(folder: Path) -> bool:
    try:
        known = neada.runs.RunFolder(folder).environment()
    except (OSError, ValueError):
        return False
    launch = neada.runs.launched_by()
    return launch is not None and known.get("launch") == launch


def _known_config(folder: Path, given: dict[str, Any]) -> TrainConfig:
    """The config of a run to go on with; what was given must agree, unless it may differ."""
    try:
        config = TrainConfig.from_dict(neada.runs.RunFolder(folder).config())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{folder} holds no training run: {error}") from None
    changed = {name: given.pop(name) for name in ON_RESUME if name in given}
    for name, value in given.items():
        known = getattr(config, name)
        if known != value:
            before = "without it" if known in (None, False) else f"with {_as_typed(name, known)}"
            raise UsageError(
                f"{_as_typed(name, value)} is given, but the run in {folder} was started {before}: "
                "leave it out, or start a new run"
            )
    return dataclasses.replace(config, **changed)


def _as_typed(name: str, value: Any) -> str:
    """The flag that gives an option this value.

    Example:
        >>> _as_typed("eval_eps", (0.1, 0.2)), _as_typed("per_sample", False)
        ('--eval-eps 0.1,0.2', '--no-per-sample')
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, tuple):
        value = ",".join(f"{number:g}" for number in value)
    return f"--{flag} {shlex.quote(str(value))}"


def _show(args: argparse.Namespace, config: TrainConfig, result: "TrainResult") -> None:
    if args.json:
        facts = {
            "status": result.status.name,
            "message": result.message,
            "calls": result.calls,
            "x_steps": result.x_steps,
            "seconds": round(result.seconds, 3),
            "accuracies": result.accuracies,
            "folder": str(result.folder),
            "config": dataclasses.asdict(config),
        }
        print(json.dumps(encode(facts), indent=2))
        return
    if result.accuracies:
        print(accuracy_table(config.attack, result.accuracies))
        print()
    losses = [row["loss"] for row in result.rows if "loss" in row]
    loss = f", loss {losses[-1]:.4g}" if losses else ""
    name = Path(config.data).stem
    print(f"{name} by {config.method_label}: {result.x_steps} steps of the model, ", end="")
    print(f"{result.calls} gradient calls, {result.seconds:.0f} s{loss}")
    print(f"run: {result.folder}")
    if not args.quiet:
        for label, following in zip(
            ("next:", "     "), _next_commands(config, result), strict=False
        ):
            print(f"{label} {following}")


def _next_commands(config: TrainConfig, result: "TrainResult") -> list[str]:
    """What to do with the run now, to be copied into a shell; nothing for one that broke."""
    folder, status = shlex.quote(str(result.folder)), neada.training.TrainStatus
    if result.status is status.NON_FINITE:
        return []
    attack = f"neada attack {folder}"
    if result.status is not status.FINISHED:
        return [f"neada train --out {folder} --resume", attack]
    return [attack, f"{attack} --attack ensemble"]


def accuracy_table(attack: str, accuracies: dict[str, float]) -> str:
    """Accuracies in per cent, one line per part of the data.

    Example:
        >>> print(accuracy_table("fgsm", {"test_clean": 0.981, "test_0.05": 0.9}))
        accuracy  clean  fgsm 0.05
        test       98.1       90.0
    """
    rows: dict[str, dict[str, float]] = {}
    for name, share in accuracies.items():
        part, column = next(
            (p, name.removeprefix(f"{p}_")) for p in ("held_out", "test") if name.startswith(p)
        )
        words = column.replace("_", " ")
        title = f"{attack} {words}" if column[0].isdigit() else words
        rows.setdefault(part.replace("_", "-"), {})[title] = share
    titles = list(next(iter(rows.values())))
    width = max(8, *map(len, rows))
    lines = ["  ".join([f"{'accuracy':{width}}", *titles])]
    for part, shares in rows.items():
        cells = [f"{100.0 * shares[title]:{max(len(title), 5)}.1f}" for title in titles]
        lines.append("  ".join([f"{part:{width}}", *cells]))
    return "\n".join(lines)
