"""`neada attack` and `neada certify`."""

import dataclasses
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import neada
from neada.checks import check_choice, check_number
from neada.cli.output import absolute_path, complain, plain_warnings, print_json
from neada.progress import progress_bar

if TYPE_CHECKING:
    from torch import Tensor

    from neada.training import TrainedRun

__all__ = ["Samples", "attack", "certify"]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples to evaluate."""

    data: str | None = None
    """Other data of the same shape and classes: a name or an .npz file; None: the data of the
    run."""
    data_folder: str | None = None
    """Folder with the files of mnist or fashion-mnist (with --data)."""
    data_seed: int | None = None
    """Seed of random data and splits (with --data)."""
    download: bool = False
    """Allow downloading missing data."""
    part: str = "test"
    """Part of the data."""
    samples: int | None = None
    """Evaluate only the first samples; None: all."""
    device: str = "auto"
    """Device, as in `neada train`."""


def attack(
    run: str,
    /,
    *,
    evaluated: Samples,
    attack: tuple[Literal["fgsm", "pgd", "apgd", "ensemble"], ...] = ("fgsm", "pgd"),
    eps: tuple[float, ...] = (),
    norm: Literal["linf", "l2"] | None = None,
    clip: bool = True,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Measure the accuracy of a trained network under attack.

    Args:
        run: A run folder of `neada train`.
        evaluated: The samples to evaluate.
        attack: The attacks.
        eps: Sizes of the attacks; empty: as in the training.
        norm: Norm of the attacks; None: as in the training.
        clip: Keep attacked inputs in the valid range of the data, if the training did.
        json: Print JSON.
        quiet: Show no progress.
    """
    if not attack:
        raise ValueError("--attack requires at least one name")
    opened, batches = _open(run, evaluated)
    norm = norm or opened.config.eval_norm
    bounds = opened.data.bounds if clip and opened.config.eval_clip else None
    results = {}
    try:
        with progress_bar(not (quiet or json)) as show, plain_warnings():
            for i, name in enumerate(attack):

                def tell(part: float, words: str, i: int = i) -> None:
                    show((i + part) / len(attack), words)

                results[name] = neada.attacks.robust_accuracy(
                    opened.model,
                    batches,
                    name,
                    eps or opened.config.eval_eps,
                    norm=norm,
                    bounds=bounds,
                    progress=tell,
                )
    except FloatingPointError as error:
        complain(f"{error}: the run diverged, or eps is too large")
        return 1
    first = results[attack[0]]
    if json:
        print_json(
            {
                "run": str(opened.folder),
                "data": opened.data.name,
                "part": evaluated.part,
                "norm": norm,
                "num_samples": first.num_samples,
                "clean": first.clean,
                "attacked": {
                    name: {f"{size:g}": share for size, share in result.attacked.items()}
                    for name, result in results.items()
                },
            }
        )
        return 0
    print(f"accuracy on {first.num_samples} samples ({evaluated.part}), {norm} attacks, in %")
    print("  ".join(["attack  ", "clean", *(f"{size:5g}" for size in first.attacked)]))
    for name, result in results.items():
        shares = [result.clean, *result.attacked.values()]
        print("  ".join([f"{name:8}", *(f"{100.0 * share:5.1f}" for share in shares)]))
    return 0


def certify(
    run: str,
    /,
    *,
    evaluated: Samples,
    rho: float = 0.1,
    gamma: float | None = None,
    json: bool = False,
) -> int:
    """Bound the mean loss of a trained network under every shift of the samples.

    The mean squared distance of the shift is at most rho. The bound is certified for linear models
    and smooth MLPs, and estimated for other networks.

    Args:
        run: A run folder of `neada train`.
        evaluated: The samples to evaluate.
        rho: Largest mean squared distance of the shift.
        gamma: Price per squared distance; None: as in the training with wrm.
        json: Print JSON.
    """
    from torch.nn.functional import cross_entropy

    opened, batches = _open(run, evaluated)
    config, bounds = opened.config, opened.data.bounds
    if gamma is None and config.objective != "wrm":
        raise ValueError(f"the run was trained with {config.objective!r}: --gamma is required")
    gamma = config.gamma if gamma is None else gamma
    objective = neada.robust.WRM(opened.model, cross_entropy, gamma, bounds=bounds)
    found = neada.robust.certificate(objective, batches, rho=rho)
    if json:
        about = {"run": str(opened.folder), "data": opened.data.name, "part": evaluated.part}
        print_json({**about, **dataclasses.asdict(found)})
        return 0
    print(f"{found.kind}: the mean loss is at most {found.value:.4g}")
    print(
        f"  for every shift of {found.num_samples} samples ({evaluated.part}) with a mean squared"
    )
    within = "" if bounds is None else ", within the valid range of the data"
    print(f"  distance of at most rho = {found.rho:g}{within}")
    print(
        f"  = {found.surrogate:.4g} (surrogate) + {found.gap:.2g} (gap) + {found.price:.4g} "
        f"(gamma rho, gamma = {found.gamma:g})"
    )
    print(f"  smoothness {found.smoothness:.4g}, {found.reason}")
    return 0


def _open(run: str, asked: Samples) -> "tuple[TrainedRun, list[tuple[Tensor, Tensor]]]":
    """Return the run and the batches to evaluate."""
    from neada import devices
    from neada.training.evaluation import chunks

    if asked.samples is not None:
        check_number("samples", asked.samples, above=1, strict=False, whole=True)
    if asked.data is None and (asked.data_folder is not None or asked.data_seed is not None):
        raise ValueError("--data-folder and --data-seed require --data")
    with plain_warnings():
        data = None
        if asked.data is not None:
            data = neada.data.load(
                asked.data,
                folder=asked.data_folder,
                seed=asked.data_seed or 0,
                download=asked.download,
            )
            warnings.filterwarnings("ignore", message="the data are not those")
        folder = absolute_path("the run folder", run)
        opened = neada.training.open_run(
            folder, data=data, device=asked.device, download=asked.download
        )
    check_choice("part", asked.part, opened.data.splits)
    device = devices.of_module(opened.model)
    inputs, targets = (part[: asked.samples].to(device) for part in opened.data.splits[asked.part])
    return opened, chunks(inputs, targets, device)
