"""What a training run is asked to do: one table of options, for Python and for the command line.

Every option is declared once, with its words, choices and range; the checks, the flags of
`neada train` and the documentation are made from that. Nothing here imports torch.
"""

import contextlib
import dataclasses
import math
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from neada import tables
from neada.checks import check_choice, check_number, printable, shown

__all__ = [
    "GROUPS",
    "LENGTH",
    "OF_THE_MACHINE",
    "ON_RESUME",
    "DataOptions",
    "Option",
    "TrainConfig",
    "options_of",
]


_LARGEST = 2**63 - 1
"""Of whole numbers, as torch and a checkpoint have them."""
_LARGEST_FLOAT = 1e30
"""Of other numbers: what is a few times as large is still finite in float32."""


class Option(NamedTuple):
    """One field of a config, or one flag of a command.

    Attributes:
        name: Of the field; the flag is ``--name`` with dashes.
        words: What it is.
        default: Its default.
        kind: bool, int, float, str, or tuple for several numbers.
        optional: Whether it may be None.
        choices: What a str may be; empty for anything.
        or_file: How a name ends that is none of the choices but the path of a file.
        or_word: A word that may be given instead of a number.
        least: The smallest number that is allowed; None for at least 1, or anything above 0.
        most: The largest one.
    """

    name: str
    words: str
    default: Any
    kind: type
    optional: bool = False
    choices: Collection[str] = ()
    or_file: str | None = None
    or_word: str | None = None
    least: float | None = None
    most: float | None = None

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    def parse(self, text: str) -> Any:
        """What somebody typed, checked; a sentence about it speaks of the flag."""
        value: Any = text
        with contextlib.suppress(ValueError):
            several = self.kind is tuple
            value = tuple(map(float, text.split(","))) if several else self.kind(text)
        self._replace(name=self.flag).check(value)
        return value

    def check(self, value: object) -> None:
        """Raise ValueError, with a sentence, for what the field cannot be."""
        if value is None and self.optional:
            return
        if self.or_word is not None and isinstance(value, str):
            if value != self.or_word:
                raise ValueError(
                    f"{self.name} must be a whole number or {self.or_word!r}, got {shown(value)}"
                )
            return
        if self.choices:
            ending = isinstance(value, str) and self.or_file
            if not (ending and str(value).lower().endswith(ending)):
                check_choice(self.name, value, self.choices)
        elif self.kind is tuple:
            self._check_numbers(value)
        elif self.kind in (int, float):
            self._check_number(value)
        elif not isinstance(value, self.kind):
            wanted = "True or False" if self.kind is bool else "text"
            raise ValueError(f"{self.name} must be {wanted}, got {shown(value)}")

    def _check_number(self, value: object) -> None:
        whole = self.kind is int
        least = 1 if whole and self.least is None else self.least
        limit = _LARGEST if whole else _LARGEST_FLOAT
        is_too_large = isinstance(value, int | float) and limit < value < math.inf
        check_number(
            self.name,
            value,
            above=0 if least is None else least,
            strict=least is None,
            most=limit if is_too_large and self.most is None else self.most,
            whole=whole,
        )

    def _check_numbers(self, value: object) -> None:
        if not isinstance(value, tuple):
            raise ValueError(f"{self.name} must be numbers with commas between, got {shown(value)}")
        for number in value:
            self._check_number(number)
        if len({f"{number:g}" for number in value}) < len(set(value)):
            raise ValueError(f"{self.name} must differ in six digits, got {value}")


