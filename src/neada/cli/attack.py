"""`neada attack` and `neada certify`."""

import argparse
import dataclasses
import json
import warnings
from functools import partial
from typing import TYPE_CHECKING

import neada
from neada import tables
from neada.cli.arguments import (
    DOWNLOAD,
    Parser,
    UsageError,
    add_flag,
    add_output_options,
    check_choice,
    complain,
    plain_warnings,
    read_path,
    refusals,
)
from neada.progress import progress_bar
from neada.runs import encode
from neada.training.config import Option, TrainConfig, options_of

if TYPE_CHECKING:
    from torch import Tensor

    from neada.attacks import RobustAccuracy
    from neada.data import Dataset
    from neada.training import TrainedRun

__all__ = ["add_attack", "add_certify"]


def add_attack(parser: Parser) -> None:
    """Fill the command `attack`."""
    parser.description = "Attack the model of a run folder and say how often it is still right."
    parser.epilog = (
        "examples:\n"
        "  neada attack runs/adam\n"
        "  neada attack runs/adam --attack fgsm,pgd --eps 0.02,0.05,0.1 --json\n"
        "  neada attack runs/adam --attack pgd --norm l2 --eps 0.5,1 --steps 50 --restarts 3\n"
        "  neada attack runs/adam --attack ensemble --eps 0.1 --samples 200\n"
        "  neada attack runs/adam --data mine.npz --device cuda"
    )
    run = partial(read_path, "RUN")
    parser.add_argument("run", type=run, metavar="RUN", help="a folder that `neada train` wrote")
    names = ", ".join(tables.ATTACKS)
    words = f"some of {names} (default: fgsm,pgd)"
    parser.add_argument("--attack", default="fgsm,pgd", metavar="NAMES", help=words)
    as_trained = "(default: as in the training)"
    for option in (
        Option("eps", f"sizes {as_trained}", None, tuple, least=0),
        Option("norm", f"how sizes are measured {as_trained}", None, str, choices=("linf", "l2")),
        Option("steps", "of each ascent (default: 20 of pgd, 100 of the others)", None, int),
        Option("restarts", "random starts (default: 1 of pgd, 0 of apgd)", None, int),
    ):
        add_flag(parser, option)
    parser.add_argument("--no-clip", action="store_true", help="leave the valid range of the data")
    _add_part_options(parser)
    add_output_options(parser)
    parser.set_defaults(command=_attack)


def _add_part_options(parser: Parser) -> None:
    known = {option.name: option for option in options_of(TrainConfig)}
    words = "other data with such inputs and classes: a name, or an .npz file (default: the run's)"
    add_flag(parser, known["data"]._replace(words=words, default=None))
    for name in ("data_folder", "data_seed"):
        add_flag(
            parser, known[name]._replace(words=f"{known[name].words}, with --data"), or_none=True
        )
    add_flag(parser, DOWNLOAD)
    add_flag(parser, Option("part", "of the data", "test", str))
    add_flag(parser, Option("samples", "only the first so many", None, int))
    add_flag(parser, known["device"])


def _attack(args: argparse.Namespace) -> int:
    names = [name.strip() for name in args.attack.split(",")]
    for name in names:
        check_choice("--attack", name, tables.ATTACKS)
    for flag, option in (("--steps", "num_steps"), ("--restarts", "num_restarts")):
        takers = [name for name, entry in tables.ATTACKS.items() if option in entry.options]
        if getattr(args, flag[2:]) is not None and not set(names) & set(takers):
            raise UsageError(f"{flag} is for {', '.join(takers)}, not for {', '.join(names)}")
    run, batches = _open(args)
    norm = args.norm or run.config.eval_norm
    clip = run.config.eval_clip and not args.no_clip
    given = {"num_steps": args.steps, "num_restarts": args.restarts}
    options = {key: number for key, number in given.items() if number is not None}
    results: dict[str, RobustAccuracy] = {}
    try:
        with (
            progress_bar(not (args.quiet or args.json)) as show,
            plain_warnings(),
            refusals(vars(args)),
        ):
            for i, name in enumerate(names):
                own = {key: n for key, n in options.items() if key in tables.ATTACKS[name].options}

                def tell(part: float, words: str, i: int = i) -> None:
                    show((i + part) / len(names), words)

                results[name] = neada.attacks.robust_accuracy(
                    run.model,
                    batches,
                    name,
                    args.eps or run.config.eval_eps,
                    norm=norm,
                    bounds=run.data.bounds if clip else None,
                    progress=tell,
                    **own,
                )
    except FloatingPointError as error:
        complain(f"{error}: the run diverged, or --eps is too large")
        return 1
    if args.json:
        first = next(iter(results.values()))
        facts = {
            "run": str(run.folder),
            "data": run.data.name,
            "part": args.part,
            "norm": norm,
            "num_samples": first.num_samples,
            "clean": first.clean,
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
    args: argparse.Namespace, norm: str, results: "dict[str, RobustAccuracy]"
) -> None:
    first = next(iter(results.values()))
    titles = ["clean", *(f"{eps:g}" for eps in first.attacked)]
    print(f"accuracy on {first.num_samples} samples ({args.part}), {norm} attacks, in %")
    print("  ".join(["attack  ", *(f"{title:>5}" for title in titles)]))
    for name, result in results.items():
        shares = [result.clean, *result.attacked.values()]
        print("  ".join([f"{name:8}", *(f"{100.0 * share:5.1f}" for share in shares)]))


