"""What a training run is asked to do."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from neada import data, models
from neada.checks import check_choice

__all__ = ["OPTIMIZERS", "Method", "TrainConfig"]

OPTIMIZERS = ("adam", "amsgrad", "sgd", "adagrad")
_MODELS = {"synthetic": "mlp", "digits": "small-cnn", "mnist-5k": "cnn"}
_MODELS |= {"mnist": "cnn", "fashion-mnist": "cnn"}


@dataclass(frozen=True)
class Method:
    """A method's name, taken apart.

    Attributes:
        optimizer: Of both players, one of `OPTIMIZERS`; or "tiada".
        num_inner_steps: Steps of y per step of x; None for NeAda, whose rule decides.
    """

    optimizer: str
    num_inner_steps: int | None

    @classmethod
    def parse(cls, name: str) -> "Method":
        """Take a name apart: ``neada-adam``, ``adam-15``, ``tiada``."""
        if name == "tiada":
            return cls("tiada", 1)
        nested = re.fullmatch(r"neada-(\w+)", name)
        fixed = re.fullmatch(r"(\w+)-([1-9]\d{0,5})", name)
        optimizer = nested[1] if nested else fixed[1] if fixed else ""
        if optimizer not in OPTIMIZERS:
            raise ValueError(
                f"there is no method {name!r}: use neada-X, X-N for N inner steps such as adam-15 "
                f"(with X one of {', '.join(OPTIMIZERS)}), or tiada"
            )
        return cls(optimizer, None if fixed is None else int(fixed[2]))


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a training run; plain JSON values, checked.

    Attributes:
        data: A name that `neada.data.load` knows, or the path of an `.npz` file.
        data_folder: Where the files of the data are, if they need one.
        data_seed: Of what is random in the data: the points of "synthetic", the split of others.
        download: Whether missing data may be downloaded.
        model: A name that `neada.models.make` knows; "auto" for the usual one for the data.
        objective: "wrm", "ball" or "group", see `neada.robust`.
        method: ``neada-X`` stops the inner loop by a rule, ``X-N`` after N steps, with X the
            optimizer of both players: adam, amsgrad, sgd or adagrad; "tiada" moves both players
            once with every batch.
        lr_x: The model's learning rate; None for a usual one of the optimizer.
        lr_y: The adversary's; None for a usual one of the objective.
        gamma: The price per squared distance of "wrm".
        radius: The radius of "ball".
        ball_norm: "l2", "linf" or "l1".
        random_start: Start in the ball at random.
        regularizer: Of "group": "kl", "chi2" or "none".
        strength: Its factor.
        adjustment: The constant of the size adjustment of "group".
        batch_size: Samples per batch.
        budget: Gradient calls of both players in all; None for no limit.
        epochs: Passes over the data; None for no limit. With neither, the budget is 1000.
        stop: The rule of NeAda: "library" (a squared gradient of at most stop_scale/(t+1) in the
            mean over the samples, or t+1 steps) or "released", as in the authors' scripts: the
            squared gradient of the batch's mean, max(1, t) steps.
        stop_scale: The constant of the rule.
        norm: "frozen" or "batch" statistics of normalization layers in the inner loop; None is
            "frozen", and "batch" with the released rule.
        dropout: "off" or "on" in the inner loop; None is "off", and "on" with the released rule.
        per_sample: Stop every sample by its own gradient.
        warm_start: Where perturbations persist between epochs: "none", "memory" or "disk". Those
            of "tiada" always do, and "none" means "memory".
        box: Keep the adversary in the valid range of the data, where they have one; None does so
            except with the released rule.
        eval_every: Gradient calls between evaluations; None for ten in all.
        log_every: Gradient calls between rows of the metrics; None for a hundred in all.
        eval_eps: The sizes of the attacks in evaluations.
        eval_norm: Their norm, "linf" or "l2".
        eval_clip: Whether attacked inputs are clipped to the valid range of the data.
        attack: "fgsm" or "pgd".
        eval_samples: How many samples of each part the evaluations before the last one look at;
            None for all.
        channels_last: The memory layout of images; None is True for the model "cnn", which it
            makes faster.
        seed: Of the initialization, the order of the batches, and all else.
        threads: Threads of torch; None leaves them as they are.
    """

    data: str = "digits"
    data_folder: str | None = None
    data_seed: int = 0
    download: bool = False
    model: str = "auto"
    objective: Literal["wrm", "ball", "group"] = "wrm"
    method: str = "neada-adam"
    lr_x: float | None = None
    lr_y: float | None = None
    gamma: float = 1.3
    radius: float = 0.1
    ball_norm: Literal["l2", "linf", "l1"] = "linf"
    random_start: bool = False
    regularizer: Literal["kl", "chi2", "none"] = "kl"
    strength: float = 1.0
    adjustment: float = 0.0
    batch_size: int = 128
    budget: int | None = None
    epochs: int | None = None
    stop: Literal["library", "released"] = "library"
    stop_scale: float = 1.0
    norm: Literal["frozen", "batch"] | None = None
    dropout: Literal["off", "on"] | None = None
    per_sample: bool = False
    warm_start: Literal["none", "memory", "disk"] = "none"
    box: bool | None = None
    eval_every: int | None = None
    log_every: int | None = None
    eval_eps: tuple[float, ...] = (0.02, 0.05, 0.1)
    eval_norm: Literal["linf", "l2"] = "linf"
    eval_clip: bool = True
    attack: Literal["fgsm", "pgd"] = "fgsm"
    eval_samples: int | None = None
    channels_last: bool | None = None
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.budget is None and self.epochs is None:
            object.__setattr__(self, "budget", 1000)
        object.__setattr__(self, "eval_eps", tuple(float(eps) for eps in self.eval_eps))
        if not isinstance(self.data, str):
            raise ValueError(f"data must be a name or the path of an .npz file, got {self.data!r}")
        if not self.data.lower().endswith(".npz"):
            check_choice("data", self.data, tuple(data.names()))
        check_choice("model", self.model, ("auto", *models.names()))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in ("gamma", "radius", "strength", "stop_scale", "lr_x", "lr_y"):
            self._check_number(name, above_zero=True)
        self._check_number("adjustment", above_zero=False)
        for name in _COUNTS:
            count = getattr(self, name)
            if count is not None and (not isinstance(count, int) or count < 1):
                raise ValueError(f"{name} must be a whole number, at least 1, got {count!r}")
        for name in ("seed", "data_seed"):
            seed = getattr(self, name)
            if not isinstance(seed, int) or not 0 <= seed < 2**63:
                raise ValueError(f"{name} must be a whole number from 0 to 2**63 - 1, got {seed!r}")
        if not all(eps >= 0.0 and math.isfinite(eps) for eps in self.eval_eps):
            raise ValueError(f"eval_eps must be finite numbers, at least 0, got {self.eval_eps}")
        if len({f"{eps:g}" for eps in self.eval_eps}) < len(set(self.eval_eps)):
            raise ValueError(f"eval_eps must differ in six digits, got {self.eval_eps}")
        self._check_fit(Method.parse(self.method))

    def _check_number(self, name: str, above_zero: bool) -> None:
        number = getattr(self, name)
        if number is None:
            return
        if not (math.isfinite(number) and (number > 0.0 if above_zero else number >= 0.0)):
            words = "greater than 0" if above_zero else "at least 0"
            raise ValueError(f"{name} must be a finite number {words}, got {number!r}")

    def _check_fit(self, method: Method) -> None:
        """Raise where the parts do not fit together."""
        if method.optimizer == "tiada" and self.objective != "group":
            for name, only in _WITHOUT_INNER_LOOP.items():
                if getattr(self, name) not in only:
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} is about an inner loop that starts anew, "
                        "and tiada has none: leave it out, or use a method such as adam-1"
                    )
        if self.objective == "group":
            for name in ("per_sample", "warm_start", "norm", "dropout", "random_start", "box"):
                if getattr(self, name) != _FIELDS[name].default:
                    raise ValueError(
                        f"{name} is about perturbed inputs, and 'group' perturbs none: leave it out"
                    )
        if self.objective == "wrm" and self.random_start:
            raise ValueError("random_start is about a ball: leave it out, or objective='ball'")
        if self.regularizer == "none" and method.num_inner_steps != 1:
            raise ValueError(
                "without a regularizer the worst mixture is a single group, so y moves once per "
                "batch: use a method such as adam-1, or regularizer='kl'"
            )
        if self.stop == "released":
            if self.objective != "wrm":
                raise ValueError("stop='released' is the authors' inner loop of 'wrm': use that")
            if self.per_sample:
                raise ValueError("stop='released' looks at the whole batch: not per_sample")
        if self.random_start and self.warm_start != "none":
            raise ValueError("a start is either random or warm: leave one of them out")

    @property
    def model_name(self) -> str:
        """The model, with "auto" resolved."""
        return _MODELS.get(self.data, "mlp") if self.model == "auto" else self.model

    @property
    def label(self) -> str:
        """The run in a few words."""
        return f"{Path(self.data).stem} {self.objective} {self.method} seed {self.seed}"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "TrainConfig":
        """A config from what `dataclasses.asdict` made of one, and JSON of that.

        Raises:
            ValueError: There are fields that no config has.
        """
        unknown = set(fields) - set(_FIELDS)
        if unknown:
            raise ValueError(f"a training config has no field {', '.join(sorted(unknown))}")
        return cls(**fields)


_FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "objective": ("wrm", "ball", "group"),
    "ball_norm": ("l2", "linf", "l1"),
    "regularizer": ("kl", "chi2", "none"),
    "stop": ("library", "released"),
    "norm": ("frozen", "batch", None),
    "dropout": ("off", "on", None),
    "warm_start": ("none", "memory", "disk"),
    "eval_norm": ("linf", "l2"),
    "attack": ("fgsm", "pgd"),
}
# What "tiada" for perturbed inputs leaves to choose.
_WITHOUT_INNER_LOOP: dict[str, tuple[Any, ...]] = {
    "norm": (None, "batch"),
    "dropout": (None, "on"),
    "per_sample": (False,),
    "random_start": (False,),
    "stop": ("library",),
}
_COUNTS = ("batch_size", "budget", "epochs", "eval_every", "log_every", "eval_samples", "threads")