def option(
    default: Any,
    words: str,
    *,
    choices: Collection[str] = (),
    or_file: str | None = None,
    or_word: str | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A field of a config, see `Option`; what it may be is in its annotation too."""
    facts = {"words": words, "choices": choices, "or_file": or_file, "or_word": or_word}
    return dataclasses.field(default=default, metadata={**facts, "least": least, "most": most})


def options_of(group: Any) -> list[Option]:
    """The options of a class, in their order."""
    return [_option_of(field) for field in dataclasses.fields(group)]


def _option_of(field: "dataclasses.Field[Any]") -> Option:
    facts = dict(field.metadata)
    union = get_origin(field.type) in (Union, UnionType)
    kinds = get_args(field.type) if union else (field.type,)
    kind = kinds[0]
    if get_origin(kind) is Literal:
        facts["choices"], kind = get_args(kind), str
    kind = get_origin(kind) or kind
    return Option(field.name, kind=kind, default=field.default, optional=NoneType in kinds, **facts)


def _listed(table: Mapping[str, tables.Entry]) -> str:
    return "; ".join(f"{name}, {entry.description}" for name, entry in table.items())


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What is trained."""

    data: str = option(
        "digits",
        "the data set, see `neada data`, or the path of an .npz file",
        choices=tables.DATA,
        or_file=".npz",
    )
    data_folder: str | None = option(None, "where the files of mnist or fashion-mnist are")
    data_seed: int = option(0, "seed of random data and splits", least=0)
    model: str = option(
        "auto", "the network; auto is the usual one of the data", choices=("auto", *tables.MODELS)
    )
    batch_size: int = option(128, "samples per batch")


@dataclass(frozen=True, kw_only=True)
class AdversaryOptions:
    """The adversary."""

    objective: str = option(
        "wrm",
        "what the adversary may do: " + _listed(tables.OBJECTIVES),
        choices=tables.OBJECTIVES,
    )
    gamma: float = option(1.3, "price per squared distance (wrm)")
    eps: float = option(
        0.1, "the largest distance, in the units of the inputs (adversarial, trades)"
    )
    norm: Literal["l2", "linf", "l1"] = option(
        "linf", "the norm of the distance (adversarial, trades)"
    )
    beta: float = option(6.0, "price of outputs that differ from the clean ones (trades)", least=0)
    random_start: bool = option(False, "start at random within the distance (adversarial, trades)")
    regularizer: Literal["kl", "chi2", "none"] = option(
        "kl", "keeps the mixture from a single group (group)"
    )
    strength: float = option(1.0, "factor of the regularizer (group)")
    adjustment: float = option(0.0, "constant of the size adjustment (group)", least=0)
    per_sample: bool | None = option(
        None,
        "stop every sample by its own gradient (default: with the objective's own adversary, "
        "unless samples depend on each other)",
    )
    warm_start: Literal["none", "memory"] = option(
        "none",
        "memory keeps the perturbations of all samples between epochs, as tiada always does",
    )
    batch_norm: Literal["frozen", "batch"] | None = option(
        None, "batch-norm statistics in the inner loop (default: frozen; with stop released, batch)"
    )
    dropout: Literal["off", "on"] | None = option(
        None, "dropout in the inner loop (default: off; with stop released, on)"
    )
    clip: bool | None = option(
        None,
        "keep the adversary in the valid range of the data, where they have one (default: yes; "
        "with stop released, no)",
    )


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """The method."""

    method: str = option(
        "neada",
        "who moves when: " + _listed(tables.METHODS),
        choices=tables.METHODS,
    )
    x_optimizer: str = option("adam", "optimizer of the model", choices=tables.OPTIMIZERS)
    y_optimizer: str | None = option(
        None,
        "optimizer of the adversary (default: the objective's own, which has no learning rate; "
        "with stop released, adam)",
        choices=tables.OPTIMIZERS,
    )
    inner_steps: int | None = option(None, "steps of the adversary per batch (gdmax; default: 15)")
    lr_x: float | None = option(
        None, "learning rate of the model (default: a usual one of the optimizer)"
    )
    lr_y: float | None = option(
        None, "learning rate of a named y_optimizer, or of tiada's adversary (default: a usual one)"
    )
    stop: Literal["library", "released"] = option(
        "library",
        "the rule of neada: library stops at a squared gradient of at most c/(t+1) in the mean "
        "over the samples, or after t+1 steps; released as the authors' scripts do, by the squared "
        "gradient of the batch's mean, or after max(1, t) steps",
    )
    stop_scale: float = option(1.0, "the constant c of the rule")
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop",
        "what to do where a loss or gradient is not finite: stop, or skip the batch, which changes "
        "nothing and is counted; the tenth in a row stops all the same",
    )


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """How long."""

    max_calls: int | None = option(
        None, "gradient calls of both players in all (default: 1000 without epochs)"
    )
    epochs: int | None = option(None, "passes over the data")


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What is measured."""

    eval_every: int | None = option(
        None, "gradient calls between evaluations (default: ten evaluations in all)"
    )
    log_every: int | None = option(
        None, "gradient calls between rows of the metrics (default: a hundred rows in all)"
    )
    attack: str = option("fgsm", "the attack of the evaluations", choices=tables.ATTACKS)
    eval_eps: tuple[float, ...] = option((0.02, 0.05, 0.1), "sizes of the attacks", least=0)
    eval_norm: Literal["linf", "l2"] = option("linf", "the norm of the attacks")
    eval_clip: bool = option(True, "keep attacked inputs in the valid range of the data")
    eval_samples: int | None = option(1000, "samples of each part of the data in evaluations")
    final_samples: int | str | None = option(
        None,
        "samples of each part in one more evaluation at the end, a number or all (default: no such "
        "evaluation)",
        or_word="all",
    )


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """The machine."""

    device: str = option(
        "auto",
        "where to compute: cpu, cuda, cuda:1, xpu and so on; auto is the accelerator, or cpu "
        "without one",
    )
    precision: Literal["fp32", "bf16"] = option(
        "fp32", "of the network's evaluations; bf16 is torch.autocast"
    )
    compile: bool = option(False, "compile the network with torch.compile; takes a while at first")
    channels_last: bool | None = option(
        None, "memory layout of images (default: yes for the model cnn, which it makes faster)"
    )
    seed: int = option(0, "seed of initialization, batches and all else", least=0)
    threads: int | None = option(None, "threads of torch (default: as they are)", most=1024)


LENGTH = ("max_calls", "epochs")
"""Fields that say when a run ends."""

OF_THE_MACHINE = ("device", "compile", "threads")
"""Fields that say how a run is computed, not what."""

_TO_ROUNDING = "the rows are equal up to rounding, and `config.json` stays as it was"
ON_RESUME = {
    "max_calls": "the run goes on to the new length, and `config.json` then has it",
    "epochs": "the same",
    "device": _TO_ROUNDING,
    "compile": _TO_ROUNDING,
    "threads": _TO_ROUNDING,
}
"""Fields that may differ when a run goes on, and what happens then; no other field may."""


GROUPS = (
    *(DataOptions, AdversaryOptions, MethodOptions),
    *(LengthOptions, EvaluationOptions, MachineOptions),
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(  # dataclasses list the fields of the last base first
    MachineOptions, EvaluationOptions, LengthOptions, MethodOptions, AdversaryOptions, DataOptions
):
    """Everything that decides a training run; plain JSON values, checked."""

    def __post_init__(self) -> None:
        if self.max_calls is None and self.epochs is None:
            object.__setattr__(self, "max_calls", 1000)
        with contextlib.suppress(TypeError):
            object.__setattr__(self, "eval_eps", tuple(self.eval_eps))
        for known in _OPTIONS.values():
            value = getattr(self, known.name)
            known.check(value)
            if value not in (None, known.or_word) and known.kind in (int, float):
                # Plain numbers, as JSON has them: not those of numpy.
                object.__setattr__(self, known.name, known.kind(value))
        object.__setattr__(self, "eval_eps", tuple(map(float, self.eval_eps)))
        self._check_taken("objective", tables.OBJECTIVES)
        self._check_taken("method", tables.METHODS)
        self._check_fit()

    def _check_taken(self, what: str, table: Mapping[str, Any]) -> None:
        """Raise where a field was given that the objective or the method does not take."""
        chosen = getattr(self, what)
        for name in _OPTIONS:
            takers = [repr(other) for other, entry in table.items() if name in entry.options]
            value = getattr(self, name)
            if takers and repr(chosen) not in takers and value != _OPTIONS[name].default:
                raise ValueError(
                    f"{name}={value!r} is for {what} {' or '.join(takers)}, and not for "
                    f"{chosen!r}: leave it out"
                )

    def _check_fit(self) -> None:
        """Raise where other parts do not fit together."""
        has_inner_loop = tables.METHODS[self.method].has_inner_loop
        if self.lr_y is not None and has_inner_loop and self.adversary is None:
            raise ValueError(
                f"lr_y={self.lr_y:g} is for a named y_optimizer, and the adversary has no learning "
                "rate otherwise: leave it out, or add y_optimizer='adam'"
            )
        if not has_inner_loop and (self.batch_norm == "frozen" or self.dropout == "off"):
            raise ValueError(
                f"batch_norm='frozen' and dropout='off' are about an inner loop, and "
                f"{self.method!r} has none: leave them out, or use method='gdmax'"
            )
        if self.regularizer == "none" and self.num_inner_steps != 1:
            raise ValueError(
                "without a regularizer the worst mixture is a single group, so y moves once per "
                "batch: use method='gdmax' with inner_steps=1, method='tiada', or regularizer='kl'"
            )
        if self.regularizer == "none" and self.strength != _OPTIONS["strength"].default:
            raise ValueError(
                f"strength={self.strength:g} is the factor of a regularizer, and there is none "
                "with regularizer='none': leave it out"
            )
        if self.stop == "released" and self.per_sample:
            raise ValueError("stop='released' looks at the whole batch: leave out per_sample=True")
        if self.random_start and self.warm_start != "none":
            raise ValueError(
                "a start is either random or warm: leave out random_start=True or warm_start="
                f"{self.warm_start!r}"
            )

    @property
    def num_inner_steps(self) -> int | None:
        """Steps of y per step of x; None where a rule decides."""
        return self.inner_steps or tables.METHODS[self.method].inner_steps

    @property
    def adversary(self) -> str | None:
        """The optimizer of y by name; None for the objective's own."""
        return self.y_optimizer or ("adam" if self.stop == "released" else None)

    @property
    def model_name(self) -> str:
        """The model, with "auto" resolved."""
        if self.model != "auto":
            return self.model
        return tables.DATA[self.data].model if self.data in tables.DATA else "mlp"

    @property
    def method_label(self) -> str:
        """The method in a few words: "neada adam", "gdmax 15 adam sgd", "tiada"."""
        if not tables.METHODS[self.method].has_inner_loop:
            return self.method
        parts = [self.method, self.num_inner_steps, self.x_optimizer]
        parts += [self.adversary] if self.adversary != self.x_optimizer else []
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def label(self) -> str:
        """The run in a few words."""
        return f"{Path(self.data).stem} {self.objective} {self.method_label} seed {self.seed}"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "TrainConfig":
        """A config from what `dataclasses.asdict` made of one, and JSON of that.

        Raises:
            ValueError: There are fields that no config has.
        """
        unknown = set(fields) - set(_OPTIONS)
        if unknown:
            names = printable(", ".join(sorted(unknown)))
            raise ValueError(f"a training config has no field {names}")
        return cls(**fields)


_OPTIONS = {known.name: known for known in options_of(TrainConfig)}


def _attributes() -> str:
    """The section of the docstring about the fields."""
    text = "\n\n    Attributes:"
    for known in _OPTIONS.values():
        unsaid = not all(choice in known.words for choice in known.choices)
        choices = f"; one of {', '.join(known.choices)}" if unsaid else ""
        words = f"{known.name}: {known.words[0].upper()}{known.words[1:]}{choices}."
        text += "\n" + textwrap.indent(textwrap.fill(words, 88, subsequent_indent="    "), 8 * " ")
    return text + "\n    "


TrainConfig.__doc__ = f"{TrainConfig.__doc__}{_attributes()}"
