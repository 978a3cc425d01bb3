"""Figure 4: distributionally robust training on MNIST, with and without NeAda's inner loop.

Two methods and two learning rates of the adversary make four training runs, each attacked with
three sizes eps. The inner loop is that of the authors' scripts: batch norm in training mode, whose
running statistics so see the inputs of every inner step; two more runs of NeAda, of the first seed,
freeze them. A further run is the library's default, whose adversary has no learning rate.
"quick" takes scikit-learn's 8x8 digits and a small network. The other scales need MNIST (see
`neada.data.load`); accuracies are then those on the 10000 held-out images, as in the scripts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from neada.runs import RunFolder
from reproduction.experiment import (
    Array,
    Claim,
    Progress,
    Record,
    Scale,
    Seeds,
    chosen_seeds,
    if_complete,
)
from reproduction.robust_training import (
    METHODS,
    Method,
    Runs,
    about_mean,
    by_seed,
    differences,
    divergences,
    drop_differences,
    falls_first,
    figure_of,
    last,
    mean,
    of_all,
    panel,
    train_into,
    training,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KNOWN", "PAPER", "TITLE", "WHERE", "Config", "claims", "configs", "figure", "run"]

TITLE = "Robust training on images: MNIST, and 8x8 digits at scale quick"
WHERE = "Figure 4"
PAPER = (
    "With lr_y = 0.01 both NeAda and Adam with 15 inner steps are accurate under FGSM of 0.02, "
    "0.05 and 0.1, NeAda more so and sooner. With equal learning rates NeAda loses less than Adam, "
    "most visibly at 0.1. NeAda's training loss is the lower one at the beginning."
)
KNOWN = {
    "mnist-dro/frozen-*": (
        "The gain from frozen statistics changed its sign with the number of calls in our runs: "
        "nothing speaks for it or against it as far as accuracy goes."
    ),
    "mnist-dro/*-0.001-*": (
        "Early in a run NeAda's rule takes few inner steps, which are small with equal learning "
        "rates; its accuracy overtakes Adam's with more calls (on MNIST between 1565 and 7820)."
    ),
    "mnist-dro/smaller-drop-*": (
        "With few calls NeAda has not yet overtaken Adam at equal learning rates, so its drop is "
        "the larger one."
    ),
    "mnist-dro/most-*": "See the drop at each eps: with few calls NeAda's is the larger one.",
    "mnist-dro/default-*": (
        "The default stops every sample by itself and spends more of its calls on the adversary: "
        "after 1565 calls on MNIST it has taken a third of the steps of x."
    ),
}

_EPS = (0.02, 0.05, 0.1)
_SEPARATE, _EQUAL = 0.01, 0.001
_RATES = {_SEPARATE: "lr_y = 0.01", _EQUAL: "equal rates (0.001)"}
_WORDS = {_SEPARATE: "with lr_y = 0.01", _EQUAL: "with equal learning rates"}
_OWN, _TEST = "held_out", "test"
_GOOD = 80.0
"""Accuracy in percent, at the middle eps, that is called good; guessing has 10."""
_ByRate = Mapping[float, Runs]
BatchNorm = Literal["batch", "frozen"]
_DEFAULT: Literal["default"] = "default"


@dataclass(frozen=True)
class Config:
    """One training run.

    Attributes:
        method: 15 steps of the adversary per batch, as many as NeAda's rule wants, or the library's
            default.
        lr_y: The adversary's learning rate; None for the default, which has none.
        seed: Of the initialization and the order of the batches.
        batch_norm: The statistics of batch norm in the inner loop: the batch's, or frozen ones.
        data: "mnist" with the paper's network, or "digits" with a small one.
        max_calls: Gradient calls of both players.
        num_evaluations: How often the accuracies are measured.
        eval_samples: On how many images; at the end on all as well.
        lr_x: The model's learning rate.
        gamma: The price per squared distance.
        stop_scale: The constant of NeAda's rule.
        batch_size: Images per batch.
    """

    method: Method | Literal["default"]
    lr_y: float | None
    seed: int
    batch_norm: BatchNorm
    data: Literal["digits", "mnist"]
    max_calls: int
    num_evaluations: int
    eval_samples: int | None
    lr_x: float = 0.001
    gamma: float = 1.3
    stop_scale: float = 1.0
    batch_size: int = 128

    @property
    def label(self) -> str:
        """The method, the learning rate, the variant and the seed."""
        if self.lr_y is None:
            return f"{self.method} {self.data} seed {self.seed}"
        frozen = " frozen" if self.batch_norm == "frozen" else ""
        return f"{self.method}{frozen} {self.lr_y:g} {self.data} seed {self.seed}"


# Data, gradient calls, evaluations and images in each of them, seeds.
_SCALES: dict[Scale, tuple[Literal["digits", "mnist"], int, int, int | None, int]] = {
    "quick": ("digits", 480, 6, None, 1),
    "standard": ("mnist", 1565, 8, 1000, 3),
    "paper": ("mnist", 78200, 40, 2000, 1),
}
_VARIANTS: dict[tuple[Method, BatchNorm], str] = {
    ("gdmax", "batch"): METHODS["gdmax"],
    ("neada", "batch"): METHODS["neada"],
    ("neada", "frozen"): f"{METHODS['neada']}, frozen statistics",
}


def configs(scale: Scale, seeds: Seeds = None, max_calls: int | None = None) -> list[Config]:
    """The paper's four and the default for every seed; frozen statistics for the first."""
    data, usual_calls, num_evaluations, eval_samples, num_seeds = _SCALES[scale]
    calls = usual_calls if max_calls is None else max_calls
    chosen = chosen_seeds(seeds, num_seeds)
    cells: list[tuple[Method | Literal["default"], float | None, BatchNorm, tuple[int, ...]]] = [
        (method, lr_y, batch_norm, chosen[:1] if batch_norm == "frozen" else chosen)
        for method, batch_norm in _VARIANTS
        for lr_y in _RATES
    ]
    cells.insert(2 * len(_RATES), (_DEFAULT, None, "frozen", chosen))
    return [
        Config(method, lr_y, seed, batch_norm, data, calls, num_evaluations, eval_samples)
        for method, lr_y, batch_norm, seeds_of_cell in cells
        for seed in seeds_of_cell
    ]


