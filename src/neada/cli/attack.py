"""`neada attack` and `neada certify`."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from neada import attacks, robust
from neada.cli.arguments import (
    Commands,
    UsageError,
    add_output_options,
    check_choice,
    natural,
    numbers,
    positive,
)
from neada.cli.train import plain_warnings
from neada.files import encode
from neada.training import TrainedRun, open_run

__all__ = ["add_attack", "add_certify"]

_ATTACKS = ("fgsm", "pgd")
_CHUNK = 1000


def add_attack(commands: Commands) -> None:
    """Add the command `attack`."""
    parser = commands.add_parser(
        "attack",
        help="measure the accuracy of a trained run under attack",
        description="Attack the model of a run folder and say how often it is still right.",
        epilog="examples:\n"
        "  neada attack runs/adam\n"
        "  neada attack runs/adam --attack fgsm,pgd --eps 0.02,0.05,0.1 --json\n"
        "  neada attack runs/adam --attack pgd --norm l2 --eps 0.5,1 --steps 50 --restarts 3",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a folder that `neada train` wrote")
    parser.add_argument(
        "--attack", default="fgsm,pgd", metavar="NAMES", help="fgsm, pgd (default: both)"
    )
    parser.add_argument(
        "--eps", type=numbers("--eps"), metavar="X,X", help="sizes (default: those of the training)"
    )
    parser.add_argument("--norm", choices=("linf", "l2"), help="(default: that of the training)")
    parser.add_argument(
        "--steps", type=natural("--steps"), default=20, metavar="N", help="of pgd (default: 20)"
    )
    parser.add_argument(
        "--restarts", type=natural("--restarts"), default=1, metavar="N", help="of pgd (default: 1)"
    )
    parser.add_argument("--no-clip", action="store_true", help="leave the valid range of the data")
    _add_part_options(parser)
    add_output_options(parser)
    parser.set_defaults(command=_attack)


def _add_part_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--part", default="test", metavar="NAME", help="of the data (default: test)"
    )
    parser.add_argument(
        "--samples", type=natural("--samples"), metavar="N", help="only the first so many"
    )


def _attack(args: argparse.Namespace) -> int:
    names = [name.strip() for name in args.attack.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--attack: choose from {', '.join(_ATTACKS)}")
    for name in names:
        check_choice("--attack", name, _ATTACKS)
    run, x, y = _open(args)
    eps = run.config.eval_eps if args.eps is None else args.eps
    norm = args.norm or run.config.eval_norm
    clip = run.config.eval_clip and not args.no_clip
    results: dict[str, attacks.RobustAccuracy] = {}
    for name in names:
        options: dict[str, Any] = {}
        if name == "pgd":
            options = {"num_steps": args.steps, "num_restarts": args.restarts}
        try:
            results[name] = attacks.robust_accuracy(
                run.model,
                _chunks(x, y),
                name,
                eps,
                norm=norm,
                bounds=run.data.bounds if clip else None,
                **options,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
        except FloatingPointError as error:
            sys.stderr.write(f"neada: {error}: the run diverged, or eps is too large\n")
            return 1
    if args.json:
        facts = {
            "run": str(run.folder),
            "part": args.part,
            "norm": norm,
            "num_samples": len(x),
            "clean": next(iter(results.values())).clean,
            "attacked": {
                name: {f"{eps:g}": share for eps, share in result.attacked.items()}
                for name, result in results.items()
            },
        }
        print(json.dumps(facts, indent=2))
        return 0
    _show_attacks(args, norm, results)
    return 0


def _show_attacks(
    args: argparse.Namespace, norm: str, results: dict[str, attacks.RobustAccuracy]
) -> None:
    first = next(iter(results.values()))
    titles = ["clean", *(f"{eps:g}" for eps in first.attacked)]
    print(f"accuracy on {first.num_samples} samples ({args.part}), {norm} attacks, in %")
    print("  ".join(["attack", *(f"{title:>5}" for title in titles)]))
    for name, result in results.items():
        shares = [result.clean, *result.attacked.values()]
        print("  ".join([f"{name:6}", *(f"{100.0 * share:5.1f}" for share in shares)]))


def add_certify(commands: Commands) -> None:
    """Add the command `certify`."""
    parser = commands.add_parser(
        "certify",
        help="bound the loss of a trained run under every shift of its data",
        description="Bound the mean loss under every shift of the data whose mean squared distance "
        "is at most\nrho: about the samples that are looked at, and certified only where the "
        "smoothness of the\nmodel is proven (linear models and smooth MLPs); elsewhere it is an "
        "estimate, and says so.",
        epilog="examples:\n"
        "  neada certify runs/synthetic --rho 0.1 --gamma 50\n"
        "  neada certify runs/synthetic --rho 0.1 --gamma 50 --samples 1000 --json",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a folder that `neada train` wrote")
    parser.add_argument(
        "--rho", type=positive("--rho"), default=0.1, metavar="X", help="the shift (default: 0.1)"
    )
    parser.add_argument(
        "--gamma", type=positive("--gamma"), metavar="X", help="(default: that of the training)"
    )
    _add_part_options(parser)
    add_output_options(parser)
    parser.set_defaults(command=_certify)


def _certify(args: argparse.Namespace) -> int:
    run, x, y = _open(args)
    objective = robust.WRM(
        run.model, nn.functional.cross_entropy, run.config.gamma, box=run.data.bounds
    )
    try:
        found = robust.certificate(objective, _chunks(x, y), rho=args.rho, gamma=args.gamma)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if args.json:
        facts = {"run": str(run.folder), "part": args.part, **dataclasses.asdict(found)}
        print(json.dumps(encode(facts), indent=2))
        return 0
    print(f"{found.kind}: the mean loss is at most {found.value:.4g}")
    print(f"  for every shift of {found.num_samples} samples ({args.part}) with a mean squared")
    print(f"  distance of at most rho = {found.rho:g}")
    print(f"  = {found.surrogate:.4g} (surrogate) + {found.gap:.2g} (gap) + ", end="")
    print(f"{found.price:.4g} (gamma rho, gamma = {found.gamma:g})")
    print(f"  smoothness {found.smoothness:.4g}, {found.reason}")
    return 0


def _open(args: argparse.Namespace) -> tuple[TrainedRun, Tensor, Tensor]:
    """The run, and the samples to look at."""
    with plain_warnings():
        try:
            run = open_run(args.run)
        except ValueError as error:
            raise UsageError(str(error)) from error
    check_choice("--part", args.part, list(run.data.splits))
    x, y = run.data.splits[args.part]
    return run, x[: args.samples], y[: args.samples]


def _chunks(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for begin in range(0, len(x), _CHUNK):
        yield x[begin : begin + _CHUNK], y[begin : begin + _CHUNK]
