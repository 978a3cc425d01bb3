"""The methods of `minimax` by name."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neada import optim, steppers, stopping
from neada.checks import check_choice, check_flags, nearest
from neada.inner import InnerOptions
from neada.scalars import Scalar
from neada.sets import Set
from neada.solve.krylov import NewtonKrylov
from neada.solve.newton import Newton
from neada.solve.verdict import fits
from neada.steppers import Stepper

__all__ = ["MethodInfo", "Players", "make_stepper", "methods", "remedy"]


class Players(NamedTuple):
    """The two players, their sets, and the arguments of the solve.

    Attributes:
        x, y: Their tensors, which require gradients.
        x_set, y_set: Their constraint sets, joint over the tensors of a player.
        rowwise: Every row (first dimension) is its own problem.
        stochastic: The gradients are noisy.
        tol: The tolerance of both gradient norms.

    Example:
        >>> x, y = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
        >>> stepper = make_stepper("tiada", Players([x], [y]))
    """

    x: list[Tensor]
    y: list[Tensor]
    x_set: Set | None = None
    y_set: Set | None = None
    rowwise: bool = False
    stochastic: bool = False
    tol: float = 1e-6


class MethodInfo(NamedTuple):
    """A method, in words.

    Attributes:
        name: The argument `method` of `minimax`.
        required_constants: Problem constants on which its parameters depend.
        required_learning_rates: Learning rates that must be chosen for the problem.
        description: What it does.
        options: The names of its arguments, which `minimax` takes as ``options``.
    """

    name: str
    required_constants: str
    required_learning_rates: str
    description: str
    options: tuple[str, ...]


_Factory = Callable[..., Stepper]
_METHODS: dict[str, tuple[_Factory, MethodInfo]] = {}


def methods() -> list[MethodInfo]:
    """All methods of `minimax`, with the problem constants and learning rates that they require.

    Example:
        >>> [info.required_learning_rates for info in methods() if info.name in ("auto", "gda")]
        ['none', 'lr_x, lr_y, ratio']
    """
    return [info for _, info in _METHODS.values()]


def make_stepper(
    method: str | Callable[[Players], Stepper],
    players: Players,
    options: Mapping[str, Any] | None = None,
) -> Stepper:
    """Build the stepper of a method.

    Args:
        method: One of those that `methods` lists, or a function of the players that returns a
            stepper.
        players: The players it moves.
        options: Arguments of a named method, such as `lr_x`.

    Raises:
        ValueError: There is no such method, or it has no such option.
        TypeError: An argument is of the wrong type, or the function returns no stepper.
    """
    options = options or {}
    check_flags(rowwise=players.rowwise, stochastic=players.stochastic)
    if callable(method):
        if options:
            raise ValueError(f"a method given as a function takes no options, got {list(options)}")
        stepper = method(players)
        if not isinstance(stepper, Stepper):
            name = getattr(method, "__name__", repr(method))
            raise TypeError(
                f"the method {name} must return a stepper, not {type(stepper).__name__}"
            )
        return stepper
    check_choice("method", method, _METHODS)
    factory, info = _METHODS[method]
    known = info.options
    num_rows = len(players.x[0]) if players.rowwise else None
    for name, number in options.items():
        if name not in known:
            near = nearest(name, known)
            there_is = f"did you mean {near!r}?" if near else f"it has {', '.join(known) or 'none'}"
            raise ValueError(f"method {method!r} has no option {name!r}; {there_is}")
        if name.startswith("lr_"):
            optim.base.check_rate(name, number, num_rows)
    return factory(players, **options)


def remedy(method: str | Callable[[Players], Stepper]) -> str:
    """What a user of a method can do about an unsolved problem; empty for the default.

    Args:
        method: As `make_stepper` takes it.
    """
    if callable(method):
        return "or change the step sizes of the method, or use the default, which has none"
    if method == "auto":
        return ""
    rates = [name for name in _METHODS[method][1].options if name.startswith("lr_")]
    if not rates:
        return "or use the default method"
    ratio = ", whose ratio may be wrong" if len(rates) > 1 else ""
    return f"or lower {' and '.join(rates)}{ratio}; the default method has no learning rates"


_Required = tuple[str, str]
"""Problem constants and learning rates."""
_NOTHING: _Required = ("none", "none")
_RATIO: _Required = ("smoothness, condition number", "lr_x, lr_y, ratio")
_MODULUS: _Required = ("smoothness, modulus", "lr_x, lr_y")


def _method(name: str, required: _Required, description: str) -> Callable[[_Factory], _Factory]:
    def register(factory: _Factory) -> _Factory:
        _, *options = inspect.signature(factory).parameters  # the players come first
        _METHODS[name] = (factory, MethodInfo(name, *required, description, tuple(options)))
        return factory

    return register


# Nested methods.


@_method(
    "auto",
    _NOTHING,
    "trust-region Newton on the maximum over y; with noise the paper's stochastic choice",
)
def _auto(players: Players) -> Stepper:
    if players.stochastic:
        return _neada_stochastic(players)
    num_rows = len(players.x[0]) if players.rowwise else 1
    size = sum(p.numel() for p in players.x + players.y) // num_rows
    homes = (players.x_set, players.y_set)
    boxes = all(home is None or home.elementwise for home in homes)
    if fits(size, num_rows):
        return Newton(
            *(players.x, players.y, players.tol),
            x_set=players.x_set,
            y_set=players.y_set,
            rowwise=players.rowwise,
        )
    if boxes and not players.rowwise:
        return NewtonKrylov(
            *(players.x, players.y, players.tol), x_set=players.x_set, y_set=players.y_set
        )
    return _nested_spectral(players)


def _nested_spectral(players: Players) -> Stepper:
    """Projected gradient steps of both players, for many coordinates in curved sets or rows."""
    # y is solved more accurately than requested because its error spoils the x gradient, but not
    # beyond its precision.
    floor = max(1e-2 * players.tol, 4.0 * torch.finfo(players.y[0].dtype).eps)
    return steppers.NeAda(
        optim.AdGD(players.x, **_common(players, "x")),
        optim.SPG(players.y, **_common(players, "y")),
        stopping.RelativeAccuracy(1e-2, floor),
        inner=InnerOptions(min_steps=0, max_steps=300),
        deterministic=True,
        rowwise=players.rowwise,
    )


@_method("neada-stochastic", _NOTHING, "nested; AdaGrad-Norm, averaged AdaGrad inside, t+1 steps")
def _neada_stochastic(players: Players, lr_x: Scalar = 1.0, lr_y: Scalar = 1.0) -> Stepper:
    return steppers.NeAda(
        optim.GeneralizedAdaGrad(players.x, lr_x, **_common(players, "x")),
        optim.GeneralizedAdaGrad(players.y, lr_y, average=1.0, **_common(players, "y")),
        stopping.InnerSteps(),
        inner=InnerOptions(keep="nothing"),
        x_samples=lambda t: t + 1,
        rowwise=players.rowwise,
    )


@_method("neada", _NOTHING, "the paper's Algorithm 3: AdaGrad-Norm, line search inside")
def _neada(players: Players, lr_x: Scalar = 1.0) -> Stepper:
    return _algorithm_3(players, lr_x, optim.Backtracking(players.y, **_common(players, "y")))


@_method("neada-adgd", _NOTHING, "the paper's Algorithm 3 with AdGD inside: no values")
def _neada_adgd(players: Players, lr_x: Scalar = 1.0) -> Stepper:
    return _algorithm_3(players, lr_x, optim.AdGD(players.y, **_common(players, "y")))


def _algorithm_3(players: Players, lr_x: Scalar, y_optimizer: optim.PlayerOptimizer) -> Stepper:
    return steppers.NeAda(
        optim.GeneralizedAdaGrad(players.x, lr_x, v0=1e-8, **_common(players, "x")),
        y_optimizer,
        stopping.GradientMapping(),
        deterministic=not players.stochastic,
        rowwise=players.rowwise,
    )


# Methods with one rule of `AdaptiveSGD` for both players.


def _register_family(
    name: str, required: _Required, description: str, psi: str, make: Callable[..., Stepper]
) -> None:
    @_method(name, required, description)
    def build(players: Players, lr_x: Scalar = 0.01, lr_y: Scalar = 0.01) -> Stepper:
        return make(*_family(players, psi, lr_x, lr_y), rowwise=players.rowwise)


def _family(
    players: Players, psi: Any, lr_x: Scalar, lr_y: Scalar
) -> tuple[optim.AdaptiveSGD, optim.AdaptiveSGD]:
    return (
        optim.AdaptiveSGD(players.x, lr_x, psi, constraint=players.x_set),
        optim.AdaptiveSGD(players.y, lr_y, psi, maximize=True, constraint=players.y_set),
    )


_SIZES: _Required = ("none", "lr_x, lr_y")
for _nested, _required, _name, _psi in (
    ("neada-gda", ("smoothness in y", "lr_x, lr_y < 2/l"), "gda", "none"),
    ("neada-adagrad-coordinate", _NOTHING, "adagrad", "adagrad"),
    ("neada-adam", _SIZES, "adam", "adam"),
    ("neada-amsgrad", _SIZES, "amsgrad", "amsgrad"),
):
    _words = f"the paper's Algorithm 2 with {_name} for both players"
    _register_family(_nested, _required, _words, _psi, steppers.NeAda)
    _words = f"the paper's Algorithm 1 with {_name}"
    _register_family(_name, _RATIO, _words, _psi, steppers.Simultaneous)


@_method("gdmax", ("smoothness in y", "lr_x, lr_y"), "nested with a fixed number of steps")
def _gdmax(
    players: Players, lr_x: Scalar = 0.01, lr_y: Scalar = 0.01, inner_steps: int = 15
) -> Stepper:
    rule = stopping.FixedSteps(inner_steps)
    return steppers.NeAda(*_family(players, "none", lr_x, lr_y), rule, rowwise=players.rowwise)


_register_family("alternating-gda", _RATIO, "x steps, then y answers", "none", steppers.Alternating)


# Methods that move both players themselves.


def _register(
    name: str,
    required: _Required,
    description: str,
    make: Callable[..., Stepper],
    rate: float = 0.01,
) -> None:
    @_method(name, required, description)
    def build(players: Players, lr_x: Scalar = rate, lr_y: Scalar = rate) -> Stepper:
        return make(players.x, players.y, lr_x, lr_y, **_sets(players))


_SMOOTHNESS: _Required = ("smoothness", "lr_x, lr_y; ratio if nonconvex")
_IN_EFFECT: _Required = ("condition number", "ratio")
_COORDINATE = partial(steppers.TiAda, scope="coordinate")
_AMSGRAD = partial(steppers.TiAdaAdam, amsgrad=True)
_register("tiada", _NOTHING, "AdaGrad for both; x waits for y", steppers.TiAda, 1.0)
_register("tiada-coordinate", _NOTHING, "TiAda with one sum per coordinate", _COORDINATE, 1.0)
_register("tiada-adam", _IN_EFFECT, "TiAda on Adam's moments", steppers.TiAdaAdam)
_register("tiada-amsgrad", _IN_EFFECT, "TiAda on AMSGrad's moments", _AMSGRAD)
_register("extragradient", _SMOOTHNESS, "look ahead, then step", steppers.Extragradient)
_register(
    *("past-extragradient", _SMOOTHNESS, "look ahead with the last gradient"),
    steppers.PastExtragradient,
)
_register(
    *("optimistic-gda", _SMOOTHNESS, "twice the new gradient minus the old"),
    steppers.OptimisticGDA,
)


@_method(
    *("adaptive-extragradient", ("none if monotone", "none")),
    "extragradient with an adaptive step; monotone problems",
)
def _adaptive_extragradient(players: Players, scale: float = 1.0) -> Stepper:
    return steppers.AdaptiveExtragradient(players.x, players.y, scale, **_sets(players))


@_method(
    *("universal-mirror-prox", ("diameter", "none")),
    "extragradient with a step from the diameter",
)
def _universal_mirror_prox(
    players: Players, diameter: float = 1.0, gradient_guess: float = 1.0
) -> Stepper:
    return steppers.UniversalMirrorProx(
        players.x, players.y, diameter, gradient_guess, **_sets(players)
    )


@_method("smoothed-agda", _MODULUS, "alternating GDA pulled to a slow center")
def _smoothed(
    players: Players,
    lr_x: Scalar = 0.01,
    lr_y: Scalar = 0.01,
    pull: float = 1.0,
    follow: float = 0.1,
) -> Stepper:
    return steppers.SmoothedAGDA(
        players.x, players.y, lr_x, lr_y, pull=pull, follow=follow, **_sets(players)
    )


@_method("adagda", _MODULUS, "momentum GDA with Adam-like scaling")
def _adagda(players: Players, lr_x: Scalar = 0.01, lr_y: Scalar = 0.1) -> Stepper:
    return steppers.AdaGDA(players.x, players.y, lr_x, lr_y, **_sets(players))


@_method("vr-adagda", _MODULUS, "AdaGDA with variance reduction")
def _vr_adagda(players: Players, lr_x: Scalar = 0.01, lr_y: Scalar = 0.1) -> Stepper:
    return steppers.VRAdaGDA(players.x, players.y, lr_x, lr_y, **_sets(players))


def _common(players: Players, player: str) -> dict[str, Any]:
    """The common arguments of a scalar optimizer for one player."""
    return {
        "maximize": player == "y",
        "constraint": players.x_set if player == "x" else players.y_set,
        "rowwise": players.rowwise,
    }


def _sets(players: Players) -> dict[str, Any]:
    return {"x_set": players.x_set, "y_set": players.y_set, "rowwise": players.rowwise}