def run(config: Config, run: RunFolder, progress: Progress) -> None:
    """Train; with MNIST in a way that can be resumed."""
    own = {"method": "neada", "y_optimizer": None, "stop": "library"}
    asked = training(
        config,
        data=config.data,
        batch_norm=config.batch_norm,
        eval_samples=config.eval_samples,
        final_samples="all",
        eval_eps=_EPS,
        **(own if config.method == _DEFAULT else {}),
    )
    train_into(asked, run, progress, resumable=config.data == "mnist")


def claims(records: Sequence[Record]) -> list[Claim]:
    """Who is more accurate under attack, and whose loss falls first."""
    adam, neada, frozen = (
        {r: by_seed(records, method=method, batch_norm=batch_norm, lr_y=r) for r in _RATES}
        for method, batch_norm in _VARIANTS
    )
    found = [_higher(adam[r], neada[r], r, eps) for r in _RATES for eps in _EPS]
    found.append(_both_good(adam[_SEPARATE], neada[_SEPARATE]))
    found += [_smaller_drop(adam, neada, eps) for eps in _EPS]
    found.append(_most_at_the_largest(adam, neada))
    found += [
        falls_first(f"mnist-dro/loss-first-{r:g}", WHERE, _WORDS[r], adam[r], neada[r])
        for r in _RATES
    ]
    found += [_freezing(neada[r], frozen[r], r) for r in _RATES]
    default = by_seed(records, method=_DEFAULT)
    found += [_without_lr_y(neada[_SEPARATE], default, eps) for eps in _EPS]
    return found


def _accuracy(part: str, eps: float) -> Callable[[Record], float]:
    """The accuracy in percent; where nothing is held out, on the test set."""

    def measure(record: Record) -> float:
        name = f"{part}_{eps:g}"
        return 100.0 * last(record, name if name in record.rows[-1] else f"test_{eps:g}")

    return measure


def _higher(adam: Runs, neada: Runs, lr_y: float, eps: float) -> Claim:
    return about_mean(
        f"mnist-dro/higher-{lr_y:g}-{eps:g}",
        f"{_WORDS[lr_y]} NeAda is the more accurate under FGSM of {eps:g}: its lead in "
        "percentage points",
        WHERE,
        differences(adam, neada, _accuracy(_OWN, eps)),
        ">",
        0.0,
        _beside(adam, neada, eps),
    )