def add_certify(parser: Parser) -> None:
    """Fill the command `certify`."""
    parser.description = (
        "Bound the mean loss under every shift of the data, within their valid range, whose mean\n"
        "squared distance is at most rho: about the samples that are looked at, and certified\n"
        "only where the smoothness of the model is proven (linear models and smooth MLPs);\n"
        "elsewhere it is an estimate, and says so."
    )
    parser.epilog = (
        "examples:\n"
        "  neada certify runs/synthetic --rho 0.1 --gamma 50\n"
        "  neada certify runs/synthetic --rho 0.1 --gamma 50 --samples 1000 --json"
    )
    run = partial(read_path, "RUN")
    parser.add_argument("run", type=run, metavar="RUN", help="a folder that `neada train` wrote")
    add_flag(parser, Option("rho", "the shift", 0.1, float))
    add_flag(parser, Option("gamma", "(default: as in the training with wrm)", None, float))
    _add_part_options(parser)
    add_output_options(parser)
    parser.set_defaults(command=_certify)


def _certify(args: argparse.Namespace) -> int:
    from torch.nn.functional import cross_entropy

    run, batches = _open(args)
    gamma, trained_with = args.gamma, run.config.objective
    if gamma is None and "gamma" not in tables.OBJECTIVES[trained_with].options:
        raise UsageError(
            f"the run was trained with {trained_with!r}, without a gamma: give --gamma"
        )
    gamma = run.config.gamma if gamma is None else gamma
    bounds = run.data.bounds
    with refusals(vars(args)):
        objective = neada.robust.WRM(run.model, cross_entropy, gamma, bounds=bounds)
        found = neada.robust.certificate(objective, batches, rho=args.rho)
    if args.json:
        about = {"run": str(run.folder), "data": run.data.name, "part": args.part}
        facts = {**about, **dataclasses.asdict(found)}
        print(json.dumps(encode(facts), indent=2))
        return 0
    print(f"{found.kind}: the mean loss is at most {found.value:.4g}")
    print(f"  for every shift of {found.num_samples} samples ({args.part}) with a mean squared")
    within = "" if bounds is None else ", within the valid range of the data"
    print(f"  distance of at most rho = {found.rho:g}{within}")
    print(f"  = {found.surrogate:.4g} (surrogate) + {found.gap:.2g} (gap) + ", end="")
    print(f"{found.price:.4g} (gamma rho, gamma = {found.gamma:g})")
    print(f"  smoothness {found.smoothness:.4g}, {found.reason}")
    return 0


def _open(args: argparse.Namespace) -> "tuple[TrainedRun, list[tuple[Tensor, Tensor]]]":
    """The run, and the samples to look at."""
    from neada import devices
    from neada.training.evaluation import Chunks

    with plain_warnings(), refusals(vars(args)):
        data = _own_data(args)
        if data is not None:
            warnings.filterwarnings("ignore", message="the data are not those")
        run = neada.training.open_run(
            args.run, data=data, device=args.device, download=args.download
        )
    check_choice("--part", args.part, run.data.splits)
    device = devices.of_module(run.model)
    inputs, targets = (part[: args.samples].to(device) for part in run.data.splits[args.part])
    return run, list(Chunks(inputs, targets, device))


def _own_data(args: argparse.Namespace) -> "Dataset | None":
    """The data that were asked for instead of those of the run."""
    if args.data is not None:
        seed = args.data_seed or 0
        return neada.data.load(
            args.data, folder=args.data_folder, seed=seed, download=args.download
        )
    for name in ("data_folder", "data_seed"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for other data: add --data")
    return None
