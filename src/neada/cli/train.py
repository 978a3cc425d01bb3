"""`neada train`."""

import argparse
import contextlib
import dataclasses
import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neada import data, models
from neada.cli.arguments import (
    Commands,
    UsageError,
    add_output_options,
    check_choice,
    natural,
    numbers,
    output_folder,
    positive,
    progress_bar,
)
from neada.cli.data import add_data_options
from neada.files import encode
from neada.runs import Run
from neada.training import Progress, TrainConfig, TrainResult, TrainStatus, train

__all__ = ["accuracy_table", "add_train", "plain_warnings"]

_DESCRIPTION = """\
Train a network that stays right when its inputs get worse.

The adversary perturbs the inputs at a price (wrm), within a distance (ball), or shifts the mixture
of groups (group). With the methods neada-X nobody chooses how long it may think: a rule that
tightens with time does. The run is a folder: metrics, checkpoints, everything needed to go on."""
_EXAMPLES = """\
methods:
  neada-adam, neada-amsgrad, neada-sgd, neada-adagrad   the rule decides about the inner steps
  adam-15, sgd-5, ...                                   so many inner steps with every batch
  tiada                                                 both players once with every batch

examples:
  neada train                                           digits, in less than a minute
  neada train --data synthetic --lr-x 0.01 --lr-y 0.08 --budget 7900 --out runs/synthetic
  neada train --data mnist --data-folder ~/mnist --method adam-15 --eval-samples 1000
  neada train --objective ball --radius 0.1 --attack pgd
  neada train --out runs/synthetic --resume             go on with a run that was interrupted

exit codes:
  0 trained, 1 the loss is not finite or the disk is full, 2 wrong usage, 130 interrupted"""