def _both_good(adam: Runs, neada: Runs) -> Claim:
    measure = _accuracy(_OWN, _EPS[1])
    return Claim(
        "mnist-dro/both-good",
        f"{_WORDS[_SEPARATE]} both methods are good: the lower accuracy of the two under FGSM of "
        f"{_EPS[1]:g}, in percent",
        WHERE,
        if_complete(min, [mean(of_all(runs, measure)) for runs in (adam, neada)]),
        ">=",
        _GOOD,
        seeds=min(len(adam), len(neada)),
        note=_beside(adam, neada, _EPS[1]),
    )


def _smaller_drop(adam: _ByRate, neada: _ByRate, eps: float) -> Claim:
    found, on_test = (_advantages(adam, neada, part, eps) for part in (_OWN, _TEST))
    return about_mean(
        f"mnist-dro/smaller-drop-{eps:g}",
        "from lr_y = 0.01 to equal learning rates NeAda loses less than Adam under FGSM of "
        f"{eps:g}: Adam's loss minus NeAda's in percentage points",
        WHERE,
        found,
        ">",
        0.0,
        f"on the test set {on_test.mean():+.1f}" if len(found) else "",
    )


def _most_at_the_largest(adam: _ByRate, neada: _ByRate) -> Claim:
    by_eps = [_advantages(adam, neada, _OWN, eps) for eps in _EPS]
    return Claim(
        "mnist-dro/most-at-0.1",
        f"that advantage is largest at {_EPS[-1]:g}: how much larger than at the other eps, in "
        "percentage points",
        WHERE,
        if_complete(lambda means: means[-1] - max(means[:-1]), map(mean, by_eps)),
        ">",
        0.0,
        seeds=len(by_eps[-1]),
    )


def _advantages(adam: _ByRate, neada: _ByRate, part: str, eps: float) -> Array:
    """Adam's drop from separate to equal learning rates minus NeAda's, by seed."""
    first, second = ((runs[_SEPARATE], runs[_EQUAL]) for runs in (adam, neada))
    return drop_differences(first, second, _accuracy(part, eps))


def _freezing(batch: Runs, frozen: Runs, lr_y: float) -> Claim:
    eps = _EPS[-1]
    return about_mean(
        f"mnist-dro/frozen-{lr_y:g}",
        f"{_WORDS[lr_y]} NeAda is better off with batch-norm statistics frozen in the inner loop: "
        f"the gain in accuracy under FGSM of {eps:g}, in percentage points",
        "neada",
        differences(batch, frozen, _accuracy(_OWN, eps)),
        ">",
        0.0,
        _beside(batch, frozen, eps),
    )


def _without_lr_y(neada: Runs, default: Runs, eps: float) -> Claim:
    return about_mean(
        f"mnist-dro/default-{eps:g}",
        "the library's default adversary, which has no learning rate, is at least as good as NeAda "
        f"{_WORDS[_SEPARATE]}: its lead in accuracy under FGSM of {eps:g}, in percentage points",
        "neada",
        differences(neada, default, _accuracy(_OWN, eps)),
        ">=",
        0.0,
        _beside(neada, default, eps),
    )


def _beside(first: Runs, second: Runs, eps: float) -> str:
    """The accuracies behind a difference, and those on the real test set."""
    if not first or not second:
        return ""
    own, test = (
        [of_all(runs, _accuracy(part, eps)).mean() for runs in (second, first)]
        for part in (_OWN, _TEST)
    )
    beside = "" if own == test else f"; on the test set {test[0]:.1f} against {test[1]:.1f}"
    return f"{own[0]:.1f} % against {own[1]:.1f} %{beside}{divergences(first, second)}"


def figure(records: Sequence[Record]) -> "Figure":
    """A panel per eps and one for the training loss; rates by dashes, methods by color."""
    lines = {
        f"{name}, {rate}": by_seed(records, method=method, batch_norm=batch_norm, lr_y=lr_y)
        for (method, batch_norm), name in _VARIANTS.items()
        for lr_y, rate in _RATES.items()
    }
    lines["default adversary, no lr_y"] = by_seed(records, method=_DEFAULT)
    part = _OWN if any(f"{_OWN}_clean" in record.rows[-1] for record in records) else _TEST
    accuracies = [
        panel(f"FGSM, eps = {e:g}", f"{part}_{e:g}", "accuracy (%)", lines, percent=True)
        for e in _EPS
    ]
    loss = panel("training loss", "loss", "loss at the perturbed batch", lines, logarithmic=True)
    return figure_of([*accuracies, loss], records, "images")
