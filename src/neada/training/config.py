"""The configuration of a training run.

`neada train` derives its options from `TrainConfig`; this module does not import torch.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from neada.checks import check_choice, check_number, printable, shown

__all__ = ["DATA", "LENGTH", "ON_RESUME", "TrainConfig"]

Optimizer = Literal["adam", "amsgrad", "sgd", "adagrad", "dog", "dowg"]

LENGTH = ("max_calls", "epochs")
"""Fields that determine the length of a run."""
ON_RESUME = (*LENGTH, "device", "compile", "threads")
"""Fields that may change when a run is resumed; on another machine, metrics are equal up to
rounding."""

DATA = {
    "synthetic": "mlp",
    "digits": "small-cnn",
    "mnist-5k": "cnn",
    "mnist": "cnn",
    "fashion-mnist": "cnn",
}
"""The data sets by name, with their usual models."""

_PERTURBING, _IN_BALLS, _NESTED = (
    ("wrm", "adversarial", "trades"),
    ("adversarial", "trades"),
    ("neada", "gdmax"),
)
_APPLIES_TO: dict[str, dict[str, tuple[str, ...]]] = {
    "objective": {
        "gamma": ("wrm",),
        "eps": _IN_BALLS,
        "norm": _IN_BALLS,
        "beta": ("trades",),
        "random_start": _IN_BALLS,
        "regularizer": ("group",),
        "strength": ("group",),
        "adjustment": ("group",),
        "per_sample": _PERTURBING,
        "warm_start": _PERTURBING,
    },
    "method": {
        "random_start": _NESTED,
        "per_sample": _NESTED,
        "x_optimizer": _NESTED,
        "y_optimizer": _NESTED,
        "inner_steps": ("gdmax",),
    },
}
"""The objectives and methods of the options that do not apply to all of them."""

_ZERO_ALLOWED = ("data_seed", "seed", "beta", "adjustment", "eval_eps")
_LARGEST = {int: 2**63 - 1, float: 1e30}  # a few times 1e30 is still finite in float32
_MOST_THREADS = 1024
_UNIONS = (Union, UnionType)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The configuration of a training run, in plain JSON values.

    Raises:
        ValueError: A value is invalid, or an option does not apply to the objective or method.
    """

    # What is trained.
    data: str = "digits"
    """Data set (`neada data` lists the names), or the path of an .npz file."""
    data_folder: str | None = None
    """Folder with the files of mnist or fashion-mnist."""
    data_seed: int = 0
    """Seed of random data and splits."""
    model: Literal["auto", "linear", "mlp", "cnn", "small-cnn"] = "auto"
    """Network; auto is the default network of the data set."""
    batch_size: int = 128
    """Samples per batch."""

    # The adversary.
    objective: Literal["wrm", "adversarial", "trades", "group"] = "wrm"
    """Threat model: wrm perturbs the inputs at a price per squared distance, adversarial and trades
    within a distance, group shifts the mixture of groups."""
    gamma: float = 1.3
    """Price per squared distance (wrm)."""
    eps: float = 0.1
    """Largest perturbation, in the units of the inputs (adversarial, trades)."""
    norm: Literal["l2", "linf", "l1"] = "linf"
    """Norm of the perturbation (adversarial, trades)."""
    beta: float = 6.0
    """Weight of the difference between clean and perturbed outputs (trades)."""
    random_start: bool = False
    """Start at a random point within the distance (adversarial, trades)."""
    regularizer: Literal["kl", "chi2", "none"] = "kl"
    """Regularizer of the mixture of groups (group)."""
    strength: float = 1.0
    """Factor of the regularizer (group)."""
    adjustment: float = 0.0
    """Constant of the group-size adjustment (group)."""
    per_sample: bool | None = None
    """Stop every sample by its own gradient; None: with the objective's own adversary, if the
    samples are independent."""
    warm_start: Literal["none", "memory"] = "none"
    """memory keeps the perturbations of all samples between epochs; tiada always does."""

    # The method.
    method: Literal["neada", "gdmax", "tiada"] = "neada"
    """Algorithm: in neada a stopping rule determines the number of inner steps, in gdmax it is
    fixed, in tiada y and then x move once per batch."""
    x_optimizer: Optimizer = "adam"
    """Optimizer of the model."""
    y_optimizer: Optimizer | None = None
    """Optimizer of the adversary; None: the objective's own, which has no learning rate."""
    inner_steps: int | None = None
    """Inner steps per batch (gdmax); None: 15."""
    lr_x: float | None = None
    """Learning rate of the model; None: the usual one of the optimizer."""
    lr_y: float | None = None
    """Learning rate of a named y_optimizer, or of tiada's adversary; None: the usual one."""
    stop_scale: float = 1.0
    """Constant c of the stopping rule of neada: squared gradient at most c/(t+1) on average over
    the samples, or t+1 steps."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do if a loss or gradient is NaN or Inf: stop, or skip the batch. The tenth skipped
    batch in a row stops the run."""

    # Length.
    max_calls: int | None = None
    """Gradient evaluations of both players in total; None: 1000 if epochs is not given."""
    epochs: int | None = None
    """Passes over the data."""

    # Evaluation.
    eval_every: int | None = None
    """Gradient evaluations between two evaluations; None: ten evaluations in total."""
    log_every: int | None = None
    """Gradient evaluations between two rows of the metrics; None: 100 rows in total."""
    attack: Literal["fgsm", "pgd", "apgd", "ensemble"] = "fgsm"
    """Attack of the evaluations."""
    eval_eps: tuple[float, ...] = (0.02, 0.05, 0.1)
    """Sizes of the attacks."""
    eval_norm: Literal["linf", "l2"] = "linf"
    """Norm of the attacks."""
    eval_clip: bool = True
    """Keep attacked inputs in the valid range of the data."""
    eval_samples: int | None = 1000
    """Samples of each part of the data in evaluations; None: all."""
    final_samples: int | Literal["all"] | None = None
    """Samples of each part in an additional evaluation at the end; None: no such evaluation."""

    # The machine.
    device: str = "auto"
    """Device: cpu, cuda, cuda:1, xpu, ...; auto is the accelerator if there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the network; bf16 uses torch.autocast."""
    compile: bool = False
    """Compile the network with torch.compile."""
    channels_last: bool | None = None
    """Use the channels-last memory layout; None: for the model cnn, which is faster with it."""
    seed: int = 0
    """Seed of everything else that is random, such as initialization and batches."""
    threads: int | None = None
    """Threads of torch; None: unchanged."""

    def __post_init__(self) -> None:
        if self.max_calls is None and self.epochs is None:
            object.__setattr__(self, "max_calls", 1000)
        for field in dataclasses.fields(self):
            value = _checked(field.name, field.type, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        if not self.data.lower().endswith(".npz"):
            check_choice("data", self.data, DATA)
        if len({f"{eps:g}" for eps in self.eval_eps}) < len(set(self.eval_eps)):
            raise ValueError(f"eval_eps must differ in six digits, got {self.eval_eps}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Raise ValueError if an option does not apply, or options contradict each other."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for what, options in _APPLIES_TO.items():
            for name, takers in options.items():
                value = getattr(self, name)
                if value != defaults[name] and getattr(self, what) not in takers:
                    raise ValueError(
                        f"{name}={value!r} applies to {what} {' or '.join(map(repr, takers))}, "
                        f"not to {getattr(self, what)!r}"
                    )
        if self.lr_y is not None and self.has_inner_loop and self.y_optimizer is None:
            raise ValueError(
                f"lr_y={self.lr_y:g} requires a named y_optimizer, such as 'adam': the default "
                "adversary has no learning rate"
            )
        if self.regularizer == "none" and self.num_inner_steps != 1:
            raise ValueError(
                "regularizer='none' requires that y moves once per batch: use method='gdmax' with "
                "inner_steps=1, or method='tiada'"
            )
        if self.regularizer == "none" and self.strength != 1.0:
            raise ValueError(f"strength={self.strength:g} does not apply to regularizer='none'")
        if self.random_start and self.warm_start != "none":
            raise ValueError(f"random_start=True excludes warm_start={self.warm_start!r}")

    @property
    def has_groups(self) -> bool:
        """Whether y is the mixture of groups, so that the worst group is measured."""
        return self.objective == "group"

    @property
    def has_inner_loop(self) -> bool:
        """Whether the adversary starts anew with every batch."""
        return self.method != "tiada"

    @property
    def num_inner_steps(self) -> int | None:
        """Steps of y per step of x; None if a stopping rule determines them."""
        return self.inner_steps or {"neada": None, "gdmax": 15, "tiada": 1}[self.method]

    @property
    def model_name(self) -> str:
        """The name of the model, with "auto" resolved."""
        if self.model != "auto":
            return self.model
        return DATA.get(self.data, "mlp")

    @property
    def method_label(self) -> str:
        """A short description of the method: "neada adam", "gdmax 15 adam sgd", "tiada"."""
        if not self.has_inner_loop:
            return self.method
        parts: list[object] = [self.method, self.num_inner_steps, self.x_optimizer]
        parts += [self.y_optimizer] if self.y_optimizer != self.x_optimizer else []
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def label(self) -> str:
        """A short description of the run."""
        return f"{Path(self.data).stem} {self.objective} {self.method_label} seed {self.seed}"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "TrainConfig":
        """Create a config from the dictionary that `dataclasses.asdict` returns.

        Raises:
            ValueError: A field is unknown, or a value is invalid.
        """
        unknown = set(fields) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            names = printable(", ".join(sorted(unknown)))
            raise ValueError(f"a training config has no field {names}")
        return cls(**fields)


def _checked(name: str, annotation: Any, value: Any) -> Any:
    """Return the value of a field, with plain Python numbers; raise ValueError if it is invalid."""
    kinds = get_args(annotation) if get_origin(annotation) in _UNIONS else (annotation,)
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    number = next((kind for kind in kinds if kind in (int, float)), None)
    if value is None and NoneType in kinds:
        return None
    if get_origin(annotation) is tuple:
        with contextlib.suppress(TypeError):
            return tuple(_checked(name, float, part) for part in value)
        raise ValueError(f"{name} must be a tuple of numbers, got {shown(value)}")
    if choices and (number is None or isinstance(value, str)):
        check_choice(name, value, choices)
    elif number is not None:
        zero_allowed = name in _ZERO_ALLOWED
        check_number(
            name,
            value,
            above=0 if zero_allowed or number is float else 1,
            strict=not zero_allowed and number is float,
            most=_LARGEST[number] if name != "threads" else _MOST_THREADS,
            whole=number is int,
        )
        return number(value)
    elif not isinstance(value, kinds[0]):
        raise ValueError(f"{name} must be of type {kinds[0].__name__}, got {shown(value)}")
    return value