def add_train(commands: Commands) -> None:
    """Add the command `train`."""
    parser = commands.add_parser(
        "train",
        help="train a network robustly",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    # No defaults here: what is not given is the config's own, or that of the run to go on with.
    task = parser.add_argument_group("what is trained")
    task.add_argument("--data", metavar="NAME", help="see `neada data` (default: digits)")
    task.add_argument("--model", metavar="NAME", help=f"{', '.join(models.names())} (by the data)")
    task.add_argument("--objective", choices=("wrm", "ball", "group"), help="(default: wrm)")
    task.add_argument("--method", metavar="NAME", help="see below (default: neada-adam)")
    add_data_options(task)  # type: ignore[arg-type]
    rates = parser.add_argument_group("the players")
    parser.add_argument(
        "--adjustment",
        type=positive("--adjustment", or_zero=True),
        metavar="X",
        help="group: constant of the size adjustment (default: 0)",
    )
    for option, words in _POSITIVE.items():
        rates.add_argument(option, type=positive(option), metavar="X", help=words)
    rates.add_argument("--ball-norm", choices=("l2", "linf", "l1"), help="(default: linf)")
    rates.add_argument("--regularizer", choices=("kl", "chi2", "none"), help="group (default: kl)")
    rates.add_argument("--stop", choices=("library", "released"), help="the rule of neada-X")
    rates.add_argument("--norm", choices=("frozen", "batch"), help="batch norm in the inner loop")
    rates.add_argument("--dropout", choices=("off", "on"), help="in the inner loop")
    rates.add_argument(
        "--warm-start",
        choices=("none", "memory", "disk"),
        help="where perturbations persist between epochs (default: none)",
    )
    for option, words in _SWITCHES.items():
        rates.add_argument(option, action="store_true", default=None, help=words)
    length = parser.add_argument_group("how long, and what is measured")
    for option, words in _NATURAL.items():
        length.add_argument(option, type=natural(option), metavar="N", help=words)
    length.add_argument(
        "--eval-eps",
        type=numbers("--eval-eps"),
        metavar="X,X",
        help="sizes of the attacks (default: 0.02,0.05,0.1)",
    )
    length.add_argument("--attack", choices=("fgsm", "pgd"), help="(default: fgsm)")
    length.add_argument("--eval-norm", choices=("linf", "l2"), help="(default: linf)")
    length.add_argument(
        "--no-clip",
        dest="eval_clip",
        action="store_false",
        default=None,
        help="attacks may leave the valid range",
    )
    length.add_argument("--seed", type=int, metavar="N", help="(default: 0)")
    run = parser.add_argument_group("the run")
    run.add_argument("--out", type=Path, metavar="DIR", help="the folder (default: under runs/)")
    run.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    run.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    run.add_argument("--tensorboard", action="store_true", help="metrics for TensorBoard too")
    run.add_argument(
        "--checkpoint-seconds",
        type=positive("--checkpoint-seconds"),
        default=60.0,
        metavar="X",
        help="the longest time between checkpoints (default: 60)",
    )
    add_output_options(parser)
    parser.set_defaults(command=_train)


_POSITIVE = {
    "--lr-x": "learning rate of the model",
    "--lr-y": "learning rate of the adversary",
    "--gamma": "wrm: price per squared distance (default: 1.3)",
    "--radius": "ball: its radius (default: 0.1)",
    "--strength": "group: of the regularizer (default: 1)",
    "--stop-scale": "constant of the rule (default: 1)",
}
_SWITCHES = {
    "--random-start": "ball: start at random in it",
    "--per-sample": "stop every sample by its own gradient",
}
_NATURAL = {
    "--batch-size": "samples per batch (default: 128)",
    "--budget": "gradient calls of both players (default: 1000 without --epochs)",
    "--epochs": "passes over the data",
    "--eval-every": "gradient calls between evaluations (default: ten in all)",
    "--log-every": "gradient calls between rows (default: a hundred in all)",
    "--eval-samples": "evaluate in between on so many samples only",
    "--threads": "threads of torch",
}


def _train(args: argparse.Namespace) -> int:
    if args.resume and args.overwrite:
        raise UsageError(
            "--resume goes on with a run and --overwrite replaces it: give one of them"
        )
    config, out = _config_and_folder(args)
    if args.resume and not (out / "config.json").exists():
        sys.stderr.write(f"neada: {out} holds no run to resume: one begins there\n")
    with plain_warnings(), progress_bar(args.quiet or args.json) as show:
        try:
            result = train(
                config,
                out,
                resume=args.resume,
                overwrite=args.overwrite,
                progress=lambda at: show(at.part, _words(at)),
                checkpoint_seconds=args.checkpoint_seconds,
                tensorboard=args.tensorboard,
            )
            if result.status is TrainStatus.FINISHED:
                show(1.0, "done")
        except FileExistsError:
            raise UsageError(
                f"{out} holds a run already: --resume goes on with it, --overwrite replaces it, "
                "--out is for another folder"
            ) from None
        except ValueError as error:
            raise UsageError(str(error)) from error
    _show(args, config, result)
    if result.status is not TrainStatus.FINISHED:
        sys.stderr.write(f"neada: {result.message}\n")
    return {TrainStatus.FINISHED: 0, TrainStatus.NON_FINITE: 1}.get(result.status, 130)


def _config_and_folder(args: argparse.Namespace) -> tuple[TrainConfig, Path]:
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    given = {name: v for name, v in vars(args).items() if name in names and v is not None}
    if given.get("data", "").lower().endswith(".npz"):
        # The run can be opened from any folder.
        given["data"] = str(Path(given["data"]).expanduser().absolute())
    elif "data" in given:
        check_choice("--data", given["data"], data.names())
    if "model" in given:
        check_choice("--model", given["model"], [*models.names(), "auto"])
    if "data_folder" in given:
        given["data_folder"] = str(Path(given["data_folder"]).expanduser().absolute())
    if args.resume and args.out is not None and (args.out / "config.json").exists():
        return _known_config(output_folder(args.out), given), output_folder(args.out)
    try:
        config = TrainConfig(**given)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    return config, output_folder(args.out or Path("runs") / "train" / _slug(config))


def _known_config(folder: Path, given: dict[str, Any]) -> TrainConfig:
    """The config of a run to go on with; what was given besides must agree with it."""
    try:
        config = TrainConfig.from_dict(Run(folder).config())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{folder} holds no training run: {error}") from None
    for name, value in given.items():
        known = getattr(config, name)
        if known != value:
            raise UsageError(
                f"--{name.replace('_', '-')} is {value}, but the run in {folder} was started with "
                f"{known}: leave it out, or start a new run"
            )
    return config


def _slug(config: TrainConfig) -> str:
    name = Path(config.data).stem
    return re.sub(r"[^\w.]+", "-", f"{name} {config.objective} {config.method} {config.seed}")


def _words(at: Progress) -> str:
    accuracy = "" if at.accuracy is None else f", clean {at.accuracy:.1%}"
    return f"loss {at.loss:.3f}, {at.inner_steps} inner{accuracy}"


def _show(args: argparse.Namespace, config: TrainConfig, result: TrainResult) -> None:
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
    print(f"{name} by {config.method}: {result.x_steps} steps of the model, ", end="")
    print(f"{result.calls} gradient calls, {result.seconds:.0f} s{loss}")
    print(f"run: {result.folder}")


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


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as sentences, without the place in the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"neada: {message}", file=sys.stderr)
        yield
